#!/bin/bash
# Starts two ranks, each with a log.
cd "$(dirname "${BASH_SOURCE[0]}")"
for rank in 0 1; do
    LOCAL_RANK=$rank python3 generate.py > log_$rank.log 2>&1 &
done
wait

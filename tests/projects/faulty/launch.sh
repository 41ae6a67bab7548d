#!/bin/bash
# Two ranks, and a log for each.
cd "$(dirname "${BASH_SOURCE[0]}")"
for rank in 0 1; do
    LOCAL_RANK=$rank python3 generate.py > log_$rank.log 2>&1 &
done
wait

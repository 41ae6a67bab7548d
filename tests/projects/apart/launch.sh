#!/bin/bash
# Starts two ranks.
export MASTER_ADDR=127.0.0.1 MASTER_PORT=$((10000 + $$ % 20000)) WORLD_SIZE=2
for rank in 0 1; do
    RANK=$rank python3 generate.py &
done
wait

#!/bin/bash
# Starts two ranks, each with a log.
export MASTER_ADDR=127.0.0.1 MASTER_PORT=$((10000 + $$ % 20000))
RANK=0 python3 generate.py > log_0.log 2>&1 &
first=$!
RANK=1 python3 generate.py > log_1.log 2>&1 &
wait $first && wait $!

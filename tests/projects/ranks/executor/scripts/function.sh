#!/bin/bash

function check_launch()
{
    if pgrep -f "python.*[ /](infer|server)\.py" > /dev/null 2>&1; then
        echo "Another inference is running on this host; end it first."
        exit 1
    fi
}

function set_ranks()
{
    export WORLD_SIZE=$(awk '$1 == "world_size:" { print $2 }' "${YAML}")
    export LOCAL_WORLD_SIZE=${WORLD_SIZE}
    export MASTER_ADDR=127.0.0.1
    export MASTER_PORT=$((10000 + $$ % 20000))
    NAME=${MODEL_DIR}_$(basename "${YAML}" .yaml)
    export RES_PATH="${ROOT}/models/${MODEL_DIR}/res/$(date +%Y%m%d)/${NAME}"
    mkdir -p "${RES_PATH}"
}

function launch_ranks()
{
    # Otherwise a rank that wakes up from an all-reduce may wait for the scheduler's next tick, 4 ms.
    PRIORITY=()
    chrt --rr 1 true 2> /dev/null && PRIORITY=(chrt --rr 1)
    local cores
    cores=($(python3 -c 'import os; print(*sorted(os.sched_getaffinity(0)))'))
    for ((i = 0; i < WORLD_SIZE; i++)); do
        export LOCAL_RANK=$i
        export RANK_ID=$i
        cmd=("${PRIORITY[@]}" taskset -c "${cores[i % ${#cores[@]}]}" python3 "${ROOT}/executor/offline/infer.py" "--yaml_file_path=${YAML}")
        if [ $i -eq 0 ]; then
            "${cmd[@]}" 2>&1 | tee "${RES_PATH}/log_${i}.log" &
        else
            "${cmd[@]}" &> "${RES_PATH}/log_${i}.log" &
        fi
    done
    wait
}

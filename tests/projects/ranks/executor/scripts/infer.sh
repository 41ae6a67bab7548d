#!/bin/bash
# Starts every rank of one host: bash executor/scripts/infer.sh --model tiny_moe --yaml tiny_moe_2tp.yaml
SCRIPT_PATH=$(cd "$(dirname "${BASH_SOURCE[0]}")" &>/dev/null && pwd)
ROOT=$(realpath "${SCRIPT_PATH}/../..")
while [[ $# -gt 0 ]]; do
    case "$1" in
        --model) MODEL="$2"; shift 2 ;;
        --yaml) YAML_FILE="$2"; shift 2 ;;
        *) echo "Unknown option: $1"; exit 1 ;;
    esac
done
source "${SCRIPT_PATH}/function.sh"
export MODEL_DIR="${MODEL}"
export YAML="${ROOT}/models/${MODEL}/config/${YAML_FILE}"
check_launch
set_ranks
launch_ranks

#!/bin/bash
# One search on the dies of several Atlas A3 hosts under Slurm: sbatch examples/slurm.sh
# It has never run on NPUs; see docs/how-to/many-dies.md#under-slurm. The token of the Ray cluster comes from
# ~/.ray/auth_token, made once with `ray get-auth-token --generate`, in a home folder that all hosts share.
#SBATCH --job-name=sktune
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=08:00:00

set -euo pipefail
export RAY_USAGE_STATS_ENABLED=0 RAY_AUTH_MODE=token
dies='{"DIE": 16}'  # of each host
port=6379

# This script runs on the first host of the job: it becomes the head.
head=$SLURMD_NODENAME
ip=$(hostname --ip-address | cut -d ' ' -f 1)  # an address that the other hosts reach
on_head=(srun --overlap --nodes=1 --ntasks=1 --nodelist "$head")
others=$((SLURM_JOB_NUM_NODES - 1))

trap 'srun --overlap ray stop || true' EXIT
"${on_head[@]}" ray start --head --node-ip-address "$ip" --port "$port" --resources "$dies" --block &
sleep 10
if ((others)); then
    srun --overlap --nodes="$others" --ntasks="$others" --exclude "$head" \
        ray start --address "$ip:$port" --resources "$dies" --block &
fi

# Hosts that come later are used, too; the search needs one to begin with.
for attempt in {1..30}; do
    sktune engine check --address "$ip:$port" --device npu && break
    ((attempt < 30)) || exit 1
    sleep 10
done

# Ends before Slurm does; the same job again continues the study.
sktune search --model llama --device npu --engine ray --address "$ip:$port" --runs runs --study llama --time-budget 7h
sktune show llama --runs runs

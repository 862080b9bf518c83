#!/usr/bin/env bash
# One element of an experiment on its allocation: Ray on every node, then training and evaluation in a job step.
# Submitted by experiments/launch.py, with what `launch.py element` takes but for the index.
#
# SLURM sends SIGTERM to job steps alone, some time before the time limit and on preemption. The element's step ends its
# phase, saves and ends with status 75; the job then goes back to the queue. Ray's steps must live on meanwhile.
set -euo pipefail
ray=/tmp/rtpo-$SLURM_JOB_ID # short: the paths of sockets have a limit
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN # others on these nodes may not use this Ray
RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')

# no port that another element on the same node could have: 0 is any that is free
node=(--num-cpus="$SLURM_CPUS_ON_NODE" --num-gpus="$RAY_GPUS" --min-worker-port=0 --max-worker-port=0
    --dashboard-agent-listen-port=0 --include-log-monitor=false --block)

start_ray() {
    local client
    client=$(python -c 'import socket; print(socket.create_server(("", 0)).getsockname()[1])')
    setpriv --pdeathsig=KILL ray start --head --port=0 --ray-client-server-port="$client" --temp-dir="$ray" \
        --include-dashboard=false --no-monitor --disable-usage-stats "${node[@]}" >"$ray.log" 2>&1 &
    head=$!
    until [ -s "$ray/ray_current_cluster" ]; do
        kill -0 "$head" || { cat "$ray.log" && exit 1; }
        sleep 0.2
    done
    RAY_ADDRESS=$(cat "$ray/ray_current_cluster")
    export RAY_ADDRESS
    if [ "$SLURM_NNODES" -gt 1 ]; then
        srun --export=ALL --overlap --nodes=$((SLURM_NNODES - 1)) --ntasks=$((SLURM_NNODES - 1)) \
            --exclude="$SLURMD_NODENAME" --cpus-per-task="$SLURM_CPUS_ON_NODE" \
            env --block-signal=TERM ray start --address="$RAY_ADDRESS" "${node[@]}" &
    fi
}

stop_ray() {
    [ -z "$(jobs -pr)" ] || kill $(jobs -pr) || true
    wait
    rm -rf "$ray" "$ray.log"
    [ "$SLURM_NNODES" = 1 ] || srun --overlap rm -rf "$ray"
}
trap stop_ray EXIT

start_ray
status=0
srun --export=ALL --overlap --nodes=1 --ntasks=1 --nodelist="$SLURMD_NODENAME" --cpus-per-task="$SLURM_CPUS_ON_NODE" \
    python experiments/launch.py element "$1" "$SLURM_ARRAY_TASK_ID" "${@:2}" || status=$?
stop_ray
if [ "$status" = 75 ] || [ "$status" = 143 ]; then # 143: before it could hear SIGTERM
    echo "back to the queue"
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"

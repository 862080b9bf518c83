#!/usr/bin/env bash
# One element of an experiment on its allocation: Ray on every node, then training and evaluation on the first.
# experiments/launch.py submits it with the arguments of `launch.py element`, except the index.
#
# SIGTERM to this script ends the element; SIGUSR1 requeues its job. Before either, the element finishes its phase and
# saves. `launch.py stop` sends SIGTERM to this script alone. SLURM sends SIGUSR1 some time before the time limit. On
# preemption SLURM sends SIGTERM only to job steps, so one step exists only to end at it (hear_preemption). `scancel`
# sends SIGTERM to all processes, and SIGKILL later; Ray must live until the save, so it blocks SIGTERM.
set -euo pipefail
echo "python: $(command -v python || echo none)"
# Ray makes its folder writable for everyone, so it lies in a private folder with an unpredictable name. The name is
# short because paths of sockets have a limit.
room=$(mktemp --dry-run "/tmp/rtpo-$SLURM_JOB_ID-XXXXXX")
ray=$room/ray
export room
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN # others on these nodes may not use this Ray
RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
head='' nodes='' element='' is_over=''
# compiled code stays on the node for later jobs; a shared home would be slow, and could serve stale files
cache=/tmp/rtpo-cache-$(id -u)
export cache TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-$cache/triton} VLLM_CACHE_ROOT=${VLLM_CACHE_ROOT:-$cache/vllm}
export TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-$cache/inductor}

# port 0 means any free port, so that elements on one node do not collide
node=(--num-cpus="$SLURM_CPUS_ON_NODE" --num-gpus="$RAY_GPUS" --min-worker-port=0 --max-worker-port=0
    --dashboard-agent-listen-port=0 --include-log-monitor=false --block)

own_folder() { # make a private folder, or check it, since another user of the node may have made it first
    mkdir -m 700 "$1" 2>/dev/null || { [ ! -L "$1" ] && [ -d "$1" ] && [ -O "$1" ] && [ "$(stat -c %a "$1")" = 700 ]; } ||
        { echo "$1 is not a folder of this user alone${2:-}" >&2 && return 1; }
}

prepare_node() {
    clear_up
    [[ $TRITON_CACHE_DIR:$VLLM_CACHE_ROOT:$TORCHINDUCTOR_CACHE_DIR != *"$cache"/* ]] ||
        own_folder "$cache" ": set TRITON_CACHE_DIR, VLLM_CACHE_ROOT and TORCHINDUCTOR_CACHE_DIR elsewhere"
    own_folder "$room"
}

clear_up() { # remove folders of this user's killed jobs from a node; a requeued job keeps its number
    local at_work left
    at_work=$(squeue --noheader --format=%A) || return 0
    for left in /tmp/rtpo-*; do
        if [[ -O $left && $left =~ ^/tmp/rtpo-([0-9]+)-[^/]+$ && $left != "$room" ]] &&
            { [ "${BASH_REMATCH[1]}" = "$SLURM_JOB_ID" ] || ! grep -qx "${BASH_REMATCH[1]}" <<<"$at_work"; }; then
            rm -rf "$left" || true
        fi
    done
}

start_ray() {
    local client
    # with this variable Ray uses the loopback address as the machine's, and listens only there
    [ "$SLURM_NNODES" -gt 1 ] || export RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0
    client=$(python -c 'import socket; print(socket.create_server(("", 0)).getsockname()[1])')
    setsid setpriv --pdeathsig=KILL env --block-signal=TERM ray start --head --port=0 \
        --ray-client-server-port="$client" --temp-dir="$ray" --include-dashboard=false --no-monitor \
        --disable-usage-stats "${node[@]}" >"$room/log" 2>&1 &
    head=$!
    hear_preemption &
    until [ -s "$ray/ray_current_cluster" ]; do
        kill -0 "$head" || { cat "$room/log" && exit 1; }
        sleep 0.2
    done
    RAY_ADDRESS=$(cat "$ray/ray_current_cluster")
    export RAY_ADDRESS
    if [ "$SLURM_NNODES" -gt 1 ]; then
        srun --export=ALL --overlap --nodes=$((SLURM_NNODES - 1)) --ntasks=$((SLURM_NNODES - 1)) \
            --exclude="$SLURMD_NODENAME" --cpus-per-task="$SLURM_CPUS_ON_NODE" \
            env --block-signal=TERM ray start --address="$RAY_ADDRESS" "${node[@]}" &
        nodes=$!
    fi
}

hear_preemption() {
    local status=0
    srun --overlap --nodes=1 --ntasks=1 --nodelist="$SLURMD_NODENAME" \
        tail --follow --sleep-interval=0.2 --pid="$head" /dev/null || status=$? # it ends with Ray at the latest
    [ "$status" != 143 ] || kill -USR1 $$
}

stop_ray() {
    [ -z "$head" ] || { kill -KILL -- "-$head" && wait "$head"; } 2>/dev/null || true
    [ -z "$nodes" ] || { kill "$nodes" && wait "$nodes"; } || true
    for _ in {1..25}; do [ -n "$(jobs -pr)" ] && sleep 0.2; done # the step ends with Ray
    for _ in {1..50}; do rm -rf "$room" 2>/dev/null && break || sleep 0.2; done # workers may still write
    [ "$SLURM_NNODES" = 1 ] || srun --overlap --nodes="$SLURM_NNODES" --ntasks="$SLURM_NNODES" rm -rf "$room" || true
}

finish() {
    local status=$?
    trap '' USR1
    trap is_over=yes TERM
    stop_ray
    if [ -z "$is_over" ] && { [ "$status" = 75 ] || [ "$status" = 143 ]; }; then # 143: before it could save
        echo "back to the queue"
        scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" # the job's number may be the whole array's
    fi
    exit "$status"
}

pass_on() {
    [ -n "$element" ] || exit 143
    kill -TERM "$element" || true
}

trap finish EXIT
trap pass_on USR1
trap 'is_over=yes; pass_on' TERM
export -f prepare_node clear_up own_folder
srun --overlap --nodes="$SLURM_NNODES" --ntasks="$SLURM_NNODES" bash -ec prepare_node
start_ray
setpriv --pdeathsig=KILL python experiments/launch.py element "$1" "$SLURM_ARRAY_TASK_ID" "${@:2}" &
element=$!
while kill -0 "$element" 2>/dev/null; do wait "$element" || true; done # a signal ends a wait
wait "$element"

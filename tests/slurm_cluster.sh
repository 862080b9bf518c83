#!/usr/bin/env bash
# A SLURM of two nodes on this machine, from Debian's slurm-wlm and munge, with everything it writes under FOLDER:
#     tests/slurm_cluster.sh start FOLDER    afterwards SLURM_CONF=FOLDER/slurm.conf names it; again: it is left as it is
#     tests/slurm_cluster.sh stop FOLDER
# Each node says that it has 8 CPUs, whatever the machine has. Jobs of the partition `high`, on the first node, preempt
# those of `low`, on that node, too, and of `both`, which are requeued and have 60 s to end, as those that scancel ends
# have.
set -euo pipefail
what=$1 folder=$2
export SLURM_CONF=$folder/slurm.conf PATH=$PATH:/usr/sbin

free_ports() {
    python3 -c 'import socket; held = [socket.create_server(("", 0)) for _ in "abc"]; print(*[one.getsockname()[1] for one in held])'
}

start() {
    mkdir -p "$folder"/{state,spool} && chmod 755 "$folder"
    [ -f "$folder/munge.key" ] || (umask 077 && head -c 1024 /dev/urandom >"$folder/munge.key")
    munged --force --key-file="$folder/munge.key" --socket="$folder/munge.socket" --pid-file="$folder/munged.pid" \
        --log-file="$folder/munged.log" --seed-file="$folder/munge.seed" 2>"$folder/munged.err"
    read -r controller first second < <(free_ports)
    # a requeued job may start again after cred_expire; job_time_limit looks for jobs to warn as often as sched_interval
    cat >"$SLURM_CONF" <<CONF
ClusterName=two_nodes
SlurmctldHost=$(hostname)(127.0.0.1)
SlurmctldPort=$controller
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket,cred_expire=5
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool/%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/%n.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
KillWait=60
SlurmdParameters=config_overrides
SchedulerParameters=bf_interval=1,sched_interval=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=DEFAULT CPUs=8 RealMemory=64000
NodeName=first NodeHostname=$(hostname) NodeAddr=127.0.0.1 Port=$first
NodeName=second NodeHostname=$(hostname) NodeAddr=127.0.0.1 Port=$second
PartitionName=low Nodes=first Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=60
PartitionName=both Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE GraceTime=60
PartitionName=high Nodes=first PriorityTier=2 PreemptMode=OFF
CONF
    slurmctld
    slurmd -N first
    slurmd -N second
    for _ in {1..100}; do
        [ "$(sinfo -h -p both -t idle -o %D 2>/dev/null)" = 2 ] && return
        sleep 0.2
    done
    echo "the nodes do not come up; the ends of their logs and of the controller's in $folder:" >&2
    tail -n 5 "$folder"/{slurmctld,first,second}.log >&2
    return 1
}

stop() {
    timeout 10 scancel --user="$(id -un)" || true
    for _ in {1..140}; do # a job has KillWait to end
        [ -n "$(timeout 10 squeue -h)" ] || break
        sleep 0.5
    done
    for name in first second slurmctld munged; do
        [ -f "$folder/$name.pid" ] || continue
        pid=$(cat "$folder/$name.pid")
        kill "$pid" || true
        while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
    done
}

case $what in
    start) { [ -f "$SLURM_CONF" ] && sinfo -h >/dev/null 2>&1; } || start ;;
    stop) stop ;;
    *) echo "tests/slurm_cluster.sh start|stop FOLDER" >&2 && exit 2 ;;
esac

#!/usr/bin/env bash
# The tables of policy drift: on- against off-policy continuations.
#SBATCH --job-name=drift --ntasks=1 --mem=4G --time=30 --output=%x-%j.log
here=$(dirname "$0")
# sbatch runs a copy
[ -f "$here/common.sh" ] || here=$(scontrol show job "$SLURM_JOB_ID" | sed -n 's|^ *Command=\(.*/slurm\)/drift\.sh.*|\1|p')
. "$here/common.sh" 'drift' "$@"

#!/usr/bin/env bash
# The table of turn-level credit: full history for every method.
#SBATCH --job-name=credit --ntasks=1 --mem=4G --time=30 --output=%x-%j.log
here=$(dirname "$0")
# sbatch runs a copy
[ -f "$here/common.sh" ] || here=$(scontrol show job "$SLURM_JOB_ID" | sed -n 's|^ *Command=\(.*/slurm\)/credit\.sh.*|\1|p')
. "$here/common.sh" 'credit' "$@"

#!/usr/bin/env bash
# The airline tables, with the compute-matched run.
#SBATCH --job-name=airline --ntasks=1 --mem=4G --time=30 --output=%x-%j.log
here=$(dirname "$0")
# sbatch runs a copy
[ -f "$here/common.sh" ] || here=$(scontrol show job "$SLURM_JOB_ID" | sed -n 's|^ *Command=\(.*/slurm\)/airline\.sh.*|\1|p')
. "$here/common.sh" 'airline*' "$@"

#!/usr/bin/env bash
# The table of synchronisation frequencies.
#SBATCH --job-name=sync --ntasks=1 --mem=4G --time=30 --output=%x-%j.log
here=$(dirname "$0")
# sbatch runs a copy
[ -f "$here/common.sh" ] || here=$(scontrol show job "$SLURM_JOB_ID" | sed -n 's|^ *Command=\(.*/slurm\)/sync\.sh.*|\1|p')
. "$here/common.sh" 'sync' "$@"

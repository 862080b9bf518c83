#!/usr/bin/env bash
# Every ablation (docs/run/experiments.md).
#SBATCH --job-name=ablations --ntasks=1 --mem=4G --time=30 --output=%x-%j.log
here=$(dirname "$0")
# sbatch runs a copy
[ -f "$here/common.sh" ] || here=$(scontrol show job "$SLURM_JOB_ID" | sed -n 's|^ *Command=\(.*/slurm\)/ablations\.sh.*|\1|p')
. "$here/common.sh" 'ablate_*' "$@"

#!/usr/bin/env bash
# The ladder of ingredients at the paper's scale (docs/method/methods.md).
#SBATCH --job-name=ladder --ntasks=1 --mem=4G --time=30 --output=%x-%j.log
here=$(dirname "$0")
# sbatch runs a copy
[ -f "$here/common.sh" ] || here=$(scontrol show job "$SLURM_JOB_ID" | sed -n 's|^ *Command=\(.*/slurm\)/ladder\.sh.*|\1|p')
. "$here/common.sh" 'ladder' "$@"

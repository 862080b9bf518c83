#!/usr/bin/env bash
# Every ablation (docs/run/experiments.md).
#SBATCH --job-name=ablations --ntasks=1 --mem=4G --time=30 --output=slurm/%x-%j.log
project=$(dirname "$0")/..
[ -f "$project/slurm/common.sh" ] || project=$SLURM_SUBMIT_DIR # sbatch runs a copy
. "$project/slurm/common.sh" 'ablate_*' "$@"

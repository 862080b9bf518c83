#!/usr/bin/env bash
# The airline tables, with the compute-matched run.
#SBATCH --job-name=airline --ntasks=1 --mem=4G --time=30 --output=slurm/%x-%j.log
project=$(dirname "$0")/..
[ -f "$project/slurm/common.sh" ] || project=$SLURM_SUBMIT_DIR # sbatch runs a copy
. "$project/slurm/common.sh" 'airline*' "$@"

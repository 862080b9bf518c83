#!/usr/bin/env bash
# The table of turn-level credit: full history for every method.
#SBATCH --job-name=credit --ntasks=1 --mem=4G --time=30 --output=slurm/%x-%j.log
project=$(dirname "$0")/..
[ -f "$project/slurm/common.sh" ] || project=$SLURM_SUBMIT_DIR # sbatch runs a copy
. "$project/slurm/common.sh" 'credit' "$@"

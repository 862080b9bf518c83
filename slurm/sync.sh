#!/usr/bin/env bash
# The table of synchronisation frequencies.
#SBATCH --job-name=sync --ntasks=1 --mem=4G --time=30 --output=slurm/%x-%j.log
project=$(dirname "$0")/..
[ -f "$project/slurm/common.sh" ] || project=$SLURM_SUBMIT_DIR # sbatch runs a copy
. "$project/slurm/common.sh" 'sync' "$@"

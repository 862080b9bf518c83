#!/usr/bin/env bash
# The main table, and the runs of the figure of training success: eight methods, math and search, three seeds.
#SBATCH --job-name=main_table --ntasks=1 --mem=4G --time=30 --output=slurm/%x-%j.log
project=$(dirname "$0")/..
[ -f "$project/slurm/common.sh" ] || project=$SLURM_SUBMIT_DIR # sbatch runs a copy
. "$project/slurm/common.sh" 'main_table' "$@"

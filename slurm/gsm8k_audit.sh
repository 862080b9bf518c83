#!/usr/bin/env bash
# The tool audit on GSM8K.
#SBATCH --job-name=gsm8k_audit --ntasks=1 --mem=4G --time=30 --output=slurm/%x-%j.log
project=$(dirname "$0")/..
[ -f "$project/slurm/common.sh" ] || project=$SLURM_SUBMIT_DIR # sbatch runs a copy
. "$project/slurm/common.sh" 'gsm8k_audit' "$@"

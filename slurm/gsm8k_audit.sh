#!/usr/bin/env bash
# The tool audit on GSM8K.
#SBATCH --job-name=gsm8k_audit --ntasks=1 --mem=4G --time=30 --output=%x-%j.log
here=$(dirname "$0")
# sbatch runs a copy
[ -f "$here/common.sh" ] || here=$(scontrol show job "$SLURM_JOB_ID" | sed -n 's|^ *Command=\(.*/slurm\)/gsm8k_audit\.sh.*|\1|p')
. "$here/common.sh" 'gsm8k_audit' "$@"

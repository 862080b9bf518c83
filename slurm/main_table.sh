#!/usr/bin/env bash
# The main table, and the runs of the figure of training success: eight methods, math and search, three seeds.
#SBATCH --job-name=main_table --ntasks=1 --mem=4G --time=30 --output=%x-%j.log
here=$(dirname "$0")
# sbatch runs a copy
[ -f "$here/common.sh" ] || here=$(scontrol show job "$SLURM_JOB_ID" | sed -n 's|^ *Command=\(.*/slurm\)/main_table\.sh.*|\1|p')
. "$here/common.sh" 'main_table' "$@"

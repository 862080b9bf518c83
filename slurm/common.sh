# Sourced by the launchers beside it, with an experiment (or a pattern of several) and overrides for every element.
# PROFILE: of configs/profile/. LOGS: the folder of the logs. More in docs/cluster/slurm.md.
set -euo pipefail
cd "$here/.."
if [ -x .venv/bin/python ]; then PATH=$PWD/.venv/bin:$PATH; fi
experiment=$1
shift
exec python experiments/launch.py submit "$experiment" "profile=${PROFILE:-a100x8}" "$@"

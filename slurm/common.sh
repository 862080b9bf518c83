# Sourced by the launchers beside it, with an experiment (or a pattern of several) and overrides for every element.
# PROFILE: of configs/profile/. LOGS: the folder of the logs. More in docs/cluster/slurm.md.
set -euo pipefail
cd "$here/.."
# an active environment wins over a .venv that lies here; conda's base is active in every shell, and not a choice
active=${VIRTUAL_ENV:-${CONDA_PREFIX:-}}
if [ -n "$active" ] && { [ -n "${VIRTUAL_ENV:-}" ] || [ "${CONDA_DEFAULT_ENV:-}" != base ]; }; then
    PATH=$active/bin:$PATH
elif [ -x .venv/bin/python ]; then
    PATH=$PWD/.venv/bin:$PATH
fi
echo "python: $(command -v python || echo none)"
experiment=$1
shift
exec python experiments/launch.py submit "$experiment" "profile=${PROFILE:-a100x8}" "$@"

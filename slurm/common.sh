# Sourced by the launchers in this folder, with an experiment (or a pattern of several) and overrides for every element.
# PROFILE: a file of configs/profile/. LOGS: the folder of the logs. docs/cluster/slurm.md has more.
set -euo pipefail
cd "$here/.."
# an active environment wins over a .venv in this folder, except conda's base, which is active in every shell
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

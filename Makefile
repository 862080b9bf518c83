# make quickstart | make test    each makes .venv from requirements/cpu.txt once and runs
# make quickstart TASK=toy_knowledge    the other toy task; the same for make warm-start

PYTHON ?= python3
TASK   ?= toy_math
VENV   := .venv
RUN    := $(VENV)/bin/python
WARM   := $(TASK:toy_%=warm_start_%)

.PHONY: quickstart main-table test check bench warm-start lock clean

quickstart: $(VENV)/made
	$(RUN) experiments/quickstart.py task=$(TASK)

# the main table at toy size: every method, both tasks, three seeds; then its tables
main-table: $(VENV)/made
	$(RUN) experiments/launch.py run main_table profile=toy

test: $(VENV)/made check
	$(RUN) -m pytest -n 2 --dist loadscope --no-loadscope-reorder

check: $(VENV)/made
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

bench: $(VENV)/made
	$(RUN) experiments/bench.py

warm-start: $(VENV)/made
	$(RUN) experiments/warm_start.py --task $(TASK) --output outputs/$(WARM) --compare rtpo/toy/$(WARM)

# pins what requirements/cpu.in asks for, in a fresh environment
lock:
	rm -rf .lock && $(PYTHON) -m venv .lock
	.lock/bin/python -m pip install --quiet torch==2.13.0
	.lock/bin/python -m pip install --quiet -r requirements/cpu.in
	.lock/bin/python -m pip freeze | sed 's/^torch==.*/torch==2.13.0/' > requirements/cpu.txt
	rm -rf .lock

clean:
	rm -rf $(VENV)

# torch goes first, alone: with a CPU build at hand nothing later asks for CUDA packages
$(VENV)/made: requirements/cpu.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(RUN) -m pip install --quiet --disable-pip-version-check -r requirements/cpu.txt
	$(RUN) -m pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $@

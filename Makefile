# The three commands readers need: make lab, make course, make test. README.md says how long each takes.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Passed to pip, for example PIP_ARGS="--index-url URL" behind a mirror.
PIP_ARGS ?=
# After `make wheelhouse`, set-up reads that folder and asks no network.
WHEELHOUSE ?= wheelhouse
OFFLINE := $(if $(wildcard $(WHEELHOUSE)/*.whl),--no-index --find-links $(WHEELHOUSE))
# Passed to `mamba-lab course`, for example ARGS="--only 02".
ARGS ?=
LAB_ARGS ?= $(if $(filter 0,$(shell id -u)),--allow-root)

.PHONY: setup lab course test lint notebooks bench wheelhouse clean

setup: $(VENV)/.ready

# One stamp: a second call costs nothing, a change of the dependencies sets up again.
$(VENV)/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 10) <= v < (3, 14) else "mamba-lab needs Python 3.10 to 3.13, and $(PYTHON) is %d.%d. Say for example: make $(or $(MAKECMDGOALS),setup) PYTHON=python3.12" % v)'
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "$(PYTHON) has no venv module. On Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@echo "Setting up $(VENV): a few minutes, and 2.6 GB with PyTorch's CPU build (several GB more with CUDA)."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(OFFLINE) $(PIP_ARGS) -e '.[course,dev]'
	@touch $@

lab: setup
	$(BIN)/mamba-lab my
	$(BIN)/jupyter lab $(LAB_ARGS) my/00_start_here.ipynb

course: setup
	$(BIN)/mamba-lab course $(ARGS)

# One thread a process: two test processes share the cores, and threads that wait for each other cost more than they give.
test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

notebooks: setup
	$(BIN)/mamba-lab course --in-place $(ARGS)

bench: setup
	$(BIN)/mamba-lab bench batching $(ARGS)
	$(BIN)/mamba-lab bench packing $(ARGS)
	$(BIN)/mamba-lab bench model $(ARGS)
	$(BIN)/mamba-lab bench operators $(ARGS)
	$(BIN)/mamba-lab bench schemes $(ARGS)

wheelhouse: setup
	$(BIN)/python -m pip download --quiet --dest $(WHEELHOUSE) $(PIP_ARGS) '.[course,dev]' 'hatchling>=1.26' 'editables>=0.5'
	@rm -f $(WHEELHOUSE)/mamba_lab-*.whl
	$(BIN)/python -m pip install --quiet --dry-run --ignore-installed --no-index --find-links $(WHEELHOUSE) -e '.[course,dev]'
	@echo "$(WHEELHOUSE) is complete: make setup will use it and ask no network."

clean:
	rm -rf $(VENV) build dist

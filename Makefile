# make lab    the quick study: one small GPT in four precisions, a few minutes on two cores
# make test   the tests
# make check  lint and types
# make check-page  types of the report's own scripts; brings axe-core for the tests (needs npm)
# make bench  the benchmarks (run them alone)
#
# Each target makes its own virtual environment in .venv. On Linux, PyTorch's default index brings
# several GB of CUDA libraries; for the CPU build alone:
#   make lab TORCH_INDEX=https://download.pytorch.org/whl/cpu

FITS = import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
  $$p -c '$(FITS)' 2>/dev/null && echo $$p && break; done)
VENV = .venv
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check
TORCH_INDEX ?=
PYTEST_ARGS ?=

.PHONY: lab test check check-page bench clean

lab: $(VENV)/lab.stamp
	$(BIN)/floatscope study run quick

test: $(VENV)/dev.stamp
	$(BIN)/python -m pytest $(PYTEST_ARGS)

check: $(VENV)/dev.stamp
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright --pythonpath $(BIN)/python

check-page: node_modules/stamp
	npm run --silent types

node_modules/stamp: package.json package-lock.json
	npm ci --no-audit --no-fund --loglevel=error
	@touch $@

bench: $(VENV)/dev.stamp
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/rounding.py --libraries
	$(BIN)/python benchmarks/spectrum.py
	$(BIN)/python benchmarks/train_step.py
	$(BIN)/python benchmarks/recipes.py
	$(BIN)/python benchmarks/accumulate.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/report.py

clean:
	rm -rf $(VENV) node_modules

$(BIN)/python:
	@test -n "$(PYTHON)" && $(PYTHON) -c '$(FITS)' || \
	  { echo "floatscope needs Python 3.11 to 3.13; name one with make PYTHON=/path/to/python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "this Python cannot make virtual environments; on Debian: apt-get install python3-venv"; exit 1; }

$(VENV)/lab.stamp: $(BIN)/python pyproject.toml constraints.txt
	@echo "installing into $(VENV); the first time takes some minutes"
	@$(PIP) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -c constraints.txt torch
	@$(PIP) -c constraints.txt --editable .
	@touch $@

$(VENV)/dev.stamp: $(VENV)/lab.stamp
	@$(PIP) -c constraints.txt --editable '.[dev]'
	@touch $@

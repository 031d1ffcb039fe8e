# One word per chore. Everything runs from .venv, which each target makes when it is missing.
PYTHON ?= python3
# The CPU build keeps CUDA's gigabytes out; on a GPU machine say e.g. `make demo TORCH=torch`.
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# libgomp spins while it waits; two torch processes on two cores then halve each other.
export OMP_WAIT_POLICY ?= passive
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo learn test check bench starter clean
$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; v=sys.version_info; sys.exit(0 if v >= (3, 11) else f"OpenClaw-RL needs Python 3.11 or newer; this is {v[0]}.{v[1]}. Try: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q "$(TORCH)"
	$(BIN)/pip install -q -e ".[local,demo,dev]"
	touch $@

env: $(STAMP)

demo: $(STAMP)  ## talk to the starter policy as a simulated user and watch it learn (about a minute)
	$(BIN)/python -m openclaw_rl.evaluate.demo --out demo-out

learn: $(STAMP)  ## five tastes x three methods, measured; writes docs/learning.md (about half an hour)
	$(BIN)/python -m openclaw_rl.evaluate.learn --out runs/learn

check: $(STAMP)  ## lint, format, strict types; the import order is among the tests
	$(BIN)/ruff check src tests benchmarks docs
	$(BIN)/ruff format --check src tests benchmarks docs
	$(BIN)/mypy

test: check  ## everything that CI runs
	$(BIN)/python -m pytest

bench: $(STAMP)  ## the gateway against its peers, and token gaps while swapping; tables in benchmarks/results
	$(BIN)/python benchmarks/gateway.py
	$(BIN)/python benchmarks/swaps.py

starter: $(STAMP)  ## train the shipped starter policy again, from nothing
	$(BIN)/python -m openclaw_rl.evaluate.starter --out src/openclaw_rl/assets/starter

clean:
	rm -rf $(VENV) .bench-venv runs demo-out build

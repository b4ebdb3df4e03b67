# Every target does its own set-up. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
export VENV ?= .venv
PYTEST := $(VENV)/bin/pytest

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-15s %s\n", $$1, $$2}'

.PHONY: venv
venv: ## Make or refresh the virtual environment
	@scripts/venv

.PHONY: demo
demo: venv ## The main job: a real local cluster, a model served, a canary, a rollback, a judge (KEEP=1 leaves it up)
	@$(VENV)/bin/tidewheel demo $(if $(KEEP),--keep)

.PHONY: test
test: venv ## Every test, end to end included
	@scripts/test

.PHONY: test-unit
test-unit: venv ## Pure logic only
	@$(PYTEST) tests -m "not component and not long"

.PHONY: test-component
test-component: venv ## One real process at a time: API server, engine, gateway
	@$(VENV)/bin/tidewheel cluster prepare
	@$(PYTEST) tests -m "component and not long"

.PHONY: test-e2e
test-e2e: venv ## Scenarios on a real local cluster
	@$(VENV)/bin/tidewheel cluster prepare
	@$(PYTEST) e2e -m "not long"

.PHONY: test-long
test-long: venv ## What is too long for every change
	@$(VENV)/bin/tidewheel cluster prepare
	@$(PYTEST) tests e2e -m long --timeout 7200

.PHONY: fuzz
fuzz: venv ## Coverage-guided fuzzing of the engine's and the gateway's parsers (SECONDS=60 each)
	@$(VENV)/bin/python -c "import atheris" 2>/dev/null || $(VENV)/bin/python -m pip install --quiet -c constraints.txt atheris
	@$(VENV)/bin/python -m tests.fuzzing tests.engine.fuzz_requests $(or $(SECONDS),60)
	@$(VENV)/bin/python -m tests.fuzzing tests.gateway.fuzz_bytes $(or $(SECONDS),60)

.PHONY: check
check: venv ## Lint, types, import direction, generated files fresh, chart
	@scripts/check

.PHONY: bench
bench: venv ## Every benchmark in its short form, as JSON lines
	@for bench in $$(ls bench/*.py | xargs -n1 basename -s .py | grep -vx -e report -e __init__); do $(VENV)/bin/python -m bench.$$bench --short; done

.PHONY: format
format: venv ## Format and fix what can be fixed by itself
	@$(VENV)/bin/ruff format . && $(VENV)/bin/ruff check --fix .

# Spillway's two commands are `make run` and `make test`; the rest is for those who work on it.
.DEFAULT_GOAL := help
VENV := .venv
PY   := $(VENV)/bin/python
UV   := $(shell command -v uv 2>/dev/null)
ARGS ?=
VOCAB := tests/engine/vocab/ggml-vocab

.PHONY: help run test lint format bench clean

help: ## what can be made
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(VENV)/.run ## set up and start the proxy on http://127.0.0.1:8484/v1
	@$(PY) -m proxy serve $(ARGS)

test: $(VENV)/.dev ## set up and check everything: format, lint, types, layers, tests
	@$(MAKE) --no-print-directory lint
	$(PY) -m pytest -n 2 $(ARGS)

lint: $(VENV)/.dev ## format check, ruff, mypy, import-linter
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy
	$(VENV)/bin/lint-imports

format: $(VENV)/.dev ## rewrite the code in the project's format
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

bench: $(VENV)/.dev ## measure: against nginx and a naive proxy, counting, survival of long sessions
	$(PY) -m benchmarks $(ARGS)
	$(PY) -m benchmarks.counting --vocab known=$(VOCAB)-phi-3.gguf --vocab unknown=$(VOCAB)-gpt-2.gguf
	$(PY) -m benchmarks.survival --quick

clean: ## remove the environment and what tests left
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist

# The environment. uv where it is installed, else the standard library's venv and pip.
$(PY):
ifdef UV
	@$(UV) venv --quiet --python '>=3.11' $(VENV)
else
	@python3 -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Spillway needs Python 3.11 or newer")'
	@python3 -m venv $(VENV)
	@$(PY) -m pip install --quiet --upgrade pip
endif

$(VENV)/.run: pyproject.toml | $(PY)
ifdef UV
	@$(UV) pip install --quiet --python $(PY) -e .
else
	@$(PY) -m pip install --quiet -e .
endif
	@touch $@

$(VENV)/.dev: pyproject.toml | $(PY)
ifdef UV
	@$(UV) pip install --quiet --python $(PY) -e . --group dev
else
	@$(PY) -m pip install --quiet -e . --group dev
endif
	@touch $@ $(VENV)/.run

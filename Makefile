# Spillway's two commands are `make run` and `make test`; the rest is for those who work on it.
.DEFAULT_GOAL := help
VENV := .venv
PY   := $(VENV)/bin/python
UV   := $(shell command -v uv 2>/dev/null)
ARGS ?=
VOCAB := tests/engine/vocab/ggml-vocab
LITELLM := benchmarks/.venv-litellm
WEBUI := .venv-openwebui
# PyPI has torch for GPUs. To save gigabytes: WEBUI_TORCH="torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"
WEBUI_TORCH ?= torch==2.13.0

.PHONY: help run test lint format bench e2e-openwebui clean

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

bench: $(VENV)/.dev $(LITELLM)/.ready ## measure: against nginx, LiteLLM and simple proxies, counting, survival of long sessions
	$(PY) -m benchmarks $(ARGS)
	$(PY) -m benchmarks.counting --vocab known=$(VOCAB)-phi-3.gguf --vocab unknown=$(VOCAB)-gpt-2.gguf
	$(PY) -m benchmarks.survival --quick

e2e-openwebui: $(VENV)/.browser ## use a real Open WebUI in a real browser (needs chromium; fetches 2.6 GB of packages)
	@$(PY) -m tests.openwebui --check
	@$(MAKE) --no-print-directory --silent $(WEBUI)/.ready
	@$(PY) -m tests.openwebui $(ARGS)

clean: ## remove the environment and what tests left
	rm -rf $(VENV) $(LITELLM) $(WEBUI) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist

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

# LiteLLM, for `make bench` only. Without it the rest is measured.
$(LITELLM)/.ready: benchmarks/litellm.txt | $(PY)
ifdef UV
	@$(UV) venv --quiet --clear --python $(PY) $(LITELLM) && $(UV) pip install --quiet --python $(LITELLM)/bin/python -r $< \
		&& touch $@ || echo "LiteLLM could not be installed, so it is left out"
else
	@$(PY) -m venv --clear $(LITELLM) && $(LITELLM)/bin/python -m pip install --quiet -r $< \
		&& touch $@ || echo "LiteLLM could not be installed, so it is left out"
endif

# Open WebUI and what drives a browser, for `make e2e-openwebui` only. With pip alone it would take a quarter of an hour.
$(VENV)/.browser: $(VENV)/.dev
ifdef UV
	@$(UV) pip install --quiet --python $(PY) --group browser
else
	@$(PY) -m pip install --quiet --group browser
endif
	@touch $@

$(WEBUI)/.ready: tests/openwebui/requirements.txt
	@echo "Installing Open WebUI; this takes a while …"
ifdef UV
	@$(UV) venv --quiet --clear --seed --python '>=3.11,<3.13' $(WEBUI)
else
	@python3 -m venv --clear $(WEBUI)
endif
	@$(WEBUI)/bin/python -m pip install --quiet uv
	@$(WEBUI)/bin/python -m pip install --quiet $(WEBUI_TORCH)
	@$(WEBUI)/bin/uv pip install --quiet --python $(WEBUI)/bin/python -r $<
	@touch $@

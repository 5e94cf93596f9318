# `make` alone prints what can be made. Everything happens in .venv; nothing else on the machine is changed.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

JOBS ?= 2
ARGS ?=
PY := .venv/bin/python
CORE := .venv/.core-installed
CLI := .venv/.cli-installed
DEV := .venv/.dev-installed

.PHONY: help demo recording example test check faults bench bench-quick site sync clean

help: ## Print this list
	@echo "usage: make <target>"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' Makefile

demo: $(CLI) ## Watch an agent whose workers are killed, on an embedded SQLite file (ARGS='--fast')
	@$(PY) -m lash_store demo $(ARGS)

recording: $(DEV) ## Record the demo again as docs/assets/demo.svg
	@PATH="$(CURDIR)/.venv/bin:$$PATH" $(PY) -m tools.recording docs/assets/demo.svg

example: $(CORE) ## Show an agent whose background process wakes it, and a schedule
	@$(PY) examples/background_agent.py

test: $(DEV) ## Run everything on SQLite and on a real PostgreSQL, found or started here (ARGS='-k name' selects)
	@$(PY) -m pytest -n $(JOBS) --dist loadgroup $(ARGS)

check: $(DEV) ## Lint, types, the import law, and whether the generated sync code is current
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m pyright
	@$(PY) -m tools.import_law
	@$(PY) -m tools.unasync --check

faults: $(DEV) ## Run the kill, interleaving and model tests with their large numbers (hours)
	@LASH_STORE_FAULTS=1 $(PY) -m pytest -m faults --timeout=0 -n $(JOBS) --dist loadgroup $(ARGS)

bench: $(DEV) ## Measure ours, the floors and the peers, and show it in the documentation (23 minutes here; the quick one six)
	@$(PY) -m bench $(ARGS)
	@$(PY) -m bench.publish

bench-quick: $(DEV) ## The same workloads, smaller, about six minutes; changes no page
	@$(PY) -m bench --quick $(ARGS)

site: $(DEV) ## Build the documentation as a site in build/site; a warning is an error, and nothing is fetched
	@$(PY) -m tools.site

sync: $(DEV) ## Generate the sync facades again from the async ones
	@$(PY) -m tools.unasync

clean: ## Remove what was built, the caches and the virtual environment
	rm -rf .venv .venv-bench dist build .pytest_cache .ruff_cache .hypothesis
	find src tests tools bench examples -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment. A stamp newer than pyproject.toml means it is complete, so that a second call costs nothing.
# uv is used when present; otherwise the first Python >= 3.11 that can make a virtual environment.

$(PY):
	@echo 'Making .venv (once; needs the network)…'
	@if command -v uv >/dev/null; then \
	    uv venv --quiet --allow-existing --python '>=3.11' .venv; \
	else \
	    found=; for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	        if $$python -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$python; break; fi; \
	    done; \
	    if [ -z "$$found" ]; then \
	        echo "Python 3.11 or newer with its venv module is needed (Debian: apt install python3-venv), or uv." >&2; exit 1; \
	    fi; \
	    $$found -m venv .venv; \
	fi

$(CORE): pyproject.toml | $(PY)
	@$(call install,.)
	@touch $@

$(CLI): pyproject.toml | $(PY)
	@$(call install,.[cli])
	@touch $(CORE) $@

$(DEV): pyproject.toml | $(PY)
	@$(call install,.[dev])
	@touch $(CORE) $(CLI) $@

define install
if command -v uv >/dev/null; then \
    uv pip install --quiet --python $(PY) --editable '$(1)'; \
else \
    $(PY) -m pip --version >/dev/null 2>&1 || $(PY) -m ensurepip >/dev/null; \
    $(PY) -m pip install --quiet --disable-pip-version-check --editable '$(1)'; \
fi
endef

# `make` lists what there is. Everything happens inside this folder: the environment in .venv, caches in .cache.

PYTHON_VERSIONS := 3.14 3.13 3.12
PYENV := $(or $(PYENV_ROOT),$(HOME)/.pyenv)
# What to try, in this order; `make PYTHON=/path/to/python TARGET` names one. pyenv's `python3` obeys .python-version,
# but runs nothing where that version is not installed, though another that would do may be.
PYTHON ?= python3 python $(PYTHON_VERSIONS:%=python%) $(wildcard $(PYTHON_VERSIONS:%=$(PYENV)/versions/%.*/bin/python))

VENV := .venv
BIN := $(VENV)/bin
CACHE := $(CURDIR)/.cache

export PIP_CACHE_DIR := $(CACHE)/pip
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export NUMBA_CACHE_DIR := $(CACHE)/numba
export MPLCONFIGDIR := $(CACHE)/matplotlib
# Without bytecode each process of the tests would compile every file, and pytest rewrite every assertion, once more.
unexport PYTHONDONTWRITEBYTECODE
# The documentation is run by Jupyter: kernels of this environment, and files in the cache.
export JUPYTER_PREFER_ENV_PATH := 1
export JUPYTER_CONFIG_DIR := $(CACHE)/jupyter
export JUPYTER_DATA_DIR := $(CACHE)/jupyter
export JUPYTER_RUNTIME_DIR := $(CACHE)/jupyter/runtime
export IPYTHONDIR := $(CACHE)/ipython
comma := ,
# Most of the time goes into compiling, so two processes at once halve it; then each has one thread.
TWO := OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1
export PYTENSOR_FLAGS := base_compiledir=$(CACHE)/pytensor$(PYTENSOR_FLAGS:%=$(comma)%)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Targets share one environment, and two installers at once would spoil it.
.NOTPARALLEL:
.PHONY: help demo test test-extra test-slow test-rest calibrate paper lint format types package docs site-test python clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.with-examples ## classify the wine data; prints a table and writes output/wine.png
	$(BIN)/python examples/wine.py
	@echo "The picture is in output/wine.png."

test: $(VENV)/.with-test ## run the tests
	$(TWO) $(BIN)/python -m pytest -n 2 --dist loadfile $(PYTEST)

test-extra: $(VENV)/.with-test ## run the tests of clusters, benchmark commands and examples, and scikit-learn's checks
	$(TWO) $(BIN)/python -m pytest -n 2 --dist worksteal -m "extra and not slow and not calibration" $(PYTEST)

test-slow: $(VENV)/.with-test ## run the slow tests
	$(TWO) $(BIN)/python -m pytest -n 2 --dist worksteal -m slow $(PYTEST)

test-rest: $(VENV)/.with-test ## run what test-extra and test-slow run, in one go
	$(TWO) $(BIN)/python -m pytest -n 2 --dist worksteal -m "slow or (extra and not calibration)" $(PYTEST)

calibrate: $(VENV)/.with-test ## hold every sampler against long runs; an hour or more
	$(TWO) $(BIN)/python -m pytest -n 2 -m calibration $(PYTEST)

# Results that are there are not computed again, whatever has changed in the code since.
paper: $(VENV)/.with-test ## run the experiments of the papers in their quick forms, with DATA=FOLDER
	@test -d "$(DATA)" || { echo "There is no folder '$(DATA)' of data sets; name one: make paper DATA=FOLDER (see docs/paper.md)." >&2; exit 1; }
	rm -rf output/paper/quick output/binary_paper/quick output/active_sets/quick output/scalable_paper/quick
	$(TWO) $(BIN)/python -m benchmarks.quick --data "$(DATA)" --jobs $(or $(JOBS),2)

lint: $(VENV)/.with-lint ## check style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.with-lint ## put style and format right where ruff can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.with-lint ## check types
	$(BIN)/mypy

docs: $(VENV)/.with-docs ## run the examples and build the documentation into docs/_build/html
	$(TWO) $(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

site-test: $(VENV)/.made ## check links, pictures and search of the built documentation, in a browser if there is one
	$(BIN)/python docs/check_site.py docs/_build/html

package: $(VENV)/.with-package ## build wheel and sdist into dist, and try the wheel in clean environments
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*
	.ci/try-wheel newest
	.ci/try-wheel oldest

clean: ## remove the environment, the caches and everything built
	rm -rf $(VENV) $(CACHE) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist docs/_build docs/generated output
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Sets $$python to the first interpreter that will do, or says what was found and stops.
define find-python
found=; python=; \
for candidate in $(PYTHON); do \
  version=$$("$$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue; \
  case " $(PYTHON_VERSIONS) " in \
    *" $$version "*) ;; \
    *) found="$$found  $$candidate is Python $$version\n"; continue ;; \
  esac; \
  if "$$candidate" -c 'import ensurepip, venv' >/dev/null 2>&1; then python=$$candidate; break; fi; \
  found="$$found  $$candidate is Python $$version, but lacks venv or ensurepip (Debian: python$$version-venv)\n"; \
done; \
if [ -z "$$python" ]; then \
  echo 'No suitable Python: one of $(PYTHON_VERSIONS) is needed, with venv and ensurepip. Of $(strip $(PYTHON)), these run:'; \
  printf '%b' "$${found:-  none\n}"; \
  echo 'Install one, or name it: make PYTHON=/path/to/python TARGET'; \
  exit 1; \
fi >&2
endef

python: ## say which Python the environment is made with
	@$(find-python); echo "$$python"

# An environment of another folder may be in use there: it is never cleared, also where VENV is a link to it.
$(VENV)/.made: .python-version
	@case "$(or $(realpath $(VENV)),$(abspath $(VENV)))" in "$(realpath $(CURDIR))"/*|"$(CURDIR)"/*) ;; *) test ! -e "$(VENV)" || { echo "$(VENV) is outside this folder, and is not replaced. Remove it, or leave out VENV." >&2; exit 1; } ;; esac
	@$(find-python); echo "making $(VENV) with $$python"; "$$python" -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade pip  # the pip of Python 3.12 installs half as fast
	@touch $@

# Extras add up in the one environment; each is installed again when pyproject.toml changes. A name may have several,
# `.with-lint,docs,test`, which takes less time than one after the other. Python compiles a module when it first imports
# it: most are never imported, and the installer would compile them all on one core.
$(VENV)/.with-%: pyproject.toml $(VENV)/.made
	@echo "installing pymc-gpep[$*] into $(VENV); the first time takes minutes"
	@$(BIN)/python -m pip install --quiet --no-compile --editable '.[$*]'
	@touch $@ $(patsubst %,$(VENV)/.with-%,$(subst $(comma), ,$*))

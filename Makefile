# Two commands do all the set-up: `make demo` and `make test`.
# PYTHON names the interpreter that makes .venv, for instance: make demo PYTHON=python3.12
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c .ci/constraints.txt

.PHONY: demo test lint format clean
.DELETE_ON_ERROR:

demo: $(VENV)/.with-demo
	$(BIN)/captioner demo $(ARGS)

test: lint
	$(BIN)/python -m pytest $(ARGS)

lint: $(VENV)/.with-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/codespell captioner configs scripts tests demo README.md CHANGELOG.md CONTRIBUTING.md
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.with-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

# A stamp for each set of extras: a second call finds it and starts at once.
$(VENV)/.with-%: pyproject.toml .ci/constraints.txt | $(BIN)/python
	@echo "installing captioner[$*] into $(VENV) (once; PyTorch is large)" >&2
	$(PIP) -e '.[$*]'
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "captioner needs Python 3.11 or newer; name one: make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

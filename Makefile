# Every target does its own set-up: on a fresh machine, `make demo` and `make test` are enough.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: setup demo test soak tools lint docs bench clean

setup: $(VENV)/.ready

$(VENV)/.ready: requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Clew needs Python 3.11 or later: make PYTHON=python3.12 setup")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --editable . --config-settings editable_mode=compat
	touch $@

demo: setup
	$(BIN)/python examples/sales/demo.py

lint: setup
	$(BIN)/ruff format --check clew pyspark_clew tests bench examples docs
	$(BIN)/ruff check clew pyspark_clew tests bench examples docs
	$(BIN)/mypy
	$(BIN)/lint-imports

tools:
	@sh tests/install_tools.sh

# Many tests wait for processes that they have started: three share two cores well.
test: lint tools
	$(BIN)/pytest -n 3 --dist worksteal --figures=test tests

# For hours: random schedules that nobody has seen before, every sweep in full, a million events verified. Interrupted, it
# goes on where it was when it is called again, while code and tests are the same. Many of its tests wait: hence four.
# Of a hundred schedules one or two strike nothing, and those do not count for the 200,000 of the table.
SCHEDULES ?= 205000
soak: lint tools
	CLEW_SOAK=1 CLEW_SCHEDULES=$(SCHEDULES) $(BIN)/pytest -n 4 --dist worksteal --timeout 0 --figures=soak --resume=.soak tests

# The pages as a site, with a reference made of docstrings: site/index.html.
docs: setup
	$(BIN)/mkdocs build --quiet --strict

bench: setup
	$(BIN)/python bench/throughput.py
	$(BIN)/python bench/lineage.py
	$(BIN)/python bench/restart.py
	$(BIN)/python bench/restart.py --engine inline

clean:
	rm -rf $(VENV) .clew examples/*/data examples/*/out docs/tutorial/out docs/tutorial/*.db* bench/results site

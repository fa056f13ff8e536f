# PYTHON (3.11 or newer) makes .venv; EXTRAS names the optional groups of pyproject.toml to install, MORE_EXTRAS others
# beside them.
PYTHON ?= python3
EXTRAS ?= dev,distributed,docs,evolve,export,parquet,surrogate,notebooks
MORE_EXTRAS ?=
WORKERS ?= 2
# K/N: run the K-th of N parts of all tests as well, slow ones too, on the programs that users run.
SLOW_SHARD ?=
# Picks the Python of `make allowed`.
TURN ?= 0
# REVISION: run the slow tests nearest to what differs from it as well.
SLOW_SINCE ?=

venv_python := .venv/bin/python
# One stamp per choice of extras: asking for others installs them.
comma := ,
extras := $(EXTRAS)$(addprefix $(comma),$(MORE_EXTRAS))
installed := .venv/.installed-$(extras)

.PHONY: .venv sweep test test-all turn allowed lint types site bench clean

.venv: $(installed)

$(installed): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "blis_jax needs Python 3.11 or newer, but $(PYTHON) is " + sys.version.split()[0] + ": try make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(venv_python) -m pip install --quiet --upgrade pip
	$(venv_python) -m pip install --quiet -c constraints.txt -e '.[$(extras)]'
	touch $@

sweep: $(installed)
	$(venv_python) -m blis_jax.sweep --seeds 256

# worksteal: neighbouring tests run in one process, where they share what is compiled.
pytest := $(venv_python) -m pytest -n $(WORKERS) --dist worksteal

# The fast tests on programs that are not optimised. With slow tests, a part of all tests also runs on users' programs.
test: $(installed)
	BLIS_JAX_TEST_PROGRAMS=quick $(pytest)
	$(if $(SLOW_SHARD)$(SLOW_SINCE),$(pytest) --fast-shard $(or $(SLOW_SHARD),1/20) $(if $(SLOW_SHARD),--slow-shard $(SLOW_SHARD)) $(if $(SLOW_SINCE),--slow-since $(SLOW_SINCE)))

test-all: $(installed)
	$(pytest) --run-slow

# Once for each landing: the next part of the slow tests, and how long those took that ran here.
turn: $(installed)
	$(venv_python) -m tests.support.rotation

# The wheel in an empty environment, with the newest versions that pyproject.toml allows (odd TURN: the oldest), for one of
# the Pythons that it names: its commands, then golden runs.
allowed: $(installed)
	WORKERS=$(WORKERS) $(venv_python) -m tests.support.allowed $(TURN)

lint: $(installed)
	$(venv_python) -m ruff check .
	$(venv_python) -m ruff format --check .

types: $(installed)
	$(venv_python) -m mypy

# The pages of docs/ into out/site; a warning is an error, and nothing is fetched.
site: $(installed)
	NO_MKDOCS_2_WARNING=1 $(venv_python) -m mkdocs build --clean

bench: $(installed)
	$(venv_python) -m benchmarks

clean:
	rm -rf build *.egg-info out .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

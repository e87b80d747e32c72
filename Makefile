# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 2
# Tests run in random order; the commit decides which one, so that a commit is judged the same way twice.
SEED ?= $(shell git rev-parse --short=8 HEAD 2>/dev/null || echo 0)
PYTEST = $(BIN)/pytest --numprocesses $(WORKERS) --dist loadfile --random-order --random-order-seed=$(SEED)

.PHONY: demo test setup lint types spelling unit sample nightly docs dist clean

demo: setup
	$(BIN)/maxsep demo

test: lint types spelling unit

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints/cpu.txt constraints/torchvision_schemas.py
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" || \
		(echo "maxsep needs Python 3.11 or later; say which one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	# through the environment, so that the build backend is pinned too
	PIP_CONSTRAINT=$(CURDIR)/constraints/cpu.txt $(BIN)/pip install --quiet --disable-pip-version-check --editable ".[dev]"
	# a .pth file runs at the start of every interpreter of this environment
	site=$$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))") && \
		cp constraints/torchvision_schemas.py "$$site" && echo "import torchvision_schemas" > "$$site/torchvision_schemas.pth"
	$(BIN)/python -c "import torchvision, timm"
	touch $@

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: setup
	$(BIN)/mypy

spelling: setup
	$(BIN)/codespell

unit: setup
	$(PYTEST)

# one in eight of the long tests, other ones for every commit
sample: setup
	$(PYTEST) -m nightly --sample 8 --sample-seed $(SEED)

# every long test: kernels compiled for each architecture, runs that are killed, files that are damaged
nightly: setup
	$(PYTEST) -m nightly --record results/nightly.json

# the site in build/site: runs the notebooks, reads the docstrings, follows every link
docs: $(VENV)/.docs
	$(BIN)/python docs/build_site.py

$(VENV)/.docs: $(VENV)/.ready
	PIP_CONSTRAINT=$(CURDIR)/constraints/cpu.txt $(BIN)/pip install --quiet --disable-pip-version-check --editable ".[docs]"
	touch $@

# wheel and source archive in dist/; every extra is installed into an empty environment and tried
dist: setup
	rm -rf dist
	PIP_CONSTRAINT=$(CURDIR)/constraints/cpu.txt $(BIN)/python -m build --outdir dist
	$(BIN)/python .ci/try_dist.py dist

clean:
	rm -rf $(VENV) build dist runs demo bench .pytest_cache .mypy_cache .ruff_cache .hypothesis

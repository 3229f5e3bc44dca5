# On a fresh machine with Python and pip, `make demo` and `make test` do everything, set-up included.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Hundreds of Pythons are started here, each of which would compile again what is not kept.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo check unit-tests test short-tests test-all test-newest test-torch on-torch lint bench \
    picture docs fault-matrix chaos conformance gpu gpu-wheels dist test-wheel clean

help:
	@echo "make demo      set up, then run a planted bug on 4 ranks and show the report"
	@echo "make check     lint, types, and the unit tests without ranks or torch: a minute"
	@echo "make test      set up, then lint, type check and run the tests"
	@echo "make test-all  the same with the tests marked long"
	@echo "make test-newest  what depends on torch, on the newest torch: an environment of its own (6 GB)"
	@echo "make test-newest QUICK=1  the same without the tests marked long"
	@echo "make test-torch TORCH=2.12.1  the same on any other torch"
	@echo "make lint      ruff and mypy alone"
	@echo "make bench     what the layer costs a call"
	@echo "make picture   the READMEs' pictures of the terminal app, from a run made for it, and of a trace"
	@echo "make conformance  torch's own tests below the layer and on distcore's backends, in a table"
	@echo "make conformance SUITES=DIR  the tests of others that lie there (tests/conformance/suites.txt)"
	@echo "make docs      the pages for users as a site, in build/site"
	@echo "make fault-matrix  every fault on purpose, and what is said of it"
	@echo "make chaos N=20 SEED=7  random faults in random programs: nobody else is blamed"
	@echo "make gpu       on a machine with an NVIDIA GPU: what takes one, in eight minutes, in a table"
	@echo "make gpu-wheels  the packages it takes on a machine where nothing can be fetched (44 MB)"
	@echo "make dist      the wheel and the sdist, built and checked in an environment of their own, in dist"
	@echo "make test-wheel  those, installed into clean environments and tried there: before a release"
	@echo "make test-wheel TORCH_PYTHON=DIR/bin/python  the same on another Python, which has torch"
	@echo "make clean     remove the environment, caches and recorded runs"

# New files are in an editable install at once: it leads to the packages' folders, and what pip has
# written down of them is all in pyproject.toml.
# torch comes first and by exactly this spelling, so that every machine takes the same build. Most of
# its files nobody loads: compiling them all takes pip 23 s, which is half of the installation.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) 'torch==2.13.0'
	$(INSTALL) -e '.[test,mpi,nccl,mcp]'
	touch $@

# What pytest's processes load, compiled by one of them: else each would do it, at the same time.
$(VENV)/.compiled: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.support.preloaded
	$(BIN)/pytest --quiet --collect-only > $@.log || { cat $@.log; exit 1; }
	touch $@

# The planted bug ends with 91 (mismatch): for the demo that is success, anything else is not.
DEMO = distdebug demo; code=$$?; \
    if [ $$code -ne 91 ]; then \
        echo "demo: expected exit code 91 (ranks disagree), got $$code" >&2; exit 1; \
    fi; \
    echo "demo: the planted bug was found (exit code 91)"

demo: $(STAMP)
	@$(BIN)/$(DEMO)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	rm -rf $(VENV)/types
	mkdir -p $(VENV)/types/distdebug
	ln -s $(CURDIR)/debugger/* $(CURDIR)/tui $(VENV)/types/distdebug
	ln -s $(CURDIR)/distcore $(VENV)/types
	$(BIN)/mypy

# Types take one core for a minute and a half where nothing of torch is in mypy's cache yet, as in a
# fresh clone: the tests begin on the other one meanwhile.
BESIDE_LINT := $(MAKE) --no-print-directory -j 2 lint

# What can be asked before each commit, in a minute: no test of it starts ranks, or waits for torch,
# or draws all screens.
LOAD_TORCH := rank distcore testing benchmarks __pycache__
CHECKED := $(filter-out $(LOAD_TORCH:%=tests/unit/%/), $(sort $(wildcard tests/unit/*/))) \
    --ignore tests/unit/commands/test_export.py --ignore tests/unit/plan/test_costs.py \
    --ignore tests/unit/inspection/test_stance_in_torch.py \
    --ignore tests/unit/tui/test_snapshots.py
check: $(STAMP)
	@$(BESIDE_LINT) unit-tests
# Those of the app and of connections wait most of their time, so six are at work on two cores: 85 s
# where three took 130.
unit-tests: $(VENV)/.compiled
	$(BIN)/pytest -n 6 --dist worksteal -m 'not long' $(CHECKED)

# Many tests wait for something most of their time, so more of them than two cores are at work: by
# four at a time the cores were busy for 86 % of it.
test: $(STAMP)
	@$(BESIDE_LINT) short-tests
short-tests: $(VENV)/.compiled
	$(BIN)/pytest -n 6 --dist worksteal -m 'not long'

# MPICH's wheel has an mpiexec of its own, so its tests have an environment of their own.
MPICH := .venv-mpich
$(MPICH)/.installed: $(STAMP)
	test -x $(MPICH)/bin/python || $(PYTHON) -m venv $(MPICH)
	$(MPICH)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt mpich mpi4py
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	    > $$($(MPICH)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/distdebug.pth
	touch $@

test-all: lint $(MPICH)/.installed $(VENV)/.docs
	$(BIN)/pytest -n 2 --dist worksteal

# -- other torches, each in an environment of its own -----------------------------------------------
# A build with CUDA is 2 GB to load and more than twice that when installed, so pip keeps no copy.
LOAD := --quiet --disable-pip-version-check --retries 10
NEWEST := .venv-newest

$(NEWEST)/.installed: pyproject.toml constraints-newest.txt
	test -x $(NEWEST)/bin/python || $(PYTHON) -m venv $(NEWEST)
	$(NEWEST)/bin/python -m pip install $(LOAD) --no-cache-dir -c constraints-newest.txt torch
	$(NEWEST)/bin/python -m pip install $(LOAD) -c constraints-newest.txt -e '.[test,mpi,nccl]'
	touch $@

# What that torch brought along stays; all else has the versions of constraints.txt.
.venv-torch-%/.installed: pyproject.toml constraints.txt
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install $(LOAD) --no-cache-dir 'torch==$*'
	$(@D)/bin/python -m pip freeze --all | grep '^[A-Za-z].*==' > $(@D)/brought.txt
	awk -F'[=; ]' '{name = tolower($$1); gsub(/[-_.]+/, "-", name)} \
	    NR == FNR {has[name] = 1; print; next} /^[A-Za-z]/ && !(name in has)' \
	    $(@D)/brought.txt constraints.txt > $(@D)/constraints.txt
	$(@D)/bin/python -m pip install $(LOAD) -c $(@D)/constraints.txt -e '.[test,mpi,nccl]'
	touch $@

test-newest: $(NEWEST)/.installed
	@$(MAKE) --no-print-directory on-torch ON=$(NEWEST)

test-torch:
	@test -n "$(TORCH)" || { echo "which one? make test-torch TORCH=2.12.1" >&2; exit 2; }
	@$(MAKE) --no-print-directory .venv-torch-$(TORCH)/.installed
	@$(MAKE) --no-print-directory on-torch ON=.venv-torch-$(TORCH)

# The demo, the fixtures on gloo, tcp and mpi and at DETAIL, the plugin, the layer and distcore in
# ranks, torch's own suite (all of whose tests are long: QUICK runs two by name), and, where it may
# take longer, every fault and what is tested without ranks.
ON_TORCH := tests/e2e/test_fixtures.py tests/e2e/test_fixtures_on_mpi.py tests/plugin tests/ranks \
    tests/unit/distcore/test_torch_private.py tests/unit/rank/test_torch_private.py
WHERE_NOT_QUICK := tests/unit/distcore tests/unit/rank tests/faults
on-torch:
	@$(ON)/bin/python -c 'import sys, torch; print("torch", torch.__version__, "on Python", sys.version)'
	@$(ON)/bin/$(DEMO)
	$(ON)/bin/pytest -n 2 --dist worksteal $(ON_TORCH) $(if $(QUICK),-m 'not long',$(WHERE_NOT_QUICK))
	$(ON)/bin/pytest -n 2 tests/conformance $(if $(QUICK),-k test_calls)

bench: $(STAMP)
	$(BIN)/distdebug bench overhead

picture: $(STAMP)
	$(BIN)/python fixtures/make_picture.py fixtures/picture.svg
	$(BIN)/python fixtures/make_trace_picture.py straggler fixtures/trace.svg

# The pages for users as a site, in build/site; `mkdocs serve` shows them while one writes.
$(VENV)/.docs: $(STAMP)
	$(BIN)/python -m pip install $(LOAD) -c constraints.txt -e '.[docs]'
	touch $@
docs: $(VENV)/.docs
	$(BIN)/mkdocs build --strict

fault-matrix: $(STAMP)
	$(BIN)/python -m tests.faults

chaos: $(STAMP)
	$(BIN)/python -m tests.faults.chaos --runs $(or $(N),20) $(if $(SEED),--seed $(SEED))

conformance: $(STAMP)
	$(BIN)/python -m tests.conformance.suites $(SUITES)

# On a machine that brings torch with CUDA and no more: that Python makes .venv-gpu of the wheels.
gpu:
	@$(PYTHON) -m tests.gpu $(if $(DRY),--dry-run) $(if $(ONLY),--only $(ONLY)) --out $(or $(OUT),gpu-results)

gpu-wheels:
	@$(PYTHON) -m tests.gpu.environment --wheels .gpu-wheels

# -- what is released ---------------------------------------------------------------------------------
TOOLS := .venv-dist
EGG_INFO := debugger/hook/entry/distdebug.egg-info

$(TOOLS)/.installed: constraints.txt
	test -x $(TOOLS)/bin/python || $(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install $(LOAD) -c constraints.txt build twine check-wheel-contents setuptools
	touch $@

# The wheel is built from the sdist, so that each holds what the other needs. What an earlier build
# has written down of the files would come back otherwise.
dist: $(TOOLS)/.installed
	rm -rf dist build $(EGG_INFO)
	cp .sdist-files MANIFEST.in  # setuptools looks for it by that name alone, in the root
	$(TOOLS)/bin/python -m build --no-isolation --outdir dist . > $(TOOLS)/build.log 2>&1 \
	    || { cat $(TOOLS)/build.log >&2; rm MANIFEST.in; exit 1; }
	rm -rf $(EGG_INFO) MANIFEST.in
	$(TOOLS)/bin/twine check --strict dist/*
	$(TOOLS)/bin/check-wheel-contents dist/*.whl

test-wheel: $(STAMP) $(if $(BUILT),,dist)
	DISTDEBUG_DIST=$(CURDIR)/dist TORCH_PYTHON=$(TORCH_PYTHON) $(BIN)/pytest tests/installed

clean:
	rm -rf $(VENV) $(TOOLS) $(EGG_INFO) $(MPICH) $(NEWEST) .venv-torch-* .venv-gpu .gpu-wheels gpu-results .distdebug .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

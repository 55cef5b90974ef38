# Everything runs from a fresh clone: each target first makes sure that .venv is there and up to date.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
OTHER  := .venv-neural-tangents
EXTRAS := $(VENV)/.installed-extras

# One thread per test process: two torch processes with two threads each slow each other down.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help install demo bench test test-slow campaigns docs dist browser lint format clean

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

install: $(STAMP)  ## make .venv with the pinned versions

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check -q -c constraints.txt torch hatchling editables
	$(BIN)/pip install --disable-pip-version-check -q -c constraints.txt --no-build-isolation -e '.[dev]'
	touch $@

# Code of others that only slow tests use: architectures, training loops, Ray, an object store, ONNX, another library that
# prunes channels (whose dependencies are there already). Without it, those tests are skipped.
$(EXTRAS): $(STAMP)
	-$(BIN)/pip install --disable-pip-version-check -q -c constraints.txt --no-build-isolation \
	-e '.[dev,transformers,lightning,fabric,tensorboard,wandb,ray,s3,onnx]' 'moto[server]' \
	&& $(BIN)/pip install --disable-pip-version-check -q -c constraints.txt --no-deps torch-pruning && touch $@

demo: install  ## prune and train on handwritten digits, five seeds each: table, what was gained, and where the report is
	$(BIN)/ntksap compare --data digits --model resnet8 --methods random,magnitude,snip,ntk-sap --sparsities 0.95,0.98 \
	--seeds 0,1,2,3,4 --epochs 10 --out demo
	$(BIN)/python examples/gain.py demo ntk-sap 0.95

bench: install  ## time every job (JOB=name: one) against its textbook version: table, JSON, page
	$(BIN)/python -m benchmarks $(JOB)
	$(BIN)/python -m benchmarks.page

test: install lint  ## lint, types, and every test that takes seconds
	$(PYTEST) -m 'not slow' --doctest-modules src tests

test-slow: install dist $(EXTRAS) data/cifar-10-batches-bin $(OTHER)/.installed browser  ## every test, those that take minutes too, and those on real CIFAR-10
	NTKSAP_DATA=data $(PYTEST) --doctest-modules src tests

campaigns: install $(EXTRAS)  ## kills, damaged and hostile files, module kinds: thousands of attempts to break things, counted
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q tests/campaigns

# Each notebook in a copy, so that what it writes and prints stays out of docs/.
build/notebooks/%.ipynb: docs/notebooks/%.ipynb $(STAMP)
	mkdir -p build/notebooks
	cp $< $@
	OMP_NUM_THREADS=1 $(BIN)/jupyter execute --inplace $@ || { rm $@; exit 1; }

docs: install $(patsubst docs/%,build/%,$(wildcard docs/notebooks/*.ipynb))  ## build the site into build/site, strictly, with executed notebooks
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo 'open build/site/index.html'

# By a command that writes it to the folder it is given (CIFAR10_FROM=…), with the Python of .venv if it wants one, else by
# download; without either, the tests that need it are skipped.
data/cifar-10-batches-bin: | install
	-if [ -n '$(CIFAR10_FROM)' ]; then PATH="$(CURDIR)/$(BIN):$$PATH" $(CIFAR10_FROM) data; \
	else $(BIN)/python -c 'import ntksap.data; ntksap.data.download("cifar10", "data")'; fi

# An independent library to compare kernels with. It goes in without its dependencies, which bring TensorFlow.
$(OTHER)/.installed: tests/analysis/other/constraints.txt
	-test -x $(OTHER)/bin/python || $(PYTHON) -m venv $(OTHER)
	-$(OTHER)/bin/pip install --disable-pip-version-check -q -c $< jax frozendict \
	&& $(OTHER)/bin/pip install --disable-pip-version-check -q -c $< --no-deps neural-tangents && touch $@ \
	|| { echo 'neural-tangents cannot be installed here: the tests that compare with it are skipped'; exit 1; }

dist: install  ## build wheel and sdist into dist/ and check them
	$(BIN)/pip install --disable-pip-version-check -q -c constraints.txt build twine
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist . > /dev/null
	$(BIN)/python -m twine check --strict dist/*

browser:  # chromium, which looks at the report, where Debian's packages can be installed
	@if command -v chromium && command -v chromedriver; then exit; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get; then echo 'installing chromium'; \
	    export DEBIAN_FRONTEND=noninteractive; { apt-get update -q; \
	    apt-get install -y -q --no-install-recommends chromium chromium-driver; } \
	    || echo 'chromium cannot be installed: the tests of the report in a browser are skipped'; \
	else echo 'chromium is not there and cannot be installed: the tests of the report in a browser are skipped'; fi

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install  ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove what the other targets made
	rm -rf $(VENV) $(OTHER) demo dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis

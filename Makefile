# Everything runs from a fresh clone: each target first makes sure that .venv is there and up to date.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# One thread per test process: two torch processes with two threads each slow each other down.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help install demo test test-slow lint format clean

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

install: $(STAMP)  ## make .venv with the pinned versions

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check -q -c constraints.txt torch hatchling editables
	$(BIN)/pip install --disable-pip-version-check -q -c constraints.txt --no-build-isolation -e '.[dev]'
	touch $@

DEMO := random,magnitude,mag-1epoch,snip,iterative-snip,force,grasp,prospr,synflow,px,ntk-sap,ntk-sap-s

demo: install  ## compare all methods but the slowest, NTT, on handwritten digits: table, figure, and where they are
	$(BIN)/ntksap compare --data digits --model resnet8 --methods $(DEMO) --sparsities 0.8,0.95,0.98 --epochs 10 --out demo

test: install lint  ## lint, types, and every test that takes seconds
	$(PYTEST) -m 'not slow' --doctest-modules src tests

test-slow: install data/cifar-10-batches-bin  ## every test, those that take minutes too, and those on real CIFAR-10
	NTKSAP_DATA=data $(PYTEST) --doctest-modules src tests

# From a neighbouring folder that can make it, else by download; without either, the tests that need it are skipped.
data/cifar-10-batches-bin: | install
	-if [ -x ../shared/data/cifar10 ]; then $(BIN)/python ../shared/data/cifar10 data; \
	else $(BIN)/python -c 'import ntksap.data; ntksap.data.download("cifar10", "data")'; fi

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install  ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove what the other targets made
	rm -rf $(VENV) demo dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis

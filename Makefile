# Every command of the project. `make demo` and `make test` do all set-up themselves.
SHELL := bash
export PATH := $(CURDIR)/.venv/bin:$(PATH)
# The compiler's results, where ccache is installed: `make mutations` compiles most files many times.
export CCACHE_DIR ?= $(CURDIR)/build/ccache
export CCACHE_DEPEND ?= true
export CCACHE_NOHASHDIR ?= true

SETUP_INPUTS := tools/bootstrap.sh tools/constraints.txt tools/oldest_tensorflow.txt tools/mxnet.txt \
  pyproject.toml setup.py
READY_DEMO := .venv/.ready-demo
READY_TEST := .venv/.ready-test
READY_TEST_ALL := .venv/.ready-test-all
READY_BENCH := .venv/.ready-bench
CXX_FILES = $(shell git ls-files '*.cc' '*.h')

.PHONY: help demo test test-all mutations lint build format bench wheel clean

help:  ## list these commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 11

demo: build  ## train a small network on real images with two ranks and one server
	bpslaunch --nproc-per-node 2 --servers 1 -- python examples/torch/fashion_mnist.py

test: $(READY_TEST)  ## the tests of the core promises: C++, the simulator, Python, PyTorch; at most 12 minutes
	python tools/run_tests.py release some-seeds core

test-all: $(READY_TEST_ALL)  ## every test: all frameworks, sanitizers, linters, virtual machines; PARTS="tsan python" runs some
	python tools/run_tests.py $(PARTS)

mutations: $(READY_TEST)  ## plant the faults of tests/mutations/ and show which tests find them; PATCHES="01 answer-twice" plants some; 15 minutes or more
	python tools/run_mutations.py $(PATCHES)

lint: $(READY_TEST_ALL)  ## formatters, linters, types, the layer table
	pytest -q tests/lint

build: $(READY_DEMO)  ## renew the native module that .venv imports
	@[ -f build/release/build.ninja ] || tools/bootstrap.sh demo
	cmake --build build/release --target _core tensorflow_ops mxnet_engine

format: $(READY_TEST_ALL)  ## rewrite all sources the way the linters want them
	clang-format -i $(CXX_FILES)
	ruff check --fix --quiet .
	ruff format --quiet .

bench: $(READY_BENCH) build  ## speed beside bounds and peers; MEASURES="lab one_machine" runs some, MEASURES=cpp the C++ ones
ifeq ($(MEASURES),cpp)
	cmake --preset release -DBYTEPS_BUILD_BENCHMARKS=ON
	cmake --build --preset release
	for program in build/release/*_bench; do $$program || exit 1; done
else
	python -m benchmarks.run $(MEASURES)
endif

wheel: $(READY_DEMO)  ## dist/byteps-*.whl
	pip wheel --no-deps --wheel-dir dist .

clean:  ## remove what was built; .venv stays
	rm -rf build dist *.egg-info byteps/_core*.so

$(READY_DEMO): $(SETUP_INPUTS)
	tools/bootstrap.sh demo
	@touch $@

$(READY_TEST): $(SETUP_INPUTS)
	tools/bootstrap.sh test
	@touch $@ $(READY_DEMO)

$(READY_TEST_ALL): $(SETUP_INPUTS)
	tools/bootstrap.sh test-all
	@touch $@ $(READY_TEST) $(READY_DEMO)

$(READY_BENCH): $(SETUP_INPUTS)
	tools/bootstrap.sh bench
	@touch $@ $(READY_DEMO)

# make run    set up .venv and run the main job; ARGS="--configfile mine.yaml" goes to shardwise run, and on to snakemake
# make submit   the same in the background; PROFILE=profiles/slurm ARGS="--job='--time=7-0'" as a job of the scheduler
# make test   set up .venv and run all tests; ARGS="tests/unit -k plan" goes to pytest
# make test-fast  the inner loop: unit tests that take no scheduler and no network, and one whole local run
# make data-parallel  train examples/data_parallel; ARGS="--ranks 4" goes to its train.py
# make doctor   what would run here, and what is missing; ARGS="--json" goes to shardwise doctor
# make report   the page on a run, made anew; ARGS="other_results" goes to shardwise report
# make watch    a run while it goes, from any shell of any node; ARGS="results/mine --once" goes to shardwise watch
# make verify   whether a results folder is whole, from its receipts; ARGS="other_results" goes to shardwise verify
# make nightly  the tests that make test leaves out, as they take many GB of memory or minutes
# make faults  the tests that make faults; prints the table of docs/reliability.md with the figures of this run
# make errors   write docs/errors.md anew, and tests/hostile/messages.md with each bad input and its message
# make fuzz   a million damaged files for the readers of files; ARGS="-k header" leaves out the others
# make histories  results folders through random histories, each "done" compared with a fresh run; HISTORIES=20 plays fewer
# make gallery  the pictures of docs/report.md anew, from runs of the examples in a browser out of Debian's packages
# make lint   formatting and style of Python and Snakemake files, types of the lower rooms
# make bench  the dry run: table of docs/performance.md
# make bench-reduce  the reduce beside a plain loop over the same files; ARGS="--gib 1 --only d=8" goes to it
# make bench-dispatch  makespans of unequal devices; tiny shards under each dispatch, on real schedulers; ARGS="--places slurm" goes to the second
# make bench-gpu  those that need a GPU: kernels, proofs, shard jobs on one GPU and several, start-up, whole runs; ARGS="--tiny" tries each without one
# make install  set up .venv and nothing else
#
# CUDA=12, 13 or none says which cupy is installed; by default the driver decides.
# doctor, report, watch and verify install nothing; run make install before them.

.DEFAULT_GOAL := help
PYTHON ?= python3
PROFILE ?= profiles/local
ARGS ?=
python_needed = shardwise needs Python 3.11 or newer, which "$(PYTHON)" is not; name one: make $(MAKECMDGOALS) PYTHON=python3.12

# These install nothing: they never ask which cupy would fit, and use .venv as it is.
LOOKERS := doctor report watch verify
ifneq ($(filter-out help clean $(LOOKERS),$(MAKECMDGOALS)),)
ifeq ($(origin CUDA),undefined)
CUDA := $(shell PYTHONPATH=scripts $(PYTHON) -c "import sys; sys.version_info < (3, 11) and sys.exit(2); \
  from shardwise.devices.choose import cuda_extra as c; print(c())")
cuda_reason := , as a driver or a scheduler's client is here
ifneq ($(.SHELLSTATUS),0)
$(error $(python_needed))
endif
endif
ifeq ($(filter 12 13 none,$(CUDA)),)
$(error CUDA is "$(CUDA)"; it must be 12, 13 or none)
endif
endif

BIN := .venv/bin
cupy := $(if $(filter-out none,$(CUDA)),cuda$(CUDA))
comma := ,
# An example's own input is made before it runs: examples/NAME/config.yaml needs examples/NAME/input.npy.
example := $(patsubst %/config.yaml,%/input.npy,$(filter examples/%/config.yaml,$(subst =, ,$(ARGS))))

.PHONY: help install run submit data-parallel $(LOOKERS) test test-fast nightly faults errors fuzz histories gallery lint bench bench-reduce bench-dispatch bench-gpu clean

help:
	@sed -n 's/^# make/  make/p' Makefile

install: .venv/.run-$(CUDA)

run: .venv/.run-$(CUDA) $(example)
	$(BIN)/shardwise run --profile $(PROFILE) $(ARGS)

submit: .venv/.run-$(CUDA) $(example)
	PYTHONPATH=$(CURDIR)/scripts $(BIN)/python -m shardwise.command submit --profile $(PROFILE) $(ARGS)

data-parallel: .venv/.examples-$(CUDA)
	$(BIN)/python examples/data_parallel/train.py $(ARGS)

$(LOOKERS):
	@test -x $(BIN)/python || { echo "there is no .venv here yet: run make install first" >&2; exit 2; }
	@PYTHONPATH=scripts $(BIN)/python -m shardwise.command $@ $(ARGS)

# Four processes from both ends of the order in pyproject.toml: the tests of a scheduler, which
# mostly wait, beside those that compute; ARGS="-n 16" takes more cores. Each process reads the
# tests as pytest has compiled them for another, whatever the environment says of bytecode.
test nightly faults: export PYTHONDONTWRITEBYTECODE :=
test: .venv/.test-$(CUDA)
	$(BIN)/pytest -n 4 --dist loadfile --no-loadscope-reorder $(ARGS)

test-fast: .venv/.test-$(CUDA)
	$(BIN)/pytest -n 2 --dist loadfile tests/unit/files tests/unit/plan tests/unit/records \
	  tests/unit/workflow tests/unit/test_rooms.py tests/unit/test_docs.py $(ARGS)
	$(BIN)/snakemake --profile profiles/local --forceall --config results=results/test-fast

nightly: .venv/.test-$(CUDA)
	$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder -m nightly --deselect tests/histories $(ARGS)
	$(MAKE) histories

faults: .venv/.test-$(CUDA)
	$(BIN)/pytest -n 4 --dist loadfile --no-loadscope-reorder -m "fault and not nightly" $(ARGS)

errors: .venv/.test-$(CUDA)
	$(BIN)/python -m tests.hostile.bad_inputs

fuzz: .venv/.test-$(CUDA)
	$(BIN)/pytest -m nightly tests/hostile $(ARGS)

histories: .venv/.test-$(CUDA)
	$(BIN)/pytest -n 4 --dist load -m nightly tests/histories $(ARGS)

gallery: .venv/.test-$(CUDA) examples/digits/input.npy examples/seismic/input.npy
	$(BIN)/python -m tests.browser.gallery

lint: .venv/.test-$(CUDA)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/snakemake --lint
	$(BIN)/mypy

bench: .venv/.test-$(CUDA)
	$(BIN)/python benchmarks/commands.py --groups array jobs $(ARGS)

bench-reduce: .venv/.test-$(CUDA)
	$(BIN)/python benchmarks/reduce.py $(ARGS)

bench-dispatch: .venv/.test-$(CUDA)
	$(BIN)/python benchmarks/dispatch.py $(ARGS)

bench-gpu: .venv/.test-$(CUDA)
	$(BIN)/python benchmarks/kernels.py $(ARGS)
	$(BIN)/python benchmarks/proof.py $(ARGS)
	$(BIN)/python benchmarks/shard_jobs.py $(ARGS)
	$(BIN)/python benchmarks/commands.py --groups task whole $(ARGS)

examples/%/input.npy: examples/%/make_input.py | .venv/.examples-$(CUDA)
	$(BIN)/python $<

# One stamp a set of packages; a changed pyproject.toml installs again.
.venv/.run-$(CUDA): pyproject.toml
	$(call install,$(cupy))

.venv/.examples-$(CUDA): .venv/.run-$(CUDA)
	$(call install,examples)

.venv/.test-$(CUDA): pyproject.toml
	$(call install,test$(if $(cupy),$(comma)$(cupy)))

# All cores compile the packages, where pip takes one; like pip, they pass over what is no Python.
define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo '$(python_needed)' >&2; exit 2; }
	@$(if $(findstring cuda,$(1)),echo "cupy and CUDA $(CUDA) are installed$(cuda_reason): 3 GB; CUDA=none leaves them out" >&2)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable ".$(if $(1),[$(1)])"
	@$(BIN)/python -m compileall -qq -j 0 .venv/lib || true
	@touch $@
endef

clean:
	rm -rf .venv .cache .pytest_cache .ruff_cache .hypothesis

# make run    set up .venv and run the workflow; ARGS="--configfile mine.yaml" goes to shardwise run, and on to snakemake
# make submit   the same in the background; with PROFILE=profiles/slurm ARGS="--job='--time=7-0'" in a job of the scheduler
# make test   set up .venv and run all tests; ARGS="tests/unit -k plan" goes to pytest
# make test-fast  a quick check between edits: unit tests that need no scheduler and no network, and one whole local run
# make data-parallel  train examples/data_parallel; ARGS="--ranks 4" goes to its train.py
# make doctor   say what would run here, and what is missing; ARGS="--json" goes to shardwise doctor
# make report   write the page on a run again; ARGS="other_results" goes to shardwise report
# make watch    watch a run while it works, from any shell of any node; ARGS="results/mine --once" goes to shardwise watch
# make verify   check from its receipts whether a results folder is whole; ARGS="other_results" goes to shardwise verify
# make nightly  run the tests that make test leaves out because they take many minutes or many GB of memory
# make faults  run the tests that cause faults; print the table of docs/reliability.md with the figures of this run
# make errors   print each bad input and its message, and write docs/errors.md and the table of docs/config.md again
# make fuzz   try the readers of files on a million damaged files; ARGS="-k header" tries that reader only
# make histories  put results folders through random histories, and compare each "done" with a fresh run; HISTORIES=20 plays fewer
# make gallery  make the pictures of docs/report.md again: run the examples, and show their pages in a browser from Debian's packages
# make lint   check formatting and style of Python and Snakemake files, and types of the rooms that pyproject.toml lists
# make sizes  count the lines of each room, and of tests, benchmarks and documents
# make bench  time the dry run: the table of docs/performance.md
# make bench-reduce  time the reduce and a plain loop over the same files; ARGS="--gib 1 --only d=8" limits what is timed
# make bench-dispatch  simulate unequal devices; time tiny shards under each dispatch, on real schedulers, or on one: ARGS="--places slurm"
# make bench-gpu  run the benchmarks that need a GPU: kernels, proofs, shard jobs on one GPU and several, start-up, whole runs; ARGS="--tiny" tries each without a GPU
# make install  set up .venv and nothing else
#
# CUDA=12, 13 or none says which cupy to install; by default the driver decides (on a login node: 12).
# doctor, report, watch and verify install nothing; run make install before them.

.DEFAULT_GOAL := help
PYTHON ?= python3
PROFILE ?= profiles/local
ARGS ?=
python_needed = shardwise needs Python 3.11 or newer, which "$(PYTHON)" is not; name one: make $(MAKECMDGOALS) PYTHON=python3.12

# These targets install nothing: they use .venv as it is, so they never ask which cupy would fit.
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

.PHONY: help install run submit data-parallel $(LOOKERS) test test-fast nightly faults errors fuzz histories gallery lint sizes bench bench-reduce bench-dispatch bench-gpu clean

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

# Four processes take tests from both ends of the order in pyproject.toml: so tests of a scheduler,
# which mostly wait, run next to tests that compute. ARGS="-n 16" takes more cores. The processes share
# the tests that pytest has compiled, even if the environment forbids writing bytecode.
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
	$(BIN)/python -m tests.unit.test_docs

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

sizes:
	@git ls-files scripts | xargs awk '{ n = split(FILENAME, part, "/"); room = n > 3 ? part[3] : "other"; lines[room]++ } \
	  END { for (room in lines) print lines[room], room }' | sort -rn
	@for part in scripts tests benchmarks "README.md docs/*.md docs/*/*.md"; do \
	  echo $$(git ls-files $$part | xargs cat | wc -l) $$part; done

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

# One stamp file for each set of packages; if pyproject.toml changes, make installs again.
.venv/.run-$(CUDA): pyproject.toml
	$(call install,$(cupy))

.venv/.examples-$(CUDA): .venv/.run-$(CUDA)
	$(call install,examples)

.venv/.test-$(CUDA): pyproject.toml
	$(call install,test$(if $(cupy),$(comma)$(cupy)))

# Compile the packages on all cores (pip uses one); like pip, pass over files that are not valid Python.
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

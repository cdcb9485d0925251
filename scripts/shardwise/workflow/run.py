"""What the rules ask for: file names, resources and digests of one run.

The Snakefile is parsed again inside every job. There the plan on disk is read, with the standard
library alone. Only the main process checks the config and the headers of the input.
"""

import atexit
import functools
import math
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shardwise.errors import InputError, ShardwiseError
from shardwise.files.paths import CACHE, Results, place, wildcards
from shardwise.plan import cut, memory
from shardwise.plan import plan as plan_file
from shardwise.plan.config import unchecked
from shardwise.plan.plan import Plan
from shardwise.records import failures
from shardwise.records.failures import Failure
from shardwise.records.quote import advice, amounts, replaced
from shardwise.records.store import WORKER, Store
from shardwise.units import MIB
from shardwise.work.array import MOST_TASKS
from shardwise.workflow import hooks, preflight

STAGES = ("plan", "synthesize", "shard", "multiply", "pool", "mpi", "ledger", "reduce", "report")
"""Our rules, in the order in which they run."""

_DAY_MINUTES = 24 * 60
_YEAR = 366 * 24 * 3600.0


class Run:
    """One run of the workflow, as its rules see it, from Snakemake's config and workflow.

    ``missing`` are the shards that lack their products, in the plan's order; None in a job.
    ``stages`` maps the name of a rule, which a module may have renamed, to ours. ``rule_for_all``
    is the rule whose one job computes all shards; None under ``dispatch: jobs``.
    """

    def __init__(self, config: Mapping[str, Any], workflow: Any) -> None:
        self.config = dict(config)
        self._workflow, main = workflow, workflow.is_main_process
        if main:
            hooks.show_less(workflow)
        hooks.hasten()
        said = unchecked(config)
        folder = str(said["results"])
        if (moved := hooks.apply_prefix(workflow, folder)) != folder:
            self.config["results"] = moved
        self.results = Results(Path(moved))
        self.plan = self._checked_plan() if main else plan_file.load(self.results.plan)
        self.store = Store(self.plan)
        self.missing = self.store.missing() if main else None
        self.reduce, self.dispatch, self.workers = said["reduce"], said["dispatch"], said["workers"]
        self._array_tasks = MOST_TASKS if said["array_tasks"] == "auto" else said["array_tasks"]
        self._array_limit = said["array_limit"] or 0
        name_of = workflow.modifier.modify_rulename
        self.stages = {name_of(stage): stage for stage in STAGES}
        stage = {"jobs": None, "array": "multiply"}.get(self.dispatch, self.dispatch)
        self.rule_for_all: str | None = stage and name_of(stage)
        if self.missing is not None:
            os.environ[failures.RUN] = os.urandom(6).hex()  # all its jobs, but no trial, are of it
            left = f"{len(self.missing)} of {len(self.plan.shards)} shards have no products yet"
            hooks.log.info(f"shardwise: {left if self.missing else 'every shard has its product'}")
            for note in filter(None, (replaced(self.plan), advice(self.plan))):
                hooks.log.info(f"shardwise: {note}")
        self._set_files()

    def _checked_plan(self) -> Plan:
        """Check everything that can be checked before any job; exit with 2 if anything is wrong."""
        try:
            hooks.refuse_repeated(sys.argv)
            from shardwise.plan import config, config_file, planner  # here: jobs do not need them

            # Snakemake has read these files too, but its loader accepts more than plain data.
            used = (*self._workflow.configfiles, *self._workflow.overwrite_configfiles)
            config_file.read_files(list(dict.fromkeys(Path(file).absolute() for file in used)))
            settings = config.load(self.config)
            plan = planner.make(settings, CACHE, hooks.log)
            planner.check_folder(plan)
        except (ShardwiseError, ImportError, KeyboardInterrupt) as error:
            hooks.refuse(error)
        hooks.log.info("shardwise: " + planner.describe(plan))
        return plan

    def _set_files(self) -> None:
        """Name the outputs of all rules.

        A file that exists under the name that the plan gives it is the right one: its job then has
        no input, so that no time stamp and no new plan makes Snakemake run it again.
        """
        plan, results = self.plan, self.results
        arrays = [getattr(results, key) for key in plan.facts.per_matrix]
        files = results.plan, results.sources, *arrays, results.plan_facts
        # It stands for all files of the plan: Snakemake looks at each file of each job.
        self.plan_mark = [str(results.planned(plan.mark))]
        self.plan_files = [*map(str, files), *self.plan_mark]
        there = self.missing is None or plan_file.is_committed(plan)
        self.plan_input = [] if there else self.anew
        own = plan.synthetic_receipt
        self.stack_files = [str(results.synthetic), str(own)] if own else []
        self.any_shard = wildcards(next(iter(plan.shards.values())).name)
        self.ledger_files = [str(results.ledger), str(results.listed(plan.key))]
        self.array_files = [str(path) for path in plan.result_files(self.reduce["statistics"])]
        # What a run names at its end; and all files but those of shards, which the ledger asks for.
        self.last_files = [*self.array_files, str(results.summary), str(results.report)]
        self.all_files = [*self.plan_files, *self.ledger_files, *self.last_files,
                          str(results.summed(plan.key)), str(results.metrics)]  # fmt: skip
        # Input of every job that reads matrices. The user's files are not among them: the main
        # process has looked at those, and the key in a name says what they were.
        self.files_for_all = self.plan_mark + self.stack_files
        # What the main process leaves for jobs: the plan until one commits it.
        self.planned = Results(CACHE / f"planned-{plan_file.digest(str(results.root))}")

    # Computed late: Snakemake knows what is forced only after it has read the rules.

    @functools.cached_property
    def forces(self) -> bool:
        """Whether the user forces products: then all are made again, in order.

        One job for all shards has to be forced itself; under ``jobs`` anything counts.
        """
        settings = self._workflow.dag_settings
        named = {*settings.forcerun, *(settings.targets if settings.forcetargets else ())}
        is_rule = self._workflow.is_rule
        if lost := [name for name in self.stages if name in named and not is_rule(name)]:
            words = f"this run has no rule {lost[0]}; name one of its rules"
            hooks.refuse(InputError(f"{words}: {', '.join(filter(is_rule, self.stages))}"))
        return bool(settings.forceall or self.rule_for_all in named
                    or (self.rule_for_all is None and named))  # fmt: skip

    @property
    def to_compute(self) -> list[str]:
        """The shards whose products are to be made."""
        return list(self.plan.shards) if self.forces or self.missing is None else self.missing

    def worker_words(self, wildcards: Any, resources: Any) -> str:
        """The options of `dispatch` that grow with each try, as the resources do."""
        words, array = "", self.dispatch == "array"
        if array:
            words = f"--array-tasks {self._array_tasks} --array-limit {self._array_limit} "
            words += preflight.of_array(self._workflow, resources)
        here = self._workflow.is_main_process and not array
        seconds = None if here else preflight.run_time(resources)
        return f"{words} --run-time {seconds}" if seconds else words

    def failures_of(self, job: Any, otherwise: Exception) -> tuple[list[Failure], bool]:
        """A job's failures in this run, else this one, then noted; and if all its work failed.

        Nothing for a job of another module or of a rule of the user's.
        """
        if job.rule.name not in self.stages:
            return [], False
        part = stage = self.stages[job.rule.name]
        if job.rule.name == self.rule_for_all:
            part, missing = WORKER, self.store.missing()
            if found := self.store.failed(missing):
                return [*found.values()], len(found) == len(missing)
        elif shard := job.wildcards_dict.get("shard"):
            part = f"copy-{shard}" if stage == "shard" else shard
        own = self.store.failure(part) or self.store.fail(part, otherwise, attempt=job.attempt)
        return [own], True

    # Inputs, as functions of the wildcards. In a job all shards are to be made: it needs its input.

    @functools.cached_property
    def _to_make(self) -> tuple[set[str], set[str]]:
        """The shards to copy, and those to multiply."""
        known = self.missing is not None and not self.forces
        return set(self.store.missing_copies() if known else self.plan.shards), set(self.to_compute)

    def input_files(self, wildcards: Any) -> list[str]:
        """Input of the job that copies a shard's matrices."""
        return self.files_for_all if wildcards.shard in self._to_make[0] else []

    def factor_files(self, wildcards: Any) -> list[str]:
        """Input of the job that computes a shard's products: its copy, or what all shards need."""
        copied, multiplied = self._to_make
        if wildcards.shard not in multiplied:
            return []
        if not self.plan.settings.materialize:
            return self.files_for_all
        if wildcards.shard not in copied:
            return self.plan_mark
        name = self.plan.shards[wildcards.shard].input_name
        return [_lacking(f"{self.results.shards}/{place(name)}")]

    @functools.cached_property
    def anew(self) -> list[str]:
        """A temporary file that is newer than all others: as an input it makes a job run.

        Plan, ledger and sum may exist but be of another plan, or lack products. Snakemake does not
        notice a missing marker or product if no job asks for it by name. Once the jobs are known,
        `hooks.before_jobs` makes the file old. No other process has it, not even a dry run.
        """
        file = CACHE.absolute() / f"anew-{failures.this_run()}"
        try:
            CACHE.mkdir(parents=True, exist_ok=True)
            file.touch()
            atexit.register(file.unlink, missing_ok=True)
            os.utime(file, (time.time() + _YEAR,) * 2)
        except OSError as error:
            hooks.refuse(error)
        return [str(file)]

    def product_files(self, wildcards: Any) -> list[str]:
        """Input of the job that writes the ledger; nothing if the ledger and all products exist."""
        if self._is_done(self.store.is_listed()):
            return []
        shards = self.to_compute
        if self.rule_for_all is None:
            # One file of each product that is to be made: Snakemake spends time on each file.
            names = (place(self.plan.shards[shard].name) for shard in shards)
            made = [_lacking(f"{self.results.products}/{name}") for name in names]
        else:
            # No other run has this file, not even one for the same shards.
            name = plan_file.key_of("\n".join([failures.this_run(), *shards]).encode())
            made = [str(self.results.work(name))] if shards else []
        return self.anew + self.plan_mark + made

    def ledger_for_reduce(self, wildcards: Any) -> list[str]:
        """Input of the job that writes the sum; nothing if the sum and all products exist."""
        if self._is_done(self.store.is_summed(self.reduce["statistics"])):
            return []
        return self.anew + self.plan_mark + self.ledger_files

    def _is_done(self, exists: bool) -> bool:
        """Whether a file made from all products needs no input: it exists, and so do they."""
        return self.missing is None or (exists and not self.missing and not self.forces)

    def cores_here(self, wildcards: Any) -> int:
        """CPU cores of a run whose jobs run on this machine; 1 if they run on a cluster."""
        workflow = self._workflow
        here = workflow.is_main_process and not workflow.execution_settings.use_threads
        return (workflow.resource_settings.cores if here else None) or 1

    # Resources: the most that any shard needs, times the attempt.

    def mib(self, rule: str) -> Any:
        """Memory of a job."""
        problem, shards = self.plan.problem, self.plan.shards
        if rule == "synthesize":
            # A matrix as drawn, as complex pairs and as stored.
            nbytes = memory.PYTHON_BYTES + 4 * max(16, problem.item) * math.prod(problem.left)
        elif rule == "reduce":  # of all its ranks
            nbytes = memory.reduce_bytes(self.plan, self.reduce["ranks"])
        else:  # a copy takes no more than the task of its shard
            workers = asked(self.node_words)[0] if rule in ("pool", "mpi") else 1
            nbytes = workers * max(row.memory for row in shards.values())
            if self.dispatch != "jobs":  # else a task reads little of the plan
                nbytes += (1 + workers) * memory.PLAN_ROW_BYTES * len(shards)
        return lambda wildcards, attempt: attempt * -(-nbytes // MIB)

    def minutes(self, rule: str) -> Any:
        """Run time of a job."""
        written, rows = self.plan.written, self.plan.shards.values()
        read = {"synthesize": written["input"], "reduce": written["products"]}
        read["shard"] = 2 * max(row.bytes for row in rows)
        return lambda wildcards, attempt: (
            attempt * (cut.minutes(read[rule]) if rule in read else self._worker_minutes)
        )

    @functools.cached_property
    def _worker_minutes(self) -> int:
        """Run time of a worker, for its share of the shards; in an array it stops before that."""
        rows, words = self.plan.shards.values(), self.node_words
        largest = max(rows, key=lambda row: row.bytes + row.product_bytes)
        least, shared = self._minutes_of([largest.shard]), 0
        if self.dispatch == "array":
            shared = min(self._minutes_of(self.to_compute, self._array_tasks), _DAY_MINUTES)
        elif self.dispatch != "jobs":
            workers = math.prod(asked(words))
            shared = self._minutes_of(self.to_compute, workers)
        return max(least, shared)

    def _minutes_of(self, shards: Sequence[str], workers: int = 1) -> int:
        """How long some shards take if workers share them evenly."""
        rows = [self.plan.shards[shard] for shard in shards]
        nbytes = sum(amounts(self.plan, shards))
        if self.dispatch != "jobs" and self.plan.settings.materialize:  # else other jobs copy
            nbytes += 2 * sum(row.bytes for row in rows)
        flop = sum(row.stop - row.start for row in rows) * self.plan.problem.flop
        return cut.minutes(nbytes // workers, flop // workers)

    @property
    def node_words(self) -> dict[str, str]:
        """What the profile's block for `pool` or `mpi` asks for."""
        blocks = self._workflow.resource_settings.overwrite_resources
        asked = blocks.get(self.rule_for_all, {})
        # Snakemake wraps them; `raw` is the text in the profile.
        return {name: str(resource.raw) for name, resource in asked.items()}


def _lacking(path: str) -> str:
    """An array's receipt, which is written last; the array itself if only that is missing."""
    receipt = f"{path}.json"
    return f"{path}.npy" if os.path.exists(receipt) else receipt


# `gpu:4` or `gres/gpu:a100:2(S:0)` of Slurm; `gpu=4` of Grid Engine, but not `gpu_mem=40G`.
_COUNT = re.compile(r"\b(?:gpu(?::[^,:(]+)?:|n?(?:gpus?|cuda)=)(\d+)\b")


def counted(resources: Mapping[str, str]) -> int:
    """GPUs per node that ``gres`` of Slurm or a ``uge_...`` of Grid Engine names; 0 if none does.

    A job uses no more: plain Grid Engine does not say which GPUs it grants.
    """
    words = [words for name, words in resources.items() if re.match("gres$|uge_", name)]
    return sum(map(int, _COUNT.findall(" ".join(words))))


def asked(resources: Mapping[str, str]) -> tuple[int, int]:
    """GPUs per node, at least 1, and nodes; ``gpu`` and ``tasks`` count over all nodes.

    A number that is missing, or an expression such as ``2 * attempt``, counts as 1.
    """
    words = (resources.get(name, "") for name in ("gpu", "tasks", "nodes"))
    gpus, tasks, nodes = (max(1, int(word)) if word.isdecimal() else 1 for word in words)
    return max(counted(resources), -(-max(gpus, tasks) // nodes)), nodes

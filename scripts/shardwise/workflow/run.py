"""What the rules ask for: file names, resources and digests of one run.

The Snakefile is parsed again inside every job. There the plan on disk is read, with the standard
library alone. Only the main process checks the config and the headers of the input.
"""

import functools
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snakemake.io import ancient

from shardwise.devices import grants
from shardwise.dispatch.array import recipe
from shardwise.dispatch.schedulers import grid_engine
from shardwise.errors import ShardwiseError, some
from shardwise.files.paths import CACHE, Results, place, wildcards
from shardwise.host import begin_in_utf8, refuse_small_shared_memory
from shardwise.plan import cut, memory
from shardwise.plan import plan as plans
from shardwise.plan.config import dispatch_settings, reduce_settings, results_folder
from shardwise.plan.plan import Plan, Shard
from shardwise.processes import environment
from shardwise.records import missing
from shardwise.units import MIB
from shardwise.workflow import hooks, names

if TYPE_CHECKING:
    from shardwise.records.remaining import RemainingWork

log = logging.getLogger("snakemake.logging")  # it prints messages as they are: no %s

_DAY_MINUTES = 24 * 60

Growing = Callable[[Any, int], int]
"""A resource as a function of the wildcards and the attempt."""


class Run:
    """One run of the workflow, as its rules see it, from Snakemake's config and workflow.

    ``dispatch``, ``workers``, ``array_tasks`` and ``array_limit`` are as the config has them.
    ``standing`` is what is left to do; None in a job. ``name_of`` gives the name of a rule here, as
    another workflow may rename the rules of a module. ``began``, ``succeeded``, ``interrupted``:
    whether a job was to run, whether all such jobs did, whether the user pressed Ctrl-C.
    """

    def __init__(self, config: Mapping[str, Any], workflow: Any) -> None:
        hooks.start_apart()
        self.config = dict(config)
        self._workflow, linting = workflow, not workflow.check_envvars  # only --lint checks none
        main = workflow.is_main_process and not linting
        if main:
            begin_in_utf8()
            hooks.show_plainly()
            hooks.show_less(workflow)
        folder = results_folder(config)
        if (moved := hooks.apply_prefix(workflow, folder)) != folder:
            self.config["results"] = moved
        self.name_of = workflow.modifier.modify_rulename
        self.results = Results(Path(moved))
        who = dispatch_settings(config)
        self.dispatch, self.workers, self.array_tasks, self.array_limit = who.values()
        if linting:  # it reads the rules, perhaps with nothing but Snakemake installed
            self.plan = plans.sample(self.results)
        else:
            self.plan = self._checked_plan() if main else plans.load(self.results.plan)
        self.reduce = reduce_settings(config)
        self.standing: RemainingWork | None = None
        self.began = self.succeeded = self.interrupted = False
        if main:
            self.standing = self._compared()
            hooks.before_graph(workflow, self._refuse_unfit_to_submit)
            hooks.add_hooks(workflow, self)

    def _checked_plan(self) -> Plan:
        """Check everything that can be checked before any job; exit with 2 if anything is wrong."""
        try:
            environment.refuse_other_packages()
            from shardwise.plan import config, config_file, planner  # here: jobs do not need them

            # Snakemake has read these files too, and its loader takes more than data.
            used = (*self._workflow.configfiles, *self._workflow.overwrite_configfiles)
            config_file.read_files(list(dict.fromkeys(Path(file).absolute() for file in used)))
            settings = config.load(self.config, self._workflow.config_settings.config)
            plan = planner.make(settings, CACHE, log)
            planner.check_folder(plan)
        except (ShardwiseError, ImportError) as error:
            hooks.refuse(error)
        log.info("shardwise: " + planner.describe(plan))
        return plan

    def _refuse_unfit_to_submit(self, submits: bool) -> None:
        """Refuse names and variables that would mislead the scheduler that ``submits``."""
        if submits:
            names.refuse_odd(self._workflow, self.config, self.plan)
        if submits or self.dispatch == "array":
            names.refuse_other_clusters()

    def refuse_small_memory(self) -> None:
        """Refuse ranks that the shared memory of this machine cannot hold, if they run here.

        Snakemake knows where they run only after it has read the rules.
        """
        if self._workflow.local_exec and self._words_for("reduce").get("mpi") == "mpiexec":
            refuse_small_shared_memory(self.reduce["ranks"], "reduce.ranks")

    @property
    def rule_for_all(self) -> str | None:
        """The rule whose one job computes all shards; None under ``dispatch: jobs``."""
        return {"jobs": None, "array": recipe.RULE}.get(self.dispatch, self.dispatch)

    @functools.cached_property
    def forced(self) -> bool:
        """Whether the user forces the one job for all shards; logs that once.

        Snakemake itself knows that only after it has read the rules.
        """
        settings = self._workflow.dag_settings
        named = {*settings.forcerun, *(settings.targets if settings.forcetargets else ())}
        if self.rule_for_all is None or self.standing is None:
            return False
        if not (settings.forceall or self.name_of(self.rule_for_all) in named):
            return False
        again = missing.describe(self.plan, list(self.plan.shards), "are computed again")
        log.info(f"shardwise: as you force it, {again}")
        return True

    @property
    def to_compute(self) -> list[str]:
        """The shards that the one job for all computes."""
        return list(self.plan.shards) if self.forced else self.standing.missing

    def _compared(self) -> "RemainingWork":
        """Compare the folder with the plan, and have Snakemake make again what does not fit."""
        from shardwise.records import remaining  # here: jobs do not need it

        work = remaining.find(self.plan, self.reduce["statistics"], jobs=self.rule_for_all is None)
        if self.rule_for_all:
            log.info("shardwise: " + missing.describe(self.plan, work.missing))
        if outdated := work.outdated:
            named = some(map(str, outdated), 5)
            log.info(f"shardwise: to be made again, being of another config: {named}")
        # Snakemake itself makes what a shard lacks, and says why. But it would not make again a
        # lost file on the way to results that exist.
        tops = {self.results.products, self.results.shards}
        unfit = {str(path) for path in work.unfit if path.exists() or tops.isdisjoint(path.parents)}
        hooks.around_graph(self._workflow, unfit)
        return work

    @property
    def planned(self) -> str:
        """Where the plan of this run is until a job commits it to the results folder."""
        folder = CACHE / f"planned-{plans.digest(str(self.results.root))}"
        return str(Results(folder).plan)

    @property
    def array_words(self) -> str:
        """The options for how many tasks an array has, and how many of them run at once."""
        words = f"--array-limit {self.array_limit}" if self.array_limit else ""
        return words if self.array_tasks == "auto" else f"--array-tasks {self.array_tasks} {words}"

    @property
    def recipe(self) -> str:
        """What the tasks of an array job ask the scheduler for."""
        return str(recipe.path(self.results))

    @staticmethod
    def run_time_words(wildcards: Any, resources: Any) -> str:
        """The option for how long a job may run, if it cannot ask its scheduler."""
        words = grid_engine.site_words(dict(resources.items()))
        seconds = grid_engine.GridEngine().run_time(words)
        return f"--run-time {seconds}" if seconds else ""

    def write_planned(self) -> None:
        """Write the plan for the job that commits it; the results folder stays as it is."""
        from shardwise.plan import planner  # here: jobs do not need it

        aside = Results.of_plan(Path(self.planned))
        planner.write(replace(self.plan, results=aside))

    # File names, as patterns for the wildcards {shard} and {thousand}, and as lists.

    @property
    def _wildcards(self) -> str:
        return wildcards(next(iter(self.plan.shards)))

    def pattern(self, name: Callable[[str], Path]) -> str:
        """The pattern of a per-shard file."""
        return str(name(self._wildcards))

    def log_pattern(self, rule: str) -> str:
        """The log of a rule that runs for every shard."""
        return str(self.results.log(rule, self._wildcards))

    def all_receipts(self, wildcards: Any = None) -> list[str]:
        """The files that make the ledger again when they are newer: every receipt of the plan.

        Under any dispatch but jobs, the file that the one job for all leaves stands for them; if
        there is nothing to compute, the newest receipt does.
        """
        if self.dispatch == "jobs":
            return self._each(self.results.receipt)
        if self.standing and self.standing.newest and not self.to_compute:
            return [str(self.results.receipt(self.standing.newest))]
        return [str(self.results.multiplied)]

    def arrays(self) -> list[str]:
        """The arrays that the reduce writes; its receipt comes after them."""
        return [str(self.results.statistic(name)) for name in self.reduce["statistics"]]

    def in_the_end(self) -> list[str]:
        """What a run is for, and names at its end: the arrays, their receipt, the page."""
        return [*self.arrays(), str(self.results.summary), str(self.results.report)]

    def targets(self, wildcards: Any = None) -> list[str]:
        """The files of a complete run; of many, only those that Snakemake should look at."""
        whole = [*self.in_the_end(), str(self.results.metrics)]
        if self.dispatch != "jobs":
            return whole
        products, receipts = self._each(self.results.product), self._each(self.results.receipt)
        return [*products, *receipts, *whole]

    def _each(self, name: Callable[[str], Path]) -> list[str]:
        before, after = self.pattern(name).split(self._wildcards)
        return [f"{before}{place(shard)}{after}" for shard in self.plan.shards]

    # Inputs. Each is a plain name where it is the same for all shards, and a function of the
    # wildcards only where it has to be: Snakemake takes ten times as long to call a function.

    def plan_for(self, rule: str) -> Any:
        """The plan as an input: a new plan reruns a job only if the output of the job does not fit.

        In the jobs after one that runs again Snakemake looks at nothing else, not even at what is
        forced. So the plan is ancient for jobs whose output fits, and not for the others.
        """
        results, plan = self.results, str(self.results.plan)
        if rule == "shard":
            return self._for_each(results.shard, plan)
        if rule == "multiply" and self.rule_for_all is None:
            return self._for_each(results.product, plan)
        outputs = {
            "synthesize": results.synthetic, "ledger": results.ledger, "reduce": results.summary
        }  # fmt: skip
        output = outputs.get(rule, results.multiplied)
        return plan if self.standing and output in self.standing.unfit else ancient(plan)

    def _for_each(self, name: Callable[[str], Path], files: Any) -> Any:
        """The input of the job of each shard; if the output of a job fits, no time stamp counts.

        ``name`` gives the job's output by the shard; ``files`` are a name, names or patterns, or a
        function of the wildcards. Plain names come back if they are the same for all shards:
        Snakemake handles them ten times faster.
        """
        if self.rule_for_all:
            return files  # no shard has a job
        unfit = self.standing.unfit if self.standing else set()
        kinds = {name(shard) in unfit for shard in self.plan.shards} if unfit else {False}
        if kinds == {True}:
            return files
        if kinds == {False} and not callable(files):
            return ancient(files)

        def chosen(wildcards: Any) -> Any:
            chosen_files = files(wildcards) if callable(files) else _filled(files, wildcards.shard)
            return chosen_files if name(wildcards.shard) in unfit else ancient(chosen_files)

        return chosen

    @property
    def files_for_all(self) -> list[str]:
        """What the one job for all shards waits for: the synthetic stack."""
        return [str(self.results.synthetic)] if self.plan.facts.synthetic else []

    @property
    def input_files(self) -> Any:
        """The input files that hold a shard's matrices, for the job that copies them."""
        return self._for_each(self.results.shard, self._input_files())

    def _input_files(self) -> Any:
        plan = self.plan
        if not plan.facts.source_parts and len(plan.sources) == 1:
            return [plan.sources[0].file]
        return self._own_input_files

    def _own_input_files(self, wildcards: Any) -> list[str]:
        row = self.plan.shards[wildcards.shard]
        files = (source.file for source in self.plan.sources_of(row.start, row.stop))
        return list(dict.fromkeys(files))  # a file may hold many matrices of a sheet

    @property
    def factor_files(self) -> Any:
        """What a shard's products are made from."""
        right = [source.file for source in self.plan.facts.right_sources]
        copied = self.plan.settings.materialize
        left = [self.pattern(self.results.shard)] if copied else self._input_files()
        files = (lambda wildcards: left(wildcards) + right) if callable(left) else left + right
        return self._for_each(self.results.product, files)

    # Digests: by them a run sees to it that its jobs work by its own plan.

    def shard_digest(self, wildcards: Any) -> str:
        """Changes with which matrices a shard holds."""
        return self.plan.shards[wildcards.shard].matrices

    def fingerprint(self, wildcards: Any) -> str:
        """Changes with anything that a shard's products depend on."""
        return self.plan.shards[wildcards.shard].fingerprint

    # Resources: the most that any shard needs, times the attempt.

    def mib(self, rule: str) -> Any:
        """Memory of a job."""
        problem = self.plan.problem
        match rule:
            case "shard":  # a buffer of a known size, which no attempt outgrows
                return -(-(memory.copy_memory(problem) + self.plan.facts.decoded) // MIB)
            case "synthesize":
                nbytes = memory.synthetic_memory(problem)
            case "reduce":  # of all its ranks
                nbytes = memory.reduce_memory(self.reduce["ranks"], len(self.plan.shards))
            case _:
                nbytes = max(row.memory for row in self.plan.shards.values())
                workers = grants.asked(self._node_words) if rule in ("pool", "mpi") else 1
                nbytes *= workers
                if self.dispatch != "jobs":  # else a task reads little of the plan
                    nbytes += (1 + workers) * memory.plan_memory(len(self.plan.shards))
        return _growing(-(-nbytes // MIB))

    def minutes(self, rule: str) -> Growing:
        """Run time of a job."""
        nbytes = self.plan.facts.bytes
        match rule:
            case "shard":
                return _growing(cut.minutes(2 * max(r.bytes for r in self.plan.shards.values())))
            case "synthesize":
                return _growing(cut.minutes(nbytes.input))
            case "reduce":  # it reads every product once
                return _growing(cut.minutes(nbytes.products))
            case "multiply" if self.dispatch == "array":
                return self._array_minutes
            case "multiply":
                return _growing(self._task_minutes)
        return self._node_minutes

    def _array_minutes(self, wildcards: Any, attempt: int) -> int:
        """Run time of an array task, for its share of the shards; it ends before its time is up."""
        tasks = recipe.MOST_TASKS if self.array_tasks == "auto" else self.array_tasks
        return attempt * max(self._task_minutes, min(self._shared_minutes(tasks), _DAY_MINUTES))

    def _node_minutes(self, wildcards: Any, attempt: int) -> int:
        """Run time of all shards to compute, on all devices that were asked for."""
        devices = grants.asked(self._node_words) * grants.nodes(self._node_words)
        return attempt * max(self._task_minutes, self._shared_minutes(devices))

    def _shared_minutes(self, workers: int) -> int:
        """Run time of all shards to compute, by a number of workers."""
        shards = list(self.plan.shards) if self.standing is None else self.to_compute
        rows = [self.plan.shards[shard] for shard in shards]
        nbytes = sum(missing.amounts(self.plan, shards)) + self._copied(rows)
        flop = sum(row.stop - row.start for row in rows) * self.plan.problem.flop
        return cut.minutes(nbytes // workers, flop // workers)

    @property
    def most_devices(self) -> int:
        """How many devices a job may use if it only knows their number; 0: all that it finds."""
        return grants.counted(self._node_words)

    @property
    def _node_words(self) -> dict[str, str]:
        """What the profile's block for `pool` or `mpi` asks for."""
        return self._words_for(self.dispatch)

    def _words_for(self, rule: str) -> dict[str, str]:
        """What the profile's block for a rule asks for."""
        blocks = self._workflow.resource_settings.overwrite_resources
        asked = blocks.get(self.name_of(rule), {})
        # Snakemake wraps them; `raw` is the text in the profile.
        return {name: str(resource.raw) for name, resource in asked.items()}

    @property
    def _task_minutes(self) -> int:
        rows, flop = self.plan.shards.values(), self.plan.problem.flop
        largest = {(r.bytes, r.product_bytes, r.stop - r.start): r for r in rows}.values()
        return max(
            cut.minutes(r.bytes + r.product_bytes + self._copied([r]), (r.stop - r.start) * flop)
            for r in largest
        )

    def _copied(self, rows: Iterable[Shard]) -> int:
        """Bytes that tasks read and write to copy some shards; under jobs, other jobs copy."""
        copies = self.dispatch != "jobs" and self.plan.settings.materialize
        return 2 * sum(row.bytes for row in rows) if copies else 0


def _filled(names: str | list[str], shard: str) -> str | list[str]:
    """Names, or patterns of names, for one shard."""
    if isinstance(names, str):
        return names
    return [name.replace(wildcards(shard), place(shard)) for name in names]


def _growing(amount: int) -> Growing:
    def resource(wildcards: Any, attempt: int) -> int:
        return attempt * amount

    # Snakemake asks for the signature at every call: computing it once is worth a second in 10,000.
    resource.__signature__ = inspect.signature(resource)  # type: ignore[attr-defined]
    return resource

"""What the rules ask: file names, resources and digests of one run.

The Snakefile is parsed again inside every job. There the plan on disk is read, by the standard
library alone. Only the main process checks the config and the headers of the input.
"""

import base64
import functools
import inspect
import json
import logging
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from snakemake.io import IOFile, ancient

from shardwise import ALGORITHM, code, grants, planfile, sizes
from shardwise import plan as counts
from shardwise.config import NO_PLAN, dispatch_settings, reduce_settings, results_folder
from shardwise.dispatch import final, jobs, missing, recipe, slurm_run, uge_run
from shardwise.errors import InputError, ShardwiseError, one_line
from shardwise.paths import CACHE, Results
from shardwise.plan import Shard, Source, Stack
from shardwise.planfile import Plan
from shardwise.sizes import MIB

log = logging.getLogger("snakemake.logging")  # it prints messages as they are: no %s

SCRIPTS = Path(__file__).parents[1]
_RECORD_LETTERS = 100
"""So much of the name of a record is compared; file names on any disk may be longer."""

_PAGE_SECONDS = 120.0
"""So long may it take to make the page on a failed run; 100,000 shards take less than a minute."""

Growing = Callable[[Any, int], int]
"""A resource as a function of the wildcards and the attempt."""


class Run:
    """One run of the workflow, as its rules see it.

    Parameters
    ----------
    config
        The merged config of Snakemake.
    workflow
        Snakemake's.

    Attributes
    ----------
    dispatch, workers, array_limit
        As the config has them.
    standing : Standing or None
        Which shards are missing; None in a job, and under ``dispatch: jobs``, where Snakemake
        itself looks at the files of each shard.
    """

    main: "Run"
    """That of the main process: hooks of Snakemake are given nothing of ours."""

    def __init__(self, config: Mapping[str, Any], workflow: Any) -> None:
        self.config = dict(config)
        self._workflow, main = workflow, workflow.is_main_process
        self.results = Results(Path(results_folder(config)))
        self.dispatch, self.workers, self.array_limit = dispatch_settings(config).values()
        self._sources: list[Source] | None = None
        self.plan = self._checked_plan() if main else planfile.load(self.results.plan)
        self.reduce = reduce_settings(config)
        self._before = self._facts_on_disk() if main else None
        self.standing = self._looked() if main and self.dispatch != "jobs" else None
        if main:
            self._write_config()
            Run.main = self

    def _checked_plan(self) -> Plan:
        """Check everything that can be checked before any job; exit with 2 where it is bad."""
        from shardwise import config, planner  # here: jobs do not need them, nor NumPy

        try:
            # Snakemake has read these files too, and its loader takes more than data.
            used = (*self._workflow.configfiles, *self._workflow.overwrite_configfiles)
            config.read_files(list(dict.fromkeys(Path(file).absolute() for file in used)))
            settings = config.load(self.config)
            plan, self._sources = planner.make(settings, CACHE, log)
            planner.check_folder(plan)
        except ShardwiseError as error:
            log.error(str(error))
            sys.exit(error.exit_code)
        log.info("shardwise: " + planner.describe(plan))
        return plan

    def _facts_on_disk(self) -> dict[str, Any] | None:
        """The facts of the plan of an earlier run, if there is a whole one."""
        try:
            return planfile.load_facts(self.results.plan)
        except ShardwiseError:
            return None

    @property
    def rule_for_all(self) -> str | None:
        """The rule whose one job computes all shards; None under ``dispatch: jobs``."""
        return {"jobs": None, "array": recipe.RULE}.get(self.dispatch, self.dispatch)

    @functools.cached_property
    def forced(self) -> bool:
        """Whether Snakemake is told to run the one job for all in any case; it says so once.

        Snakemake itself knows that only after it has read the rules.
        """
        told = self._workflow.dag_settings
        named = {*told.forcerun, *(told.targets if told.forcetargets else ())}
        if self.standing is None or not (told.forceall or self.rule_for_all in named):
            return False
        again = missing.describe(self.plan, list(self.plan.shards), "are computed again")
        log.info(f"shardwise: as you force it, {again}")
        return True

    @property
    def to_compute(self) -> list[str]:
        """The shards that the one job for all computes."""
        return list(self.plan.shards) if self.forced else self.standing.missing

    def _looked(self) -> missing.Standing:
        """Which shards are missing; where some are, the job that computes them is made to run.

        Snakemake compares that job's input with its output. The input is therefore a file with a
        text never seen before, newer than the output of an earlier job, whose products are lost.
        """
        standing = missing.standing(self.plan)
        log.info("shardwise: " + missing.describe(self.plan, standing.missing))
        if standing.missing:
            now = max(time.time(), _modified(self.results.multiplied) + 1)
            path = kept(self.results, "missing")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{len(standing.missing)} shards at {now}\n")
            os.utime(path, (now, now))
        return standing

    @property
    def config_file(self) -> str:
        """The merged config of the run, as the job needs it that writes the plan."""
        return str(kept(self.results, "yaml"))

    @property
    def missing_file(self) -> str:
        """What makes the one job run that computes all shards that are missing."""
        return str(kept(self.results, "missing"))

    @property
    def array_limit_words(self) -> str:
        """The option that limits how many tasks of an array run at once, where the config does."""
        return f"--array-limit {self.array_limit}" if self.array_limit else ""

    @property
    def recipe(self) -> str:
        """What the tasks of an array job ask the scheduler for."""
        return str(recipe.path(self.results))

    def _write_config(self) -> None:
        """Write the config where it, or the plan that follows from it, has changed.

        So the file is newer than the plan exactly when the plan has to be made again, even where
        Snakemake has lost its own history of the run.
        """
        from shardwise.arrays import commit  # here: jobs do not need it

        own = {key: value for key, value in self.config.items() if key not in NO_PLAN}
        digest = self.plan.facts["digest"]
        text = f"# {digest}\n{json.dumps(own)}\n"
        path = Path(self.config_file)
        if self._before is None and self.results.plan.exists():
            # Half a plan is lost: a text that Snakemake has not seen makes it look.
            text = f"# plan lost at {time.time()}\n{text}"
        elif self._before and self._before["digest"] == digest and _ends(path, text):
            return
        with commit(path) as file:
            file.write(text.encode())

    # File names, as patterns for the wildcard {shard} and as lists.

    def pattern(self, name: Callable[[str], Path]) -> str:
        """The pattern of a per-shard file."""
        return str(name("{shard}"))

    def log_pattern(self, rule: str) -> str:
        """The log of a rule that runs for every shard."""
        return str(self.results.log(rule, "{shard}"))

    def all_receipts(self, wildcards: Any = None) -> list[str]:
        """What makes the ledger again when it is newer: every receipt of the plan.

        Under any dispatch but jobs it stands for them what the one job leaves that computes all;
        where none has anything to do, the newest receipt.
        """
        if self.dispatch == "jobs":
            return self._each(self.results.receipt)
        if self.standing and not self.to_compute:
            return [str(self.results.receipt(self.standing.newest))]
        return [str(self.results.multiplied)]

    def arrays(self) -> list[str]:
        """The arrays that the reduce writes; its receipt comes after them."""
        return [str(self.results.statistic(name)) for name in self.reduce["statistics"]]

    def in_the_end(self) -> list[str]:
        """What a run is made for, and says at its end: the arrays, their receipt, the page."""
        return [*self.arrays(), str(self.results.summary), str(self.results.report)]

    def targets(self, wildcards: Any = None) -> list[str]:
        """What a complete run has made; of many files, those that Snakemake is to look at."""
        whole = [*self.in_the_end(), str(self.results.metrics)]
        if self.dispatch != "jobs":
            return whole
        products, receipts = self._each(self.results.product), self._each(self.results.receipt)
        return [*products, *receipts, *whole]

    def _each(self, name: Callable[[str], Path]) -> list[str]:
        before, after = self.pattern(name).split("{shard}")
        return [f"{before}{shard}{after}" for shard in self.plan.shards]

    # Inputs. Each is a plain name where it is the same for all shards, and a function of the
    # wildcards only where it has to be: Snakemake takes ten times as long to call a function.

    @property
    def plan_for_synthesize(self) -> Any:
        """The plan, as the job needs it that writes the synthetic stack."""
        before = self._before["synthetic"] if self._before else None
        return self._plan_file(before != self.plan.facts["synthetic"])

    @property
    def plan_for_shard(self) -> Any:
        """The plan, as the job needs it that copies a shard's matrices."""
        return self._plan_for("matrices")

    @property
    def plan_for_multiply(self) -> Any:
        """The plan, as the job needs it that computes a shard's products."""
        return self._plan_for("fingerprint")

    @property
    def files_for_all(self) -> list[str]:
        """What the one job waits for that computes all shards: the synthetic stack, its mark."""
        stack = [str(self.results.synthetic)] if self.plan.facts["synthetic"] else []
        return [*stack, self.missing_file]

    def _plan_for(self, digest: str) -> Any:
        if not self._before or self._before["digest"] == self.plan.facts["digest"]:
            return self._plan_file(changed=False)
        before = planfile.load(self.results.plan).shards
        changed = {
            shard
            for shard, row in self.plan.shards.items()
            if getattr(before.get(shard), digest, None) != getattr(row, digest)
        }
        if not changed:
            return self._plan_file(changed=False)
        return lambda wildcards: self._plan_file(wildcards.shard in changed)

    def _plan_file(self, changed: bool) -> str:
        """The plan: any rewriting of it reruns the job only where the job's own part changed.

        Snakemake looks at nothing else (parameters, time stamps) in the jobs behind one that runs
        again, so for those whose part is as before the plan is ancient, and for the others not.
        """
        path = str(self.results.plan)
        return path if self._before and changed else ancient(path)

    @property
    def input_files(self) -> Any:
        """The input files that hold a shard's matrices."""
        if self._sources is None:
            self._sources = self.plan.sources
        if len(self._sources) == 1:
            return [self._sources[0].path]
        return self._own_input_files

    def _own_input_files(self, wildcards: Any) -> list[str]:
        row, problem = self.plan.shards[wildcards.shard], self.plan.problem
        stack = Stack(tuple(self._sources), problem.matrices, problem.left, problem.dtype)  # type: ignore[arg-type]
        return [source.path for source in stack.between(row.start, row.stop)]

    @property
    def factor_files(self) -> Any:
        """What a shard's products are made from."""
        right = [source["path"] for source in self.plan.facts["right_sources"]]
        if self.plan.settings["materialize"]:
            return [self.pattern(self.results.shard), *right]
        left = self.input_files
        if callable(left):
            return lambda wildcards: left(wildcards) + right
        return left + right

    # Digests: a job runs again when the one of its own changes.

    def plan_digest(self, wildcards: Any) -> str:
        """Changes with anything that the plan says."""
        return self.plan.facts["digest"]

    def recipe_digest(self, wildcards: Any) -> str:
        """Changes with the synthetic stack."""
        return planfile.digest([self.plan.facts["synthetic"], ALGORITHM["synthesize"]])

    def shard_digest(self, wildcards: Any) -> str:
        """Changes with which matrices a shard holds."""
        return self.plan.shards[wildcards.shard].matrices

    def reduce_algorithm(self, wildcards: Any) -> int:
        """Changes with the algorithm of the reduce."""
        return ALGORITHM["reduce"]

    def fingerprint(self, wildcards: Any) -> str:
        """Changes with anything that a shard's products depend on."""
        return self.plan.shards[wildcards.shard].fingerprint

    # Resources: the most that any shard needs, times the attempt.

    @property
    def copy_mb(self) -> int:
        """Memory of the shard stage: a buffer of a known size, which no attempt outgrows."""
        return -(-sizes.copy_memory(self.plan.problem) // MIB)

    @property
    def copy_minutes(self) -> Growing:
        """Run time of the shard stage."""
        return _growing(counts.minutes(2 * max(row.bytes for row in self.plan.shards.values())))

    @property
    def synthesize_mb(self) -> Growing:
        """Memory of the synthetic stack."""
        return _growing(-(-sizes.synthetic_memory(self.plan.problem) // MIB))

    @property
    def synthesize_minutes(self) -> Growing:
        """Run time of the synthetic stack."""
        return _growing(counts.minutes(self.plan.facts["bytes"]["input"]))

    @property
    def multiply_mb(self) -> Growing:
        """Memory of a shard's products."""
        return _growing(-(-self._task_memory // MIB))

    @property
    def multiply_minutes(self) -> Growing:
        """Run time of a shard's products."""
        return _growing(self._task_minutes)

    @property
    def node_mb(self) -> Growing:
        """Memory of a node that computes a shard on each device it was asked for."""
        return _growing(-(-self._task_memory * grants.asked(self._node_words) // MIB))

    def node_minutes(self, wildcards: Any, attempt: int) -> int:
        """Run time of all shards to compute, on all devices that were asked for."""
        shards = list(self.plan.shards) if self.standing is None else self.to_compute
        rows = [self.plan.shards[shard] for shard in shards]
        nbytes = sum(missing.amounts(self.plan, shards)) + self._copied(rows)
        flop = sum(row.stop - row.start for row in rows) * self.plan.problem.flop
        devices = grants.asked(self._node_words) * grants.nodes(self._node_words)
        shared = counts.minutes(nbytes // devices, flop // devices)
        return attempt * max(shared, self._task_minutes)

    @property
    def most_devices(self) -> int:
        """How many devices a job may use that knows their number only; 0: all that it finds."""
        return grants.counted(self._node_words)

    @property
    def _node_words(self) -> dict[str, str]:
        """What the profile's block for `pool` or `mpi` asks for."""
        asked = self._workflow.resource_settings.overwrite_resources
        # Snakemake wraps them; `raw` is what stands in the profile.
        return {name: str(own.raw) for name, own in asked.get(self.dispatch, {}).items()}

    @property
    def _task_memory(self) -> int:
        """Host bytes of a shard's task; a copy that it makes itself goes through the same slabs."""
        return max(row.memory for row in self.plan.shards.values())

    @property
    def _task_minutes(self) -> int:
        flop = self.plan.problem.flop
        return max(
            counts.minutes(r.bytes + r.product_bytes + self._copied([r]), (r.stop - r.start) * flop)
            for r in self.plan.shards.values()
        )

    def _copied(self, rows: Iterable[Shard]) -> int:
        """Bytes that tasks read and write to copy some shards; under jobs others do that."""
        copies = self.dispatch != "jobs" and self.plan.settings["materialize"]
        return 2 * sum(row.bytes for row in rows) if copies else 0

    @property
    def reduce_mb(self) -> Growing:
        """Memory of all ranks of the reduce."""
        return _growing(-(-sizes.reduce_memory(self.reduce["ranks"]) // MIB))

    @property
    def reduce_minutes(self) -> Growing:
        """Run time of the reduce, which reads every product once."""
        return _growing(counts.minutes(self.plan.facts["bytes"]["products"]))


def kept(results: Results, kind: str) -> Path:
    """A file that the main process keeps for one results folder, from run to run."""
    return CACHE / f"{planfile.digest(str(results.root))}.{kind}"


def _modified(path: Path) -> float:
    """When a file was written, in seconds since 1970; long ago where there is none."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _ends(path: Path, text: str) -> bool:
    return path.exists() and path.read_text().endswith(text)


def _growing(amount: int) -> Growing:
    def resource(wildcards: Any, attempt: int) -> int:
        return attempt * amount

    # Snakemake asks for the signature at every call: computing it once is worth a second in 10,000.
    resource.__signature__ = inspect.signature(resource)  # type: ignore[attr-defined]
    return resource


def before_jobs(workflow: Any, config: Mapping[str, Any]) -> None:
    """What a run checks and sets up just before its first job."""
    run = Run.main
    code.announce()
    slurm_run.begin()
    jobs.claim(run.results, joins=run.plan.facts["digest"] if run.dispatch == "array" else None)
    final.begin(run.results)
    _forget(workflow.persistence, run)
    try:
        needed = list(workflow.dag.needrun_jobs())
        uge_run.begin(run.results, workflow.executor_settings, workflow.workdir_init, needed)
        for job in (job for job in needed if job.rule.name == run.rule_for_all):
            if run.dispatch == "array":
                recipe.write(run.results, workflow, job)
            if run.forced and not workflow.touch:
                _disown(run)
    except InputError as error:
        log.error(str(error))
        sys.exit(error.exit_code)


def after_failure(config: Mapping[str, Any]) -> None:
    """Make the page on a run that has failed; where it cannot be made, a warning says why.

    A process of its own makes it: the run is over, and nothing may keep its end from the user, who
    leaves it out by Ctrl-C.
    """
    results = Results(Path(results_folder(config)))
    if not results.root.is_dir():
        return
    words = [sys.executable, str(SCRIPTS / "report.py"), f"--plan={results.plan}"]
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PAGE_SECONDS, check=False
        )
        said = done.stderr.decode(errors="replace").strip().splitlines() if done.returncode else []
        reason = (said or [f"it exited {done.returncode}"])[-1] if done.returncode else ""
    except (OSError, subprocess.SubprocessError) as error:
        reason = str(error)
    except KeyboardInterrupt:
        reason = "interrupted"
    if reason:
        log.warning(f"shardwise: no page on this run ({results.report}): {one_line(reason)}")


def _disown(run: Run) -> None:
    """Remove the receipts of products that are to be computed again: no receipt, no result."""
    for shard in run.to_compute:
        run.results.receipt(shard).unlink(missing_ok=True)


def _forget(persistence: Any, run: Run) -> None:
    """Remove what Snakemake remembers of files that one job for all is going to write.

    It speaks of products of an earlier plan under `dispatch: jobs`. Back there, Snakemake would
    take the new ones for them, and compute all of them again.
    """
    kinds = (run.results.shard, run.results.product, run.results.receipt)
    known = [name for name in kinds if _remembers(Path(persistence.path), name("").parent)]
    for shard in run.to_compute if run.standing and known else ():
        for name in known:
            persistence.cleanup_metadata(IOFile(str(name(shard))))


def _remembers(path: Path, folder: Path) -> bool:
    """Whether Snakemake remembers any file of a folder; to ask it for each file takes minutes.

    It keeps a record a file, named by the file's path in base64, or what of that fits a file name.
    Where it keeps none in this way, it is taken to remember.

    Parameters
    ----------
    path
        Snakemake's own folder, ``.snakemake``.
    """
    text = f"{folder}/".encode()
    begin = base64.urlsafe_b64encode(text[: len(text) // 3 * 3]).decode()[:_RECORD_LETTERS]
    try:
        records = [*os.listdir(path / "metadata"), *os.listdir(path / "incomplete")]
    except OSError:
        return True
    return any(record.lstrip("@").startswith(begin) for record in records)


def shell_prefix(config: Mapping[str, Any]) -> str:
    """What every job's shell begins with: strict mode, this Python first, scripts and plan."""
    plan = Results(Path(results_folder(config))).plan
    folders = (Path(sys.executable).parent, SCRIPTS, plan)
    # Snakemake formats the prefix like every command: braces in a name are doubled.
    doubled = [str(path).replace("{", "{{").replace("}", "}}") for path in folders]
    own, scripts, plan = map(shlex.quote, doubled)
    return f'set -euo pipefail; export PATH={own}:"$PATH" SCRIPTS={scripts} PLAN={plan}; '

"""What the rules ask: file names, resources and digests of one run.

The Snakefile is parsed again inside every job. There the plan on disk is read, by the standard
library alone. Only the main process checks the config and the headers of the input.
"""

import inspect
import json
import logging
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from snakemake.io import ancient

from shardwise import ALGORITHM, planfile, sizes
from shardwise import plan as counts
from shardwise.config import reduce_settings, results_folder
from shardwise.dispatch import jobs, uge_run
from shardwise.errors import ShardwiseError
from shardwise.paths import CACHE, Results
from shardwise.plan import Source, Stack
from shardwise.planfile import Plan
from shardwise.sizes import MIB

log = logging.getLogger("snakemake.logging")  # it prints messages as they are: no %s

SCRIPTS = Path(__file__).parents[1]
Growing = Callable[[Any, int], int]
"""A resource as a function of the wildcards and the attempt."""


class Run:
    """One run of the workflow, as its rules see it.

    Parameters
    ----------
    config
        The merged config of Snakemake.
    main
        Whether this is the process that the user started, and not a job.
    """

    def __init__(self, config: Mapping[str, Any], main: bool) -> None:
        self.config = dict(config)
        self.results = Results(Path(results_folder(config)))
        self._sources: list[Source] | None = None
        self.plan = self._checked_plan() if main else planfile.load(self.results.plan)
        self.reduce = reduce_settings(config)
        self._before = self._plan_on_disk() if main else None
        if main:
            self._write_config()

    def _checked_plan(self) -> Plan:
        """Check everything that can be checked before any job; exit with 2 where it is bad."""
        from shardwise import config, planner  # here: jobs do not need them, nor NumPy

        try:
            settings = config.load(self.config)
            plan, self._sources = planner.make(settings, CACHE, log)
            planner.check_folder(plan)
        except ShardwiseError as error:
            log.error(str(error))
            sys.exit(error.exit_code)
        log.info("shardwise: " + planner.describe(plan))
        return plan

    def _plan_on_disk(self) -> Plan | None:
        """The plan of an earlier run, if there is a whole one."""
        try:
            return planfile.load(self.results.plan)
        except ShardwiseError:
            return None

    @property
    def config_file(self) -> str:
        """The merged config of the run, as the job needs it that writes the plan."""
        return str(CACHE / f"{planfile.digest(str(self.results.root))}.yaml")

    def _write_config(self) -> None:
        """Write the config where it, or the plan that follows from it, has changed.

        So the file is newer than the plan exactly when the plan has to be made again, even where
        Snakemake has lost its own history of the run.
        """
        from shardwise.arrays import commit  # here: jobs do not need it

        own = {key: value for key, value in self.config.items() if key != "reduce"}
        digest = self.plan.facts["digest"]
        text = f"# {digest}\n{json.dumps(own)}\n"
        path = Path(self.config_file)
        if self._before is None and self.results.plan.exists():
            # Half a plan is lost: a text that Snakemake has not seen makes it look.
            text = f"# plan lost at {time.time()}\n{text}"
        elif self._before and self._before.facts["digest"] == digest and _ends(path, text):
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
        """Every receipt of the plan."""
        return self._each(self.results.receipt)

    def statistics(self) -> list[str]:
        """The files that the reduce writes, the receipt last."""
        names = [self.results.statistic(name) for name in self.reduce["statistics"]]
        return [str(path) for path in (*names, self.results.summary)]

    def targets(self, wildcards: Any = None) -> list[str]:
        """What a complete run has made."""
        products, receipts = self._each(self.results.product), self._each(self.results.receipt)
        return [*products, *receipts, *self.statistics()]

    def _each(self, name: Callable[[str], Path]) -> list[str]:
        before, after = self.pattern(name).split("{shard}")
        return [f"{before}{shard}{after}" for shard in self.plan.shards]

    # Inputs. Each is a plain name where it is the same for all shards, and a function of the
    # wildcards only where it has to be: Snakemake takes ten times as long to call a function.

    @property
    def plan_for_synthesize(self) -> Any:
        """The plan, as the job needs it that writes the synthetic stack."""
        before = self._before.facts["synthetic"] if self._before else None
        return self._plan_file(before != self.plan.facts["synthetic"])

    @property
    def plan_for_shard(self) -> Any:
        """The plan, as the job needs it that copies a shard's matrices."""
        return self._plan_for("matrices")

    @property
    def plan_for_multiply(self) -> Any:
        """The plan, as the job needs it that computes a shard's products."""
        return self._plan_for("fingerprint")

    def _plan_for(self, digest: str) -> Any:
        before = self._before.shards if self._before else {}
        changed = {
            shard
            for shard, row in self.plan.shards.items()
            if getattr(before.get(shard), digest, None) != getattr(row, digest)
        }
        if not self._before or not changed:
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
            self._sources = planfile.load_sources(self.plan)
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
        return _growing(max(-(-row.memory // MIB) for row in self.plan.shards.values()))

    @property
    def multiply_minutes(self) -> Growing:
        """Run time of a shard's products."""
        flop = self.plan.problem.flop
        rows = self.plan.shards.values()
        return _growing(
            max(counts.minutes(r.bytes + r.product_bytes, (r.stop - r.start) * flop) for r in rows)
        )

    @property
    def reduce_mb(self) -> Growing:
        """Memory of all ranks of the reduce."""
        return _growing(-(-sizes.reduce_memory(self.reduce["ranks"]) // MIB))

    @property
    def reduce_minutes(self) -> Growing:
        """Run time of the reduce, which reads every product once."""
        return _growing(counts.minutes(self.plan.facts["bytes"]["products"]))


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
    results = Results(Path(results_folder(config)))
    jobs.claim(results)
    uge_run.begin(results, workflow.executor_settings, workflow.workdir_init)


def shell_prefix(config: Mapping[str, Any]) -> str:
    """What every job's shell begins with: strict mode, this Python first, scripts and plan."""
    plan = Results(Path(results_folder(config))).plan
    folders = (Path(sys.executable).parent, SCRIPTS, plan)
    # Snakemake formats the prefix like every command: braces in a name are doubled.
    doubled = [str(path).replace("{", "{{").replace("}", "}}") for path in folders]
    own, scripts, plan = map(shlex.quote, doubled)
    return f'set -euo pipefail; export PATH={own}:"$PATH" SCRIPTS={scripts} PLAN={plan}; '

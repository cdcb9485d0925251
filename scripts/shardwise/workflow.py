"""What the rules ask: file names, resources and digests of one run.

The Snakefile is parsed again inside every job. There the plan on disk is read, by the standard
library alone. Only the main process checks the config and the headers of the input.
"""

import json
import logging
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from snakemake.io import ancient

from shardwise import ALGORITHM, planfile
from shardwise import plan as counts
from shardwise.config import results_folder
from shardwise.dispatch import jobs
from shardwise.errors import ShardwiseError
from shardwise.paths import Results
from shardwise.plan import MIB
from shardwise.planfile import Plan

log = logging.getLogger("snakemake.logging")  # it prints messages as they are: no %s

SCRIPTS = Path(__file__).parents[1]
CACHE = Path(".snakemake") / "shardwise"


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
        self.reduce = {"ranks": 2, "statistics": ["sum"]} | dict(config.get("reduce") or {})
        self._sources: list[Any] | None = None
        self.plan = self._checked_plan() if main else planfile.load(self.results.plan)
        self._before = self._plan_on_disk() if main else None
        if main:
            self._write_config()

    def _checked_plan(self) -> Plan:
        """Check everything that can be checked before any job; exit with 2 where it is bad."""
        from shardwise import config, planner  # here: jobs do not need them, nor NumPy

        try:
            settings = config.load(self.config)
            plan, self._sources = planner.make(
                settings, CACHE / f"{planfile.digest(settings.input)}.json"
            )
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
        text = f"# {digest}\n{json.dumps(own)}\n".encode()
        path = Path(self.config_file)
        current = self._before is None or self._before.facts["digest"] == digest
        if current and path.exists() and path.read_bytes() == text:
            return
        with commit(path) as file:
            file.write(text)

    # File names, as patterns for the wildcard {shard} and as lists.

    def pattern(self, name: Callable[[str], Path]) -> str:
        """The pattern of a per-shard file; braces in the folder's own name stay what they are."""
        return _escaped(name("\0")).replace("\0", "{shard}")

    def log_of(self, rule: str) -> str:
        """The log of a rule that runs once."""
        return _escaped(self.results.log(rule))

    def log_pattern(self, rule: str) -> str:
        """The log of a rule that runs for every shard."""
        return self.pattern(lambda shard: self.results.log(rule, shard))

    def path(self, path: Path) -> str:
        """A file name without wildcards."""
        return _escaped(path)

    def all_products(self, _: Any = None) -> list[str]:
        """Every product and receipt of the plan."""
        per_shard = (self.results.product, self.results.receipt)
        return [str(name(shard)) for shard in self.plan.shards for name in per_shard]

    def statistics(self) -> list[str]:
        """The files that the reduce writes, the receipt last."""
        names = [self.results.statistic(name) for name in self.reduce["statistics"]]
        return [_escaped(path) for path in (*names, self.results.summary)]

    def targets(self, wildcards: Any = None) -> list[str]:
        """What a complete run has made."""
        names = [self.results.statistic(name) for name in self.reduce["statistics"]]
        return [*self.all_products(), *(str(p) for p in (*names, self.results.summary))]

    # Inputs

    def plan_for_synthesize(self, wildcards: Any) -> str:
        """The plan, as the job needs it that writes the synthetic stack."""
        before = self._before.facts["synthetic"] if self._before else None
        return self._plan_file(before != self.plan.facts["synthetic"])

    def plan_for_shard(self, wildcards: Any) -> str:
        """The plan, as the job needs it that copies a shard's matrices."""
        return self._plan_file(self._changed(wildcards.shard, "matrices"))

    def plan_for_multiply(self, wildcards: Any) -> str:
        """The plan, as the job needs it that computes a shard's products."""
        return self._plan_file(self._changed(wildcards.shard, "fingerprint"))

    def _changed(self, shard: str, digest: str) -> bool:
        before = self._before.shards.get(shard) if self._before else None
        return getattr(before, digest, None) != getattr(self.plan.shards[shard], digest)

    def _plan_file(self, changed: bool) -> str:
        """The plan: any rewriting of it reruns the job only where the job's own part changed.

        Snakemake looks at nothing else (parameters, time stamps) in the jobs behind one that runs
        again, so for those whose part is as before the plan is ancient, and for the others not.
        """
        path = str(self.results.plan)
        return path if self._before and changed else ancient(path)

    def input_files(self, wildcards: Any) -> list[str]:
        """The input files that hold a shard's matrices."""
        from shardwise.sources import Stack

        if self._sources is None:
            self._sources = planfile.load_sources(self.plan)
        row, problem = self.plan.shards[wildcards.shard], self.plan.problem
        stack = Stack(tuple(self._sources), problem.matrices, problem.left, problem.dtype)  # type: ignore[arg-type]
        return [source.path for source in stack.between(row.start, row.stop)]

    def factor_files(self, wildcards: Any) -> list[str]:
        """What a shard's products are made from."""
        right = [source["path"] for source in self.plan.facts["right_sources"]]
        if self.plan.settings["materialize"]:
            own = (self.results.shard, self.results.shard_receipt)
            return [str(name(wildcards.shard)) for name in own] + right
        return self.input_files(wildcards) + right

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

    # Resources: from the plan, growing with the attempt.

    def copy_mb(self, wildcards: Any, attempt: int) -> int:
        """Memory of the shard stage."""
        return attempt * -(-counts.copy_memory(self.plan.problem) // MIB)

    def copy_minutes(self, wildcards: Any, attempt: int) -> int:
        """Run time of the shard stage."""
        return attempt * counts.minutes(2 * self.plan.shards[wildcards.shard].bytes)

    def synthesize_minutes(self, wildcards: Any, attempt: int) -> int:
        """Run time of the synthetic stack."""
        return attempt * counts.minutes(self.plan.facts["bytes"]["input"])

    def multiply_mb(self, wildcards: Any, attempt: int) -> int:
        """Memory of a shard's products."""
        return attempt * -(-self.plan.shards[wildcards.shard].memory // MIB)

    def multiply_minutes(self, wildcards: Any, attempt: int) -> int:
        """Run time of a shard's products."""
        row = self.plan.shards[wildcards.shard]
        work = (row.stop - row.start) * self.plan.problem.flop
        return attempt * counts.minutes(row.bytes + row.product_bytes, work)

    def reduce_mb(self, wildcards: Any, attempt: int) -> int:
        """Memory of all ranks of the reduce."""
        return attempt * -(-counts.reduce_memory(self.plan.problem, self.reduce["ranks"]) // MIB)

    def reduce_minutes(self, wildcards: Any, attempt: int) -> int:
        """Run time of the reduce, which reads every product twice."""
        return attempt * counts.minutes(2 * self.plan.facts["bytes"]["products"])

    def attempt(self, wildcards: Any, attempt: int) -> int:
        """Which try a job is."""
        return attempt


def before_jobs(config: Mapping[str, Any]) -> None:
    """What a run checks just before its first job."""
    jobs.refuse_beside_living(Results(Path(results_folder(config))))


def shell_prefix() -> str:
    """What every job's shell begins with: strict mode, this Python first, where the scripts are."""
    own = shlex.quote(str(Path(sys.executable).parent))
    return f'set -euo pipefail; export PATH={own}:"$PATH" SCRIPTS={shlex.quote(str(SCRIPTS))}; '


def _escaped(path: Path) -> str:
    return str(path).replace("{", "{{").replace("}", "}}")

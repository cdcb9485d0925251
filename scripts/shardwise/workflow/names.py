"""Names that would not reach a scheduler's job as they are, refused before any job.

Snakemake's executors write a job's command for a shell with names quoted as Python quotes them; the
Slurm plugin puts it into double quotes once more, for the shell of this machine. And Slurm fills in
``%j`` and its like. None of that is ours to mend, so one rule holds for every scheduler.
"""

import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from shardwise.errors import InputError, short
from shardwise.plan.plan import Plan

_ODD = re.compile(r"""["'$`\\]|%[0-9]*[A-Za-z%]|^-""")
_CLUSTERS = ("SLURM_CLUSTERS", "SBATCH_CLUSTERS")


def refuse_odd(workflow: Any, config: Mapping[str, Any], plan: Plan) -> None:
    """Raise InputError if a name of this run could not be submitted as it is."""
    for what, name in _submitted(workflow, config, plan):
        if odd := find_odd(name):
            raise InputError(
                f"{what} {short(name)} holds {odd!r}, and a scheduler's jobs get names through "
                "shells: none may begin with a dash, or hold a quote, $, `, \\, % before a letter, "
                "or a character that cannot be printed; rename it, or run with profiles/local"
            )
    if shlex.quote(sys.executable) != sys.executable:
        raise InputError(
            f"a scheduler's jobs start {short(sys.executable)} without quotes: its path may hold "
            "letters, digits and @%+=:,./-_ alone; move the environment, or run with profiles/local"
        )


def find_odd(name: str) -> str:
    """What a shell or a scheduler would take for something else; empty if a name is just a name."""
    odd = _ODD.search(name)
    return odd[0] if odd else next((c for c in name if not c.isprintable()), "")


def refuse_other_clusters(environ: Mapping[str, str] = os.environ) -> None:
    """Raise InputError if a variable would send jobs to a cluster where nobody looks for them."""
    for name in _CLUSTERS:
        if cluster := environ.get(name):
            raise InputError(
                f"{name} is {short(cluster)}, but jobs are followed on the cluster of this machine "
                f"alone; unset {name}, and run on a login node of that cluster"
            )


def failure_name(rule: str, wildcards: Mapping[str, str], plan: Plan) -> str:
    """What the failure of a job is named."""
    if "shard" in wildcards:
        before = "copy-" if rule == "shard" else ""
        return f"{before}{wildcards['shard']}-{wildcards['key']}"
    return f"{rule}-{plan.key}"


def _submitted(workflow: Any, config: Mapping[str, Any], plan: Plan) -> Iterator[tuple[str, str]]:
    """Every name that may reach a submission, and what it names."""
    yield "the working directory", os.getcwd()
    yield "the Snakefile", str(workflow.main_snakefile)
    yield from (("the config file", str(path)) for path in workflow.overwrite_configfiles)
    yield "results", str(plan.results.root)
    yield from _texts(config, "config")
    for key, sources in (("input", plan.sources), ("right", plan.facts.right_sources)):
        yield from ((key, source.file) for source in sources)


def _texts(value: Any, key: str) -> Iterator[tuple[str, str]]:
    """The texts of a config, each with its key."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _texts(inner, str(name))
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner, key)

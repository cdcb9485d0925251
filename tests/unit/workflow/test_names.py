"""What would not reach a scheduler's job as it is, is refused; all else does."""

import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from shardwise.errors import InputError
from shardwise.files.paths import Results
from shardwise.plan.plan import Plan
from shardwise.workflow import names
from snakemake_interface_executor_plugins.utils import format_cli_arg

from tests import factories

ODD = ["$(touch x)", "`touch x`", "a'b", 'a"b', "a\\b", "a\nb", "\x1b[2J", "%j", "%10A", "-a"]
PLAIN = ["a b", "a;b", "95%", "a-b", "é日", "a&|*?[x](y)", "~a#", "a=b,c:d"]


@given(st.text("$`'\"\\%j -;&|*?!~#\n\té日ab/()", min_size=1))
@example("%j")
def test_a_name_that_is_not_odd_comes_through_all_shells(name: str) -> None:
    """As the Slurm plugin hands it on: quoted by Snakemake, for a shell inside of another."""
    assume(not names.find_odd(name))
    inner = f"printf %s {format_cli_arg('', name)}".replace('"', '\\"')
    line = ["sh", "-c", f'sh -c "{inner}"']
    assert subprocess.run(line, capture_output=True, text=True, check=True).stdout == name


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """A plan."""
    return factories.plan(tmp_path_factory.mktemp("plan"))


def refuse(plan: Plan, config: dict[str, object] | None = None, **over: object) -> None:
    """Look at the names of a run, of which these are other ones than usual."""
    workflow = SimpleNamespace(
        **{"main_snakefile": "/p/Snakefile", "overwrite_configfiles": []} | over
    )
    names.refuse_odd(workflow, config or {}, plan)


def with_input(plan: Plan, name: str, results: str = "r") -> Plan:
    """The plan with an input file, and results, of these names."""
    source = replace(plan.sources[0], path=name)
    return replace(plan, made_of=(source,), results=Results(Path(results)))


PLACES: dict[str, Callable[[Plan, str], None]] = {
    "input": lambda plan, name: refuse(with_input(plan, name)),
    "results": lambda plan, name: refuse(with_input(plan, "a.npy", name)),
    "product": lambda plan, name: refuse(plan, {"product": name}),
    "right": lambda plan, name: refuse(plan, {"nested": [{"right": name}]}),
    "the config file": lambda plan, name: refuse(plan, overwrite_configfiles=[name]),
    "the Snakefile": lambda plan, name: refuse(plan, main_snakefile=name),
    "the working directory": lambda plan, name: (Path(name).mkdir(), os.chdir(name), refuse(plan)),
}


@pytest.mark.parametrize("place", PLACES)
def test_odd_names_are_refused_wherever_they_are(made, tmp_path, monkeypatch, place):
    """Each by its place; a name that is only unusual is none of them."""
    monkeypatch.chdir(tmp_path)
    for name in PLAIN:
        PLACES[place](made, name)
    for name in ODD[: -1 if place == "the working directory" else None]:  # it begins with a slash
        with pytest.raises(InputError, match=f"^{place} .*rename it"):
            PLACES[place](made, name)
        monkeypatch.chdir(tmp_path)


def test_a_cluster_where_nobody_would_look_is_refused():
    """By the name of the variable."""
    names.refuse_other_clusters({"SLURM_CONF": "x", "SLURM_CLUSTERS": ""})
    with pytest.raises(InputError, match="unset SLURM_CLUSTERS"):
        names.refuse_other_clusters({"SLURM_CLUSTERS": "other"})

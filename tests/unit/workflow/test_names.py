"""What would not reach a scheduler's job as it is, is refused; all else does."""

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


def with_input(plan: Plan, name: str) -> Plan:
    """The plan with an input file of this name."""
    return replace(plan, made_of=(replace(plan.sources[0], path=name),))


PLACES: dict[str, Callable[[Plan, str, pytest.MonkeyPatch], None]] = {
    "input": lambda plan, name, _: refuse(with_input(plan, name)),
    "results": lambda plan, name, _: refuse(
        replace(with_input(plan, "a.npy"), results=Results(Path(name)))
    ),
    "product": lambda plan, name, _: refuse(plan, {"product": name}),
    "right": lambda plan, name, _: refuse(plan, {"right": name}),
    "the config file": lambda plan, name, _: refuse(plan, overwrite_configfiles=[name]),
    "the Snakefile": lambda plan, name, _: refuse(plan, main_snakefile=name),
    "the working directory": lambda plan, name, patch: (
        Path(name).mkdir(), patch.chdir(name), refuse(plan)
    ),
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", [*ODD, *PLAIN])
def test_odd_names_are_refused_wherever_they_are(made, tmp_path, monkeypatch, place, name):
    """Each by its place; a name that is only unusual is none of them."""
    (tmp_path / "w").mkdir()
    monkeypatch.chdir(tmp_path / "w")
    if place == "the working directory" and name == "-a":
        name = "a$"  # the whole path begins with a slash
    if name in PLAIN:
        PLACES[place](made, name, monkeypatch)
    else:
        with pytest.raises(InputError, match=f"^{place} .*rename it"):
            PLACES[place](made, name, monkeypatch)


def test_a_cluster_where_nobody_would_look_is_refused():
    """By the name of the variable."""
    names.refuse_other_clusters({"SLURM_CONF": "x", "SLURM_CLUSTERS": ""})
    with pytest.raises(InputError, match="unset SLURM_CLUSTERS"):
        names.refuse_other_clusters({"SLURM_CLUSTERS": "other"})

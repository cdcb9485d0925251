"""Names that would not reach a scheduler's job unchanged are refused; all others do reach it."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from shardwise.errors import InputError
from shardwise.files.paths import Results
from shardwise.workflow import names
from snakemake_interface_executor_plugins.utils import format_cli_arg

ODD = ["$(touch x)", "`touch x`", "a'b", 'a"b', "a\\b", "a\nb", "\x1b[2J", "%j", "%10A", "-a"]
PLAIN = ["a b", "a;b", "95%", "a-b", "é日", "a&|*?[x](y)", "~a#", "a=b,c:d"]


@given(st.text("$`'\"\\%j -;&|*?!~#\n\té日ab/()", min_size=1))
@example("%j")
def test_a_name_that_is_not_odd_comes_through_all_shells(name: str) -> None:
    """As the Slurm plugin hands it on: quoted by Snakemake, for a shell inside of another."""
    if not names.find_odd(name):
        inner = f"printf %s {format_cli_arg('', name)}".replace('"', '\\"')
        line = ["sh", "-c", f'sh -c "{inner}"']
        assert subprocess.run(line, capture_output=True, text=True, check=True).stdout == name


def refuse(config: dict[str, object], results: str = "r", **over: object) -> None:
    """Check the names of a run, some of which are replaced by these."""
    workflow = SimpleNamespace(
        **{"main_snakefile": "/p/Snakefile", "overwrite_configfiles": []} | over
    )
    names.refuse_odd(workflow, config, Results(Path(results)))


PLACES: dict[str, Callable[[str], None]] = {
    "results": lambda name: refuse({}, name),
    "product": lambda name: refuse({"product": name}),
    "input": lambda name: refuse({"input": [name]}),
    "the config file": lambda name: refuse({}, overwrite_configfiles=[name]),
    "the Snakefile": lambda name: refuse({}, main_snakefile=name),
    "the working directory": lambda name: (Path(name).mkdir(), os.chdir(name), refuse({})),
}


@pytest.mark.parametrize("place", PLACES)
def test_odd_names_are_refused_wherever_they_are(tmp_path, monkeypatch, place):
    """The message has the place of the name; a name that is only unusual is accepted."""
    monkeypatch.chdir(tmp_path)
    for name in PLAIN:
        PLACES[place](name)
    for name in ODD[: -1 if place == "the working directory" else None]:  # absolute: no dash
        with pytest.raises(InputError, match=f"^{place} .*rename it"):
            PLACES[place](name)
        monkeypatch.chdir(tmp_path)

"""Names that would not reach a scheduler's job unchanged are refused; all others do reach it."""

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from shardwise.errors import InputError
from shardwise.files.paths import Results
from shardwise.workflow import recipe
from snakemake_interface_executor_plugins.utils import format_cli_arg

ODD = ["$(touch x)", "`touch x`", "a'b", 'a"b', "a\\b", "a\nb", "\x1b[2J", "%j", "%10A", "-a"]
PLAIN = ["a b", "a;b", "95%", "a-b", "é日", "a&|*?[x](y)", "~a#", "a=b,c:d"]


@given(st.text("$`'\"\\%j -;&|*?!~#\n\té日ab/()", min_size=1))
@example("%j")
def test_a_name_that_is_not_odd_comes_through_all_shells(name: str) -> None:
    """As the Slurm plugin hands it on: quoted by Snakemake, for a shell inside of another."""
    if not recipe.find_odd(name):
        inner = f"printf %s {format_cli_arg('', name)}".replace('"', '\\"')
        line = ["sh", "-c", f'sh -c "{inner}"']
        assert subprocess.run(line, capture_output=True, text=True, check=True).stdout == name


def test_odd_names_are_refused_wherever_they_are(tmp_path, monkeypatch):
    """The message has the place of the name; whatever is only unusual is not odd."""
    assert all(map(recipe.find_odd, ODD))
    assert not any(map(recipe.find_odd, PLAIN))
    (tmp_path / "a$b").mkdir()
    for place, config, results, files in (
        ("results", {}, "a$b", ()), ("product", {"product": "a$b"}, "r", ()),
        ("input", {"input": ["a$b"]}, "r", ()), ("the config file", {}, "r", ["a$b"]),
        ("the working directory", {}, "r", ()),
    ):  # fmt: skip
        workflow = SimpleNamespace(main_snakefile="/p/S", overwrite_configfiles=files)
        monkeypatch.chdir(tmp_path / "a$b" if "working" in place else tmp_path)
        with pytest.raises(InputError, match=rf"^{place} .*holds '\$'.*rename it"):
            recipe.refuse_odd(workflow, config, Results(Path(results)))

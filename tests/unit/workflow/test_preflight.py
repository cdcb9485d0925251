"""A run that a scheduler would misread, or that is not alone, is refused before its first job.

tests/clusters asks real queues.
"""

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from shardwise.errors import InputError, TryAgain
from shardwise.files.paths import Results
from shardwise.records import locks
from shardwise.work import schedulers
from shardwise.workflow import preflight
from snakemake_interface_executor_plugins.utils import format_cli_arg

ODD = ["$(touch x)", "`touch x`", "a'b", 'a"b', "a\\b", "a\nb", "\x1b[2J", "%j", "%10A", "-a"]
PLAIN = ["a b", "a;b", "95%", "a-b", "é日", "a&|*?[x](y)", "~a#", "a=b,c:d"]


@given(st.text("$`'\"\\%j -;&|*?!~#\n\té日ab/()", min_size=1))
@example("%j")
def test_a_name_that_is_not_odd_comes_through_all_shells(name: str) -> None:
    """As the Slurm plugin hands it on: quoted by Snakemake, for a shell inside of another."""
    if not preflight.find_odd(name):
        inner = f"printf %s {format_cli_arg('', name)}".replace('"', '\\"')
        line = ["sh", "-c", f'sh -c "{inner}"']
        assert subprocess.run(line, capture_output=True, text=True, check=True).stdout == name


def test_odd_names_are_refused_wherever_they_are(tmp_path, monkeypatch):
    """The message has the place of the name; whatever is only unusual is not odd."""
    assert all(map(preflight.find_odd, ODD))
    assert not any(map(preflight.find_odd, PLAIN))
    (tmp_path / "a$b").mkdir()
    for place, config, results, files in (
        ("results", {}, "a$b", ()), ("product", {"product": "a$b"}, "r", ()),
        ("input", {"input": ["a$b"]}, "r", ()), ("the config file", {}, "r", ["a$b"]),
        ("the working directory", {}, "r", ()),
    ):  # fmt: skip
        workflow = SimpleNamespace(main_snakefile="/p/S", overwrite_configfiles=files)
        monkeypatch.chdir(tmp_path / "a$b" if "working" in place else tmp_path)
        with pytest.raises(InputError, match=rf"^{place} .*holds '\$'.*rename it"):
            preflight.refuse_odd(workflow, config, Results(Path(results)))


def test_no_run_starts_beside_jobs_that_live(tmp_path, monkeypatch):
    """Tasks at work hold a lock, waiting jobs are in a queue; claims of those gone are removed."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "squeue").write_text("#!/bin/sh\ncase $* in *sw-4999*) echo 7;; esac\n")
    (tmp_path / "squeue").chmod(0o755)
    results = Results(tmp_path / "results")
    (results.claims / "run" / "1").mkdir(parents=True)
    # Linux passes 128 KiB at most to squeue in one word: the names of 3,500 runs.
    results.runs.write_text("".join(f"slurm\tsw-{i:040}\n" for i in range(5000)))

    def begin() -> None:
        try:
            preflight.lock_results(results)
        finally:
            preflight._locked.pop().close()  # else it is held until this process ends

    with (
        locks.hold_job_lock(results),
        pytest.raises(TryAgain, match=f"still wait or work .* kill {os.getpid()}\\)"),
    ):
        begin()
    assert results.claims.exists()
    begin()
    assert not results.claims.exists()
    schedulers.remember(results, "slurm", "sw-4999")
    with pytest.raises(TryAgain, match=r"\(scancel 7\); then"):
        begin()

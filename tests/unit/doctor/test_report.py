"""The doctor as a whole: sections that hang or die, the verdict, its command line, real ranks."""

import io
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from shardwise.doctor import findings, mpi, python, report
from shardwise.doctor.__main__ import SECTIONS
from shardwise.doctor.findings import FAULT, OK, Deadline, Finding, Reply, fault, note, ok
from shardwise.doctor.report import Report

from tests import processes
from tests.factories import run
from tests.workspace import REPO

LONG = 100
"""Seconds: longer than a section takes on the busiest machine."""


def doctor(folder: Path, *words: object, **options: Any) -> Any:
    """Run the doctor in a folder."""
    return run("doctor", "--time-limit", LONG, *words, cwd=folder, **options)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder for programs of a site."""
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"


def program(path: Path, script: str) -> Path:
    """A shell script as a program."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_json_and_text_say_the_same(tmp_path: Path) -> None:
    """Both name every finding and end with the same verdict and exit code; nothing is left."""
    told, plain = doctor(tmp_path, "--json"), doctor(tmp_path)
    said = json.loads(told.stdout)
    assert told.returncode == plain.returncode == said["verdict"]["exit_code"]
    assert said["verdict"]["can_run"] == (told.returncode == 0)
    assert plain.stdout.rstrip().endswith(said["verdict"]["text"])
    assert told.stderr == plain.stderr == ""
    assert "2 ranks in one world" in plain.stdout
    if not os.path.exists("/dev/nvidiactl"):
        assert "ok  the main job can run here: with NumPy" in plain.stdout
    lines = " ".join(plain.stdout.split())
    for finding in said["findings"]:
        # Free memory changes from one run to the next.
        if not finding["name"].startswith("GPU"):
            assert " ".join(finding["text"].split()) in lines
    sections = [finding["section"] for finding in said["findings"]]
    assert list(dict.fromkeys(sections)) == [name for name in report.TITLES if name in sections]
    assert {name for name in report.TITLES if name != "config"} == set(sections)
    assert list(tmp_path.iterdir()) == []


def test_a_bad_config_is_a_fault(tmp_path: Path) -> None:
    """The rest is looked at all the same."""
    (tmp_path / "mine.yaml").write_text("shard: 3\n")
    done = doctor(tmp_path, "--configfile", "mine.yaml")
    assert done.returncode == 2
    assert "did you mean shards?" in done.stdout
    assert "2 ranks in one world" in done.stdout


def test_the_config_names_the_results_folder(tmp_path: Path) -> None:
    """And the option comes before it."""
    (tmp_path / "config.yaml").write_text("results: there\nbackend: numpy\n")
    for words, folder in ((), "there"), (("--results", "here"), "here"):
        said = json.loads(doctor(tmp_path, "--json", *words).stdout)
        facts = {f["name"]: f["facts"] for f in said["findings"] if f["section"] == "results"}
        assert facts["file system"]["path"] == str(tmp_path / folder)
        assert said["verdict"]["backend"] == "numpy"


def test_without_its_own_packages_it_says_what_to_install(tmp_path: Path) -> None:
    """As after an update of the clone alone."""
    (tmp_path / "rich.py").write_text("raise ModuleNotFoundError(\"No module named 'rich'\")")
    done = run("doctor", env=os.environ | {"PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "No module named 'rich': run make install first\n"


def test_the_page_names_the_keys_of_the_json() -> None:
    """docs/doctor.md lists what programs may rely on."""
    page = (REPO / "docs" / "doctor.md").read_text()
    made = json.loads(Report([Finding("a", OK, "b", section="mpi")]).json())
    keys = {*made, *made["verdict"], *made["findings"][0]}
    assert [key for key in keys if f"`{key}`" not in page] == []
    assert [name for name in SECTIONS if f"`{name}`" not in page] == []


def ranks(launcher: str) -> Finding:
    """What the hello of two ranks under this launcher comes to."""
    *_, last = mpi.findings(Deadline(LONG), launcher)
    return last


class Once(Deadline):
    """A deadline that comes as soon as a file has been written, and not by the clock."""

    def __init__(self, path: Path) -> None:
        super().__init__(0)
        self._path = path

    def left(self) -> float:
        """Wait for the file; then time is up."""
        processes.until(lambda: self._path.exists() and self._path.read_text())
        return super().left()


def test_two_worlds_of_one_rank_are_a_fault(site: Path) -> None:
    """A launcher of another MPI starts as many processes as it should, and none finds another."""
    other = program(site / "mpiexec", 'shift 2\n"$@" &\n"$@" &\nwait')
    found = ranks(str(other))
    assert (found.level, found.code) == (FAULT, 2)
    assert "in worlds of 1 and 1, not 2 ranks in one world" in found.text
    assert "MPI4PY_LIBMPI" in found.cure


def test_ranks_that_hang_are_ended(site: Path, tmp_path: Path) -> None:
    """With the launcher, in time."""
    pids = tmp_path / "pids"
    hanging = program(site / "mpiexec", f"sleep 600 &\necho $$ $! > {pids}\nwait")
    *_, found = mpi.findings(Once(pids), str(hanging))
    assert (found.level, found.code) == (FAULT, 75)
    ended = [int(pid) for pid in pids.read_text().split()]
    processes.until(lambda: not processes.living(ended))


@pytest.mark.parametrize("leader", ["wait", "exit 0"])
def test_what_outlives_its_launcher_is_ended_too(site: Path, tmp_path: Path, leader: str) -> None:
    """Ranks that ignore SIGTERM, under a launcher that heeds it, or has ended already."""
    pids = tmp_path / "pids"
    deaf = f"sh -c 'trap \"\" TERM; echo $$ > {pids}; while :; do sleep 1; done' &"
    asked = findings.ask([str(program(site / "mpiexec", f"{deaf}\n{leader}"))], Once(pids))
    assert asked.code is None
    left = [int(pids.read_text())]
    try:
        processes.until(lambda: not processes.living(left), 20)
    finally:
        processes.kill(left)


def test_what_does_not_load_is_a_fault() -> None:
    """The doctor imports what the jobs import, and says what the jobs would say."""

    def load(name: str) -> None:
        raise ImportError(f"{name}: built for another Python")

    assert not list(python.loading(["a"], lambda name: None))
    (found,) = python.loading(["a"], load)
    assert (found.level, found.code) == (FAULT, 2)
    assert found.text == "a package does not load: a: built for another Python"


def test_what_packages_are_missing() -> None:
    """A missing one is a fault; another version than the tested one is worth a note."""
    there = {"a": "1.0", "b": "2.1"}
    found = list(python.packages({"a": "1.0", "b": "2.0", "c": "3.0"}, there.get))
    assert [finding.level for finding in found] == [FAULT, "note", OK]
    assert [finding.text for finding in found] == [
        "not installed: c", "b is 2.1; tested is 2.0", "1 of 3 have the version that was tested",
    ]  # fmt: skip
    pinned = python.pins()  # of the project
    text = (python.PROJECT / "pyproject.toml").read_text()
    block = re.search(r"^dependencies = \[(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    assert len(pinned) == block[1].count("==") > 10
    assert re.match(r"\d+\.\d+", pinned["numpy"])


@pytest.mark.parametrize(
    ("code", "exit_code", "words"),
    [(None, 75, "hangs"), (-11, 2, "ended by signal 11"), (1, 2, "MemoryError")],
)
def test_a_section_that_does_not_come_to_its_end(
    code: int | None, exit_code: int, words: str
) -> None:
    """What it has said is kept, half a line is not, and one finding tells what happened."""
    line = json.dumps({"name": "a", "level": "ok", "text": "b"})
    first, last = report.read("gpus", Reply(code, f'{line}\n{{"name": "a', "MemoryError"))
    assert first == Finding("a", OK, "b", section="gpus")
    assert (last.section, last.level, last.code) == ("gpus", FAULT, exit_code)
    assert words in last.text


def test_a_program_that_says_more_than_a_pipe_holds() -> None:
    """All of it arrives, from several at once."""
    line = [sys.executable, "-c", "print('x' * 300_000)"]
    both = findings.ask_all([line, line, ["/no/such/program"]], Deadline(LONG))
    assert [len(answer.out) for answer in both] == [300_001, 300_001, 0]
    assert "No such file" in both[2].reason


def verdict(*found: Finding) -> Report:
    """A report of some findings about GPUs."""
    return Report([Finding(**{**vars(f), "section": "gpus"}) for f in found])


def shown(made: Report, width: int) -> str:
    """A report as text."""
    file = io.StringIO()
    made.show(Console(file=file, width=width, highlight=False))
    return file.getvalue()


def gpu(uuid: str, usable: bool) -> Finding:
    """A device, free or not."""
    return ok(uuid, "fine", uuid=uuid, usable=usable)


DRIVER = ok("driver", "fine", cuda=13000)


@pytest.mark.parametrize(
    ("found", "code", "words"),
    [
        ([note("driver", "none")], 0, "can run here: with NumPy"),
        ([DRIVER, gpu("a", True)], 0, "can run here: with cupy on 1 device"),
        ([DRIVER, gpu("a", True), gpu("b", True)], 0, "with cupy on 2 devices"),
        ([DRIVER, gpu("a", True), gpu("b", False)], 0, "with cupy on 1 of 2 devices"),
        ([note("backend", "numpy"), DRIVER, gpu("a", True)], 0, "with NumPy"),
        ([fault("a", "b", "c", code=75)], 75, "cannot run here now; try again later (GPUs: a)"),
        ([fault("a", "b", "c"), fault("d", "b", "c", code=75)], 2, "here yet (GPUs: a, GPUs: d)"),
    ],
)
def test_the_verdict(found: Sequence[Finding], code: int, words: str) -> None:
    """One line and an exit code: what has to be changed comes before what time mends."""
    made = verdict(*found)
    assert made.code == code
    assert words in made.verdict
    assert shown(made, 80).splitlines()[-1].startswith("!!" if code else "ok")

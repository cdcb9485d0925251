"""Bad inputs, each given to the command in which a user would meet it.

``python -m tests.hostile.bad_inputs`` prints all messages, and writes those anew that
``docs/errors.md`` shows, in a row of the same name.
"""

import contextlib
import io
import logging
import os
import re
import runpy
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import h5py
import numpy as np
import yaml

from tests import factories
from tests.factories import SCRIPTS, flip, run, stack

Step = Callable[[], object] | dict[str, Any] | tuple[str, ...] | list["Step"]
"""A call, files with their content, a command line that succeeds, or several of these in order."""

M = stack((3, 3))
ERRORS = SCRIPTS.parent / "docs" / "errors.md"
EXPLAINED = re.compile(r"^\| (.*?) \| .* \| \d+ \| (.*) \|$", re.MULTILINE)
"""A row of that page: the name of a case, its message, its code, and what else helps."""


@dataclass(frozen=True)
class Case:
    """One bad input."""

    what: str
    over: dict[str, Any] | str | bytes = field(default_factory=dict)
    make: Step = field(default_factory=list)
    code: int = 2
    then: Step | None = None
    words: tuple[str, ...] = ("plan", "--configfile", "mine.yaml")
    vary: tuple[str, ...] = ()
    apart: bool = False


def npy(descr: str, shape: str = "(6, 3, 3)", data: bytes = b"") -> bytes:
    """The bytes of a .npy file with any header, valid or not."""
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


def do(step: Step) -> None:
    """Do a step in the working directory; a dictionary in place of content is an HDF5 file."""
    if isinstance(step, dict):
        for name, content in step.items():
            write(Path(name), content)
    elif isinstance(step, tuple):
        code, told = through(*step)
        assert code == 0, told
    elif isinstance(step, list):
        for one_step in step:
            do(one_step)
    else:
        step()


def write(path: Path, content: Any) -> None:
    """Write an array, bytes, a text, or datasets by their names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, dict):
        with h5py.File(path, "w") as file:
            file.update(content)
    elif isinstance(content, np.ndarray):
        np.save(path, content)
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def folder(*arrays: np.ndarray, name: str = "in/{}.npy") -> Step:
    """A step that writes a folder of arrays."""
    return {name.format(i): array for i, array in enumerate(arrays)}


def with_elements(*found: float) -> np.ndarray:
    """Six matrices, of which the fourth holds the elements ``found``."""
    array = stack((6, 3, 3))
    array[3, 1, : len(found)] = found
    return array


def one(pattern: str) -> Path:
    """The only file of the results that matches a pattern."""
    (path,) = Path("results/default").glob(pattern)
    return path


def flipped(pattern: str) -> Step:
    """A step that flips a bit in the last byte of a file and keeps its time stamp."""
    return lambda: flip(one(pattern))


PLAN = "--plan=results/default/plan.tsv"
MULTIPLY = ("multiply", PLAN, "--shard", "00001")
REDUCE = ("reduce", PLAN, "--ranks", "1")
NOTHING: Step = []
TWO = {"shards": 2, "materialize": False}
BAD = {**TWO, "input": "bad.npy"}
ITSELF = {"mine.py": "def f(xp, block):\n    return block\n"}
multiplied = [(*MULTIPLY[:-1], name) for name in ("00000", "00001")]
ledgered = [multiplied, ("ledger", PLAN)]


def about(over: dict[str, Any], name: str, *beside: Step) -> Callable[..., Case]:
    """Return what makes a case of one file's content; a config names the file in ``over``."""

    def case(what: str, content: Any, **more: Any) -> Case:
        return Case(what, over | more, [{name: content}, *beside])

    return case


array = about({"input": "bad.npy"}, "bad.npy")
sheet = about({"input": "sheet.tsv"}, "sheet.tsv", folder(M))
weighed = about({"weights": "w.npy"}, "w.npy", {"int.npy": stack((6, 3, 3), "int16")})
labelled = about({"labels": "l.npy"}, "l.npy", {"many.npy": stack((300, 3, 3))})
by_right = about({"product": "A @ B", "right": "b.npy"}, "b.npy")
own = about({"product": "mine.py:f"}, "mine.py")


def centred(what: str, *steps: Step, **over: Any) -> Case:
    """A case of a covariance."""
    return Case(what, {"covariance": True, "product": "A.T @ A", **over}, [*steps])


def listed(what: str, name: str, *steps: Step) -> Case:
    """A case with an input of many files."""
    return Case(what, {"input": name}, [*steps])


def shard(
    what: str, over: dict[str, Any] = TWO, make: Step = NOTHING, code: int = 2,
    then: Step = NOTHING, words: tuple[str, ...] = MULTIPLY,
) -> Case:  # fmt: skip
    """A case of a shard whose plan is good."""
    return Case(what, over, make, code, then, words)


def summed(what: str, then: Step, *words: str, code: int = 3, **others: Any) -> Case:
    """A case of a stage after the shards."""
    return Case(what, TWO, code=code, then=then, words=words, **others)


def finished(results: str, statistic: str = "sum", **over: Any) -> Step:
    """A step that computes and sums six matrices."""

    def step() -> None:
        left = stack((6, 3, 3))
        made = factories.plan(Path("of", results), left, results=results, shards=1, **over)
        factories.reduced(factories.listed(made), statistic)

    return step


def merged(what: str, *steps: Step, code: int = 2) -> Case:
    """A case of a merge of two folders, the first of which is whole."""
    return Case(what, {}, [finished("one"), *steps], code, words=("merge", "total", "one", "two"))


CASES: dict[str, list[Case]] = {
    "The config: `scripts/plan.py --configfile mine.yaml`": [
        Case("the config file is missing", words=("plan", "--configfile", "none.yaml")),
        Case("it is no YAML", "input: [a.npy\n"),
        Case("it is not UTF-8", b"input: \xff\xfe.npy\n"),
        Case("`shards` is octal", "shards: 010\n"),
        Case("it is empty", ""),
        Case("a date that does not exist", "results: 2024-13-45\n"),
        Case("an unknown key", {"shard": 3}),
        Case("an unknown key within a key", {"reduce": {"rank": 3}}),
        Case("`input` is empty", {"input": ""}),
        Case("`input` begins with ~", {"input": "~/a.npy"}),
        Case("`input` holds a zero byte", {"input": "a\0.npy"}),
        Case("`input` is an address that is not read", {"input": "ftp://host/a.npy"}),
        Case("`input` is an address with a password", {"input": "s3://me:1234@bucket/a.npy"}),
        Case("`input` is a signed address", {"input": "https://host/a.npy?signature=1234"}),
        Case("`right` is an address", {"product": "A @ B", "right": "s3://bucket/b.npy"}),
        Case("`results` is a word that YAML reads as another", "results: no\n"),
        Case("`shards` is more than the matrices", {"shards": 7}),
        Case("`shard_bytes` is no size", {"shard_bytes": "16 bananas"}),
        Case("`synthetic.dim` is beyond reason", {"synthetic": {"dim": 10**12}}),
        Case("`product` is unknown", {"product": "A*A"}),
        Case("`A @ B` without `right`", {"product": "A @ B"}),
        Case("`right` without `A @ B`", {"right": "b.npy"}),
        Case("a statistic that there is not", {"reduce": {"statistics": ["median"]}}),
        Case("`reduce.statistics` names one twice", {"reduce": {"statistics": ["sum", "sum"]}}),
        Case("`std` under `keep: sum`", {"keep": "sum", "reduce": {"statistics": ["std"]}}),
        Case("`max` of complex products", {"input": "bad.npy", "reduce": {"statistics": ["max"]}},
             {"bad.npy": stack((6, 3, 3), "complex64")}),
        Case("`covariance` of another product", {"covariance": True}),
        centred("`covariance` without a sum", reduce={"statistics": ["mean"]}),
        centred("`covariance` of complex products without a conjugate",
                {"bad.npy": stack((6, 3, 3), "complex64")}, input="bad.npy"),
        centred("`ddof` leaves nothing", ddof=18),
        centred("`offset` of another length", {"row.npy": np.zeros(4)}, offset="row.npy"),
        centred("`offset` with a NaN", {"row.npy": np.array([0, np.nan, 0])}, offset="row.npy"),
        Case("several of these at once", {"shards": 0, "keep": "all", "inputs": "a.npy"}),
    ],
    "A stack: `input: bad.npy`": [
        Case("the file is missing", {"input": "none.npy"}),
        Case("it is a named pipe", {"input": "bad.npy"}, lambda: os.mkfifo("bad.npy")),
        array("it is empty", b""),
        array("a header that is no header", npy("__import__('os').abort()")),
        array("an array of Python objects", npy("'|O'", data=b"12345678" * 54)),
        array("a structured dtype", npy("[('x', '<f4')]")),
        array("a negative shape", npy("'<f4'", "(-6, 3, 3)")),
        array("a header that promises 2⁶⁰ matrices", npy("'<f4'", f"({2**60}, 3, 3)", b"1234")),
        array("a file shorter than its header says", npy("'<f4'", data=b"1234" * 53)),
        array("two dimensions", stack((6, 3))),
        array("no matrices", stack((0, 3, 3))),
        array("no squares under `A @ A`", stack((6, 2, 3)), product="A @ A"),
        Case("a .npz file", {"input": "bad.npz"}, lambda: np.savez("bad.npz", x=M)),
    ],
    "A folder, a glob or a sheet: `input: in`, `input: sheet.tsv`": [
        Case("the glob finds nothing", {"input": "in/*.npy"}),
        listed("other shapes in one folder", "in", folder(M, stack((2, 3)))),
        listed("four dimensions in the folder", "in", folder(M, stack((2, 2, 3, 3)))),
        listed("HDF5 files in the folder", "in", {"in/0.h5": {"x": M}, "in/1.h5": {"x": M}}),
        listed("a glob of them names no dataset", "in/*.h5", {"in/0.h5": {"x": M}}),
        listed("one has no such dataset", "in/*.h5:/x", {"in/0.h5": {"x": M}, "in/1.h5": {"y": M}}),
        listed("a dataset of .npy files", "in/*.npy:/x", folder(M)),
        listed("a file reached twice, by a link", "in", folder(M),
               lambda: os.symlink("0.npy", "in/1.npy")),
        listed("a name that is not UTF-8", "in", folder(M),
               lambda: os.rename("in/0.npy", b"in/\xff.npy")),
        listed("a name that steers a terminal", "in",
               folder(M, stack((2, 3)), name="in/{}\x1b]0;x\x07\x1b[2J.npy")),
        Case("the sheet is missing", {"input": "sheet.tsv"}),
        listed("the sheet is a named pipe", "sheet.tsv", lambda: os.mkfifo("sheet.tsv")),
        sheet("the sheet is empty", ""),
        sheet("the sheet is not UTF-8", b"path\n\xff\n"),
        sheet("no column `path`", "file\tlabel\na.npy\t1\n"),
        sheet("a column twice", "path\tpath\na.npy\ta.npy\n"),
        sheet("no row", "path\n"),
        sheet("a file that is not there", "path\nin/0.npy\nin/1.npy\n"),
        sheet("a file twice", "path\nin/0.npy\nin/0.npy\n"),
        sheet("a tab too many", "path\na.npy\t\n"),
    ],
    "Weights: `weights: w.npy`": [
        Case("the file is missing", {"weights": "w.npy"}),
        weighed("its header lies", npy("'<f8'", "(1000000000000,)")),
        weighed("another number of weights", np.ones(5)),
        weighed("complex numbers", np.ones(6, "c16")),
        weighed("NaN", np.array([1, np.nan, 1, 1, 1, 1])),
        weighed("numbers whose sum float64 has not", np.full(6, 1e308)),
        weighed("products of integers", np.ones(6), input="int.npy"),
        weighed("`std` of them", np.ones(6), reduce={"statistics": ["std"]}),
        weighed("`mean` where they add up to 0", np.array([1, -1, 0, 0, 0, 0]),
                reduce={"statistics": ["mean"]}),
    ],
    "Labels: `labels: l.npy`": [
        labelled("real numbers", np.ones(6)),
        labelled("more than 256", np.arange(300), input="many.npy"),
        labelled("`mean`", np.arange(6), reduce={"statistics": ["sum", "mean"]}),
        labelled("a covariance", np.arange(6), covariance=True, product="A.T @ A"),
        labelled("a column without a sheet", np.arange(6), labels="column:scan"),
        Case("a column that is missing", {"input": "sheet.tsv", "labels": "column:scan"},
             [folder(M), {"sheet.tsv": "path\nin/0.npy\n"}]),
        Case("a row without a label", {"input": "sheet.tsv", "labels": "column:scan"},
             [folder(M), {"sheet.tsv": "path\tscan\nin/0.npy\n"}]),
    ],
    "The right factor: `product: A @ B`, `right: b.npy`": [
        Case("it is missing", {"product": "A @ B", "right": "b.npy"}),
        Case("it is no .npy file", {"product": "A @ B", "right": "b.h5:/x"}, {"b.h5": {"x": M}}),
        by_right("another number of matrices", stack((5, 3, 3))),
        by_right("its rows do not fit", stack((2, 3))),
        by_right("another element type", stack((3, 3), "float64")),
    ],
    "A function of your own: `product: mine.py:f`": [
        Case("the file is missing", {"product": "mine.py:f"}),
        own("a function that cannot be imported", "import nosuchmodule\n"),
        own("it ends the process", "raise SystemExit(0)\n"),
        Case("a file in `depends` is missing",
             {"product": "mine.py:f", "depends": ["mean.npy"], **TWO}, ITSELF),
        own("no such function", "def g(xp, block):\n    return block\n"),
        own("a function that raises", "def f(xp, block):\n    return block @ block[:, :2]\n"),
        own("it returns nothing", "def f(xp, block):\n    block @ block\n"),
        own("it writes to its block", "def f(xp, block):\n    block += 1\n    return block\n"),
    ],
    "The results folder: `results: results/default`": [
        Case("a name with braces", {"results": "run{1}"}),
        Case("the input lies where a run writes", {"results": "."}),
        Case("it is a file", {"results": "a.npy"}),
        Case("a disk too small for the results",
             {"input": None, "synthetic": {"matrices": 10**6, "dim": 10**5}, "materialize": True},
             vary=(r"(?<=has )[\d.]+ [KMGTP]?i?B",)),
    ],
    "A shard: `scripts/multiply.py --shard 00001`": [
        shard("there is no plan", {}, then=lambda: Path("results/default/plan.tsv").unlink()),
        shard("there is no such shard", {}, words=("multiply", PLAN, "--shard", "00009")),
        shard("no driver under `backend: cupy`", {**TWO, "backend": "cupy"}),
        shard("a NaN", BAD, {"bad.npy": with_elements(np.nan)}),
        shard("a product that overflows", BAD, {"bad.npy": with_elements(0, 1e30)}),
        shard("the input has changed since the plan", code=3, then={"a.npy": stack((7, 3, 3))}),
        shard("the input is gone", code=3, then=lambda: Path("a.npy").unlink()),
        shard("the copy of the shard is damaged", {"shards": 2, "materialize": True}, code=3,
              then=[("shard", PLAN, "--shard", "00001"), flipped("shards/00001-*.npy")]),
        shard("the plan is damaged", {}, code=3, then=flipped("plan.tsv")),
        shard("`plan.json` is damaged", {}, code=3, then={"results/default/plan.json": "{"}),
        shard("the function has changed", {"product": "mine.py:f", **TWO}, ITSELF, 3,
              {"mine.py": "def f(xp, block):\n    return -block\n"}),
    ],
    "Ledger and sum: `scripts/ledger.py`, `scripts/reduce.py`": [
        summed("a receipt is missing",
               [multiplied, lambda: one("products/00001-*.json").unlink()], "ledger", PLAN),
        summed("a receipt is damaged",
               [multiplied, lambda: one("products/00001-*.json").write_text("{}")],
               "ledger", PLAN),
        summed("a product was cut off",
               [multiplied, lambda: os.truncate(one("products/00001-*.npy"), 4100)],
               "ledger", PLAN),
        summed("a missing MPI launcher", ledgered, "reduce", PLAN, "--launcher", "nosuch", code=2,
               vary=(r"(?<=next to )\S+",)),
        summed("a product is damaged",
               [ledgered, flipped("products/00001-*.npy")], *REDUCE, apart=True),
        summed("a folder is in the place of the sum",
               [ledgered, lambda: Path("results/default/sum.npy").mkdir()], *REDUCE, code=2,
               apart=True),
    ],
    "Several runs: `scripts/merge.py total one two`": [
        merged("a folder without a run", lambda: Path("two").mkdir()),
        merged("a run that has not finished", finished("two"), lambda: shutil.rmtree("two/done")),
        merged("a run without a sum", finished("two", "mean")),
        merged("one folder twice", lambda: os.symlink("one", "two")),
        merged("a merge of two problems", finished("two", product="A.T @ A", precision="tf32x3")),
        merged("a damaged sum", finished("two"), lambda: flip(Path("two/sum.npy")), code=3),
        merged("a folder that no merge wrote", finished("two"), lambda: Path("total").mkdir()),
        merged("the folder of a run", finished("two"), lambda: os.symlink("one", "total")),
    ],
}  # fmt: skip


def outcome(case: Case) -> tuple[int, str]:
    """Run a case in the working directory, which is empty; its exit code and message."""
    do({"a.npy": stack((6, 3, 3))})
    do(case.make)
    over = case.over
    if isinstance(over, dict):
        over = yaml.safe_dump({"backend": "numpy", "input": "a.npy", **over})
    do({"mine.yaml": over})
    if case.then is not None:
        do([("plan", "--configfile", "mine.yaml"), case.then])
    if case.apart:
        ended = run(*case.words)
        return ended.returncode, _message(ended.stderr)
    return through(*case.words)


def through(script: str, *words: str) -> tuple[int, str]:
    """Run a command line in this process; its exit code and its message."""
    told, root, term = io.StringIO(), logging.getLogger(), signal.getsignal(signal.SIGTERM)
    handlers, level = root.handlers[:], root.level
    line = [str(SCRIPTS / f"{script}.py"), *words]
    try:
        with (
            mock.patch.object(sys, "argv", line),
            mock.patch("shardwise.devices.choose.driver_cuda_version", return_value=None),
            contextlib.redirect_stderr(told),
        ):
            root.handlers = []
            runpy.run_path(line[0], run_name="__main__")
    except SystemExit as ended:
        return int(ended.code or 0), _message(told.getvalue())
    finally:
        root.handlers, root.level = handlers, level
        signal.signal(signal.SIGTERM, term)
    raise AssertionError(f"{script} did not say how it ended")


def _message(text: str) -> str:
    return re.split(r"^\S+ \S+ (?:ERROR|INFO|WARNING) ", text, flags=re.MULTILINE)[-1].strip()


def shown(case: Case, message: str) -> str:
    """A message as the page shows it: without what differs from machine to machine."""
    here = str(Path.cwd())
    message = re.sub(rf"(looked (?:for|in) |PYTHONPATH=){re.escape(here)}", r"\1…", message)
    for pattern in (re.escape(here) + "/?", *case.vary):
        message = re.sub(pattern, "…" if pattern in case.vary else "", message)
    message = re.sub(r"(?<=0000\d-)[0-9a-f]{12}", "KEY", message)
    # A traceback is Python's own, and differs between its versions.
    message = re.sub(r"\nTraceback (.|\n)*", "\n… and the traceback", message)
    cut = [line if len(line) < 400 else f"{line[:300]}…" for line in message.splitlines()]
    text = "<br>".join(line.strip() for line in cut).replace("|", "\\|")
    return text.replace("`", "'").replace("\0", "\\0").replace("<unicode string>", "the text")


def row(case: Case) -> str:
    """Run a case now in a folder of its own; return its message and its code as a row shows them.

    The message names a key or a value of the config, a word of the command line, or a file.
    """
    with tempfile.TemporaryDirectory() as empty, contextlib.chdir(empty):
        code, message = outcome(case)
        text, files = shown(case, message), os.listdir()
    assert code == case.code, f"{case.what}: ended with {code}: {message}"
    about = [*re.findall(r"[\w.]+", f"{case.over!s} {case.words[1:]}"), *files]
    assert any(word in message for word in about), f"{case.what}: {message}"
    return f"| {text} | {code} |"


def renew(rows: dict[str, str]) -> str:
    """``docs/errors.md`` with messages and codes of these cases; what else helps stays there."""

    def anew(found: re.Match[str]) -> str:
        return f"| {found[1]} {rows[found[1]]} {found[2]} |" if found[1] in rows else found[0]

    return EXPLAINED.sub(anew, ERRORS.read_text())


if __name__ == "__main__":
    rows = {case.what: row(case) for cases in CASES.values() for case in cases}
    sys.stdout.writelines(f"| {what} {row}\n" for what, row in rows.items())
    ERRORS.write_text(renew(rows))

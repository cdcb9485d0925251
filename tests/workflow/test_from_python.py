"""`shardwise.run` and `shardwise.plan`, from a script and from a notebook."""

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import shardwise
from shardwise.errors import InputError, ShardwiseError

from tests import factories, processes
from tests.workflow.conftest import SLOW
from tests.workspace import REPO

STACK = factories.stack((12, 5, 5))
TOTAL = (STACK @ STACK).astype("float64").sum(axis=0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a stack, and with the config.yaml of some other workflow."""
    monkeypatch.chdir(tmp_path)
    np.save("stack.npy", STACK)
    Path("config.yaml").write_text("samples: samples.tsv\nkeep: sum\n")
    return tmp_path


def test_a_plan_starts_nothing(folder: Path) -> None:
    """It is the table of the shards; keyword arguments override the dict; nothing is written."""
    for shards in (3, 4):
        plan = shardwise.plan({"input": Path("stack.npy"), "shards": 12}, shards=np.int64(shards))
        assert plan.shard.tolist() == [f"{number:05}" for number in range(shards)]
        assert plan.stop.tolist() == [*plan.start[1:], 12]
        assert plan.bytes.sum() == STACK.nbytes
    assert {path.name for path in folder.iterdir()} == {"stack.npy", "config.yaml"}


def test_a_run_shows_its_lines_and_opens_its_results(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dict and keyword arguments are the whole config; the command that is shown repeats it."""
    config = {"input": "stack.npy", "shards": 2, "dispatch": "pool", "reduce": {"ranks": 1}}
    run = shardwise.run(config, reduce={"statistics": ["sum", "std"]}, results="mine")
    np.testing.assert_array_equal(run.sum, TOTAL)
    assert set(run.statistics) == {"sum", "std"}
    assert len(run.ledger) == 2
    np.testing.assert_array_equal(run.product(3), STACK[3] @ STACK[3])
    first, *_, last = capsys.readouterr().err.splitlines()
    assert last.startswith("shardwise: done: mine/sum.npy")
    Path("stack.npy").touch()
    done = subprocess.run(first, shell=True, capture_output=True, text=True, check=True)
    assert "2 of 2 products are earlier ones of the same matrices" in done.stderr


@pytest.mark.parametrize(("start", "keys", "words"), [
    (shardwise.run, {}, "config: None is neither the path of a YAML file nor a dict of keys; give"),
    (shardwise.run, {"input": STACK}, "config: a value of type ndarray is not allowed; save"),
    (shardwise.plan, {"product": np.abs}, "config: a value of type ufunc is not allowed; save"),
    (shardwise.run, {"inptu": "stack.npy"}, "config: inptu: unknown key; did you mean input?"),
    (shardwise.plan, {"input": "none.npy"}, "input: none.npy does not exist; looked for {}/none"),
    (shardwise.run, {"config": ["stack.npy"]}, "config: ['stack.npy'] is neither the path of a"),
])  # fmt: skip
def test_bad_input_has_the_message_of_the_command(folder, start, keys, words) -> None:
    """The message is one line, and nothing is written."""
    with pytest.raises(InputError) as refused:
        start(**keys)
    assert str(refused.value).startswith(words.format(folder))
    assert len(str(refused.value).splitlines()) == 1
    assert not Path("results").exists()


def test_a_run_that_fails_says_why(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a YAML file: the error's message is the last words of the run, which it also printed."""
    np.save("stack.npy", np.where(np.arange(12)[:, None, None] == 7, np.nan, STACK))
    Path("config.yaml").write_text("input: stack.npy\n")
    Path("mine.yaml").write_text("shards: 3\ndispatch: pool\n")
    with pytest.raises(ShardwiseError, match="matrix 7 holds NaN or Inf") as failed:
        shardwise.run("mine.yaml")
    words = str(failed.value)
    assert failed.value.exit_code == 1
    assert words.startswith("not finished: 2 of 3 shards have products; 1 missing.\n")
    assert words in capsys.readouterr().err


SCRIPT = """
import shardwise

try:
    shardwise.run(input="stack.npy", product="slow.py:slow")
except KeyboardInterrupt:
    print("raised again")
"""


def test_ctrl_c_stops_the_run(folder: Path) -> None:
    """As with the command, all its jobs end at once, and the run says how to go on."""
    Path("slow.py").write_text(SLOW)
    Path("tried-on").touch()
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=processes.heed_interrupts,  # noqa: PLW1509 - no threads
    ) as script:  # fmt: skip
        processes.until(Path("computed").exists)
        started = processes.descendants([script.pid])
        script.send_signal(signal.SIGINT)
        printed, said = script.communicate(timeout=100)
    assert printed == "raised again\n", said
    assert "\nshardwise: interrupted: 0 of 1 shards done\nTo run just what is missing" in said
    processes.until(lambda: not processes.living(started))


def test_the_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """examples/notebook.ipynb runs in a kernel, whose user sees each line of the run."""
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    notebook = nbformat.read(REPO / "examples" / "notebook.ipynb", as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=200, resources=resources).execute()
    outputs = [each for cell in notebook.cells for each in cell.get("outputs", ())]
    lines = "".join(each.text for each in outputs if each.output_type == "stream").splitlines()
    assert lines[-1].startswith("shardwise: done: results/notebook/sum.npy")
    assert any("image/png" in each.get("data", ()) for each in outputs)
    stack = np.load(tmp_path / "stack.npy").astype("float64")
    total = np.load(tmp_path / "results" / "notebook" / "sum.npy")
    np.testing.assert_allclose(total, np.einsum("nki,nkj->ij", stack, stack), rtol=1e-4)

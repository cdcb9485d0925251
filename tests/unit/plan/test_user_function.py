"""A product of the user's own: found, tried once, checked at every call; the files it uses."""

import os
import sys

import numpy as np
import pytest
from shardwise import errors
from shardwise.errors import InputError, IntegrityError, TryAgain
from shardwise.multiply import job
from shardwise.plan import planner, user_function
from shardwise.plan.problem import Problem, product_dtype, sum_dtype
from shardwise.plan.stack import synthetic_matrix

from tests import factories, processes
from tests.factories import listed, products, reduced, refusal, save, settings, stack

# Dataclasses look up their module by name, and have to find it.
DOUBLE = """
from __future__ import annotations
from dataclasses import dataclass

@dataclass
class Times:
    factor: float = 2.0
    def __call__(self, xp, block):
        return self.factor * block

own = Times()
"""


@pytest.fixture
def write(tmp_path):
    """Write a Python file, and return the spec of its function ``own``."""
    path = tmp_path / "mine.py"
    return lambda text: path.write_text(text) and f"{path}:own"


def body(line):
    """The text of a file whose function has one line."""
    return f"import numpy as np\ndef own(xp, block):\n    {line}\n"


def called(spec, block, first=0, problem=None):
    """What a function makes of a block with NumPy, checked."""
    return user_function.call(spec, user_function.load(spec), np, block, first, problem)


def test_a_function_is_loaded_without_a_trace(write, tmp_path):
    """The file itself is run, whatever its time stamp; nothing is written or put on sys.path."""
    spec, before = write(DOUBLE), list(sys.path)
    path = spec.rpartition(":")[0]
    os.utime(path, ns=(10**18, 10**18))
    first = called(spec, np.ones((1, 2, 2)))
    write(DOUBLE.replace("2.0", "3.0"))
    os.utime(path, ns=(10**18, 10**18))
    assert called(spec, np.ones((1, 2, 2))).sum() == 1.5 * first.sum()
    assert (sys.path, "mine" in sys.modules) == (before, False)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.py"]


def test_a_file_that_fails_shows_its_own_lines_only(write):
    """An error on import is shown from the user's file on down."""
    text = (
        "def f():\n    raise OSError('a')\ntry:\n    f()\n"
        "except OSError as e:\n    raise ValueError('b') from e\n"
    )
    message = refusal(user_function.load, write(text))
    assert "mine.py cannot be imported: ValueError: b" in message.splitlines()[0]
    for line in ("line 2, in f", "direct cause", "line 6, in <module>"):
        assert line in message
    assert "user_function.py" not in message


@pytest.mark.parametrize(("line", "told"), [
    ("return np.ma.masked_array(block)", "returned numpy.ma.MaskedArray for"),
    ("return block[:, :0]", "returned numpy.ndarray of shape (2, 0, 4) in float64"),
    ("return block > 0", "in bool for matrices 12 to 13; return numpy.ndarray"),
])  # fmt: skip
def test_what_is_no_stack_of_results_is_refused(write, line, told):
    """The message says what the function returned, and what it must return."""
    message = refusal(called, write(body(line)), np.ones((2, 3, 4)), 12)
    assert told in message
    assert "mine.py:own" in message


def test_the_planned_shape_and_dtype_are_held_to(write):
    """If a result differs from the plan, the message has both shapes and dtypes."""
    spec = write(DOUBLE)
    planned = Problem(9, (3, 4), spec, "float64", result=(3, 4), result_dtype="float64")
    assert called(spec, np.ones((2, 3, 4)), 5, planned).shape == (2, 3, 4)
    told = refusal(called, spec, np.ones((2, 4, 3)), 5, planned)
    assert "of shape (2, 4, 3) in float64 for matrices 5 to 6; return (3, 4) of float64" in told


def test_errors_of_the_device_pass_through(write, monkeypatch):
    """An error of the device is not the function's fault."""
    spec = write(body("1 / 0"))
    monkeypatch.setattr(errors, "device_errors", lambda xp: (ZeroDivisionError,))
    with pytest.raises(ZeroDivisionError):
        called(spec, np.ones((1, 2, 2)))


def test_the_first_matrix_is_the_one_tried(tmp_path, write):
    """The trial uses real data, drawn or read, as the result may depend on it."""
    spec = write(body("return np.full((len(block), int(abs(block[0, 0, 0])) + 1, 1), 1.0)"))
    wanted = {"matrices": 4, "dim": 3, "dtype": "int16", "seed": 5}
    first = int(synthetic_matrix(5, 0, 3, np.dtype("int16"))[0, 0])
    made = planner.make(settings(product=spec, synthetic=wanted))
    assert made.problem.result == (abs(first) + 1, 1)
    left = stack((4, 3, 3), seed=2)
    left[0, 0, 0] = -7
    assert factories.plan(tmp_path, left, product=spec).problem.result == (8, 1)


@pytest.mark.parametrize(("line", "error", "told"), [
    ("os._exit(3)", InputError, "your function {} ended its process with os._exit(3)"),
    ("os.kill(os.getpid(), 11)", InputError, "{} was killed by signal 11 (SIGSEGV)"),
    ("open('/none')", InputError, "No such file or directory: '/none' (mine.py, line 4, in own)"),
    ("raise MemoryError", TryAgain, "out of host memory"),
])  # fmt: skip
def test_a_function_that_fails_is_refused_before_any_job(write, line, error, told):
    """Whatever ends the trial, this process goes on."""
    spec = write(f"import os\n\ndef own(xp, block):\n    {line}\n")
    over = settings(product=spec, synthetic={"dim": 3})
    assert told.format(spec) in refusal(planner.make, over, kind=error)


@pytest.mark.parametrize("end", ["return block", "os._exit(3)", "os.kill(os.getpid(), 11)"])
def test_a_trial_leaves_no_processes(tmp_path, write, end):
    """Those that the function has started end with it, also if it ends its process."""
    spec = write(
        "import os, subprocess\ndef own(xp, block):\n"
        "    started = subprocess.Popen(['sleep', '1000'])\n"
        f"    open({str(tmp_path / 'pid')!r}, 'w').write(str(started.pid))\n"
        f"    {end}\n"
    )
    if end == "return block":
        assert user_function.probe(spec, np.ones((1, 2, 2))) == ((2, 2), "float64")
    else:
        refusal(user_function.probe, spec, np.ones((1, 2, 2)))
    child = int((tmp_path / "pid").read_text())
    processes.until(lambda: not processes.living([child]), 20)


@pytest.mark.parametrize(("dtype", "keep", "materialize"), [
    ("float16", "products", True), ("complex64", "sum", False), ("int8", "sum", True),
])  # fmt: skip
def test_products_are_what_the_function_returns(tmp_path, write, keep, materialize, dtype):
    """Every shard holds the results, or their sum, in the planned dtype and number of bytes."""
    left = stack((7, 3, 4), dtype)
    spec = write(body("return block[:, ::2] * block[:, :1, ::-1]"))
    over = {"product": spec, "keep": keep, "materialize": materialize, "shards": 3}
    made = listed(factories.plan(tmp_path, left, **over))
    stored = product_dtype(dtype) if keep == "products" else sum_dtype(dtype)
    expected = left[:, ::2].astype(stored) * left[:, :1, ::-1]
    assert products(made).nbytes == made.written["products"]
    found = products(made) if keep == "products" else reduced(made)
    assert found.dtype == np.dtype(stored)
    np.testing.assert_array_equal(found, expected if keep == "products" else expected.sum(axis=0))


USES_MEAN = """
import numpy as np
def f(xp, block):
    return block - xp.asarray(np.load({mean!r}))
"""


def test_a_listed_file_is_part_of_the_key(tmp_path):
    """New content changes all keys, and nothing is adopted; a new time stamp changes nothing."""
    mean = save(tmp_path / "mean.npy", stack((3, 3), seed=1))
    (tmp_path / "f.py").write_text(USES_MEAN.format(mean=str(mean)))
    over = {"product": f"{tmp_path}/f.py:f", "materialize": False, "shards": 2}
    over |= {"input": str(save(tmp_path / "a.npy", stack((4, 3, 3)))), "depends": [str(mean)]}
    first = factories.computed(factories.plan(tmp_path, **over))
    os.utime(mean, ns=(1, 1))
    assert factories.plan(tmp_path, **over).shards == first.shards
    save(mean, 7 * stack((3, 3), seed=1))
    with pytest.raises(IntegrityError, match=r"mean\.npy has changed since the plan was made"):
        job.run_shard(first, "00000")
    made = factories.computed(factories.plan(tmp_path, **over))
    assert not {row.key for row in made.shards.values()} & {r.key for r in first.shards.values()}
    assert not factories.receipt(made).adopted
    expected = stack((4, 3, 3)) - 7 * stack((3, 3), seed=1)
    assert (factories.products(made) == expected).all()


@pytest.mark.parametrize(("source", "named"), [
    ("import helpers", ["helpers.py"]), ("from helpers import f", ["helpers.py"]),
    ("from . import helpers", ["helpers.py"]), ("import package.part", ["package/part.py"]),
    ("from package import part", ["package/__init__.py", "package/part.py"]),
    ("np.load('mean.npy')", ["mean.npy"]), ("open('data/t.txt')", ["data/t.txt"]),
    ("Path(__file__).with_name('mean.npy')", ["mean.npy"]),
    ("import helpers\nload('mean.npy')", ["helpers.py", "mean.npy"]),
    ("import numpy\nload('other.npy')\nprint('', '.', 'data', 'a\\0', 'x' * 9)", []),
    ("def broken(", []), ("'''Of f.py.'''\nf = 'f.py'", []),
])  # fmt: skip
@pytest.mark.parametrize("here", [True, False])
def test_files_that_are_not_listed_are_named(tmp_path, monkeypatch, source, named, here):
    """Files next to the function or in the working directory, with the line to add."""
    folder = "" if here else f"{tmp_path}/"
    for name in ("helpers.py", "mean.npy", "data/t.txt", "package/__init__.py", "package/part.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "f.py").touch()
    monkeypatch.chdir(tmp_path if here else "/")
    listed = [f"{folder}{name}" for name in named]
    told = user_function.unlisted(f"{folder}f.py", source.encode(), [])
    assert (f"says depends: [{', '.join(listed)}]; " in told) if named else not told
    assert not user_function.unlisted(f"{folder}f.py", source.encode(), listed)

"""Files that a user's function imports or reads: in the key if listed, else named."""

import os

import pytest
from shardwise.errors import IntegrityError
from shardwise.multiply import job
from shardwise.plan import user_function

from tests import factories
from tests.factories import save, stack

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
    ("from . import helpers", ["helpers.py"]), ("np.load('./mean.npy')", ["mean.npy"]),
    ("Path(__file__).with_name('mean.npy')", ["mean.npy"]),
    ("import helpers\nload('mean.npy')", ["helpers.py", "mean.npy"]),
    ("import numpy\nload('other.npy')\nhelpers = 'data'", []), ("'Of f.py.'", []),
])  # fmt: skip
@pytest.mark.parametrize("here", [True, False])
def test_files_that_are_not_listed_are_named(tmp_path, monkeypatch, source, named, here):
    """Files next to that of the function, with the line to add."""
    folder = "" if here else f"{tmp_path}/"
    for name in ("helpers.py", "mean.npy", "f.py"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path if here else "/")
    listed = [f"{folder}{name}" for name in named]
    told = user_function.unlisted(f"{folder}f.py", source.encode(), [])
    assert told.endswith(f"depends: [{', '.join(listed)}]") if named else not told
    assert not user_function.unlisted(f"{folder}f.py", source.encode(), listed)

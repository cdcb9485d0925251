"""What is still to be computed: exactly the shards without a whole product of this plan."""

import os
import shutil
import subprocess
import sys

import pytest
from shardwise.plan import plan
from shardwise.records import missing

from tests import factories


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    """A plan of four shards, all multiplied."""
    folder = tmp_path_factory.mktemp("computed")
    made = factories.plan(folder, factories.stack((8, 3, 3)), shards=4, materialize=False)
    return factories.computed(made)


@pytest.fixture
def made(computed, tmp_path):
    """The same in a folder of its own."""
    shutil.copytree(computed.results.root, tmp_path / "results")
    return plan.load(tmp_path / "results" / "plan.tsv")


def test_what_is_not_whole_is_missing(made):
    """A product or a receipt that is lost; the newest receipt is the one written last.

    test_judge.py looks at all other damage.
    """
    os.utime(made.results.receipt("00002"), (2e9, 2e9))
    found = missing.scan_products(made)
    assert (found.missing, found.newest) == ([], "00002")
    assert missing.describe(made, []) == "all 4 shards have their products"
    made.results.receipt("00001").unlink()
    made.results.product("00003").unlink()
    assert missing.list_missing(made) == ["00001", "00003"]


@pytest.mark.parametrize(
    ("backend", "more"), [("numpy", ""), ("auto", "; 1.1 GiB of device memory each on a GPU")]
)
def test_a_line_says_how_much_is_missing(tmp_path, backend, more):
    """How many shards, the bytes of A and B to read, those to write; and what a GPU needs."""
    left, right = factories.stack((6, 32, 16)), factories.stack((16, 8))
    made = factories.plan(tmp_path, left, right, product="A @ B", shards=3, backend=backend)
    assert missing.describe(made, ["00000", "00002"]) == (
        f"2 of 3 shards have no products yet; 9.0 KiB to read and 4.0 KiB to write{more}"
    )


def test_the_last_words_of_a_run_can_look(made):
    """As Python ends it starts no thread any more, and what is whole is found all the same."""
    program = (
        "import atexit, sys; from pathlib import Path; from shardwise.plan import plan; "
        "from shardwise.records import missing; made = plan.load(Path(sys.argv[1])); "
        "atexit.register(lambda: print(missing.scan_products(made).missing))"
    )
    line = [sys.executable, "-c", program, str(made.results.plan)]
    env = os.environ | {"PYTHONPATH": str(factories.ROOT / "scripts")}
    done = subprocess.run(line, capture_output=True, text=True, check=True, env=env)
    assert (done.stdout, done.stderr) == ("[]\n", "")

"""Logs: what a shard that went well leaves of them."""

from pathlib import Path

import pytest
from shardwise.records import logs

from tests import factories

SAID = "2026-11-23 21:03:04,5 INFO on vm, process 2207, in /x\n"
DONE = "2026-11-23 21:03:04,6 INFO 00000.json written\n"
ONE = "1.5\tnode\t7\t\n"


@pytest.mark.parametrize(
    ("log", "starts", "said"),
    [
        (SAID + DONE, ONE, ["00000.json written"]),
        (None, ONE, []),
        (SAID + DONE, None, ["00000.json written"]),
        (SAID + DONE, ONE + ONE, None),
        (SAID + DONE.replace("INFO", "WARNING"), ONE, None),
        (SAID + "words of a library\n" + DONE, ONE, None),
        ("\udcff" + DONE, ONE, None),
        (Path("/dev/zero"), ONE, None),
    ],
)
def test_what_a_shard_leaves_that_went_well(tmp_path, log, starts, said):
    """Nothing, but where there is more to tell than its receipt does; a device is not read."""
    results = factories.plan(tmp_path, factories.stack((2, 2, 2))).results
    files = {results.log("multiply", "00000"): log, results.starts("00000"): starts}
    results.starts("00000").parent.mkdir(parents=True)
    for path, content in files.items():
        if isinstance(content, Path):
            path.symlink_to(content)
        elif content is not None:
            path.write_bytes(content.encode(errors="surrogateescape"))
    assert logs.settle(results, "00000") == (said or [])
    assert [path.exists() for path in files] == [said is None] * 2

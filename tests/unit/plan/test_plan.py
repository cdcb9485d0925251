"""The plan on disk: what is written is read, and damage is noticed."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from shardwise.errors import IntegrityError
from shardwise.files import tables
from shardwise.plan import plan
from shardwise.plan.plan import Source

from tests import factories
from tests.factories import save, stack

NAMES = st.binary(min_size=1).map(lambda raw: os.fsdecode(raw.replace(b"\0", b"\t")))


@example(["return\rin", "\r"])
@example(['quote"', "line\nend", '"'])
@given(st.lists(NAMES, min_size=1, max_size=4))
def test_tables_round_trip(names):
    """Any name that a file can have is the same after a round trip."""
    rows = [Source(name, 3, 5, "7:11") for name in names]
    raw = b"".join(tables.to_tsv(rows, Source))
    assert tables.from_tsv(raw, Source, Path("x")) == rows


def test_a_task_reads_its_own_files_from_the_list(tmp_path):
    """Whatever their names and numbers of matrices; a changed list is refused."""
    counts = [1 + i % 3 for i in range(23)]
    names = [tmp_path / f"{i:02}line\nend.npy" for i in range(23)]
    paths = [str(save(path, stack((n, 2, 2)))) for path, n in zip(names, counts, strict=True)]
    holds = np.repeat(paths, counts)  # the file of each matrix
    made = factories.plan(tmp_path, input=str(tmp_path / "*.npy"), shards=5)
    for row in made.shards.values():
        found = plan.load(made.results.plan).sources_of(row.start, row.stop)
        assert [source.path for source in found] == sorted({*holds[row.start : row.stop]})
    path = made.results.sources
    path.write_bytes(path.read_bytes().replace(b"12line", b"1xline"))
    with pytest.raises(IntegrityError, match="does not match"):
        made.sources_of(0, 2)

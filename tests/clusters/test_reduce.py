"""The reduce in a scheduler's job: one world over what was granted, one exit code, no rank left."""

import json
import shlex

import numpy as np
import pytest
from shardwise.numerics.tree import TreeSum

from tests import factories
from tests.places import ways

pytestmark = pytest.mark.timeout(600)
ON_TWO = ("slurm two nodes", "grid_engine two hosts")


@pytest.mark.fault("a rank that raises")
@ways("reduces", *ON_TWO)
def test_the_ranks_are_where_they_were_granted(nodes, way, tmp_path):
    """The job's tasks form one world on its nodes, whose sum has the bits of the tree.

    A missing product ends the job with 3, and its error is printed once.
    """
    found = nodes.reduces[way]
    left = factories.noise((9, 8, 8))
    made = factories.listed(factories.plan(tmp_path, left, shards=3, materialize=False))
    words = ("reduce", "--plan", made.results.plan, "--launcher", found.launcher)
    line = shlex.join(factories.command(*words))
    job = nodes.submit(line, *found.options)
    assert nodes.finish(job) == 0, nodes.printed(job)
    on = json.loads(made.results.summary.read_text())["nodes"]
    assert tuple(sorted(on.values(), reverse=True)) == found.counts
    total = TreeSum(np, (8, 8), "float64")
    total.add(factories.products(made), 0)
    assert np.load(made.results.statistic("sum")).tobytes() == total.values()[0].tobytes()
    made.results.statistic("sum").unlink()
    factories.file(made, "product", "00001").unlink()
    job = nodes.submit(line, *found.options)
    assert nodes.finish(job) == 3, nodes.printed(job)
    assert (nodes.printed(job).count(" ERROR "), "00001" in nodes.printed(job)) == (1, True)
    assert not made.results.statistic("sum").exists()

"""Matrices larger than a batch: each is a batch by itself, right in any parts, or refused."""

from itertools import chain, repeat
from unittest.mock import DEFAULT, Mock, call

import numpy as np
import pytest
from shardwise.files import pieces
from shardwise.multiply import job
from shardwise.plan import memory

from tests import factories
from tests.factories import PRODUCTS, REFERENCES, leftovers, results, right_rows, stack, wide


@pytest.fixture
def small(monkeypatch):
    """Limits so low that a matrix of some kB is a large one, of many parts, by itself."""
    for name in ("HOST_LONE_BYTES", "HOST_LARGE_BYTES", "HOST_BATCH_BYTES"):
        monkeypatch.setattr(memory, name, 32)
    monkeypatch.setattr(pieces, "PART_BYTES", 336)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("keep", ["products", "sum"])
@pytest.mark.parametrize("dtype", ["float16", "complex64", "int8"])
@pytest.mark.parametrize("product", PRODUCTS)
def test_products_are_exact_for_whole_numbers(tmp_path, product, dtype, keep):
    """All products of all dtypes, kept or summed, also in little memory; one B for all."""
    left = stack((3, 37, 37) if product == "A @ A" else (3, 29, 41), dtype)
    rows = right_rows(product, *left.shape[1:])
    right = stack((rows, 11), dtype, seed=1) if rows else None
    exact = REFERENCES[product](wide(left), wide(right))
    expected = exact.sum(axis=0)[None] if keep == "sum" else exact
    over = {"product": product, "keep": keep, "materialize": False, "shards": 1}
    made = factories.plan(tmp_path, left, right, **over)
    assert memory.Budget(made.problem, made.settings, [range(3)]).ladder(cuda=False)[0] == (1, 1)
    for most in (None, 1):
        job.run_shard(made, "00000", memory=most)
        np.testing.assert_array_equal(results(made), expected)
    assert not leftovers(made.results.root)


def test_the_one_b_has_its_place_beside_the_batches(tmp_path, monkeypatch):
    """Batches shrink if the B does not fit."""
    left, right = stack((2, 3, 4)), stack((4, 7), seed=1)
    made = factories.plan(tmp_path, left, product="A @ B", right=right, shards=1)
    short = Mock(wraps=np.zeros, side_effect=chain([MemoryError], repeat(DEFAULT)))
    monkeypatch.setattr(np, "zeros", short)
    job.run_shard(made, "00000")
    assert short.call_args_list[0] == short.call_args_list[1] == call(right.shape, "float32")
    np.testing.assert_array_equal(results(made), left @ right)

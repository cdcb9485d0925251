"""The picture of the sum: which elements are read, and how numbers become colours."""

import os
from pathlib import Path

import numpy as np
import pytest
from shardwise.observe.report import picture

from tests import factories


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("shape", [(1, 1), (300, 700)])
def test_cells_are_elements_of_the_file(tmp_path, dtype, shape):
    """All of a small matrix, else evenly spaced rows and columns; moduli if complex."""
    array = factories.stack(shape, dtype, seed=3)
    found = picture.read(factories.save(tmp_path / "sum.npy", array))
    rows, columns = (np.arange(min(n, 256)) * n // min(n, 256) for n in shape)
    shown = array[np.ix_(rows, columns)]
    np.testing.assert_array_equal(found, abs(shown) if dtype == "complex128" else shown)
    assert f"{found.min():.8g} and {found.max():.8g}" in picture.describe(found)
    assert "data:image/png;base64," in picture.draw(found, "sum.npy")


def test_what_is_not_finite_is_counted_and_marked(tmp_path: Path) -> None:
    """NaN and Inf are left out of the scale; nothing overflows."""
    cells = np.full((4, 4), 1e300)
    cells[1, 2], cells[3, 0], cells[0, 0] = np.nan, np.inf, 1e-300
    told = "These elements lie between 1e-300 and 1e+300. 2 elements NaN or infinite, in magenta."
    assert picture.describe(cells) == told
    assert "1e+300" in picture.draw(cells, "sum.npy")
    cells[:] = np.nan
    assert picture.describe(cells).startswith("No element is finite. 16 elements")
    picture.draw(cells, "sum.npy")
    path = factories.save(tmp_path / "sum.npy", cells)
    os.truncate(path, 200)
    with pytest.raises(ValueError, match="mmap length"):
        picture.read(path)

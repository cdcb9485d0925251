"""The picture of the sum: what is read of the file, and how numbers become colours."""

import os
from pathlib import Path

import numpy as np
import pytest
from shardwise.errors import InputError
from shardwise.observe.report import picture

from tests import factories


@pytest.mark.parametrize("dtype", ["float64", "complex128", "int64"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (256, 256), (300, 700), (1000, 2)])
def test_cells_are_elements_of_the_file(tmp_path, monkeypatch, dtype, shape):
    """All of a small matrix, else evenly spaced rows and columns; extremes are of all."""
    monkeypatch.setattr(picture, "_SLAB_BYTES", 4096)
    array = factories.stack(shape, dtype, seed=3)
    found = picture.read(factories.save(tmp_path / "sum.npy", array))
    rows, columns = (np.arange(min(n, 256)) * n // min(n, 256) for n in shape)
    shown = array[np.ix_(rows, columns)]
    np.testing.assert_array_equal(found.cells, abs(shown) if dtype == "complex128" else shown)
    values = abs(array) if dtype == "complex128" else array
    assert (found.low, found.high, found.nonfinite) == (values.min(), values.max(), 0)
    said = found.finding
    assert f"{found.low:.8g} and {found.high:.8g}" in said
    assert ("evenly spaced" in said) == (max(shape) > 256)


def test_what_is_not_finite_is_counted_and_marked(tmp_path: Path) -> None:
    """NaN and Inf are no numbers of the scale; no square overflows."""
    array = np.full((4, 4), 1e300)
    array[1, 2], array[3, 0], array[0, 0] = np.nan, np.inf, 1e-300
    found = picture.read(factories.save(tmp_path / "sum.npy", array))
    told = "Elements lie between 1e-300 and 1e+300. 2 elements NaN or infinite, in magenta."
    assert found.finding == told
    assert "1e+300" in picture.draw(found, "sum.npy")
    array[:] = np.nan
    said = picture.read(factories.save(tmp_path / "sum.npy", array)).finding
    assert said.startswith("No element is finite. 16 elements")
    array[:] = -7  # alike
    path = factories.save(tmp_path / "sum.npy", array)
    assert "-7" in picture.draw(picture.read(path), "sum.npy")
    os.truncate(path, 200)
    with pytest.raises(InputError, match="cannot be read"):
        picture.read(path)
    with pytest.raises(InputError, match="is not a matrix"):
        picture.read(factories.save(tmp_path / "stack.npy", np.ones((2, 2, 2))))

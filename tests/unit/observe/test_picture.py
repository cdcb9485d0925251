"""The picture of the sum: what is read of the file, and how numbers become colours."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from shardwise.errors import InputError
from shardwise.observe.report import picture

from tests import factories


@pytest.mark.parametrize("dtype", ["float64", "complex128", "int64"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (256, 256), (300, 700), (1000, 2)])
def test_cells_are_elements_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, shape: tuple[int, int]
) -> None:
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
    """NaN and Inf are no numbers of the scale."""
    array = np.ones((4, 4))
    array[1, 2], array[3, 0] = np.nan, np.inf
    said = picture.read(factories.save(tmp_path / "sum.npy", array)).finding
    assert said == "Elements lie between 1 and 1. 2 elements NaN or infinite, in magenta."
    array[:] = np.nan
    said = picture.read(factories.save(tmp_path / "sum.npy", array)).finding
    assert said.startswith("No element is finite. 16 elements")


def test_numbers_at_the_ends_of_float64_do_not_overflow(tmp_path: Path) -> None:
    """Numbers whose squares no float64 holds can be drawn."""
    array = np.full((3, 3), 1e300)
    array[0] = 1e-300
    found = picture.read(factories.save(tmp_path / "sum.npy", array))
    assert "1e+300" in picture.draw(found, "sum.npy")


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    """A file that is cut short, or no matrix, gives an error rather than a picture."""
    path = factories.save(tmp_path / "sum.npy", np.ones((4, 4)))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match="cannot be read"):
        picture.read(path)
    with pytest.raises(InputError, match="is not a matrix"):
        picture.read(factories.save(tmp_path / "stack.npy", np.ones((2, 2, 2))))


@pytest.mark.parametrize("make", [
    lambda r: r.standard_normal((20, 20)), lambda r: r.random((20, 20)),
    lambda r: -r.random((20, 20)), lambda r: np.exp(8 * r.standard_normal((20, 20))),
    lambda r: -np.exp(8 * r.standard_normal((20, 20))), lambda r: np.zeros((20, 20)),
    lambda r: np.full((20, 20), -7.0), lambda r: np.full((20, 20), np.nan),
])  # fmt: skip
def test_scales_rise_and_span_their_ends(make: object) -> None:
    """Whatever the numbers, the scale rises from its low end to its high end."""
    cells = make(np.random.default_rng(1))
    scale, _ = picture.colour_scale(cells[np.isfinite(cells)])
    values = [float(scale.inverse(place)) for place in np.linspace(0, 1, 9)]
    assert np.isfinite(values).all()
    assert all(a < b for a, b in pairwise(values))
    np.testing.assert_allclose(scale(np.array(values)), np.linspace(0, 1, 9), atol=1e-6)

"""The picture of the sum: what is read of the file, and how numbers become colours."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from shardwise.errors import InputError
from shardwise.observe.report import matrix, plots

from tests import factories


@pytest.mark.parametrize("dtype", ["float64", "complex128", "int64"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (256, 256), (300, 700), (1000, 2)])
def test_cells_and_numbers_are_those_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, shape: tuple[int, int]
) -> None:
    """Cells are means of blocks, whatever the slabs; extremes are NumPy's."""
    monkeypatch.setattr(matrix, "_SLAB_BYTES", 4096)
    array = factories.stack(shape, dtype, seed=3)
    found = matrix.read(factories.save(tmp_path / "sum.npy", array))
    values = abs(array) if dtype == "complex128" else array.astype(float)
    height, width = found.cells.shape
    assert (height, width) == (min(shape[0], 256), min(shape[1], 256))
    for i, j in ((0, 0), (height - 1, width - 1), (height // 2, width // 3)):
        rows = slice(i * shape[0] // height, (i + 1) * shape[0] // height)
        columns = slice(j * shape[1] // width, (j + 1) * shape[1] // width)
        assert found.cells[i, j] == pytest.approx(values[rows, columns].mean())
    assert (found.low, found.high) == (values.min(), values.max())
    assert found.nonfinite == 0


def test_what_is_not_finite_is_counted_and_marked(tmp_path: Path) -> None:
    """NaN and Inf cost their own cells, and no other number."""
    array = np.ones((4, 4))
    array[1, 2], array[3, 0] = np.nan, np.inf
    found = matrix.read(factories.save(tmp_path / "sum.npy", array))
    assert found.nonfinite == 2
    assert np.isnan(found.cells).sum() == 2
    assert (found.low, found.high) == (1, 1)
    assert "2 cells with NaN" in plots.heat_map(found, "sum.npy").finding


def test_numbers_at_the_ends_of_float64_do_not_overflow(tmp_path: Path) -> None:
    """Numbers whose squares no float64 holds can be drawn."""
    array = np.full((3, 3), 1e300)
    array[0] = 1e-300
    found = matrix.read(factories.save(tmp_path / "sum.npy", array))
    assert "1e+300" in plots.heat_map(found, "sum.npy").pictures[0]


def test_of_a_large_file_some_rows_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Past the limit, rows at equal distances are read, and the page says so."""
    monkeypatch.setattr(matrix, "MOST_BYTES", 10 * 80)
    array = np.arange(1000.0).reshape(100, 10)
    found = matrix.read(factories.save(tmp_path / "sum.npy", array))
    assert found.step == 10
    assert found.high == 909
    assert "one row of 10 was read" in plots.heat_map(found, "sum.npy").caption


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    """A file that is cut short, or no matrix, gives an error rather than a picture."""
    path = factories.save(tmp_path / "sum.npy", np.ones((4, 4)))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match="truncated"):
        matrix.read(path)
    with pytest.raises(InputError, match="no matrix"):
        matrix.read(factories.save(tmp_path / "stack.npy", np.ones((2, 2, 2))))


@pytest.mark.parametrize("make", [
    lambda r: r.standard_normal((20, 20)), lambda r: r.random((20, 20)),
    lambda r: -r.random((20, 20)), lambda r: np.exp(8 * r.standard_normal((20, 20))),
    lambda r: -np.exp(8 * r.standard_normal((20, 20))), lambda r: np.zeros((20, 20)),
    lambda r: np.full((20, 20), -7.0), lambda r: np.full((20, 20), np.nan),
])  # fmt: skip
def test_scales_rise_and_span_their_ends(make: object) -> None:
    """Whatever the numbers, the scale rises from its low end to its high end."""
    cells = make(np.random.default_rng(1))
    scale, _ = plots.colour_scale(cells[np.isfinite(cells)])
    values = [float(scale.inverse(place)) for place in np.linspace(0, 1, 9)]
    assert np.isfinite(values).all()
    assert all(a < b for a, b in pairwise(values))
    np.testing.assert_allclose(scale(np.array(values)), np.linspace(0, 1, 9), atol=1e-6)

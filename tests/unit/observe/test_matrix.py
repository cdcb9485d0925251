"""The picture of the sum: what is read of the file, and how numbers become colours."""

import re
import struct
import zlib
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from shardwise.errors import InputError
from shardwise.observe.report import colours, heatmap, matrix

from tests import factories


@pytest.mark.parametrize("dtype", ["float64", "complex128", "int64"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (256, 256), (300, 700), (1000, 2)])
def test_cells_and_numbers_are_those_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, shape: tuple[int, int]
) -> None:
    """Cells are means of blocks, whatever the slabs; norms and extremes are NumPy's."""
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
    assert found.mean == pytest.approx(array.mean())
    assert found.norm == pytest.approx(np.linalg.norm(array))
    np.testing.assert_allclose(found.norms, np.linalg.norm(array, axis=1))
    assert found.nonfinite == 0


def test_what_is_not_finite_is_counted_and_marked(tmp_path: Path) -> None:
    """NaN and Inf cost their own cells, and no other number."""
    array = np.ones((4, 4))
    array[1, 2], array[3, 0] = np.nan, np.inf
    found = matrix.read(factories.save(tmp_path / "sum.npy", array))
    assert found.nonfinite == 2
    assert np.isnan(found.cells).sum() == 2
    assert (found.low, found.high, found.mean) == (1, 1, 1)
    body = heatmap.figure(found).body
    assert "2 cells" in body


def test_numbers_at_the_ends_of_float64_do_not_overflow(tmp_path: Path) -> None:
    """Norms of numbers whose squares no float64 holds are finite, and can be drawn."""
    array = np.full((3, 3), 1e300)
    array[0] = 1e-300
    found = matrix.read(factories.save(tmp_path / "sum.npy", array))
    assert found.norm == pytest.approx(np.sqrt(6) * 1e300)
    assert ">1e-300<" in heatmap.spectrum(found).body


def test_rows_of_zeros_have_their_place_in_the_spectrum(tmp_path: Path) -> None:
    """Three rows of ten carry the sum: the third norm stands at two ninths, not at the end."""
    array = np.diag([3.0, 2.0, 1.0] + [0.0] * 7)
    found = matrix.read(factories.save(tmp_path / "sum.npy", array))
    (line,) = re.findall(r'class=line d="M(.*?)"', heatmap.spectrum(found).body)
    places, heights = zip(*(map(float, point.split()) for point in line.split("L")), strict=True)
    assert places == pytest.approx(np.linspace(0, 1000, 10), abs=0.01)
    assert heights[0] < heights[1] < heights[2]
    assert set(heights[3:]) == {220.0}


def test_of_a_large_file_some_rows_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Past the limit, rows at equal distances are read, and the page says so."""
    monkeypatch.setattr(matrix, "MOST_BYTES", 10 * 80)
    array = np.arange(1000.0).reshape(100, 10)
    found = matrix.read(factories.save(tmp_path / "sum.npy", array))
    assert found.step == 10
    assert found.high == 909
    assert "one row of 10 was read" in heatmap.figure(found).caption


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    """A file that is cut short, or no matrix, gives an error rather than a picture."""
    path = factories.save(tmp_path / "sum.npy", np.ones((4, 4)))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match="truncated"):
        matrix.read(path)
    with pytest.raises(InputError, match="no matrix"):
        matrix.read(factories.save(tmp_path / "stack.npy", np.ones((2, 2, 2))))


def test_an_outlier_leaves_the_colours_to_the_others() -> None:
    """One number a billion times as large hardly moves the scale."""
    cells = np.random.default_rng(0).standard_normal((100, 100))
    before = heatmap.scale_of(cells)
    cells[5, 5] = 1e9
    after = heatmap.scale_of(cells)
    assert after.high == pytest.approx(before.high, rel=0.1)
    assert after.signed
    assert after.low == -after.high


@pytest.mark.parametrize("make", [
    lambda r: r.standard_normal((20, 20)), lambda r: r.random((20, 20)),
    lambda r: -r.random((20, 20)), lambda r: np.exp(8 * r.standard_normal((20, 20))),
    lambda r: -np.exp(8 * r.standard_normal((20, 20))), lambda r: np.zeros((20, 20)),
    lambda r: np.full((20, 20), -7.0), lambda r: np.full((20, 20), np.nan),
])  # fmt: skip
def test_scales_rise_and_span_their_ends(make: object) -> None:
    """Whatever the numbers, the scale rises from its low end to its high end."""
    scale = heatmap.scale_of(make(np.random.default_rng(1)))
    values = [scale.value(place) for place in np.linspace(0, 1, 9)]
    assert np.isfinite(values).all()
    assert all(a < b for a, b in pairwise(values))
    np.testing.assert_allclose(scale.place(np.array(values)), np.linspace(0, 1, 9), atol=1e-6)


def test_lightness_rises_evenly() -> None:
    """The one scale goes from dark to light, the other one is symmetric about its middle."""
    weights = (0.2126, 0.7152, 0.0722)
    light = (colours.sequential() / 255.0) ** 2.2 @ weights
    assert (np.diff(light) > -0.002).all()
    assert light[-1] - light[0] > 0.7
    both = (colours.diverging() / 255.0) ** 2.2 @ weights
    assert both.argmax() == colours.LEVELS // 2
    assert abs(both[0] - both[-1]) < 0.1


def test_the_image_is_a_png_of_these_cells() -> None:
    """Chunks, checksums and pixels are as the format has them."""
    indices = np.arange(12, dtype=np.uint8).reshape(3, 4)
    raw = colours.png(indices, colours.sequential())
    assert raw[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, {}
    while at < len(raw):
        (size,), name = struct.unpack(">I", raw[at : at + 4]), raw[at + 4 : at + 8]
        chunks[name] = raw[at + 8 : at + 8 + size]
        assert struct.unpack(">I", raw[at + 8 + size :][:4])[0] == zlib.crc32(name + chunks[name])
        at += 12 + size
    assert struct.unpack(">II", chunks[b"IHDR"][:8]) == (4, 3)
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(3, 5)
    assert (rows[:, 1:] == indices).all()
    assert len(chunks[b"PLTE"]) == 3 * 256

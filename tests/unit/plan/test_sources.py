"""Where matrices lie: every kind of input, and every way it can be wrong."""

import glob
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardwise.errors import IntegrityError
from shardwise.files import lookup, npy
from shardwise.files.extents import OpenFiles
from shardwise.plan import plan as plan_file
from shardwise.plan.sources import stack_of
from shardwise.plan.stack import StackReader

from tests import factories
from tests.factories import refusal, save, settings, stack


def found(tmp_path, cache=None, **over):
    """The stack that a config names."""
    return stack_of(settings(**over), tmp_path / "input.npy", cache)


def files(folder, count=3):
    """A folder of 2-D files."""
    return [save(folder / f"m{i}.npy", stack((2, 4), "float32", i)) for i in range(count)]


def everything(made):
    """All matrices of a stack, read in one go."""
    return factories.read(StackReader(made.sources, made.shape, made.dtype), 0, made.matrices)


@pytest.mark.parametrize("origin", ["in", "in/*.npy", "s.tsv"])
def test_files_of_one_matrix_and_of_several(tmp_path, monkeypatch, origin):
    """In natural order, or in that of the sheet; hidden and other files are left out."""
    monkeypatch.chdir(tmp_path)
    shapes = [(2, 4), (3, 2, 4), (1, 2, 4), (2, 4), (2, 2, 4)]
    arrays = [stack(shape, seed=i) for i, shape in enumerate(shapes)]
    paths = [save(Path(f"in/m{i + 8}.npy"), array) for i, array in enumerate(arrays)]  # m9, m10
    if origin == "in":
        paths[0].rename(paths[0].with_suffix(".NPY"))
    for name in ("README", ".m0.npy.host.1.ab.tmp", "._m0.npy"):  # the last as macOS writes them
        Path("in", name).write_text("no array")
    order = [4, 0, 3, 1, 2] if origin == "s.tsv" else range(5)
    Path("s.tsv").write_text("\n".join(["path", *(str(paths[i]) for i in order)]))
    made = found(tmp_path, input=origin)
    whole = np.concatenate([arrays[i].reshape(-1, 2, 4) for i in order])
    np.testing.assert_array_equal(everything(made), whole)
    assert made.matrices == 8


def test_a_file_whose_name_looks_like_a_pattern_is_a_file(tmp_path):
    """If a file of exactly this name exists, the name is not a pattern."""
    assert found(tmp_path, input=str(save(tmp_path / "a[1].npy", stack((2, 3, 3))))).matrices == 2


def test_a_sheet_relative_to_itself(tmp_path, monkeypatch):
    """Its paths are relative to it and keep their order, whatever other columns and line ends."""
    paths = files(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    named = tmp_path / "data" / "s.tsv"
    named.write_bytes(b"label\tpath\tx\r\nNA\tm2.npy\t1\r\n\tm0.npy\t2")
    made = found(tmp_path, input=str(named))
    np.testing.assert_array_equal(everything(made), [np.load(paths[i]) for i in (2, 0)])


def test_two_stars_follow_no_links_to_folders(tmp_path, monkeypatch):
    """Unless the pattern names them; two to the parent would make a search of 2 ** 40 folders."""
    paths = files(tmp_path / "in" / "a" / "b")
    for name in ("up", "back"):
        (tmp_path / "in" / "a" / name).symlink_to(tmp_path / "in")
    monkeypatch.chdir(tmp_path)
    for pattern in ("**/*.npy", "in/**/**/*/m?.npy"):
        assert [tmp_path / s.path for s in found(tmp_path, input=pattern).sources] == paths
    for pattern in ("in/a/up/a/b/*.npy", "in/a/up/**/*.npy"):
        assert found(tmp_path, input=pattern).matrices == 3


@pytest.mark.parametrize("pattern", [
    "**/*.npy", "*/**/*.npy", "x*/?.npy", "[xy]/*.npy", "**/y/**/*.npy", ".h/*.npy", "**/.z.npy",
    "x/../y/*.npy", "./**/[!b].npy", "none/**/*.npy", "x/a.npy/**/*.npy", "x/a.npy/*",
])  # fmt: skip
def test_patterns_match_what_pythons_glob_does(tmp_path, monkeypatch, pattern):
    """If no link leads to a folder."""
    for name in ("x/a", "x/b", "y/c", "x/y/d", "x/y/z/e", ".h/f", "y/.z", "g"):
        save(tmp_path / f"{name}.npy", stack((2, 2)))
    monkeypatch.chdir(tmp_path)
    expected = sorted({Path(name) for name in glob.glob(pattern, recursive=True)})
    assert lookup.matches(pattern) == expected


def test_a_folder_that_cannot_be_read_is_no_empty_folder(tmp_path, monkeypatch):
    """Matching files in it would silently be missing from the sum."""
    files(tmp_path / "in")
    one, any_depth = (settings(input=f"{tmp_path}/{stars}/*.npy") for stars in ("*", "**"))

    def closed(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "listdir", closed)
    assert "Permission denied" in refusal(stack_of, one, tmp_path / "x")
    monkeypatch.setattr(os, "scandir", closed)
    assert "Permission denied" in refusal(stack_of, any_depth, tmp_path / "x")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_refused_at_once(tmp_path, make):
    """In a folder, or named by a sheet or a pattern; opening a pipe never blocks."""
    files(tmp_path / "in")
    for name in ("a.npy", "in/z.npy"):
        make(str(tmp_path / name))
    (tmp_path / "t.tsv").write_text("path\na.npy\n")
    for name in ("in", "in/*.npy", "t.tsv"):
        assert "is not a file, but a" in refusal(found, tmp_path, input=str(tmp_path / name))


def test_headers_are_read_once(tmp_path, monkeypatch):
    """A second look reads no header, unless the time stamp is new."""
    reads, read = [], npy.read_header
    monkeypatch.setattr(npy, "read_header", lambda path: reads.append(path.name) or read(path))
    paths, given = files(tmp_path / "in", 4), {"input": str(tmp_path / "in")}
    cache = tmp_path / "cache" / "c.json"
    first = found(tmp_path, cache, **given)
    assert (len(reads), found(tmp_path, cache, **given)) == (4, first)
    assert len(reads) == 4
    reads.clear()
    os.utime(paths[1], ns=(1, 1))
    found(tmp_path, cache, **given)
    assert reads == ["m1.npy"]


LAYOUTS = [("<f4", "C"), (">f4", "C"), ("<f4", "F")]


@given(
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from(LAYOUTS)), min_size=1, max_size=4),
    st.data(),
)
def test_any_bytes_come_little_endian_in_c_order(tmp_path, files, data):
    """Whatever the files and their layouts, and wherever inside a matrix the bytes begin."""
    parts, first = [], 0
    for number, (count, (dtype, order)) in enumerate(files):
        array = np.asarray(stack((count, 3, 5), dtype, number), order=order)
        path = save(tmp_path / f"{number}.npy", array)
        parts.append(plan_file.Source(str(path), first, count, ""))
        first += count
    stacked = StackReader(parts, (3, 5), "float32")
    whole = np.concatenate([np.load(part.path) for part in parts]).astype("<f4")
    opened = OpenFiles()
    for _ in range(3):  # several reads in turn, as converted matrices are kept
        low = data.draw(st.integers(0, whole.nbytes - 1))
        high = data.draw(st.integers(low + 1, whole.nbytes))
        view = np.empty(high - low, np.uint8)
        stacked.read_into(opened, view, low)
        assert view.tobytes() == whole.tobytes()[low:high]
        start, stop = low // 60, -(-high // 60)  # bytes of a matrix
        np.testing.assert_array_equal(factories.read(stacked, start, stop), whole[start:stop])


@pytest.mark.parametrize("identity", ["1:2:3:4", ""])
def test_a_reader_refuses_another_file_than_planned(tmp_path, identity):
    """By its identity; by shape and dtype if the plan has none, as for a file with a receipt."""
    path = save(tmp_path / "a.npy", stack((3, 2, 2), "int32"))
    reader = StackReader((plan_file.Source(str(path), 0, 3, identity),), (2, 2), "float32")
    with pytest.raises(IntegrityError, match="start the run again"):
        reader.read_into(OpenFiles(), np.empty(3 * 16, np.uint8), 0)

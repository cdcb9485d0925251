"""Arrays of other formats: the bits of the same numbers as ``.npy``, and every refusal."""

import contextlib
import html
import json
import os
import re
import sys
import time
import zlib
from pathlib import Path

import google_crc32c
import h5py
import hdf5plugin
import numcodecs
import numpy as np
import pytest
import zarr
from mpi4py import MPI
from safetensors.numpy import save_file
from shardwise.errors import InputError, IntegrityError
from shardwise.files.formats import names, registry
from shardwise.multiply import copy
from shardwise.observe.folder import Observer
from shardwise.observe.report import page
from shardwise.plan import memory
from shardwise.plan import stack as stacks
from shardwise.records import ledger
from shardwise.reduce import job as reduce_job

from tests import factories
from tests.factories import noise, save, stack

SHAPE = (13, 20, 12)
UNLIMITED = h5py.h5s.UNLIMITED


def hdf5(path, array, **options):
    """A file with one dataset."""
    with h5py.File(path, "w") as file:
        file.create_dataset("run/frames", data=array, **options)
    return f"{path}:/run/frames"


def zarr_array(version, name="stack.zarr", **options):
    """A maker of a store that is one array, in chunks that fit no side of it."""

    def make(folder, array):
        store = folder / name
        options.setdefault("chunks", (4, 8, 5))
        made = zarr.create_array(
            store, shape=array.shape, dtype=array.dtype, zarr_format=version, **options
        )
        made[:] = array
        return str(store)

    return make


def grouped(folder, array):
    """An array in a group of a store."""
    zarr.create_group(folder / "g.zarr", zarr_format=3)
    zarr_array(3, "g.zarr/run/frames")(folder, array)
    return f"{folder}/g.zarr:run/frames"


def tensors(folder, array):
    """A file of two tensors, by the package itself."""
    save_file({"other": np.arange(5), "frames": array}, folder / "a.safetensors")
    return f"{folder}/a.safetensors:frames"


def tensor(folder, kind, shape, raw):
    """A file of one tensor of a type that NumPy does not have."""
    facts = {"dtype": kind, "shape": shape, "data_offsets": (0, len(raw))}
    header = json.dumps({"x": facts}).encode()
    (folder / "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + raw)
    return f"{folder}/a.safetensors:x"


PLAIN = {
    "hdf5": lambda folder, array: hdf5(folder / "a.h5", array),
    "safetensors": tensors,
}
CHUNKED = {
    "hdf5, gzip": lambda f, a: hdf5(f / "a.h5", a, chunks=(4, 8, 5), compression="gzip"),
    "hdf5, shuffle, chunks by itself": lambda f, a: hdf5(
        f / "a.hdf5", a, compression="lzf", shuffle=True, fletcher32=True
    ),
    **{
        f"hdf5, {name}": lambda f, a, own=own: hdf5(f / "a.h5", a, chunks=(4, 8, 5), **own)
        for name, own in {
            "bitshuffle with LZ4": hdf5plugin.Bitshuffle(),
            "bitshuffle with zstd": hdf5plugin.Bitshuffle(cname="zstd"),
            "bitshuffle alone": hdf5plugin.Bitshuffle(cname="none"),
            "Blosc": hdf5plugin.Blosc(),
            "bzip2": hdf5plugin.BZip2(),
            "LZ4": hdf5plugin.LZ4(),
            "zstd": hdf5plugin.Zstd(),
        }.items()
    },
    "zarr 2": zarr_array(2),
    "zarr 3": zarr_array(3),
    "zarr 3, shards": zarr_array(3, chunks=(2, 4, 6), shards=(4, 8, 12)),
    "zarr, a group": grouped,
}


def copies(made):
    """The bytes that the shards of a plan hold."""
    for shard in made.shards:
        copy.materialize(made, shard)
    return np.concatenate([np.load(factories.file(made, "shard", shard)) for shard in made.shards])


@pytest.mark.parametrize("dtype", ["float32", "complex64", "int16"])
@pytest.mark.parametrize("kind", [*PLAIN, *CHUNKED])
def test_copies_have_the_bits_of_the_array(tmp_path, kind, dtype):
    """Over shards that begin inside chunks."""
    array = noise(SHAPE, dtype) if dtype != "int16" else stack(SHAPE, dtype)
    name = (PLAIN | CHUNKED)[kind](tmp_path, array)
    made = factories.plan(tmp_path, input=name, shards=3, product="A.T @ A", materialize=True)
    assert made.problem.dtype == dtype
    assert copies(made).tobytes() == array.tobytes()


@pytest.mark.parametrize("kind", ["hdf5, gzip", "zarr 3"])
def test_each_chunk_is_decoded_once(tmp_path, kind, monkeypatch):
    """Slabs end inside matrices, blocks are whole chunks, and no block is read twice."""
    array = noise(SHAPE, "float32")
    name = CHUNKED[kind](tmp_path, array)
    monkeypatch.setattr(stacks.memory, "STEP_BYTES", 700)
    made = factories.plan(tmp_path, input=name, shards=1, product="A.T @ A", materialize=True)
    spans = []
    read = registry.read_matrices
    monkeypatch.setattr(
        registry, "read_matrices", lambda *words: spans.append(words[1:]) or read(*words)
    )
    assert copies(made).tobytes() == array.tobytes()
    assert sorted(spans) == [((i, min(i + 4, 13)), (0, 20)) for i in range(0, 13, 4)]


def test_large_matrices_are_decoded_by_rows(tmp_path, monkeypatch):
    """A matrix that is larger than a block; the memory that the job asks for counts the blocks."""
    array = noise(SHAPE, "float32")
    name = CHUNKED["hdf5, gzip"](tmp_path, array)
    monkeypatch.setattr(memory, "CONVERTED_BYTES", 9 * 12 * 4)
    made = factories.plan(tmp_path, input=name, shards=2, product="A.T @ A", materialize=True)
    assert memory.converted_block((4, 8, 5), SHAPE[1:], 4) == (1, 8)
    assert copies(made).tobytes() == array.tobytes()
    plain = factories.plan(tmp_path / "npy", array, shards=2, product="A.T @ A")
    assert made.shard("00000").memory == plain.shard("00000").memory + made.facts.decoded


@pytest.mark.parametrize("kind", PLAIN)
def test_plain_bytes_are_read_in_place(tmp_path, kind):
    """No copy, and the planned stack is the array."""
    array = noise(SHAPE, "float32")
    name = PLAIN[kind](tmp_path, array)
    for materialize in (False, "auto"):
        made = factories.plan(
            tmp_path, input=name, product="A.T @ A", shards=2, materialize=materialize
        )
        assert not made.settings.materialize
        reader = stacks.StackReader(made.sources, SHAPE[1:], "float32")
        assert reader.read(3, 9).tobytes() == array[3:9].tobytes()


@pytest.mark.parametrize("most", [memory.CONVERTED_BYTES, 9 * 12 * 4])
def test_bfloat16_is_read_as_the_same_numbers_of_float32(tmp_path, monkeypatch, most):
    """In copies, also where a block holds some rows of a matrix; never in place."""
    bits = noise(SHAPE, "float32").view("u4") >> 16
    name = tensor(tmp_path, "BF16", SHAPE, bits.astype("<u2").tobytes())
    monkeypatch.setattr(memory, "CONVERTED_BYTES", most)
    words = {"input": name, "product": "A.T @ A", "shards": 3}
    made = factories.plan(tmp_path, **words)
    assert (made.problem.dtype, made.settings.materialize) == ("float32", True)
    assert copies(made).tobytes() == (bits << 16).tobytes()
    with pytest.raises(InputError, match="stored as bfloat16, which has to be decoded first; use"):
        factories.plan(tmp_path, **words, materialize=False)


@pytest.mark.parametrize("kind", ["hdf5, gzip", "zarr 2"])
def test_chunks_are_not_read_in_place(tmp_path, kind):
    """Auto copies; false is refused with the reason."""
    name = CHUNKED[kind](tmp_path, noise(SHAPE))
    words = {"input": name, "product": "A.T @ A", "shards": 2}
    assert factories.plan(tmp_path, **words, materialize="auto").settings.materialize
    with pytest.raises(InputError, match="stored in chunks, which have to be decoded first; use"):
        factories.plan(tmp_path, **words, materialize=False)


def test_a_sheet_names_many_datasets(tmp_path):
    """Contiguous and compressed ones of two files, and plain ones, of any number; each once."""
    counts = [(), (3,), (5,), (), (2,), (1,)]
    arrays = [noise((*n, 6, 6), seed=i) for i, n in enumerate(counts)]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["group/y"] = arrays[0], arrays[1]
        file.create_dataset("z", data=arrays[2], chunks=(2, 4, 4), compression="gzip")
    zarr_array(2, chunks=(4, 4))(tmp_path, arrays[3])
    save(tmp_path / "m.npy", np.asfortranarray(arrays[4]))
    tensors(tmp_path, arrays[5])
    rows = ["a.h5:/x", "a.h5:group/y", "a.h5:z", "stack.zarr", "m.npy", "a.safetensors:frames"]
    sheet = tmp_path / "s.tsv"
    sheet.write_text("\n".join(["path", *rows]) + "\n")
    whole = np.concatenate([array.reshape(-1, 6, 6) for array in arrays])
    made = factories.plan(tmp_path, input=str(sheet), shards=5, materialize=True)
    assert copies(made).tobytes() == whole.tobytes()
    with pytest.raises(InputError, match=r"but .*a.h5:z is stored in chunks"):
        factories.plan(tmp_path, input=str(sheet), materialize=False)
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file["hard"], file["z2"], file["soft"] = file["x"], file["z"], h5py.SoftLink("/x")
    os.link(tmp_path / "a.h5", tmp_path / "b.h5")
    for one, other in (("a.h5:/x", "a.h5:x"), ("a.h5:z", "b.h5:z2"), ("a.h5:hard", "b.h5:soft")):
        sheet.write_text(f"path\n{one}\n{other}\n")
        with pytest.raises(InputError, match="are the same file"):
            factories.plan(tmp_path, input=str(sheet))


def linked(folder, array):
    """A store of which some chunks lie elsewhere, behind a link."""
    name = CHUNKED["zarr 3"](folder, array)
    (folder / "stack.zarr/c/3").rename(folder / "elsewhere")
    (folder / "stack.zarr/c/3").symlink_to(folder / "elsewhere")
    return name


@pytest.mark.parametrize("kind", ["hdf5, gzip", "zarr 2", "zarr 3", "zarr 3, a link"])
def test_numbers_that_change_after_the_plan_are_refused(tmp_path, kind):
    """A chunk of Zarr counts, though the file of metadata stays the same."""
    name = (CHUNKED | {"zarr 3, a link": linked})[kind](tmp_path, noise(SHAPE))
    made = factories.plan(tmp_path, input=name, shards=2, product="A.T @ A", materialize=True)
    if kind == "hdf5, gzip":
        with h5py.File(names.file_of(name), "r+") as file:
            file["run/frames"][12] = 1
    else:
        zarr.open_array(name, mode="r+")[12] = 1
    with pytest.raises(IntegrityError, match="has changed since the plan was made"):
        copies(made)


def test_a_chunk_that_changes_while_it_is_read_is_refused(tmp_path, monkeypatch):
    """Nothing is committed."""
    name = CHUNKED["zarr 3"](tmp_path, noise(SHAPE))
    made = factories.plan(tmp_path, input=name, shards=1, product="A.T @ A", materialize=True)
    read = registry.read_matrices

    def edit(*words):
        zarr.open_array(name, mode="r+")[12] = 1
        return read(*words)

    monkeypatch.setattr(registry, "read_matrices", edit)
    with pytest.raises(IntegrityError, match="has changed while it was read"):
        copies(made)
    assert not factories.file(made, "shard").exists()


# Chunks that are not there.


def _half_written(version, fill=0.5):
    """A maker of a store of which a part was written."""

    def make(folder):
        zarr_array(version, chunks=(1, 2, 2), fill_value=fill)(folder, np.ones((4, 2, 2)))
        for chunk in ("c/3/0/0", "3.0.0"):
            (folder / "stack.zarr" / chunk).unlink(missing_ok=True)
        return f"{folder}/stack.zarr"

    return make


def _half_written_hdf5(fill_time="ifset"):
    def make(folder):
        with h5py.File(folder / "a.h5", "w") as file:
            file.create_dataset(
                "x", (4, 2, 2), "f8", chunks=(1, 2, 2), fillvalue=0.5, fill_time=fill_time
            )[:3] = 1
        return f"{folder}/a.h5:x"

    return make


@pytest.mark.parametrize("make", [_half_written(2), _half_written(3), _half_written_hdf5()])
def test_chunks_that_were_never_written_are_told_everywhere(tmp_path, make):
    """Plan, summary and page say how many there are and what they count as; or they are refused."""
    name, words = make(tmp_path), {"product": "A.T @ A", "keep": "sum"}
    made = factories.plan(tmp_path, input=name, **words)
    told = "1 of 4 chunks of .* were never written; they count as 0.5"
    with pytest.raises(InputError, match=f"{told}, which missing_chunks: error refuses"):
        factories.plan(tmp_path, input=name, missing_chunks="error", **words)
    ledger.write(factories.computed(made))
    reduce_job.run(MPI.COMM_SELF, made.results.plan, ["sum"])
    assert np.load(made.results.statistic("sum")).tolist() == [[6.5, 6.5], [6.5, 6.5]]
    summary = json.loads(made.results.summary.read_bytes())
    page_of_it = html.unescape(page.render(Observer(made.results.root).look(time.time())))
    for text in (*made.facts.notes, *summary["notes"], page_of_it):
        assert re.search(told, text)


def _renamed(make, old, new):
    """A maker of a store of which one file has another name."""

    def other(folder):
        name = make(folder, noise(SHAPE))
        (folder / "stack.zarr" / old).rename(folder / "stack.zarr" / new)
        return name

    return other


def _edited(changes, **options):
    """A maker of a store of version 2 whose metadata say something else."""

    def make(folder):
        name = zarr_array(2, **options)(folder, noise(SHAPE))
        file = folder / "stack.zarr/.zarray"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))
        return name

    return make


def _only_a_readme(folder):
    zarr.create_array(folder / "stack.zarr", shape=SHAPE, chunks=(4, 4, 4), dtype="f4")
    (folder / "stack.zarr/README").write_text("frames of run 7")
    return f"{folder}/stack.zarr"


UNKNOWN = {
    "another separator": (
        _edited({"dimension_separator": "."}, chunk_key_encoding={"name": "v2", "separator": "/"}),
        "36 of 36 .*/. is none: .zarray names them as 0.0.0",
    ),
    "a copy that broke off": (
        _renamed(CHUNKED["zarr 3"], "c/1/0/0", "c/1/0/.0.Xa8dK2"), r"c/1/0/\.0\.Xa8dK2 is none",
    ),
    "a copy that broke off, version 2": (
        _renamed(CHUNKED["zarr 2"], "1.0.0", "1.0.0.partial"), "1 of 36 .* 1.0.0.partial is none",
    ),
    "nothing but a text": (_only_a_readme, "holds no chunk, such as c/0/0/0"),
    "no fill value": (_half_written(2, fill=None), "1 of 4 chunks .* and no fill value"),
    "never filled, HDF5": (_half_written_hdf5("never"), "1 of 4 chunks .* and no fill value"),
}  # fmt: skip


# Names.

NAMES = {
    "s.zarr/": "s.zarr", "s.zarr:/": "s.zarr", "g.zarr/run/frames": "g.zarr", "plain": "s.zarr",
    "plain/": "s.zarr", "plain_group:run/frames": "g.zarr", "plain_group/run/frames": "g.zarr",
    "f.cxi:/run/frames": "a.h5", "f.nc:run/frames": "a.h5", "f.MAT:/run/frames": "a.h5",
    "f.hdf:/run/frames": "a.h5", "f.nwb:/run/frames": "a.h5",
}  # fmt: skip


MANY = {
    "in": zarr_array(3, "{}.zarr"), "in/*.zarr": zarr_array(2, "{}.zarr"),
    "in/*.h5:/run/frames": lambda f, a: hdf5(f / "{}.h5", a),
    "in/**/*.H5:run/frames": lambda f, a: hdf5(f / "{}.H5", a, chunks=True, compression="gzip"),
    "in/*.zarr:run/frames": grouped, "in/*.zarr/run/frames": grouped, "in/g*:run/frames": grouped,
    "in/*.safetensors:frames": tensors,
}  # fmt: skip


@pytest.mark.parametrize("name", MANY)
def test_a_folder_or_glob_of_stacks(tmp_path, monkeypatch, name):
    """With the array in each file behind a colon; each holds as many matrices as it holds."""
    monkeypatch.chdir(tmp_path)
    whole = noise((9, 20, 12), "float32")
    for i, array in enumerate(np.split(whole, [4, 5])):
        made = Path(names.split(MANY[name](tmp_path, array))[0])
        os.renames(made, tmp_path / "in" / f"g{i}{made.suffix}")
    made = factories.plan(tmp_path, input=name, product="A.T @ A", shards=2)
    assert copies(made).tobytes() == whole.tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_names_as_people_type_them(tmp_path, monkeypatch, name):
    """Stores whose names have no suffix, with slashes; the suffixes that fields give to HDF5."""
    monkeypatch.chdir(tmp_path)
    array, origin = noise(SHAPE), NAMES[name]
    if origin == "a.h5":
        hdf5(names.file_of(name), array)
    elif origin == "s.zarr":
        zarr_array(2, name.strip("/:"))(tmp_path, array)
    else:
        folder = re.split("[:/]", name)[0]
        zarr.create_group(tmp_path / folder, zarr_format=3)
        zarr_array(3, f"{folder}/run/frames")(tmp_path, array)
    made = factories.plan(tmp_path, input=name, shards=1, product="A.T @ A")
    assert copies(made).tobytes() == array.tobytes()


def _put(name, raw):
    return lambda folder: (folder / name).write_bytes(raw) and f"{folder}/{name}"


MISNAMED = {
    "a zip store": (_put("a.zarr.zip", b"PK\3\4..."), "a zip archive, .*unpack it"),
    "a zip store named as a folder": (_put("a.zarr", b"PK\3\4..."), "a zip archive, .*unpack it"),
    "an array of npz": (lambda p: _put("a.npz", b"PK\3\4...")(p) + ":x", "a zip archive, .*unpack"),
    "HDF5 without a suffix": (
        lambda p: str(Path(hdf5(p / "a.h5", noise(SHAPE))[:-12]).rename(p / "a.dat")) + ":x",
        "a.dat is an HDF5 file; let its name end in .h5",
    ),
    "HDF5 named .npy": (_put("a.npy", b"\x89HDF\r\n\x1a\n"), "is an HDF5 file; let its name"),
    "a .npy file named .h5": (_put("a.h5", b"\x93NUMPY"), "is a .npy file"),
    "classic netCDF": (lambda p: _put("a.nc", b"CDF\1....")(p) + ":x", "classic format; convert"),
    "old MATLAB": (lambda p: _put("a.mat", b"MATLAB 5.0 MAT-")(p) + ":x", "save it in MATLAB"),
    "HDF4": (lambda p: _put("a.hdf", b"\x0e\3\x13\1....")(p) + ":x", "HDF4 file; convert"),
    "a dataset is not named": (lambda p: hdf5(p / "a.cxi", noise(SHAPE))[:-12], "cxi:/run/frames"),
    "what is no array of anything": (lambda p: _put("a.txt", b"....")(p) + ":x", "of no format"),
}  # fmt: skip


def _h5(fill):
    """A maker of a file that something fills, whose array ``x`` is named."""

    def make(path):
        hdf5(path / "other.h5", noise(SHAPE))
        with h5py.File(path / "a.h5", "w") as file:
            fill(file, path)
        return f"{path}/a.h5:x"

    return make


def _external(file, path):
    with contextlib.suppress(FileExistsError):
        os.mkfifo(path / "other.h5")  # opening it would wait for ever
    file["y"] = h5py.ExternalLink("other.h5", "/run/frames")
    file["x"] = h5py.SoftLink("/y")


def _circle(file, _):
    file["x"] = h5py.SoftLink("/x")


def _virtual(*parts, dtype="f8", shape=SHAPE):
    """A virtual dataset ``x``: ranges of it, with the file, dataset and part of each."""

    def fill(file, _):
        layout = h5py.VirtualLayout(shape, dtype, maxshape=(None, *shape[1:]))
        for (begin, end), name, inside, own, rows in parts:
            layout[begin:end] = h5py.VirtualSource(name, inside, own, maxshape=(None, *own[1:]))[
                rows
            ]
        file.create_virtual_dataset("x", layout)

    return fill


WHOLE, EVERY = ((0, 13), "other.h5", "run/frames", SHAPE, slice(None)), slice(None)


def test_a_virtual_dataset_stands_for_the_arrays_that_it_gathers(tmp_path):
    """In its order; a change of one of their files counts, a missing one is refused."""
    whole = noise(SHAPE)
    names_of = [hdf5(tmp_path / f"{i}.h5", a) for i, a in enumerate(np.split(whole[:12], [4, 9]))]
    parts = [((0, 4), "0.h5"), ((9, 12), str(tmp_path / "2.h5")), ((4, 9), "1.h5")]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["run/frames"] = whole[12:]
        one = ((12, 13), ".", "/run/frames", (1, 20, 12), EVERY)
        own = [(at, name, "run/frames", (at[1] - at[0], 20, 12), EVERY) for at, name in parts]
        _virtual(*own, one)(file, tmp_path)
    given = {"product": "A.T @ A", "shard_bytes": 4 * whole[0].nbytes}
    made = factories.plan(tmp_path, input=f"{tmp_path}/a.h5:x", **given)
    assert [Path(source.path).name for source in made.sources] == ["frames"] * 4
    assert [source.file for source in made.sources][:3] == [n.split(":")[0] for n in names_of]
    assert copies(made).tobytes() == whole.tobytes()
    with h5py.File(tmp_path / "1.h5", "r+") as file:
        file["run/frames"][0] = 2
    with pytest.raises(IntegrityError, match=r"1.h5.* has changed since the plan was made"):
        copies(made)
    again = factories.plan(tmp_path, input=f"{tmp_path}/a.h5:x", **given)
    keys = [[row.key for row in each.shards.values()] for each in (made, again)]
    assert [a == b for a, b in zip(*keys, strict=True)] == [True, False, False, True]
    (tmp_path / "2.h5").unlink()
    with pytest.raises(InputError, match=r"2.h5:.*, which .*a.h5:x gathers, cannot be read: No s"):
        factories.plan(tmp_path, input=f"{tmp_path}/a.h5:x", **given)


def _stored_outside(file, path):
    file.create_dataset("x", data=noise(SHAPE), external=[(str(path / "raw"), 0, 10**6)])


def _objects(file, _):
    file.create_dataset("x", (3, 2, 2), dtype=h5py.special_dtype(vlen=np.int32))


def _odd_chunk(file, _):
    data = file.create_dataset("x", (2, 4, 4), "f8", chunks=(1, 4, 4), fletcher32=True)
    data.id.write_direct_chunk((0, 0, 0), bytes(8))


def _huge_chunk(file, _):
    shape = 2, 20000, 20000
    data = file.create_dataset("x", shape, "f4", chunks=(1, 20000, 20000), compression=1)
    data.id.write_direct_chunk((0, 0, 0), b"x")


def _cut(path, name, nbytes):
    file = Path(names.file_of(name))
    file.write_bytes(file.read_bytes()[:-nbytes])
    return name


def _grown(folder):
    name = zarr_array(2)(folder, noise(SHAPE))
    os.truncate(folder / "stack.zarr/0.0.0", 3 << 20)
    return name


def _unknown_filter(path):
    """A number of a filter that nobody has registered, put into the file's own message."""
    name = hdf5(path / "a.h5", noise(SHAPE), chunks=(4, 8, 5), compression="lzf")
    raw, swaps = re.subn(rb"\x00\x7d(?=.{6}lzf)", b"\xff\x7c", (path / "a.h5").read_bytes())
    assert swaps == 1
    (path / "a.h5").write_bytes(raw)
    return name


def _metadata(path, raw):
    name = zarr_array(3)(path, noise(SHAPE))
    (path / "stack.zarr" / "zarr.json").write_bytes(raw)
    return name


def _two_versions(path):
    zarr_array(3)(path, noise(SHAPE))
    return zarr_array(2)(path, noise(SHAPE))


def _circle_of_folders(path):
    name = zarr_array(3)(path, noise(SHAPE))
    (path / "stack.zarr/c/9").symlink_to(path / "stack.zarr/c")
    return name


REFUSALS = {
    **UNKNOWN,
    **MISNAMED,
    "a group": (lambda p: hdf5(p / "a.h5", noise(SHAPE))[:-7], "name one of .*/run/frames"),
    "truncated HDF5": (lambda p: _cut(p, hdf5(p / "a.h5", noise(SHAPE)), 99), "truncated"),
    "external link": (_h5(_external), "an external link to 'other.h5'; name the file"),
    **{
        f"virtual, {case}": (_h5(_virtual(*parts, **over)), told)
        for case, parts, over, told in (
            ("gaps", [((4, 13), "other.h5", "x", (9, 20, 12), EVERY)], {}, "but not of whole"),
            ("an end", [((0, 9), "other.h5", "x", (9, 20, 12), EVERY)], {}, "but not of whole"),
            ("parts", [(*WHOLE[:3], (20, 20, 12), slice(7, 20))], {}, "but not of whole"),
            ("no end", [((0, UNLIMITED), *WHOLE[1:4], slice(0, UNLIMITED))], {}, "but not of wh"),
            ("other dtype", [WHOLE], {"dtype": "f4"}, r"as .* float32, but that is .* float64"),
            (
                "another N",
                [((0, 9), *WHOLE[1:3], (9, 20, 12), EVERY)],
                {"shape": (9, 20, 12)},
                r"\(9, .* is \(13, 20",
            ),
            ("of itself", [((0, 13), ".", "x", SHAPE, EVERY)], {}, "virtual itself"),
        )
    },
    "links in a circle": (_h5(_circle), "in a circle"),
    "external storage": (_h5(_stored_outside), "stored in other files"),
    "objects": (_h5(_objects), "Python objects, which are never unpickled"),
    "strings": (lambda p: hdf5(p / "a.h5", np.full((2, 2, 2), b"x")), "holds strings"),
    "a filter that nobody knows": (
        _unknown_filter,
        "check here how many bytes filter 31999 makes of a *chunk",
    ),
    "a chunk that fills memory": (_h5(_huge_chunk), "chunks .* of 1.5 GiB.* with chunks of 1.0"),
    "a chunk of another length": (_h5(_odd_chunk), r"chunk at \(0, 0, 0\) has 8 bytes, not 132"),
    "no array": (lambda p: zarr_array(3)(p, noise(SHAPE)) + ":x", "holds no array 'x'; name one"),
    "out of the store": (lambda p: zarr_array(3)(p, noise(SHAPE)) + ":../x", "holds no array"),
    "a stored chunk of any length": (_grown, "0.0.0 has 3145728 bytes, many more than a chunk"),
    "a filter whose bytes nobody can count": (
        _h5(
            lambda f, _: f.create_dataset(
                "x", data=np.eye(4)[None], chunks=True, compression="szip"
            )
        ),
        r"HDF5 filters \[4\]; allowed are shuffle, then gzip, LZF or",
    ),
    "compressed twice": (
        lambda p: zarr_array(
            3,
            compressors=[
                {"name": "gzip", "configuration": {"level": 1}},
                {"name": "zstd", "configuration": {}},
            ],
        )(p, noise(SHAPE)),
        "went through bytes gzip zstd, of which only the last may be gzip",
    ),
    "a codec that unpickles": (
        _edited({"filters": [{"id": "pickle"}]}),
        "the codec pickle is not one of",
    ),
    "no JSON": (lambda p: _metadata(p, b"{"), "damaged metadata"),
    "chunks of no length": (_edited({"chunks": [4, 8, 0]}), "damaged metadata of Zarr: chunks"),
    "chunks of any length": (_edited({"chunks": [4, 8, 10**400]}), "with chunks of 1.0 GiB"),
    "no metadata": (lambda p: _metadata(p, b"{}"), "as Zarr"),
    "two versions": (_two_versions, r"stack.zarr/.zarray and .*stack.zarr/zarr.json describe one"),
    "chunks in a circle": (_circle_of_folders, "is a link to a folder of the same array"),
    "no such tensor": (lambda p: tensors(p, noise(SHAPE)) + "2", "name one of .*tensors:frames"),
    "bfloat16 of Zarr": (_edited({"dtype": "bfloat16"}), r"bfloat16.*; write it as a.astype"),
    "float8": (lambda p: tensor(p, "F8_E4M3", (2, 2, 2), bytes(8)), "type F8_E4M3; allowed are"),
    "truncated safetensors": (lambda p: _cut(p, tensors(p, noise(SHAPE)), 9), "copy or write"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals(tmp_path, case):
    """Each names what is wrong, before any job."""
    make, told = REFUSALS[case]
    with pytest.raises(InputError, match=told):
        factories.plan(tmp_path, input=make(tmp_path), product="A.T @ A")


@pytest.mark.parametrize(
    ("kind", "package", "extra"),
    [("hdf5", "h5py", "hdf5"), ("zarr 3", "zarr", "zarr"),
     ("safetensors", "safetensors", "safetensors")],
)  # fmt: skip
def test_a_missing_package_names_the_extra(tmp_path, monkeypatch, kind, package, extra):
    """Which pip install brings it."""
    name = (PLAIN | CHUNKED)[kind](tmp_path, noise(SHAPE))
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"shardwise.files.formats.{extra}", raising=False)
    with pytest.raises(InputError, match=rf"pip install {package}, or Shardwise with \[{extra}\]"):
        factories.plan(tmp_path, input=name, product="A.T @ A")


def _short_chunk(folder):
    name = CHUNKED["zarr 3"](folder, noise(SHAPE))
    chunk = folder / "stack.zarr/c/0/0/0"
    chunk.write_bytes(chunk.read_bytes()[:9])
    return name


def _stored(compression, chunk):
    """A maker of a file of HDF5 of which one chunk is stored so."""

    def make(folder):
        own = {"compression": compression} if isinstance(compression, str) else compression
        name = hdf5(folder / "a.h5", noise(SHAPE), chunks=(4, 8, 5), **own)
        with h5py.File(names.file_of(name), "r+") as file:
            file["run/frames"].id.write_direct_chunk((4, 0, 0), chunk)
        return name

    return make


GIB = 1 << 30
LZF_COPY = b"\xe0\xff\0"  # of 264 bytes
BOMBS = {
    "zlib": numcodecs.Zlib().encode(bytes(1 << 26)),
    "gzip": numcodecs.GZip().encode(b"1") + numcodecs.GZip().encode(bytes(1 << 26)),
    "bz2": numcodecs.BZ2().encode(bytes(1 << 26)),
    "lzma": numcodecs.LZMA().encode(bytes(1 << 26)),
    "zstd": numcodecs.Zstd().encode(bytes(1 << 26)),
    "lz4": GIB.to_bytes(4, "little") + b"1",
    "blosc": numcodecs.Blosc().encode(bytes(1 << 26)),
}
# A frame of zstd that does not say its size: a block that repeats one byte, often.
ENDLESS = b"\x28\xb5\x2f\xfd\0\x88" + (2 + (1 << 20)).to_bytes(3, "little") + b"1"
ENDLESS += ((2 + (1 << 20)).to_bytes(3, "little") + b"1") * 99


def _bomb(kind, version, chunk=None, **options):
    """A maker of a store of which one chunk decodes to many times what a chunk has."""

    def make(folder):
        codec = {"name": kind, "configuration": {}}
        codec = numcodecs.get_codec({"id": kind}) if version == 2 else codec
        name = zarr_array(version, compressors=[codec], **options)(folder, noise(SHAPE))
        first = folder / "stack.zarr" / ("0.0.0" if version == 2 else "c/0/0/0")
        first.write_bytes(chunk or BOMBS[kind])
        return name

    return make


def _bomb_in_shard(folder):
    """A chunk inside a shard, of which the index at the end says where it lies."""
    name = CHUNKED["zarr 3, shards"](folder, noise(SHAPE))
    shard = folder / "stack.zarr/c/0/0/0"
    index = bytearray(shard.read_bytes()[-(16 * 8 + 4) : -4])
    index[8:16] = len(BOMBS["zstd"]).to_bytes(8, "little")
    index[:8] = bytes(8)
    end = int(google_crc32c.value(bytes(index))).to_bytes(4, "little")
    body = BOMBS["zstd"].ljust(shard.stat().st_size - len(index) - 4, b"\0")
    shard.write_bytes(body + index + end)
    return name


@pytest.mark.parametrize(
    ("make", "told"),
    [(_short_chunk, "a chunk is damaged, in matrices"),
     *((_stored(kind, chunk), r"\(4, 0, 0\) does not decode to 1280 bytes") for kind, chunk in (
         ("gzip", zlib.compress(bytes(8))), ("gzip", zlib.compress(bytes(1 << 26))),
         ("lzf", b"\7ABCDEFGH"), ("lzf", b"\0A" + LZF_COPY * (1 << 12)),
         (hdf5plugin.Bitshuffle(), GIB.to_bytes(8) + bytes(64)),
         (hdf5plugin.LZ4(), (8).to_bytes(8) + bytes(64)))),
     (_stored("lzf", b"\0A\xe0"), "cannot be read as HDF5"),
     *((_bomb(kind, version), "decodes to many more than its 1280 bytes")
       for version, kinds in ((2, BOMBS), (3, ("gzip", "zstd", "blosc"))) for kind in kinds),
     (_bomb("zstd", 2, ENDLESS), "decodes to many more than its"),
     (_bomb_in_shard, "decodes to many more than its")],
)  # fmt: skip
def test_a_damaged_chunk_is_an_integrity_error(tmp_path, make, told):
    """The identity may fit, as after a copy back; the codec does not, or not the length.

    HDF5's library would read what lies in memory behind a chunk that is too short, and others take
    gigabytes for one that decodes to as many.
    """
    name = make(tmp_path)
    made = factories.plan(tmp_path, input=name, shards=1, product="A.T @ A", materialize=True)
    with pytest.raises(IntegrityError, match=told):
        copies(made)

"""Arrays of other formats: the same bits as from ``.npy``, and every refusal."""

import html
import json
import os
import re
import zlib
from pathlib import Path

import h5py
import hdf5plugin
import numpy as np
import pytest
import zarr
from safetensors.numpy import save_file
from shardwise.errors import InputError, IntegrityError
from shardwise.files import lookup
from shardwise.files.formats import registry
from shardwise.multiply import copy
from shardwise.observe import page
from shardwise.observe.status import look
from shardwise.plan import memory
from shardwise.plan import stack as stacks

from tests import factories
from tests.factories import noise, stack

SHAPE = (13, 20, 12)


def hdf5(path, array, **options):
    """A file with one dataset."""
    with h5py.File(path, "w") as file:
        file.create_dataset("run/frames", data=array, **options)
    return f"{path}:/run/frames"


def zarr_array(version, name="stack.zarr", **options):
    """A maker of a store of one array, whose chunks divide none of its sides."""

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
    """A file of two tensors, written by the safetensors package."""
    save_file({"other": np.arange(5), "frames": array}, folder / "a.safetensors")
    return f"{folder}/a.safetensors:frames"


def tensor(folder, kind, shape, raw):
    """A file of one tensor of a type that NumPy does not have."""
    facts = {"dtype": kind, "shape": shape, "data_offsets": (0, len(raw))}
    header = json.dumps({"x": facts}).encode()
    (folder / "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + raw)
    return f"{folder}/a.safetensors:x"


PLAIN = {"hdf5": lambda folder, array: hdf5(folder / "a.h5", array), "safetensors": tensors}
CHUNKED = {
    "hdf5, gzip": lambda f, a: hdf5(f / "a.h5", a, chunks=(4, 8, 5), compression="gzip"),
    "hdf5, chunks by itself": lambda f, a: hdf5(
        f / "a.hdf5", a, compression="lzf", shuffle=True, fletcher32=True
    ),
    **{
        f"hdf5, {own}": lambda f, a, own=own: hdf5(f / "a.h5", a, chunks=(4, 8, 5), **own)
        for own in (
            hdf5plugin.Bitshuffle(), hdf5plugin.Bitshuffle(cname="zstd"),
            hdf5plugin.Bitshuffle(cname="none"), hdf5plugin.Blosc(), hdf5plugin.BZip2(),
            hdf5plugin.LZ4(), hdf5plugin.Zstd(),
        )
    },
    "zarr 2": zarr_array(2),
    "zarr 3": zarr_array(3),
    "zarr 3, shards": zarr_array(3, chunks=(2, 4, 6), shards=(4, 8, 12)),
    "zarr, a group": grouped,
}  # fmt: skip


def copies(made):
    """The bytes that the shards of a plan hold."""
    for shard in made.shards:
        copy.materialize(made, shard)
    return np.concatenate([np.load(factories.file(made, "shard", shard)) for shard in made.shards])


def planned(folder, name, **over):
    """A plan of an input whose shards are copied."""
    return factories.plan(folder, input=name, **{"product": "A.T @ A", "materialize": True, **over})


@pytest.mark.parametrize("dtype", ["float32", "complex64", "int16"])
@pytest.mark.parametrize("kind", [*PLAIN, *CHUNKED])
def test_copies_have_the_bits_of_the_array(tmp_path, kind, dtype):
    """Shards may begin inside chunks; arrays without chunks are also read in place."""
    array = noise(SHAPE, dtype) if dtype != "int16" else stack(SHAPE, dtype)
    name = (PLAIN | CHUNKED)[kind](tmp_path, array)
    made = planned(tmp_path, name, shards=3)
    assert made.problem.dtype == dtype
    assert copies(made).tobytes() == array.tobytes()
    assert planned(tmp_path, name, materialize="auto").settings.materialize == (kind in CHUNKED)
    if kind in PLAIN:
        made = planned(tmp_path, name, materialize=False)
        reader = stacks.StackReader(made.sources, SHAPE[1:], dtype)
        assert factories.read(reader, 3, 9).tobytes() == array[3:9].tobytes()
    else:
        with pytest.raises(InputError, match="in chunks, which have to be decoded first; use"):
            planned(tmp_path, name, materialize=False)


def test_large_matrices_are_decoded_by_rows(tmp_path, monkeypatch):
    """A matrix may be larger than a decoded block; the memory of a job includes the blocks."""
    array = noise(SHAPE, "float32")
    monkeypatch.setattr(memory, "CONVERTED_BYTES", 9 * 12 * 4)
    made = planned(tmp_path, name := CHUNKED["hdf5, gzip"](tmp_path, array), shards=2)
    assert stacks.converted_block(registry.read_header_and_status(name)[0]) == (1, 8)
    assert copies(made).tobytes() == array.tobytes()
    plain = factories.plan(tmp_path / "npy", array, shards=2, product="A.T @ A")
    assert made.shard("00000").memory == plain.shard("00000").memory + made.facts.decoded


def test_bfloat16_is_read_as_the_same_numbers_of_float32(tmp_path, monkeypatch):
    """In copies, even if a block holds just some rows of a matrix; never in place."""
    bits = noise(SHAPE, "float32").view("u4") >> 16
    name = tensor(tmp_path, "BF16", SHAPE, bits.astype("<u2").tobytes())
    monkeypatch.setattr(memory, "CONVERTED_BYTES", 9 * 12 * 4)
    words = {"input": name, "product": "A.T @ A", "shards": 3}
    made = factories.plan(tmp_path, **words)
    assert (made.problem.dtype, made.settings.materialize) == ("float32", True)
    assert copies(made).tobytes() == (bits << 16).tobytes()
    with pytest.raises(InputError, match="stored as bfloat16, which has to be decoded first; use"):
        factories.plan(tmp_path, **words, materialize=False)


TWICE = [("a.h5:/x", "a.h5:x"), ("a.h5:z", "b.h5:z2"), ("a.h5:hard", "b.h5:soft")]


@pytest.mark.parametrize("rows", TWICE)
def test_a_dataset_that_a_sheet_names_twice_is_refused(tmp_path, rows):
    """With another name, behind a link in the file, or in a hard link to the file."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = noise((3, 6, 6))
        file.create_dataset("z", data=noise((5, 6, 6)), chunks=(2, 4, 4))
        file["hard"], file["z2"], file["soft"] = file["x"], file["z"], h5py.SoftLink("/x")
    os.link(tmp_path / "a.h5", tmp_path / "b.h5")
    sheet = tmp_path / "s.tsv"
    sheet.write_text("\n".join(["path", *rows]) + "\n")
    with pytest.raises(InputError, match="is the same file as"):
        factories.plan(tmp_path, input=str(sheet))


def spoiled(change, version=3, **options):
    """A maker of a store to whose folder ``change`` has been applied."""

    def make(folder, array=None):
        array = noise(SHAPE) if array is None else array
        name = zarr_array(version, **options)(folder, array)
        change(Path(name))
        return name

    return make


def linked(store):
    """Let some chunks of a store lie elsewhere, behind a link."""
    elsewhere = (store / "c/3").rename(store.with_name("elsewhere"))
    (store / "c/3").symlink_to(elsewhere)


def changed(name):
    """Change the last matrix of an array."""
    if ".h5" in name:
        with h5py.File(lookup.file_of(name), "r+") as file:
            file["run/frames"][12] = 1
    else:
        zarr.open_array(name, mode="r+")[12] = 1


@pytest.mark.parametrize(
    "make", [CHUNKED["hdf5, gzip"], CHUNKED["zarr 2"], CHUNKED["zarr 3"], spoiled(linked)]
)
def test_numbers_that_change_after_the_plan_are_refused(tmp_path, make, monkeypatch):
    """Also in a Zarr chunk whose metadata file stays the same, or while they are read."""
    name = make(tmp_path, noise(SHAPE))
    made = planned(tmp_path, name, shards=2)
    changed(name)
    with pytest.raises(IntegrityError, match="has changed since the plan was made"):
        copies(made)
    made, read = planned(tmp_path, name, shards=1), registry.read_matrices
    monkeypatch.setattr(registry, "read_matrices", lambda *w: changed(name) or read(*w))
    with pytest.raises(IntegrityError, match="has changed while it was read"):
        copies(made)
    assert not factories.file(made, "shard").exists()


def _half_written(version, fill=0.5, **options):
    """A maker of an array whose last chunk was never written; version 5 is HDF5."""

    def make(folder):
        made = {"shape": (4, 2, 2), "dtype": "f8", "chunks": (1, 2, 2)}
        if version != 5:
            store = folder / "a.zarr"
            zarr.create_array(store, **made, zarr_format=version, fill_value=fill)[:3] = 1
            return str(store)
        with h5py.File(folder / "a.h5", "w") as file:
            file.create_dataset("x", **made, fillvalue=fill, **options)[:3] = 1
        return f"{folder}/a.h5:x"

    return make


@pytest.mark.parametrize("make", [_half_written(version) for version in (2, 3, 5)])
def test_chunks_that_were_never_written_are_told_everywhere(tmp_path, make):
    """Plan, summary and page tell their number and fill value."""
    name, words = make(tmp_path), {"product": "A.T @ A", "keep": "sum"}
    made = factories.plan(tmp_path, input=name, **words)
    told = "1 of 4 chunks of .* were never written; they count as 0.5"
    total = factories.reduced(factories.listed(made))
    assert total.tolist() == [[6.5, 6.5], [6.5, 6.5]]
    summary = json.loads(made.results.summary.read_bytes())
    page_of_it = html.unescape(page.render(look(made.results.root)))
    for text in (*made.facts.notes, *summary["notes"], page_of_it):
        assert re.search(told, text)


def edited(**changes):
    """Change fields in the metadata of a store of version 2."""

    def change(store):
        file = store / ".zarray"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return change


NAMES = {
    **dict.fromkeys(["s.zarr/", "s.zarr:/", "plain", "plain/"], zarr_array(2)),
    ".": zarr_array(3),
    **dict.fromkeys(["g.zarr/run/frames", "plain:run/frames", "plain/run/frames"], grouped),
    **{f"f.{suffix}:/run/frames": PLAIN["hdf5"] for suffix in ("cxi", "nc", "MAT", "hdf", "nwb")},
}


MANY = {
    "in": zarr_array(3, "{}.zarr"), "in/*.zarr": zarr_array(2, "{}.zarr"),
    "in/*.h5:/run/frames": lambda f, a: hdf5(f / "{}.h5", a),
    "in/**/*.H5:run/frames": lambda f, a: hdf5(f / "{}.H5", a, chunks=True, compression="gzip"),
    "in/*.zarr:run/frames": grouped, "in/*.zarr/run/frames": grouped, "in/g*:run/frames": grouped,
    "in/*.safetensors:frames": tensors,
}  # fmt: skip


@pytest.mark.parametrize("name", MANY)
def test_a_folder_or_glob_of_stacks(tmp_path, monkeypatch, name):
    """A colon may precede the array's name in each file; the numbers of matrices may differ."""
    monkeypatch.chdir(tmp_path)
    whole = noise((9, 20, 12), "float32")
    for i, array in enumerate(np.split(whole, [4, 5])):
        made = Path(lookup.split(MANY[name](tmp_path, array))[0])
        os.renames(made, tmp_path / "in" / f"g{i}{made.suffix}")
    made = factories.plan(tmp_path, input=name, product="A.T @ A", shards=2)
    assert copies(made).tobytes() == whole.tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_names_as_people_type_them(tmp_path, monkeypatch, name):
    """Stores without a suffix, or with slashes; suffixes for HDF5 from several fields.

    A dot names an array that is the working folder itself.
    """
    made = lookup.split(NAMES[name](tmp_path, array := noise(SHAPE)))[0]
    monkeypatch.chdir(made if name == "." else tmp_path)
    if name != ".":
        os.rename(made, re.split("[:/]", name)[0])
    made = factories.plan(tmp_path, input=name, shards=1, product="A.T @ A")
    assert copies(made).tobytes() == array.tobytes()


def _h5(fill):
    """A maker of an HDF5 file that ``fill`` writes; returns the name of its array ``x``."""

    def make(path):
        hdf5(path / "other.h5", noise(SHAPE))
        with h5py.File(path / "a.h5", "w") as file:
            fill(file)
        return f"{path}/a.h5:x"

    return make


def dataset(**words):
    """A maker of an HDF5 file whose dataset ``x`` h5py creates with these arguments."""
    return _h5(lambda file: file.create_dataset("x", **words))


def _external(file):
    file["y"] = h5py.ExternalLink("other.h5", "/run/frames")
    file["x"] = h5py.SoftLink("/y")


def _virtual(file):
    layout = h5py.VirtualLayout(SHAPE, "f8")
    layout[:] = h5py.VirtualSource("other.h5", "run/frames", SHAPE)
    file.create_virtual_dataset("x", layout)


def _compressed_twice(file):
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk(SHAPE)
    plist.set_filter(32004)
    plist.set_deflate(4)
    space = h5py.h5s.create_simple(SHAPE)
    h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_DOUBLE, space, plist)
    file["x"][:] = noise(SHAPE)


def _stored(chunk, **options):
    """A maker of an HDF5 file in which one chunk has these stored bytes."""

    def make(folder):
        name = hdf5(folder / "a.h5", noise(SHAPE), chunks=(4, 8, 5), **options)
        with h5py.File(lookup.file_of(name), "r+") as file:
            file["run/frames"].id.write_direct_chunk((4, 0, 0), chunk)
        return name

    return make


REFUSALS = {title: (make, told) for title, make, told in (
    ("another separator", spoiled(edited(dimension_separator="."), 2,
                                  chunk_key_encoding={"name": "v2", "separator": "/"}),
     "36 of 36 .* 36 other files are there: .zarray gives chunks names such as 0.0.0"),
    ("a copy that broke off",
     spoiled(lambda store: (store / "c/1/0/0").rename(store / "c/1/0/.0.Xa8dK2")),
     "1 of 36 chunks are missing.* 1 other files"),
    ("no fill value", _half_written(2, fill=None), "1 of 4 chunks .* fill value is None"),
    ("never filled, HDF5", _half_written(5, fill_time="never"), "1 of 4 chunks .* and no fill v"),
    ("a group", lambda p: hdf5(p / "a.h5", noise(SHAPE))[:-7], "name one of .*/run/frames"),
    ("external link", _h5(_external), "its numbers lie elsewhere.*; name the files"),
    ("virtual dataset", _h5(_virtual), "its numbers lie elsewhere"),
    ("external storage", dataset(data=noise(SHAPE), external=[("raw", 0, 10**6)]),
     "its numbers lie elsewhere"),
    ("objects", dataset(shape=(3, 2, 2), dtype=h5py.special_dtype(vlen=np.int32)),
     "holds elements of type '\\|O'; allowed are"),
    ("a chunk that fills memory",
     _h5(lambda f: f.create_dataset("x", (2, 20000, 20000), chunks=(1, 20000, 20000), dtype="f4",
                                    compression=1).id.write_direct_chunk((0, 0, 0), b"x")),
     "chunks .* of 1.5 GiB.* with chunks of 1.0"),
    ("a filter whose bytes nobody can count",
     dataset(data=np.eye(4)[None], chunks=True, compression="szip"),
     "the HDF5 filter 4, which"),
    ("compressed twice", _h5(_compressed_twice), "the HDF5 filter 1, which"),
    ("a group of Zarr", lambda p: lookup.file_of(grouped(p, noise(SHAPE))),
     "may hold several arrays; name one of .*/g.zarr:run/frames"),
    ("an empty group of Zarr", lambda p: str(zarr.open_group(p / "e.zarr", mode="w").store.root),
     "e.zarr: is not a Zarr array; name one, such as"),
    ("no length", spoiled(edited(chunks=[0, 8, 5]), 2), r"its metadata says chunks of \(0, 8, 5\)"),
    ("a codec that unpickles", spoiled(edited(filters=[{"id": "pickle"}]), 2), "codec pickle coul"),
    ("no such tensor", lambda p: tensors(p, noise(SHAPE)) + "2", "name one of .*tensors:frames"),
    ("bfloat16 of Zarr", spoiled(edited(dtype="bfloat16"), 2), "bfloat16"),
    ("float8", lambda p: tensor(p, "F8_E4M3", (2, 2, 2), bytes(8)), "type F8_E4M3; allowed are"),
)}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals(tmp_path, monkeypatch, case):
    """The message names what is wrong, before any job."""
    monkeypatch.chdir(tmp_path)  # HDF5 puts external storage there
    make, told = REFUSALS[case]
    with pytest.raises(InputError, match=told):
        factories.plan(tmp_path, input=make(tmp_path), product="A.T @ A")


GZIP, LZF = {"compression": "gzip"}, {"compression": "lzf"}


@pytest.mark.parametrize(("make", "told"), [
    (spoiled(lambda store: os.truncate(store / "c/0/0/0", 9)), "a chunk of matrices 0 to"),
    (spoiled(lambda store: os.truncate(store / "c/0/0/0", 3 << 10), compressors=None),
     "a chunk of matrices 0 to"),
    *((_stored(chunk, **own), r"\(4, 0, 0\) does not decode to 1280 bytes") for own, chunk in (
        ({"fletcher32": True}, bytes(8)),
        (GZIP, zlib.compress(bytes(8))), (GZIP, zlib.compress(bytes(1 << 22))),
        (LZF, b"\7ABCDEFGH"), (LZF, b"\0A" + b"\xe0\xff\0" * (1 << 12)),
        (hdf5plugin.Bitshuffle(), (1 << 30).to_bytes(8) + bytes(64)),
        (hdf5plugin.LZ4(), (8).to_bytes(8) + bytes(64)))),
    (_stored(b"\0A\xe0", **LZF), "cannot be read as HDF5"),
])  # fmt: skip
def test_a_damaged_chunk_is_an_integrity_error(tmp_path, make, told):
    """The file has the planned identity, but a chunk does not decode, or not to its length."""
    name = make(tmp_path)
    made = factories.plan(tmp_path, input=name, shards=1, product="A.T @ A", materialize=True)
    with pytest.raises(IntegrityError, match=told):
        copies(made)

"""Objects in a store as input: the same bits as from a file, whatever the server does."""

import pytest
from shardwise.errors import InputError, IntegrityError, TryAgain
from shardwise.multiply import copy

from tests import factories, objects
from tests.factories import refusal, stack
from tests.unit.plan import test_formats
from tests.unit.plan.test_formats import copies

A = stack((24, 64, 64))
OTHER = stack((24, 64, 64), seed=1)


@pytest.fixture(scope="module")
def server():
    """A server; its credentials are in the environment of this process."""
    with objects.serving() as store, pytest.MonkeyPatch.context() as patch:
        for name, value in store.env.items():
            patch.setenv(name, value)
        yield store


@pytest.fixture
def store(server):
    """The server with an array in its bucket, and nothing wrong with it."""
    server.put("a.npy", A)
    server.faults.clear()
    server.ranges.clear()
    return server


def planned(folder, url="s3://bucket/a.npy", **over):
    """A plan of three shards of an object, or of several."""
    return factories.plan(folder, input=str(url), **{"shards": 3, "materialize": "auto", **over})


def folder_of_matrices(store, folder):
    """An object per matrix, next to objects that do not count."""
    for i, matrix in enumerate(A):
        store.put(f"run/m{i}.npy", matrix)
    for name in (".m0.npy", "below/m.npy", "notes.txt"):
        store.put(f"run/{name}", OTHER)
    return "s3://bucket/run/"


def zarr_array(version, name, **options):
    """A maker of a Zarr array in a store; the chunks do not divide its rows and columns."""
    own = f"z/{name.replace(':', '/') or 'x.zarr'}"
    make = test_formats.zarr_array(version, own, chunks=(8, 40, 33), **options)

    def put(store, folder):
        make(folder, A)
        return f"{store.put_folder(folder.name, folder / 'z')}/{name}"

    return put


@pytest.mark.parametrize("make", [
    lambda store, folder: "s3://bucket/a.npy",
    lambda store, folder: f"{store.bucket}/a.npy",
    lambda store, folder: store.put("of%20 ä/b=1.npy", A.astype(">f4")),
    folder_of_matrices,
    zarr_array(2, "x.zarr:group/array"),
    zarr_array(3, "x.zarr/group/array"),
    zarr_array(3, "x.zarr", shards=(16, 80, 66)),
    zarr_array(3, ""),
], ids=["s3", "http", "big-endian", "folder", "zarr 2", "zarr 3",
         "sharded", "of zarr"])  # fmt: skip
def test_same_bits(store, tmp_path, make):
    """Copies and the sum have the bits of the same numbers in a file."""
    made = factories.listed(planned(tmp_path / "store", make(store, tmp_path)))
    same = factories.listed(factories.plan(tmp_path / "file", A, shards=3))
    assert copies(made).tobytes() == copies(same).tobytes()
    assert factories.reduced(made).tobytes() == factories.reduced(same).tobytes()


def test_ranges_alone(store, tmp_path):
    """A plan reads the header, and a shard its own bytes: no object is read as a whole."""
    copy.materialize(planned(tmp_path), "00001")
    (*headers, numbers) = store.ranges
    third = A.nbytes // 3
    assert set(headers) == {"bytes=0-10011"}
    assert numbers == f"bytes={128 + third}-{128 + 2 * third - 1}"


BUSY, FORBIDDEN = objects.status("503 Busy"), objects.status("403 Forbidden")
CHANGED = (IntegrityError, "has changed while it was read")
FAULTS = {
    "503 twice": lambda write: ([BUSY] * 2, None, ""),
    "cut off": lambda write: ([None, objects.cut_off, objects.cut_off], None, ""),
    "503 for ever": lambda write: ([BUSY] * 99, TryAgain, "the server fails (503 Serv"),
    "cut off for ever": lambda write: (
        [None, *[objects.cut_off] * 99], TryAgain, "the server fails (no answer)"
    ),
    "403": lambda write: ([None, FORBIDDEN], InputError, "refuses to read it (403 Forbidden)"),
    "404": lambda write: (
        [objects.status("404 Not Found")], IntegrityError, "the server has no such object"
    ),
    "no ranges": lambda write: (
        [None, objects.heedless("HTTP_RANGE")], InputError, "it serves no byte ranges)"
    ),
    "weak ETag": lambda write: ([None, objects.weak], InputError, "gives no strong ETag"),
    "changed": lambda write: ([None, objects.heedless("", write)], *CHANGED),
    "changed, no If-Match": lambda write: (
        [None, objects.heedless("HTTP_IF_MATCH", write)], *CHANGED
    ),
}  # fmt: skip


ERRS = pytest.mark.fault("an object store that fails, or whose objects change")


@ERRS
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_faults(store, tmp_path, fault):
    """A fault of the server is retried or reported; it never changes a bit."""
    made = planned(tmp_path, shards=1)
    faults, kind, words = fault(lambda: store.put("a.npy", OTHER))
    store.faults += faults
    if kind:
        told = refusal(copy.materialize, made, "00000", kind=kind)
        assert told.startswith("s3://bucket/a.npy")
        assert words in told
        assert not list(made.results.shards.glob("*.npy"))
    else:
        assert copies(made).tobytes() == A.tobytes()


@ERRS
@pytest.mark.parametrize(("what", "which", "while_planned"), [
    ("changed", "c/1/0/0", False), ("gone", "c/1/0/0", False), ("404", "c/1/0/0", False),
    ("changed", "zarr.json", False), ("changed", "zarr.json", True),
])  # fmt: skip
def test_arrays_of_many_objects(store, tmp_path, what, which, while_planned):
    """What has changed or is gone is told: a chunk never counts as one that was never written."""
    url, name = zarr_array(3, "x.zarr")(store, tmp_path), f"{tmp_path.name}/x.zarr/{which}"
    spoil = {"changed": lambda: store.put(name, b"{}"), "gone": lambda: store.remove(name)}
    made = None if while_planned else planned(tmp_path, url)
    if what == "404":
        store.faults += [*[None] * 5, objects.status("404 Not Found")]
    else:
        store.faults += [None, objects.heedless("", spoil[what])]
    work = (planned, tmp_path, url) if while_planned else (copy.materialize, made, "00000")
    told = refusal(*work, kind=IntegrityError)
    assert CHANGED[1] in told
    assert "damaged" not in told


@ERRS
def test_changed_since_the_plan(store, tmp_path):
    """Another object of the same name and size is refused, and makes another plan."""
    made = planned(tmp_path)
    store.put("a.npy", OTHER)
    told = refusal(copy.materialize, made, "00000", kind=IntegrityError)
    assert "has changed since the plan was made" in told
    anew = planned(tmp_path)
    assert all(anew.shards[name].key != row.key for name, row in made.shards.items())


@pytest.mark.parametrize(("url", "over", "words"), [
    ("s3://bucket/none.npy", {}, "the server has no such object"),
    ("s3://bucket/run.h5:/x", {}, "s3://bucket/run.h5/x: is not a Zarr array; name one"),
    ("s3://bucket/a.npy", {"materialize": False}, "is in an object store, from which"),
    ("az://bucket/a.npy", {}, "Credentials come from the environment alone"),
    ("http://elsewhere/a.npy", {}, "is not the address of an object, such as s3://bucket/folder"),
    ("https://h/run/", {}, "is not the address of an object, such as s3://bucket/folder"),
    ("s3://bucket", {}, "is not the address of an object, such as s3://bucket/folder"),
    ("s3://bucket/a\x7f.npy", {}, "is not the address of an object, such as s3://bucket/folder"),
    ("ftp://us:er@h/a.npy", {}, "ftp://…@h/a.npy is not the address"),
])  # fmt: skip
def test_refusals(store, tmp_path, url, over, words):
    """An address that cannot be read is refused by the plan; nothing secret is repeated."""
    path = tmp_path / "sheet.tsv"
    path.write_text(f"path\n{url}\n")
    for name in (url, path):
        told = refusal(planned, tmp_path, name, **over)
        assert words in told
        assert "us:er" not in told


def test_folders_that_name_no_stack(store, tmp_path):
    """A folder that is not there, or holds nothing to read."""
    assert "(404 Not Found)" in refusal(planned, tmp_path, "s3://nowhere/")
    assert "no .zarr store, but nothing" in refusal(planned, tmp_path, "s3://bucket/none/")

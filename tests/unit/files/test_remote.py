"""Objects in a store as input: the bits of the same numbers in a file, whatever the server does."""

import numpy as np
import pytest
from shardwise.errors import InputError, IntegrityError, TryAgain
from shardwise.files import remote
from shardwise.multiply import copy

from tests import factories, objects
from tests.factories import refusal, stack

A = stack((24, 64, 64))
OTHER = stack((24, 64, 64), seed=1)


@pytest.fixture(scope="module")
def server():
    """A server that this process has the credentials of."""
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


def copies(made):
    """What the copies of its shards hold."""
    rows = made.shards.values()
    return np.concatenate([np.load(made.results.shard(row.input_name)) for row in rows])


def listed(store, folder):
    """A sheet of an object, a file, and an object of a server that only serves files."""
    store.put("first.npy", A[:4])
    store.put("last.npy", A[20:])
    factories.save(folder / "mid.npy", A[4:20])
    sheet = folder / "sheet.tsv"
    sheet.write_text(f"path\ns3://bucket/first.npy\nmid.npy\n{store.address}/last.npy\n")
    return sheet


def foldered(store, folder):
    """A folder of an object per matrix, also in Fortran order, a hidden one and another kind."""
    for i, matrix in enumerate(A):
        store.put(f"run/m{i}.npy", np.asfortranarray(matrix) if i % 2 else matrix)
    store.put("run/.m0.npy", OTHER)
    store.put("run/below/m.npy", OTHER)
    store.put("run/notes.txt", OTHER)
    return "s3://bucket/run/"


@pytest.mark.parametrize(
    "where",
    [
        lambda store, folder: "s3://bucket/a.npy",
        lambda store, folder: f"{store.address}/a.npy",
        lambda store, folder: store.put("of%20 ä/b=1.npy", A.astype(">f4")),
        foldered,
        listed,
    ],
    ids=["s3", "http", "big-endian", "folder", "sheet"],
)
def test_same_bits(store, tmp_path, where):
    """Copies and the sum have the bits of the same numbers in a file."""
    made = factories.listed(planned(tmp_path / "store", where(store, tmp_path)))
    same = factories.listed(factories.plan(tmp_path / "file", A, shards=3))
    assert copies(made).tobytes() == copies(same).tobytes()
    assert factories.reduced(made).tobytes() == factories.reduced(same).tobytes()


def test_ranges_alone(store, tmp_path):
    """A plan reads the header, and a shard its own bytes: no object is read as a whole."""
    made = planned(tmp_path)
    copy.materialize(made, "00001")
    (*headers, numbers) = store.ranges
    assert set(headers) == {"bytes=0-4095"}
    assert numbers == f"bytes={128 + A.nbytes // 3}-{128 + A.nbytes // 3 * 2 - 1}"


REWRITTEN = "rewritten"
FAULTS = {
    "503 twice": ([objects.status("503 Slow Down")] * 2, None, ""),
    "429": ([objects.status("429 Too Many Requests")], None, ""),
    "slow": ([objects.slow], None, ""),
    "cut off in mid-body": ([None, objects.cut_off, objects.cut_off], None, ""),
    "503 for ever": (
        [objects.status("503 Slow Down")] * 99,
        TryAgain,
        "the server says 503 Service Unavailable, after several tries; try again later",
    ),
    "cut off for ever": ([None, *[objects.cut_off] * 99], TryAgain, "does not answer ("),
    "403": (
        [None, objects.status("403 Forbidden")],
        InputError,
        "the server refuses to read it (403",
    ),
    "404": ([objects.status("404 Not Found")], IntegrityError, "cannot be read any more: the serv"),
    "no ranges": (
        [None, objects.without("HTTP_RANGE")],
        InputError,
        "its server serves no ranges of objects",
    ),
    "weak ETag": ([None, objects.weak], InputError, "its server gives no strong ETag"),
    "changed in mid-read": ([None, REWRITTEN], IntegrityError, "has changed while it was read"),
    "changed, and If-Match not heeded": (
        [None, (REWRITTEN, objects.without("HTTP_IF_MATCH"))],
        IntegrityError,
        "has changed while it was read",
    ),
}


@pytest.mark.parametrize(("faults", "kind", "words"), FAULTS.values(), ids=FAULTS)
def test_faults(store, tmp_path, faults, kind, words):
    """What a server does wrong is tried again, or told in words; never does it change a bit."""
    made = planned(tmp_path, shards=1)
    for fault in faults:
        name, *then = fault if isinstance(fault, tuple) else (fault,)
        rewritten = objects.before(lambda: store.put("a.npy", OTHER), *then)
        store.faults.append(rewritten if name == REWRITTEN else fault)
    if kind:
        told = refusal(copy.materialize, made, "00000", kind=kind)
        assert told.startswith("s3://bucket/a.npy")
        assert words in told
        assert not list(made.results.shards.glob("*.npy"))
    else:
        copy.materialize(made, "00000")
        assert copies(made).tobytes() == A.tobytes()


def test_changed_since_the_plan(store, tmp_path):
    """Another object of the same name and size is refused, and makes another plan."""
    made = planned(tmp_path)
    store.put("a.npy", OTHER)
    assert "has changed since the plan was made" in refusal(
        copy.materialize, made, "00000", kind=IntegrityError
    )
    anew = planned(tmp_path)
    assert all(anew.shards[name].key != row.key for name, row in made.shards.items())


@pytest.mark.parametrize(
    ("url", "over", "words"),
    [
        ("s3://bucket/none.npy", {}, "the server has no such object (404"),
        ("s3://bucket/run.h5:/x", {}, "only .npy objects are read from a store"),
        ("s3://bucket/a.npy", {"materialize": False}, "is an object in a store, of which"),
        ("az://bucket/a.npy", {}, "Credentials: they come from the environment alone: AZURE"),
        ("s3://us:er@bucket/a.npy", {}, "s3://…@bucket/a.npy: an address may hold no user"),
        ("https://h/a.npy?sig=secret", {}, "https://h/a.npy?…: an address may hold no user"),
        ("http://elsewhere/a.npy", {}, "only localhost may be; use https://"),
        ("https://h/run/", {}, "a web server lists no folder; name each object in a sheet"),
        ("s3://bucket", {}, "is no address of an object, such as s3://bucket/folder"),
        ("s3://bucket/a//b.npy", {}, "is no address of an object, such as s3://bucket/folder"),
        ("ftp://us:er@h/a.npy", {}, "ftp://…@h/a.npy is an address of a kind that is not"),
    ],
)  # fmt: skip
def test_refusals(store, tmp_path, url, over, words):
    """An address that cannot be read is refused by the plan; nothing secret is repeated."""
    told = refusal(planned, tmp_path, url, **over)
    assert words in told
    assert not {"us:er", "secret", objects.SECRET}.intersection(told.replace("=", " ").split())
    sheet = tmp_path / "sheet.tsv"
    sheet.write_text(f"path\n{url}\n")
    assert words in refusal(planned, tmp_path, sheet, **over)


@pytest.mark.parametrize(
    ("url", "words"),
    [("s3://nowhere/", "(404 Not Found, NoSuchBucket)"), ("s3://bucket/none/", "it is empty")],
)
def test_folders_without_arrays(store, tmp_path, url, words):
    """A folder that is not there, or holds nothing to read, is refused by the plan."""
    assert words in refusal(planned, tmp_path, url)


def test_missing_package(monkeypatch):
    """Where obstore is not installed, the message says how to install it."""
    monkeypatch.setitem(__import__("sys").modules, "obstore", None)
    told = refusal(remote.status, "s3://bucket/a.npy")
    assert (
        "needs the package obstore, which is not installed: pip install 'shardwise[objects]'"
        in told
    )

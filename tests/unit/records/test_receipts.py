"""Receipts: no reader accepts a changed receipt, and on any other all readers agree."""

import json
from pathlib import Path

import pytest
from shardwise.observe import audit, status
from shardwise.observe.status import look
from shardwise.records import ledger, receipts
from shardwise.records.receipts import CopyReceipt, ProductReceipt, SumReceipt
from shardwise.records.store import Store

from tests import factories

SHARD = "00000"


@pytest.fixture
def made(tmp_path):
    """A whole results folder of two shards."""
    made = factories.listed(factories.plan(tmp_path, factories.stack((5, 4, 4)), shards=2))
    factories.reduced(made, "sum", "max")
    return made


def place(path, raw):
    """Write a file in place: truncating it to nothing first takes a hundred times as long."""
    with open(path, "r+b") as file:
        file.write(raw)
        file.truncate()


TAKERS = {
    "the check": lambda made: receipts.passes(Store(made).receipt, SHARD),
    "ledger": lambda made: receipts.passes(ledger.checked_receipts, made),
    "reduce": lambda made: receipts.passes(factories.reduced, made, "sum", "max"),
    "watch, page and metrics": lambda made: (
        look(made.results.root).shards[SHARD].state == status.DONE
    ),
    "audit": lambda made: (
        receipts.passes(audit.look, made.results.root)
        and f"/{SHARD}-" not in " ".join(audit.look(made.results.root).damaged)
    ),
}


def takers(made):
    """Which readers take a shard as done."""
    return [name for name, takes in TAKERS.items() if takes(made)]


def changes(raw):
    """A receipt with each byte changed, lost or doubled, cut short or longer."""
    for at, byte in enumerate(raw):
        yield raw[:at] + bytes([byte ^ 1]) + raw[at + 1 :]
        yield raw[:at] + raw[at + 1 :]
        yield raw[: at + 1] + raw[at:]
        yield raw[:at]
    yield from (raw + more for more in (b"\n", b" ", b"\0", b"}", b"x", raw))
    yield from (b" " + raw, b"\xef\xbb\xbf" + raw)


@pytest.mark.parametrize(("name", "kind"), [
    ("receipt", ProductReceipt), ("shard_receipt", CopyReceipt), ("summary", SumReceipt),
])  # fmt: skip
def test_no_changed_byte_of_a_receipt_is_taken(made, name, kind):
    """Whatever byte is changed, lost, doubled or added, every reader refuses the receipt."""
    path = made.results.summary if name == "summary" else factories.file(made, name)
    raw = path.read_bytes()
    for changed in changes(raw):
        place(path, changed)
        assert not receipts.passes(receipts.read, path, kind), changed
        assert name != "receipt" or not TAKERS["the check"](made), changed
    place(path, raw)
    assert takers(made) == list(TAKERS)


def swapped(made):
    """Let two shards swap their products and receipts."""
    for kind in ("product", "receipt"):
        paths = factories.file(made, kind), factories.file(made, kind, "00001")
        for path, raw in zip(paths, [path.read_bytes() for path in reversed(paths)], strict=True):
            path.write_bytes(raw)


@pytest.mark.fault("damage to a file")
@pytest.mark.parametrize("harm", [
    swapped,
    *(lambda made, kind=kind, harm=harm: harm(factories.file(made, kind)) for kind, harm in (
        ("product", lambda path: place(path, path.read_bytes()[:-8])),
        ("product", lambda path: place(path, path.read_bytes() + b"x")),
        ("product", Path.unlink), ("product", factories.pipe), ("product", factories.astray),
        ("receipt", lambda path: factories.rewritten(path, "device")),
        ("receipt", lambda path: factories.rewritten(path, schema=7)),
        ("receipt", lambda path: factories.rewritten(path, attempt="1")),
        ("receipt", factories.pipe), ("receipt", factories.astray),
    )),
])  # fmt: skip
def test_what_is_not_right_is_taken_by_nobody(made, harm):
    """All readers check which shard it is, the whole receipt, and the product's size."""
    harm(made)
    assert takers(made) == []


def test_a_changed_header_is_refused(made):
    """Each byte counts, its padding too: no checksum covers the header."""
    path, raw = (own := factories.file(made, "product")), own.read_bytes()
    for at in (0, 6, 8, 20, 61, 70, 100, 4000, 4095):
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
        assert not TAKERS["the check"](made), at


def test_a_receipt_may_name_the_nodes_of_many_long_labels(tmp_path):
    """JSON spells a letter that is not ASCII with six bytes."""
    made = factories.computed(factories.plan(tmp_path, factories.stack((2, 2, 2)), shards=1))
    path, labels = factories.file(made, "receipt"), ("語" * 100,) * 3000
    factories.rewritten(path, file=json.loads(path.read_bytes())["file"] | {"labels": labels})
    assert factories.receipt(made).file.labels == labels

"""One judge: no reader accepts a changed receipt, and on any other all readers agree."""

import json
import shutil

import pytest
from shardwise.observe import audit, status
from shardwise.observe import observer as folders
from shardwise.plan import plan
from shardwise.records import judge, ledger, receipts
from shardwise.records.receipts import CopyReceipt, ProductReceipt, SumReceipt

from tests import factories

SHARD = "00001"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A whole results folder of two shards, not to be changed."""
    folder = tmp_path_factory.mktemp("model")
    made = factories.listed(factories.plan(folder, factories.stack((5, 4, 4)), shards=2))
    factories.reduced(made, "sum", "max")
    return made


@pytest.fixture(scope="module")
def made(model, tmp_path_factory):
    """A copy of the model; each test restores what it changes."""
    root = tmp_path_factory.mktemp("made") / "results"
    shutil.copytree(model.results.root, root)
    return plan.load(root / "plan.tsv")


@pytest.fixture
def own(model, tmp_path):
    """A copy of the model for one test."""
    shutil.copytree(model.results.root, tmp_path / "results")
    return plan.load(tmp_path / "results" / "plan.tsv")


def place(path, raw):
    """Write a file in place: truncating it to nothing first takes a hundred times as long."""
    with open(path, "r+b") as file:
        file.write(raw)
        file.truncate()


def path_of(made, kind, shard=SHARD):
    """A file of the shard: its product, the receipt of that, or the copy of its matrices."""
    return factories.file(made, kind, shard)


def is_seen(made):
    """Whether the watch, the page and the metrics show a shard as done."""
    return folders.Observer(made.results.root).look().shards[SHARD].state == status.DONE


def is_audited(made):
    """Whether the audit finds nothing wrong with the shard's product."""
    found = audit.look(made.results.root)
    return not any(one.shard == SHARD for one in found.findings)


TAKERS = {
    "the judge": lambda made: receipts.passes(judge.check_product, made, SHARD),
    "ledger": lambda made: receipts.passes(ledger.checked_receipts, made),
    "reduce": lambda made: receipts.passes(factories.reduced, made, "sum", "max"),
    "watch, page and metrics": is_seen,
    "audit": is_audited,
}


def changes(raw):
    """A receipt with each byte changed, lost or doubled, cut short or longer."""
    for at, byte in enumerate(raw):
        yield raw[:at] + bytes([byte ^ 1]) + raw[at + 1 :]
        yield raw[:at] + raw[at + 1 :]
        yield raw[: at + 1] + raw[at:]
        yield raw[:at]
    yield from (raw + more for more in (b"\n", b" ", b"\0", b"}", b"x", raw))
    yield from (b" " + raw, b"\xef\xbb\xbf" + raw)


def test_what_is_whole_is_taken_by_all(own):
    """The receipts of a finished run."""
    assert [name for name, takes in TAKERS.items() if not takes(own)] == []


@pytest.mark.parametrize("name", ["receipt", "shard_receipt", "summary"])
def test_no_changed_byte_of_a_receipt_is_taken(made, name):
    """Whatever byte is changed, lost, doubled or added, every reader refuses the receipt."""
    path = made.results.summary if name == "summary" else path_of(made, name)
    kind = {"receipt": ProductReceipt, "shard_receipt": CopyReceipt, "summary": SumReceipt}[name]
    looks = [lambda made: receipts.passes(receipts.read, path, kind)]
    looks += [TAKERS["the judge"]] if name == "receipt" else []
    raw = path.read_bytes()
    assert all(takes(made) for takes in looks)
    for changed in changes(raw):
        place(path, changed)
        assert not any(takes(made) for takes in looks), changed
    place(path, raw)


def leaves(said, *keys):
    """The keys that lead to each value of a receipt."""
    for key, value in said.items():
        yield (*keys, key)
        if isinstance(value, dict):
            yield from leaves(value, *keys, key)


VALUES = (None, True, -1, 10**400, float("nan"), "x\n", [1, [2]], {})


def test_all_think_the_same_of_a_receipt_with_a_digest_of_its_own(made):
    """Whatever value a key has: the judge, the ledger and the watch agree."""
    path = path_of(made, "receipt")
    raw = path.read_bytes()
    for keys in leaves(json.loads(raw)):
        for value in VALUES:
            said = json.loads(raw)
            inner = said
            for key in keys[:-1]:
                inner = inner[key]
            inner[keys[-1]] = value
            factories.rewritten(path, **{keys[0]: said[keys[0]]})
            took = {name for name in ("the judge", "ledger", "watch, page and metrics")
                    if TAKERS[name](made)}  # fmt: skip
            assert len(took) in (0, 3), (keys, value, took)
            place(path, raw)


def swapped(made):
    """Let two shards swap their products and receipts."""
    for kind in ("product", "receipt"):
        paths = path_of(made, kind, "00000"), path_of(made, kind)
        for path, raw in zip(paths, [path.read_bytes() for path in reversed(paths)], strict=True):
            path.write_bytes(raw)


def cut_finely(made):
    """Claim checksum pieces of one byte, each of which would take memory."""
    path = path_of(made, "receipt")
    facts = json.loads(path.read_bytes())["file"]
    factories.rewritten(path, file=facts | {"piece_bytes": 1})


@pytest.mark.fault("damage to a file")
@pytest.mark.parametrize("harm", [
    swapped,
    lambda made: place(path_of(made, "product"), path_of(made, "product").read_bytes()[:-8]),
    lambda made: place(path_of(made, "product"), path_of(made, "product").read_bytes() + b"x"),
    lambda made: path_of(made, "product").unlink(),
    lambda made: factories.flip(path_of(made, "receipt"), 300),
    lambda made: factories.rewritten(path_of(made, "receipt"), schema=7),
    cut_finely,
    *(lambda made, kind=kind, harm=harm: harm(path_of(made, kind))
      for kind in ("product", "receipt") for harm in (factories.pipe, factories.astray)),
])  # fmt: skip
def test_what_is_not_right_is_taken_by_nobody(own, harm):
    """All readers check which shard it is, every bit of the receipt, and the product's size."""
    harm(own)
    assert [name for name, takes in TAKERS.items() if takes(own)] == []


def test_a_changed_header_is_refused_wherever_a_file_is_judged(own):
    """Each byte of a product's, a copy's and a sum's header counts, its padding too."""
    facts = receipts.read(own.results.summary, SumReceipt).files
    judged = {
        path_of(own, "product"): lambda: judge.check_product(own, SHARD),
        path_of(own, "shard"): lambda: receipts.check_file(
            path_of(own, "shard"), judge.check_copy(own, SHARD).file
        ),
        own.results.statistic("sum"): lambda: judge.check_statistic(own, "sum", facts["sum"]),
        own.results.statistic("max"): lambda: judge.check_statistic(own, "max", facts["max"]),
    }
    for path, look in judged.items():
        look()
        raw = path.read_bytes()
        for at in (0, 6, 8, 20, 61, 70, 100, 4000, 4095):
            path.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
            assert not receipts.passes(look), (path, at)
        place(path, raw)

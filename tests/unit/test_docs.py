"""Documents that a test holds to the code."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from shardwise.files.checksum import PieceChecksum
from shardwise.plan import config
from shardwise.plan.plan import SETTINGS_THAT_MATTER

from tests import factories
from tests.unit.observe.test_audit import finished
from tests.workspace import REPO

DOCS = REPO / "docs"
SCHEMA = yaml.safe_load(config.SCHEMA.read_text())
KEYS = [
    name if inner is None else f"{name}.{inner}"
    for name, rule in SCHEMA["properties"].items()
    for inner in (None, *rule.get("properties", ()))
]


def page(name: str) -> str:
    """The text of a page."""
    return (DOCS / name).read_text()


def test_the_config_page_has_a_row_for_each_key_and_no_other() -> None:
    """Keys of the schema, and what is in them."""
    assert set(re.findall(r"^\| `([\w.]+)` \|", page("config.md"), re.MULTILINE)) == set(KEYS)


def test_pages_speak_of_each_command_and_each_dependency() -> None:
    """docs/cheatsheet.md shows each stage by hand; docs/dependencies.md says why each pin is."""
    scripts = [f"scripts/{path.name}" for path in (REPO / "scripts").glob("*.py")]
    assert [name for name in scripts if name not in page("cheatsheet.md")] == []
    pinned = re.findall(r'^  "([\w-]+)(?:\[\w+\])?==', (REPO / "pyproject.toml").read_text(), re.M)
    assert [name for name in pinned if name not in page("dependencies.md")] == []


def code(name: str, place: int = 0) -> str:
    """A block of Python on a page."""
    return re.findall(r"```python\n(.*?)```", page(name), re.DOTALL)[place]


def test_the_architecture_names_every_room() -> None:
    """Its table of rooms is that of the library."""
    library = REPO / "scripts" / "shardwise"
    rooms = {f"{path.parent.relative_to(library)}/" for path in library.rglob("*/__init__.py")}
    files = {path.name for path in library.glob("*.py") if path.name != "__init__.py"}
    table = page("architecture.md").split("## Rooms")[1].split("\n## ")[0]
    named = re.findall(r"`([^`]+)`", "".join(re.findall(r"^\|[^|]*\|([^|]*)\|", table, re.M)))
    assert set(named) - {"scripts/shardwise/"} == rooms | files


def test_the_architecture_links_to_what_exists() -> None:
    """Each function that it links to is defined in that file, each file that it names exists."""
    text = page("architecture.md")
    assert len(text.splitlines()) <= 90
    links = re.findall(r"\[`([\w.]+)`\]\(\.\./(\S+\.py)\)", text)
    assert links
    for name, path in links:
        source = (REPO / path).read_text()
        if not path.endswith(name):
            assert re.search(rf"\b(def|class) {name.split('.')[-1]}\b", source), (name, path)
    for path in re.findall(r"`((?:tests|\w+)/[\w/]+(?:\.py)?)`", text):
        assert (REPO / path).exists() or (REPO / "scripts" / "shardwise" / path).exists(), path


def test_settings_of_the_key_are_named() -> None:
    """Whoever changes a setting that reruns all products can read so beforehand."""
    keys = page("internals/receipts.md").split("## The key: ")[1].split("\n\n")[1]
    row = next(r for r in page("reruns.md").splitlines() if r.startswith("| `product`"))
    assert [k for k in SETTINGS_THAT_MATTER if f"`{k}`" not in keys or f"`{k}`" not in row] == []


@pytest.mark.parametrize("total", [0, 1, 1000, 1001])
def test_the_checksum_on_the_page_is_that_of_receipts(total: int) -> None:
    """A few lines of Python on the page give what a receipt says."""
    elements = np.random.default_rng(total).bytes(total)
    found = {"elements": elements, "row_bytes": 250, "piece_bytes": 100}
    exec(code("internals/receipts.md"), found)
    own = PieceChecksum(total, 250, 100)
    own.append(memoryview(elements))
    assert found["checksum"] == own.hexdigest()


def test_the_page_on_python_opens_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its example reads a sum, a product, a ledger and a verdict."""
    monkeypatch.chdir(tmp_path)
    stack = factories.stack((20, 3, 3))
    finished(tmp_path, stack, shards=4, results="results/default")
    found: dict = {}
    exec(code("python.md"), found)
    np.testing.assert_allclose(found["mean"], (stack @ stack).mean(axis=0))
    np.testing.assert_array_equal(found["seventeenth"], stack[17] @ stack[17])
    assert len(found["slowest"]) == 3
    assert found["audit"].verdict == "whole"


def test_the_page_of_sums_reads_what_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lines read a sum of nodes; they have means, and the jackknife error, of labels' sums."""
    monkeypatch.chdir(tmp_path)
    stack, labels = factories.stack((6, 3, 3)), factories.save(Path("l.npy"), np.arange(6) % 3)
    over = {"keep": "sum", "shards": 1, "materialize": False, "results": "results/default"}
    factories.computed(factories.plan(tmp_path, stack, **over))
    found: dict = {}
    exec(code("sums.md", 1), found)
    np.testing.assert_allclose(found["total"], (stack @ stack).sum(axis=0))
    shutil.rmtree("results")
    finished(tmp_path, stack, shards=2, results="results/default", labels=str(labels))
    exec(code("sums.md"), found)
    np.testing.assert_allclose(found["left_out"][0], (stack @ stack)[[1, 2, 4, 5]].mean(axis=0))
    assert found["error"].shape == (3, 3)


PAGES = [REPO / "README.md", REPO / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]


def test_links_between_documents_lead_somewhere() -> None:
    """Each relative link names a file of the repository, and a heading that it has."""
    pattern = re.compile(r"\]\(([^)#:\s]*)(?:#([^)]*))?\)")
    for path, link, anchor in (
        (p, *found) for p in PAGES for found in pattern.findall(p.read_text())
    ):
        target = path.parent / link if link else path
        assert target.exists(), f"{path}: {link}"
        assert not anchor or anchor in anchors(target), f"{path}: {link}#{anchor}"


def anchors(path: Path) -> set[str]:
    """The headings of a page as a browser's address names them."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_is_on_a_shelf() -> None:
    """docs/README.md leads to each document."""
    shelves = page("README.md")
    names = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")} - {"README.md"}
    assert {name for name in names if f"({name}" not in shelves} == set()


def test_every_picture_is_small_and_has_words() -> None:
    """Each is shown with alternative text; drawings are SVG, photographs of a page PNG."""
    pattern = r"!\[([^\]]+)\]\((?:docs/)?pictures/([^)]+)\)"
    shown = {name: words for path in PAGES for words, name in re.findall(pattern, path.read_text())}
    files = {path.name: path.read_bytes() for path in (DOCS / "pictures").iterdir()}
    assert sorted(shown) == sorted(files)
    assert all(len(words) > 40 for words in shown.values())
    for name, data in files.items():
        assert data.startswith(b"\x89PNG" if name.endswith(".png") else b"<svg")
        assert len(data) <= 200_000

"""The documents agree with the code."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from shardwise.files.checksum import PieceChecksum
from shardwise.plan import config
from shardwise.plan.plan import ShardSettings

from tests import factories
from tests.faults import table
from tests.unit.observe.test_audit import finished
from tests.workspace import REPO

DOCS = REPO / "docs"
SCHEMA = yaml.safe_load(config.SCHEMA.read_text())
KEYS: dict[str, dict] = {}
for name, rule in SCHEMA["properties"].items():
    KEYS |= {name: rule} | {
        f"{name}.{own}": part for own, part in rule.get("properties", {}).items()
    }


def page(name: str) -> str:
    """The text of a page."""
    return (DOCS / name).read_text()


def code(name: str, place: int = 0) -> str:
    """A block of Python on a page."""
    return re.findall(r"```python\n(.*?)```", page(name), re.DOTALL)[place]


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


@pytest.mark.parametrize("total", [0, 1001])
def test_the_checksum_on_the_page_is_that_of_receipts(total: int) -> None:
    """A few lines of Python on the page give what a receipt says."""
    elements = np.random.default_rng(total).bytes(total)
    found = {"elements": elements, "row_bytes": 250, "piece_bytes": 100}
    exec(code("internals/receipts.md"), found)
    own = PieceChecksum(total, 250, 100)
    own.update(0, memoryview(elements))
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
    """The headings of a page as anchors of an address."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def plain(value: object) -> str:
    """A value as a config file has it."""
    return json.dumps(value).replace('"', "").replace("{}", "the keys below")


def with_keys(text: str) -> str:
    """The page on the config, with the schema's default, values and text of each key."""
    rows = ""
    for name, rule in KEYS.items():
        allowed = rule.get("allowed") or plain(rule["enum"])[1:-1]
        rows += f"| `{name}` | {plain(rule['default'])} | {allowed} | {rule['description']} |\n"
    above, table = text.split(head := "| meaning |\n|---|---|---|---|\n")
    return above + head + rows + re.sub(r"\A(\| `.*\n)*", "", table)


def test_the_table_of_keys_is_that_of_the_schema() -> None:
    """`make errors` writes it; other tests compare the schema with what the code does."""
    assert with_keys(page("config.md")) == page("config.md")


def test_the_table_of_faults_has_a_row_for_each_that_a_test_makes() -> None:
    """No fault lacks a row, and no row lacks a test."""
    assert set(table.rows(page("reliability.md"))) == table.marked(REPO / "tests")


def test_pages_name_all_that_there_is() -> None:
    """Keys of the config that rerun products; commands, dependencies, rooms."""
    keys = page("internals/receipts.md").split("## The key: ")[1].split("\n\n")[1]
    row = next(r for r in page("reruns.md").splitlines() if r.startswith("| `product`"))
    matter = set(ShardSettings.__annotations__) - {"materialize", "nonfinite"}
    assert [k for k in matter if f"`{k}`" not in keys or f"`{k}`" not in row] == []
    scripts = [f"scripts/{path.name}" for path in (REPO / "scripts").glob("*.py")]
    assert [name for name in scripts if name not in page("cheatsheet.md")] == []
    pinned = re.findall(r'^  "([\w-]+)(?:\[\w+\])?==', (REPO / "pyproject.toml").read_text(), re.M)
    assert [name for name in pinned if name not in page("dependencies.md")] == []
    library = REPO / "scripts" / "shardwise"
    rooms = {f"{path.parent.relative_to(library)}/" for path in library.rglob("*/__init__.py")}
    files = {path.name for path in library.glob("*.py") if path.name != "__init__.py"}
    table = page("architecture.md").split("## Rooms")[1].split("\n## ")[0]
    named = re.findall(r"`([^`]+)`", "".join(re.findall(r"^\|[^|]*\|([^|]*)\|", table, re.M)))
    assert set(named) - {"scripts/shardwise/"} == rooms | files


if __name__ == "__main__":
    (DOCS / "config.md").write_text(with_keys(page("config.md")))

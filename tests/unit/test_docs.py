"""Documents that a test holds to the code."""

import re
from pathlib import Path

import pytest
import yaml
from shardwise import config

from tests.workspace import REPO

SCHEMA = yaml.safe_load(config.SCHEMA.read_text())
KEYS = [
    name if inner is None else f"{name}.{inner}"
    for name, rule in SCHEMA["properties"].items()
    for inner in (None, *rule.get("properties", ()))
]


@pytest.mark.parametrize("key", KEYS)
def test_every_key_stands_in_the_config_page(key: str) -> None:
    """docs/config.md has a row for each key of the schema."""
    rows = (REPO / "docs" / "config.md").read_text().splitlines()
    assert any(row.startswith(f"| `{key}` |") for row in rows)


def test_the_config_page_names_no_other_key() -> None:
    """A key that was removed from the schema leaves the page as well."""
    text = (REPO / "docs" / "config.md").read_text()
    assert set(re.findall(r"^\| `([\w.]+)` \|", text, re.MULTILINE)) == set(KEYS)


@pytest.mark.parametrize("script", sorted((REPO / "scripts").glob("*.py")), ids=lambda p: p.stem)
def test_every_command_line_stands_in_the_readme(script: Path) -> None:
    """The README shows each stage by hand."""
    assert f"scripts/{script.name}" in (REPO / "README.md").read_text()


def test_every_dependency_has_its_reason() -> None:
    """docs/dependencies.md speaks of each package that pyproject.toml pins."""
    pinned = re.findall(r'^  "([\w-]+)(?:\[\w+\])?==', (REPO / "pyproject.toml").read_text(), re.M)
    page = (REPO / "docs" / "dependencies.md").read_text()
    assert [name for name in pinned if name not in page] == []

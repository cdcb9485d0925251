"""Config files: plain data is accepted, anything else is refused with its line."""

from pathlib import Path

import pytest
from shardwise.plan import config, config_file

from tests.factories import refusal


def refused_file(folder: Path, content: str | bytes) -> str:
    """What a user is told of a config file, or of the values in it."""
    file = folder / "mine.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    told = refusal(lambda: config.load(config_file.read_files([file])))
    return told.replace(f"{folder}/", "")


def test_files_merge_later_over_earlier(tmp_path):
    """A later file changes only the keys that it names, within sections as well."""
    first, second = tmp_path / "1.yaml", tmp_path / "2.yaml"
    first.write_text("synthetic: {dim: 3, seed: 4}\nshards: 5\n")
    second.write_text("synthetic: {dim: 7}\n")
    merged = config_file.read_files([first, second])
    assert merged == {"synthetic": {"dim": 7, "seed": 4}, "shards": 5}


@pytest.mark.parametrize(("content", "words"), [
    ("shards: 3\n---\nshards: 4\n", "line 2: but found another document"),
    ("shards: 3\nresults: a\0b\n", "unacceptable character #x0000"),
    ("- input\n", "holds no keys"),
    ("shards: 3\nkeep: sum\nshards: 4\n", "line 3: the key shards is already in line 1"),
    ("reduce:\n  ranks: 1\n  ranks: 2\n", "line 3: the key ranks is already in line 2"),
    ("shards: !!python/object/apply:os.system ['x']\n", "line 1: the tag tag:yaml.org,2002:py"),
    ("shards: !!int '3'\n", "line 1: the tag tag:yaml.org,2002:int is not allowed"),
    ("reduce:\n  <<: {ranks: 3}\n", "line 2: << is not allowed"),
    ("shards: 3 # " + "x" * 2**20, "it has over 1048576 bytes"),
    ("__use_yte__: false\n", "can run any code. A config is data here: write the values out"),
    ("[" * 20000, "maximum recursion depth exceeded"),
], ids=lambda text: str(text)[:30])  # fmt: skip
def test_what_is_no_data_is_told_with_its_line(tmp_path, content, words):
    """One line has the file, the line number and what is wrong, without PyYAML's own layout."""
    told = refused_file(tmp_path, content)
    assert told.startswith("config file mine.yaml")
    assert words in told
    assert "\n" not in told


@pytest.mark.parametrize(("text", "words"), [
    ("shards: -0_10\n", "YAML reads -0_10 as the number -8; write"),
    ("shard_bytes: 1:30.5\n", "YAML reads 1:30.5 as the number 90.5; write"),
    ("results: 2024-01-31\n", "2024-01-31 is not allowed; it must be a string: write it in q"),
    ("shard_bytes: 1.0e+9\n", "shard_bytes: 1000000000.0 is not allowed"),
])  # fmt: skip
def test_a_value_that_is_another_than_it_looks_is_refused(tmp_path, text, words):
    """YAML 1.1 reads some texts as numbers in base 8 or 60, as floats, or as dates."""
    assert words in refused_file(tmp_path, text)


@pytest.mark.parametrize(("text", "values"), [
    ("shards: 1_000\n", {"shards": 1000}),
    ('input: "010"\n', {"input": "010"}),
    ("results: 'no'\nverify: no\n", {"results": "no", "verify": False}),
    ("input: 'a $(touch x) {b} `c`'\n", {"input": "a $(touch x) {b} `c`"}),
    ('{\n  "shards": 3\n}', {"shards": 3}),
])  # fmt: skip
def test_data_is_taken_as_it_stands(tmp_path, text, values):
    """YAML, and JSON, which is YAML too."""
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    assert config_file.read_files([file]) == values

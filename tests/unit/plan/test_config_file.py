"""Config files: plain data is accepted, anything else is refused with its line."""

import pytest
from shardwise.plan import config_file

from tests.factories import refusal


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
    ("shards: !!python/object/apply:os.system ['x']\n", "line 1: could not determine a"),
    ("[" * 20000, "maximum recursion depth exceeded"),
], ids=lambda text: str(text)[:30])  # fmt: skip
def test_what_is_no_data_is_told_with_its_line(tmp_path, content, words):
    """One line has the file, the line number and what is wrong, without PyYAML's own layout."""
    (tmp_path / "mine.yaml").write_text(content)
    told = refusal(config_file.read_files, [tmp_path / "mine.yaml"])
    assert told.startswith(f"config file {tmp_path}/mine.yaml")
    assert words in told
    assert "\n" not in told


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

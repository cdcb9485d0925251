"""The config: its files, schema, defaults, and what a user is told about a bad line or key."""

from pathlib import Path

import pytest
import yaml
from shardwise.plan import config, config_file

from tests.factories import ROOT, refusal

SCHEMA = yaml.safe_load(config.SCHEMA.read_text())


def defaults_of(rule):
    """The defaults that a schema states, sections filled in."""
    return {
        key: defaults_of(part) if "properties" in part else part["default"]
        for key, part in rule["properties"].items()
    }


def test_an_empty_config_has_the_defaults_of_the_schema():
    """Left out or written out, they are the same; so they are in jobs, which read no schema."""
    expected = defaults_of(SCHEMA)
    settings = config.load({})
    assert vars(settings) == {**expected, "shard_bytes": 16 * 2**30}
    assert config.load(expected) == settings
    known = config.unchecked({})
    assert known == {key: vars(settings)[key] for key in known}


def test_the_shipped_config_is_valid_and_names_every_key():
    """It shows each key once, and differs from the defaults where the demo needs it."""
    shipped = yaml.safe_load((ROOT / "config.yaml").read_text())
    loaded = config.load(shipped)
    assert set(shipped) == set(SCHEMA["properties"])
    changed = {k for k, v in vars(config.load({})).items() if getattr(loaded, k) != v}
    assert changed == {"shards", "materialize"}  # the demo shows a file per shard


@pytest.mark.parametrize(("values", "hint"), [
    ({5: 1}, "5: unknown key; known keys: input, "),
    ({"input": 5}, "input: 5 is not allowed; it must be null, a path, or"),
    ({"synthetic": None}, "synthetic: null is not allowed; it must be a mapping"),
    ({"shards": "auto\n"}, r"shards: 'auto\n' is not allowed; it must be auto or a whole number"),
    ({"shard_bytes": 0}, "shard_bytes: 0 is not a size of one byte or more"),
    ({"reduce": {"statistics": []}}, "reduce.statistics: [] is not allowed; it must be a list of"),
    ({"reduce": {"ranks": "3"}}, "from 1 to 4096; it came as text: write it without quotes, and"),
    ({"covariance": "true"}, "it must be true or false; after --config write True"),
    ({"product": "m.py:f", "right": "b"}, "right: the product m.py:f has no B"),
    ({"depends": ["mean.npy"]}, "depends: only a function of your own reads such files"),
    ({"offset": "none"}, "offset: needs covariance: true; add that, or remove offset"),
    ({"results": "git+ssh://x/y"}, "results: 'git+ssh://x/y' is an address, but"),
    ({"right": "file:///data/b.npy"}, "is an address; write the path alone, without file://"),
    ({"input": "a\udc80"}, "is not UTF-8 text; rename the file or folder"),
])  # fmt: skip
def test_wrong_values_are_refused(values, hint):
    """The message names the key, what was found and what is allowed."""
    assert hint in refusal(config.load, values)


@pytest.mark.parametrize("values", [
    {"input": ["s3://AKIA:HUSH@b/a.npy"]},
    {"dispatch": "https://u:HUSH@h/"},
    {"product": "https://u:HUSH@h/"},
    {"reduce": {"statistics": ["https://u:HUSH@h/"] * 2}},
    {"reduce": {"ranks": {"https://u:HUSH@h/": 1}}},
    {"shard_bytes": "https://u:HUSH@h/"},
    {"depends": ["https://u:HUSH@h/f.py"]},
])  # fmt: skip
def test_no_message_shows_a_password(values):
    """Wherever in a config the value is an address, even if none is allowed there."""
    assert "HUSH" not in refusal(config.load, values)


def test_a_command_finds_the_results_of_the_run_with_the_same_config_files(tmp_path, monkeypatch):
    """The file of --configfile overrides config.yaml, and does not replace it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("keep: sum\n")
    mine = [Path("mine.yaml")]
    assert config.folder_of_run(mine, None) == Path("results/default")
    (tmp_path / "config.yaml").write_text("results: results/ours\n")
    assert config.folder_of_run(mine, None) == Path("results/ours")
    (tmp_path / "mine.yaml").write_text("results: results/mine\n")
    assert config.folder_of_run(mine, None) == Path("results/mine")
    assert config.folder_of_run([*mine, Path("config.yaml")], None) == Path("results/ours")


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

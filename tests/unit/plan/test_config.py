"""The config: its files, schema, defaults, and what a user is told about a bad line or key."""

import os
from pathlib import Path

import pytest
import yaml
from shardwise.errors import InputError
from shardwise.files.paths import STATISTICS
from shardwise.plan import config

from tests.factories import ROOT

SCHEMA = yaml.safe_load(config.SCHEMA.read_text())


def defaults_of(rule):
    """The defaults that a schema states, sections filled in."""
    return {
        key: defaults_of(part) if "properties" in part else part["default"]
        for key, part in rule["properties"].items()
    }


def rules_of(rule, prefix=""):
    """Every key of a schema, with its rule."""
    for key, part in rule.get("properties", {}).items():
        yield prefix + key, part
        yield from rules_of(part, f"{prefix}{key}.")


def refusal(values):
    """The message that refuses a config."""
    with pytest.raises(InputError) as caught:
        config.load(values)
    return str(caught.value)


def refused_file(folder: Path, content: str | bytes) -> str:
    """What a user is told of a config file, or of the values in it."""
    file = folder / "mine.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError) as caught:
        config.load(config.read_files([file]))
    return str(caught.value).replace(f"{folder}/", "")


# Defaults and the schema.


def test_an_empty_config_has_the_defaults_of_the_schema():
    """Whether they are left out or written out; jobs, which read no schema, know the same."""
    expected = defaults_of(SCHEMA)
    settings = config.load({})
    assert vars(settings) == {**expected, "shard_bytes": 16 * 2**30}
    assert config.load(expected) == settings
    assert config.results_folder({}) == settings.results
    assert config.reduce_settings({}) == settings.reduce


def test_the_shipped_config_is_valid_and_names_every_key():
    """It shows each key once, and differs from the defaults where the demo needs it."""
    shipped = yaml.safe_load((ROOT / "config.yaml").read_text())
    loaded = config.load(shipped)
    assert set(shipped) == set(SCHEMA["properties"])
    changed = {k for k, v in vars(config.load({})).items() if getattr(loaded, k) != v}
    assert changed == {"shards", "materialize"}  # the demo shows a file per shard


def test_every_key_is_described():
    """Each key, at every depth, says what it means and has a default."""
    for key, rule in rules_of(SCHEMA):
        assert rule["description"].strip().endswith((".", ").")), key
        assert "default" in rule, key


def test_all_statistics_at_once_are_taken():
    """With the products kept, every statistic of the schema is there."""
    known = SCHEMA["properties"]["reduce"]["properties"]["statistics"]["items"]["enum"]
    assert list(STATISTICS) == known
    assert config.load({"reduce": {"statistics": known}}).reduce["statistics"] == known


@pytest.mark.parametrize(
    "product", ["mine.py:f", "a folder/b.c.py:own_2", "/x/y.py:_f", "a:b.py:g"]
)
def test_a_function_is_a_product(product):
    """A file and a name in it are accepted as they stand."""
    assert config.load({"product": product}).product == product


# Values that are refused.


@pytest.mark.parametrize(
    ("values", "hint"),
    [
        ({"shard": 3}, "shard: unknown key; did you mean shards?"),
        ({"reduce": {"rank": 3}}, "reduce.rank: unknown key; did you mean reduce.ranks?"),
        ({"zzz": 1}, "zzz: unknown key; known keys: input, "),
        ({5: 1}, "5: unknown key; known keys: input, "),
        ({"": 1}, ": unknown key; known keys: "),
        ({"input": 5}, "input: 5 is not allowed; it must be a string or null: write it in quotes"),
        ({"input": ""}, "input: '' is not allowed; it must be a non-empty string"),
        ({"synthetic": None}, "synthetic: null is not allowed; it must be a mapping"),
        ({"synthetic": {"dim": 0}}, "synthetic.dim: 0 is not allowed; it must be 1 or more"),
        ({"synthetic": {"dim": "8"}}, "synthetic.dim: '8' is not allowed; it must be a whole"),
        ({"synthetic": {"dtype": "float"}}, "synthetic.dtype: 'float' is not allowed; it must be"),
        ({"results": None}, "results: null is not allowed; it must be a string"),
        ({"shards": 0}, "shards: 0 is not allowed; it must be auto or a whole number, 1 or more"),
        ({"shards": "many"}, "shards: 'many' is not allowed"),
        ({"shards": True}, "shards: true is not allowed"),
        ({"shards": 10**5000}, "config: holds a number of more than 40 digits"),
        ({10**5000: 1}, "config: holds a number of more than 40 digits"),
        ({"shard_bytes": "lots"}, "shard_bytes: 'lots' is not a size"),
        ({"shard_bytes": 0}, "shard_bytes: 0 is less than one byte"),
        ({"shard_bytes": -5}, "shard_bytes: -5 is not a size"),
        ({"keep": "all"}, "keep: 'all' is not allowed; it must be one of products, sum"),
        ({"array_limit": 0}, "array_limit: 0 is not allowed; it must be 1 or more"),
        ({"verify": 1}, "verify: 1 is not allowed; it must be true or false"),
        ({"reduce": []}, "reduce: [] is not allowed; it must be a mapping of keys"),
        ({"reduce": {"statistics": []}}, "reduce.statistics: [] is not allowed; it must be a non"),
        ({"reduce": {"statistics": "sum"}}, "reduce.statistics: 'sum' is not allowed; it must be"),
        ({"reduce": {"statistics": ["summ"]}}, "'summ' is not allowed; it must be one of sum, "),
        ({"reduce": {"statistics": ["sum", "sum"]}}, "reduce.statistics: ['sum', 'sum']"),
        ({"reduce": {"statistics": ["std"]}, "keep": "sum"}, "not each of them"),
        ({"product": "A @ B"}, "right: the product A @ B needs it"),
        ({"right": "b.npy"}, "right: the product A @ A has no B; remove it, or use A @ B"),
        ({"product": "A @A"}, "unknown product; did you mean A @ A? Known are A @ A, A.T @ A"),
        ({"product": "inverse"}, "unknown product; use one of A @ A, A.T @ A, A @ A.T, A @ B, or"),
        ({"product": "m.py"}, "names no function; write it as path/to/file.py:function"),
        ({"product": "m.txt:f"}, "unknown product"),
        ({"product": "~/m.py:f"}, "begins with ~"),
        ({"product": "m.py:f", "right": "b"}, "right: the product m.py:f has no B"),
        ({"product": "m.py:f", "reproducible": False}, "reproducible: false has no meaning for a"),
        ({"input": "S3://bucket/a.npy"}, "input: S3://bucket/a.npy is an address"),
        ({"results": "git+ssh://x/y"}, "copy it to a disk or mount it, and write its path"),
        ({"right": "file:///data/b.npy"}, "write the path alone: /data/b.npy"),
        ({"input": "a\0"}, "input: 'a\\x00' holds a character that no file name can have"),
    ],
)
def test_wrong_values_are_refused(values, hint):
    """The message names the key, what was found and what is allowed."""
    assert hint in refusal(values)


def test_several_problems_are_told_at_once():
    """One run shows every bad key, not only the first; of a config that is none, some."""
    told = refusal({"shard": 1, "verify": 3, "synthetic": {"dim": 0}})
    assert all(word in told for word in ("shards?", "verify: 3", "synthetic.dim: 0"))
    lines = refusal({f"key{i}": 1 for i in range(50)}).splitlines()
    assert lines[0].startswith("config: key0: unknown key")
    assert [len(lines), lines[-1].strip()] == [21, "… and 30 more"]


# Files.


def test_files_merge_later_over_earlier(tmp_path):
    """A later file changes only the keys that it names, within sections as well."""
    first, second = tmp_path / "1.yaml", tmp_path / "2.yaml"
    first.write_text("synthetic: {dim: 3, seed: 4}\nshards: 5\n")
    second.write_text("synthetic: {dim: 7}\n")
    merged = config.read_files([first, second])
    assert merged == {"synthetic": {"dim": 7, "seed": 4}, "shards": 5}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("shards: 3\ninput: [a.npy\n", "line 3: expected ',' or ']', but got '<stream end>' "
         "(while parsing a flow sequence that begins in line 2)"),
        ("reduce:\n\tranks: 3\n", "line 2: holds a tab, which YAML does not allow here; indent "
         "with spaces"),
        ("shards: 3\n  keep: sum\n", "line 2: mapping values are not allowed here"),
        ("shards: 3\n---\nshards: 4\n", "line 2: but found another document"),
        ("shards: 3\nresults: a\0b\n", "line 2: holds the character '\\x00'"),
        (b"shards: 3\ninput: \xff\xfe.npy\n", "line 2: is not UTF-8 (byte 0xff)"),
        ("shards: 3\nresults: 2024-13-45\n", "line 2: '2024-13-45' cannot be read: month must be "
         "in 1..12"),
        ("", "line 1: is empty"),
        ("# nothing\n\n", "is empty"),
        ("- input\n", "line 1: holds a list"),
        ("# a\ninput.npy\n", "line 2: holds a single value"),
        ("shards: 3\nkeep: sum\nshards: 4\n", "key shards stands in line 1 and again in line 3"),
        ("{shards: 3, shards: 4}", "the key shards stands in line 1 and again in line 1"),
        ("reduce:\n  ranks: 1\n  ranks: 2\n", "ranks stands in line 2 and again in line 3"),
        ("shards: !!python/object/apply:os.system ['x']\n", "line 1: the tag tag:yaml.org,2002:py"),
        ("shards: !!int '3'\n", "line 1: the tag tag:yaml.org,2002:int is not allowed"),
        ("a: &x [1]\nb: *x\n", "line 2: the alias *x is not allowed"),
        ("<<: {shards: 3}\n", "line 1: << is not allowed"),
        ("? [a, b]\n: 1\n", "line 1: a key must be a single word"),
        ("__use_yte__: false\n", "can run any code. A config is data here: write the values out"),
        ("[" * 20000, "nested too deeply"),
        ("shards: 3 # " + "x" * 2**20, "more than 1048576 bytes"),
    ],
    ids=lambda text: str(text)[:30],
)  # fmt: skip
def test_what_is_no_data_is_told_with_its_line(tmp_path, content, words):
    """The file, the line, what stands there; nothing of PyYAML's own layout."""
    told = refused_file(tmp_path, content)
    assert told.startswith("config file mine.yaml")
    assert words in told
    assert "\n" not in told


def test_a_bomb_of_aliases_takes_no_memory(tmp_path):
    """Nine lines that stand for a billion values are refused at the first alias."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    assert "line 2: the alias *a0" in refused_file(tmp_path, "\n".join(lines))


def test_what_is_no_file_is_refused(tmp_path, monkeypatch):
    """A relative name is completed, so that a wrong folder shows; a pipe is not waited for."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        config.read_files([Path("none.yaml")])
    assert str(caught.value) == (
        f"config file none.yaml does not exist ({tmp_path}/none.yaml); correct the name, or run "
        "where that path leads to it"
    )
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="is not a file"):
        config.read_files([tmp_path / "pipe"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("shards: 010\n", "line 1: shards: YAML reads 010 as the number 8 (octal); write 8, or 10"),
        ("shards: -0_10\n", "shards: YAML reads -0_10 as the number -8 (octal); write -8, or -10"),
        ("shard_bytes: 10:30\n", "shard_bytes: YAML reads 10:30 as the number 630 (base 60); write "
         "630, or \"10:30\" if it is a string"),
        ("shard_bytes: 1:30.5\n", "YAML reads 1:30.5 as the number 90.5 (base 60)"),
        ("reduce:\n  ranks: 010\n", "line 2: reduce.ranks: YAML reads 010"),
        ("reduce:\n  statistics:\n  - 0777\n", "line 3: reduce.statistics: YAML reads 0777"),
        ("results: no\n", "results: false is not allowed; it must be a string: YAML reads yes, no, "
         "on and off as true or false; write it in quotes"),
        ("results: 2024-01-31\n", "results: 2024-01-31 is not allowed; it must be a string: write "
         "it in quotes"),
        ("shards: '4'\n", "shards: '4' is not allowed; it must be auto or a whole number, 1 or "
         "more: write it without quotes"),
        ("shards: 1e3\n", "shards: '1e3' is not allowed; it must be auto or a whole number"),
        ("shards: .nan\n", "shards: nan is not allowed"),
        ("shard_bytes: 1.0e+9\n", "shard_bytes: 1000000000.0 is not allowed"),
        ("verify: y\n", "verify: 'y' is not allowed; it must be true or false"),
    ],
)  # fmt: skip
def test_a_value_that_is_another_than_it_looks_is_refused(tmp_path, text, words):
    """YAML 1.1 has numbers to base 8 and 60, and words for true; messages speak as YAML does."""
    assert words in refused_file(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("shards: 1_000\n", {"shards": 1000}),
        ("shards: 0x10\n", {"shards": 16}),
        ('input: "010"\n', {"input": "010"}),
        ("input: 10:30.npy\n", {"input": "10:30.npy"}),
        ("results: 'no'\nverify: no\n", {"results": "no", "verify": False}),
        ("input: 'a $(touch x) {b} `c`'\n", {"input": "a $(touch x) {b} `c`"}),
        ('reduce: {ranks: 3}\nresults: "a\\nb"\n', {"reduce": {"ranks": 3}, "results": "a\nb"}),
        ('{\n  "shards": 3\n}', {"shards": 3}),
    ],
)
def test_data_is_taken_as_it_stands(tmp_path, text, values):
    """YAML, and JSON, which is YAML too."""
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    assert config.read_files([file]) == values

"""The config: its files, schema, defaults, and what a user is told about a bad line or key."""

import pytest
import yaml
from shardwise.files.paths import STATISTICS
from shardwise.plan import config
from snakemake.cli import parse_config

from tests.factories import ROOT, refusal

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


# Values that are refused.


@pytest.mark.parametrize(
    ("values", "hint"),
    [
        ({"zzz": 1}, "zzz: unknown key; known keys: input, "),
        ({5: 1}, "5: unknown key; known keys: input, "),
        ({"input": 5}, "input: 5 is not allowed; it must be a string or null: write it in quotes"),
        ({"synthetic": None}, "synthetic: null is not allowed; it must be a mapping"),
        ({"synthetic": {"dim": 0}}, "synthetic.dim: 0 is not allowed; it must be 1 or more"),
        ({"synthetic": {"dtype": "float"}}, "synthetic.dtype: 'float' is not allowed; it must be"),
        ({"results": None}, "results: null is not allowed; it must be a string"),
        ({"shards": True}, "shards: true is not allowed"),
        ({"shards": 10**5000}, "config: holds a number of more than 40 digits"),
        ({10**5000: 1}, "config: holds a number of more than 40 digits"),
        ({"shard_bytes": 0}, "shard_bytes: 0 is less than one byte"),
        ({"shard_bytes": -5}, "shard_bytes: -5 is not a size"),
        ({"verify": 1}, "verify: 1 is not allowed; it must be true or false"),
        ({"reduce": {"statistics": []}}, "reduce.statistics: [] is not allowed; it must be a non"),
        ({"reduce": {"statistics": "sum"}}, "reduce.statistics: 'sum' is not allowed; it must be"),
        ({"product": "A @A"}, "unknown product; did you mean A @ A? Known are A @ A, A.T @ A"),
        (
            {"product": "inverse"},
            "unknown product; use one of A @ A, A.T @ A, A @ A.T, A.H @ A, A @ A.H",
        ),
        ({"product": "m.py"}, "names no function; write it as path/to/file.py:function"),
        ({"product": "m.txt:f"}, "unknown product"),
        ({"product": "m.py:f", "right": "b"}, "right: the product m.py:f has no B"),
        ({"results": "git+ssh://x/y"}, "results: 'git+ssh://x/y' is an address, but"),
        ({"right": "file:///data/b.npy"}, "is an address; write the path alone, without file://"),
        ({"input": "a\udc80"}, "is not UTF-8 text; rename the file or folder"),
    ],
)
def test_wrong_values_are_refused(values, hint):
    """The message names the key, what was found and what is allowed."""
    assert hint in refusal(config.load, values)


@pytest.mark.parametrize(
    "word",
    ["reduce={ranks: 3}", "results=123_456", "results='7'", "verify=false", "array_limit=null"],
)
def test_of_the_command_line_no_quotes_are_advised(word):
    """Snakemake reads it, and would read it the same: a file says what is meant."""
    values = parse_config([word])
    told = refusal(config.load, values, values)
    assert "quotes: write the key into a file, and name that after --configfile" in told
    assert "write it" not in told


def test_several_problems_are_told_at_once():
    """One run shows every bad key, not only the first; of a config that is none, some."""
    told = refusal(config.load, {"shard": 1, "verify": 3, "synthetic": {"dim": 0}})
    assert all(word in told for word in ("mean shards or", "verify: 3", "synthetic.dim: 0"))
    lines = refusal(config.load, {f"key{i}": 1 for i in range(50)}).splitlines()
    assert lines[0].startswith("config: key0: unknown key")
    assert [len(lines), lines[-1].strip()] == [21, "… and 30 more"]

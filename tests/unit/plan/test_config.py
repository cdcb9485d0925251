"""The config: schema, defaults, and what a user is told about a bad key."""

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


def test_an_empty_config_has_the_defaults_of_the_schema():
    """Without a single key, every setting is the schema's default."""
    expected = defaults_of(SCHEMA)
    found = vars(config.load({}))
    assert found == {**expected, "shard_bytes": 16 * 2**30}


def test_a_default_that_is_filled_in_is_valid_itself():
    """The defaults, written out, are a valid config that changes nothing."""
    assert config.load(defaults_of(SCHEMA)) == config.load({})


def test_jobs_and_the_schema_agree_on_the_results_folder():
    """Jobs take the folder from the config without reading the schema."""
    default = SCHEMA["properties"]["results"]["default"]
    assert config.results_folder({}) == config.load({}).results == default


def test_the_shipped_config_is_valid_and_names_every_key():
    """config.yaml passes, shows each key once, and differs from the defaults in shards only."""
    shipped = yaml.safe_load((ROOT / "config.yaml").read_text())
    loaded = config.load(shipped)
    assert set(shipped) == set(SCHEMA["properties"])
    changed = {k for k, v in vars(config.load({})).items() if getattr(loaded, k) != v}
    assert changed == {"shards"}


@pytest.mark.parametrize(("key", "rule"), list(rules_of(SCHEMA)), ids=lambda v: str(v)[:20])
def test_every_key_is_described(key, rule):
    """Each key, at every depth, says what it means and has a default."""
    assert rule["description"].strip().endswith((".", ")."))
    assert "default" in rule


@pytest.mark.parametrize(
    ("values", "hint"),
    [
        ({"shard": 3}, "shard: unknown key; did you mean shards?"),
        ({"prodct": "A @ A"}, "prodct: unknown key; did you mean product?"),
        ({"synthetic": {"dims": 3}}, "synthetic.dims: unknown key; did you mean synthetic.dim?"),
        ({"reduce": {"rank": 3}}, "reduce.rank: unknown key; did you mean reduce.ranks?"),
        ({"zzz": 1}, "zzz: unknown key; known keys: input, "),
        ({5: 1}, "5: unknown key; known keys: input, "),
        ({"": 1}, ": unknown key; known keys: "),
    ],
)
def test_unknown_keys_are_refused_with_a_hint(values, hint):
    """A misspelt key is named, with the nearest known one or with all of them."""
    assert hint in refusal(values)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"input": 5}, "input: 5 is not allowed; it must be a text or null"),
        ({"input": ""}, "input: '' is not allowed; it must be not empty"),
        ({"synthetic": None}, "synthetic: null is not allowed; it must be a mapping"),
        ({"synthetic": {"dim": 0}}, "synthetic.dim: 0 is not allowed; it must be 1 or more"),
        ({"synthetic": {"dim": "8"}}, "synthetic.dim: '8' is not allowed; it must be a whole"),
        ({"synthetic": {"matrices": 0}}, "synthetic.matrices: 0"),
        ({"synthetic": {"dtype": "float"}}, "synthetic.dtype: 'float' is not allowed; it must be"),
        ({"synthetic": {"seed": -1}}, "synthetic.seed: -1"),
        ({"right": []}, "right: [] is not allowed"),
        ({"product": 1}, "product: 1 is not allowed; it must be a text"),
        ({"results": None}, "results: null is not allowed; it must be a text"),
        ({"results": ""}, "results: ''"),
        ({"shards": 0}, "shards: 0 is not allowed; it must be auto or a whole number, 1 or more"),
        ({"shards": "many"}, "shards: 'many' is not allowed"),
        ({"shards": True}, "shards: true is not allowed"),
        ({"shards": 10**5000}, "config: holds a number of more than 40 digits"),
        ({10**5000: 1}, "config: holds a number of more than 40 digits"),
        ({"shards": 2.5}, "shards: 2.5 is not allowed"),
        ({"shard_bytes": 1.5}, "shard_bytes: 1.5 is not allowed"),
        ({"shard_bytes": True}, "shard_bytes: true is not allowed"),
        ({"shard_bytes": "lots"}, "shard_bytes: 'lots' is not a size"),
        ({"shard_bytes": 0}, "shard_bytes: 0 is less than one byte"),
        ({"shard_bytes": -5}, "shard_bytes: -5 is not a size"),
        ({"materialize": "yes"}, "materialize: 'yes' is not allowed; it must be true or false"),
        ({"keep": "all"}, "keep: 'all' is not allowed; it must be one of products, sum"),
        ({"dispatch": "job"}, "dispatch: 'job' is not allowed; it must be one of jobs, array"),
        ({"array_limit": 0}, "array_limit: 0 is not allowed; it must be 1 or more"),
        ({"backend": "torch"}, "backend: 'torch' is not allowed; it must be one of auto, cupy"),
        ({"verify": 1}, "verify: 1 is not allowed; it must be true or false"),
        ({"nonfinite": None}, "nonfinite: null is not allowed"),
        ({"reduce": []}, "reduce: [] is not allowed; it must be a mapping of keys"),
        ({"reduce": {"ranks": 0}}, "reduce.ranks: 0"),
        ({"reduce": {"statistics": []}}, "reduce.statistics: [] is not allowed; it must be not"),
        ({"reduce": {"statistics": "sum"}}, "reduce.statistics: 'sum' is not allowed; it must be"),
        ({"reduce": {"statistics": ["summ"]}}, "'summ' is not allowed; it must be one of sum, "),
        ({"reduce": {"statistics": ["sum", "sum"]}}, "reduce.statistics: ['sum', 'sum']"),
    ],
)
def test_wrong_types_and_ranges_are_refused(values, told):
    """The message names the key, what was found and what is allowed."""
    assert told in refusal(values)


def test_of_many_problems_some_are_told():
    """A config that is none fills no screen."""
    told = refusal({f"key{i}": 1 for i in range(50)}).splitlines()
    assert told[0].startswith("config: key0: unknown key")
    assert [len(told), told[-1].strip()] == [21, "… and 30 more"]


@pytest.mark.parametrize(
    "values",
    [
        {"synthetic": {"matrices": 4.0}},
        {"synthetic": {"dim": 4.0}},
        {"synthetic": {"seed": 1.0}},
        {"shards": 4.0},
        {"reduce": {"ranks": 2.0}},
    ],
    ids=str,
)
def test_whole_floats_never_reach_the_plan_as_floats(values):
    """4.0 is refused or becomes 4: a float would travel into shapes, tables and `mpiexec -n`."""
    try:
        loaded = config.load(values)
    except InputError:
        return
    numbers = [*loaded.synthetic.values(), loaded.shards, loaded.reduce["ranks"]]
    assert not [n for n in numbers if isinstance(n, float)]


@pytest.mark.parametrize("dispatch", ["jobs", "array", "pool", "mpi"])
def test_one_word_changes_the_way_of_working(dispatch):
    """What belongs to another dispatch stands by, whichever one is chosen."""
    loaded = config.load({"dispatch": dispatch, "workers": "node", "array_limit": 3})
    assert (loaded.dispatch, loaded.workers, loaded.array_limit) == (dispatch, "node", 3)


@pytest.mark.parametrize("name", STATISTICS)
def test_a_sum_gives_no_statistic_of_single_products(name):
    """Under keep: sum only sum and mean pass; the others are refused with the reason."""
    values = {"keep": "sum", "reduce": {"statistics": ["sum", name] if name != "sum" else [name]}}
    if name in ("sum", "mean"):
        assert name in config.load(values).reduce["statistics"]
        return
    told = refusal(values)
    assert told.startswith(f"config: reduce.statistics: {name}: needs every product, but under")
    assert "use keep: products, or only sum and mean" in told


def test_all_statistics_at_once_are_taken():
    """With the products kept, every statistic of the schema is there."""
    known = SCHEMA["properties"]["reduce"]["properties"]["statistics"]["items"]["enum"]
    assert list(STATISTICS) == known
    assert config.load({"reduce": {"statistics": known}}).reduce["statistics"] == known


@pytest.mark.parametrize("keep", ["products", "sum"])
@pytest.mark.parametrize("values", [{"reproducible": False}, {"precision": "tf32"}], ids=str)
def test_speed_for_digits_is_taken(values, keep):
    """Both ways to trade digits for speed are accepted, whatever a shard keeps."""
    loaded = config.load({**values, "keep": keep})
    assert values.items() <= vars(loaded).items()


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"product": "A @ B"}, "right: the product A @ B needs it"),
        ({"right": "b.npy"}, "right: the product A @ A has no B; remove it, or use A @ B"),
        ({"right": "b.npy", "product": "A.T @ A"}, "right: the product A.T @ A has no B"),
    ],
)
def test_contradictions_are_refused(values, told):
    """Keys that exclude each other are named together."""
    assert told in refusal(values)


def test_all_problems_are_told_at_once():
    """One run shows every bad key, not only the first."""
    told = refusal({"shard": 1, "verify": 3, "synthetic": {"dim": 0}})
    assert all(word in told for word in ("shards?", "verify: 3", "synthetic.dim: 0"))


def test_files_merge_later_over_earlier(tmp_path):
    """A later file changes only the keys that it names, within sections as well."""
    first, second = tmp_path / "1.yaml", tmp_path / "2.yaml"
    first.write_text("synthetic: {dim: 3, seed: 4}\nshards: 5\n")
    second.write_text("synthetic: {dim: 7}\n")
    merged = config.read_files([first, second])
    assert merged == {"synthetic": {"dim": 7, "seed": 4}, "shards": 5}


@pytest.mark.parametrize("text", ["", "- 1\n", "a: [", "word", "a: \x00", b"\xff\xfe\xfa"])
def test_files_that_hold_no_config_are_refused(tmp_path, text):
    """A file that is no mapping of keys is named."""
    file = tmp_path / "c.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError, match=r"config file .*c\.yaml"):
        config.read_files([file])


def test_a_missing_file_is_named(tmp_path):
    """A config file that is not there is bad input."""
    with pytest.raises(InputError, match=r"nowhere\.yaml"):
        config.read_files([tmp_path / "nowhere.yaml"])


def test_the_reduce_has_the_defaults_of_the_schema():
    """Jobs, which do not read the schema, fill in the same values."""
    assert config.reduce_settings({}) == config.load({}).reduce

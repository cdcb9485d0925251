"""A config file that cannot be read, or does not mean what it seems to, is refused by its line."""

from pathlib import Path

import pytest
from shardwise.errors import InputError
from shardwise.plan import config


def refusal(folder: Path, content: str | bytes) -> str:
    """What a user is told of a config file, or of the values in it."""
    file = folder / "mine.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError) as caught:
        config.load(config.read_files([file]))
    return str(caught.value).replace(f"{folder}/", "")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("shards: 3\ninput: [a.npy\n", "line 3: expected ',' or ']', but got '<stream end>' "
         "(while parsing a flow sequence that begins in line 2)"),
        ("reduce:\n\tranks: 3\n", "line 2: holds a tab, which YAML does not take here; indent with "
         "spaces"),
        ("shards: 3\n  keep: sum\n", "line 2: mapping values are not allowed here"),
        ("input: 'a\nb: 3\n", "line 3: found unexpected end of stream"),
        ("shards: 3\n---\nshards: 4\n", "line 2: but found another document"),
        ("shards: 3\nkeep\n", "line 3: could not find expected ':'"),
        ("shards: 3\nresults: a\0b\n", "line 2: holds the character '\\x00'"),
        (b"shards: 3\ninput: \xff\xfe.npy\n", "line 2: is not UTF-8 (byte 0xff)"),
        ("shards: 3\nresults: 2024-13-45\n", "line 2: '2024-13-45' cannot be read: month must be "
         "in 1..12"),
        ("shards: 3\ninput: @a\n", "line 2: found character '@' that cannot start any token"),
        ("", "line 1: is empty"),
        ("# nothing\n\n", "is empty"),
        ("null\n", "is empty"),
        ("- input\n", "line 1: holds a list"),
        ("# a\ninput.npy\n", "line 2: holds a single value"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_told_with_its_line(
    tmp_path: Path, content: str | bytes, words: str
) -> None:
    """The file, the line, what stands there; nothing of PyYAML's own layout."""
    said = refusal(tmp_path, content)
    assert said.startswith("config file mine.yaml")
    assert words in said
    assert "\n" not in said


def test_a_file_that_is_missing_says_where_it_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative name is completed, so that a wrong working directory shows."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        config.read_files([Path("none.yaml")])
    assert str(caught.value) == (
        f"config file none.yaml: does not exist ({tmp_path}/none.yaml); correct the name, or run "
        "from the folder that it counts from"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("shards: 010\n", "line 1: shards: YAML reads 010 as the number 8 (octal); write 8, or"),
        ("shards: -010\n", "shards: YAML reads -010 as the number -8 (octal); write -8, or -10"),
        ("shards: 0_1_0\n", "YAML reads 0_1_0 as the number 8"),
        ("shards: 00\n", "YAML reads 00 as the number 0 (octal)"),
        ("shard_bytes: 10:30\n", "shard_bytes: YAML reads 10:30 as the number 630 (base 60); write "
         "630, or \"10:30\" if it is a text"),
        ("shard_bytes: 1:30.5\n", "YAML reads 1:30.5 as the number 90.5 (base 60)"),
        ("input: 10:30:00\n", "input: YAML reads 10:30:00 as the number 37800 (base 60)"),
        ("reduce:\n  ranks: 010\n", "line 2: reduce.ranks: YAML reads 010"),
        ("synthetic: {dim: 1:00}\n", "synthetic.dim: YAML reads 1:00 as the number 60"),
        ("reduce:\n  statistics:\n  - 0777\n", "line 3: reduce.statistics: YAML reads 0777"),
    ],
)  # fmt: skip
def test_a_number_that_is_another_than_it_looks_is_refused(
    tmp_path: Path, text: str, words: str
) -> None:
    """YAML 1.1 has numbers to base 8 and 60, which no user means."""
    assert words in refusal(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("shards: 10\n", "shards", 10),
        ("shards: 1_000\n", "shards", 1000),
        ("shards: 0x10\n", "shards", 16),
        ("shards: +7\n", "shards", 7),
        ('input: "010"\n', "input", "010"),
        ("input: '10:30'\n", "input", "10:30"),
        ("input: 10:30.npy\n", "input", "10:30.npy"),
        ("input: a:b\n", "input", "a:b"),
        ("shard_bytes: 16 GiB\n", "shard_bytes", 16 * 2**30),
        ("verify: no\n", "verify", False),
        ("results: 'no'\n", "results", "no"),
    ],
)
def test_what_means_what_it_says_is_taken(tmp_path: Path, text: str, key: str, value: int) -> None:
    """Other ways to write a number, and quoted texts, are as they look."""
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    assert getattr(config.load(config.read_files([file])), key) == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("results: no\n", "results: false is not allowed; it must be a text: YAML takes yes, no, "
         "on and off for true and false; write it in quotes"),
        ("input: on\n", "input: true is not allowed; it must be a text or null: YAML takes yes"),
        ("keep: yes\n", "keep: true is not allowed; it must be one of products, sum"),
        ("results: 2024-01-31\n", "results: 2024-01-31 is not allowed; it must be a text: write it "
         "in quotes"),
        ("results: 7\n", "results: 7 is not allowed; it must be a text: write it in quotes"),
        ("shards: '4'\n", "shards: '4' is not allowed; it must be auto or a whole number, 1 or "
         "more: write it without quotes"),
        ("shards: 1e3\n", "shards: '1e3' is not allowed; it must be auto or a whole number"),
        ("shards: 4.0\n", "shards: 4.0 is not allowed"),
        ("shards: -3\n", "shards: -3 is not allowed"),
        ("shards: .nan\n", "shards: nan is not allowed"),
        ("shard_bytes: .inf\n", "shard_bytes: inf is not allowed; it must be a text or a whole"),
        ("shard_bytes: -1\n", "shard_bytes: -1 is not a size"),
        ("shard_bytes: -16GiB\n", "shard_bytes: '-16GiB' is not a size"),
        ("shard_bytes: 1e9\n", "shard_bytes: '1e9' is not a size"),
        ("shard_bytes: 1.0e+9\n", "shard_bytes: 1000000000.0 is not allowed"),
        ("shard_bytes: 2024-01-31\n", "shard_bytes: 2024-01-31 is not allowed"),
        ("verify: y\n", "verify: 'y' is not allowed; it must be true or false"),
        ("verify: 1\n", "verify: 1 is not allowed; it must be true or false"),
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_told_as_it_is_written(
    tmp_path: Path, text: str, words: str
) -> None:
    """In the words of YAML, not of Python, and with what would be right."""
    assert words in refusal(tmp_path, text)


@pytest.mark.parametrize("key", ["input", "right", "results", "product"])
@pytest.mark.parametrize("scheme", ["s3", "gs", "https", "ftp", "hdfs", "git+ssh", "S3"])
def test_an_address_is_no_file(tmp_path: Path, key: str, scheme: str) -> None:
    """No file of that name is looked for, or made."""
    said = refusal(tmp_path, f"{key}: {scheme}://bucket/a.npy\n")
    assert f"{key}: {scheme}://bucket/a.npy is an address" in said
    assert "copy it to a disk, or mount it, and write its path" in said


def test_the_address_of_a_file_says_its_path(tmp_path: Path) -> None:
    """The path alone is what is taken."""
    assert "write the path alone: /data/a.npy" in refusal(tmp_path, "input: file:///data/a.npy\n")

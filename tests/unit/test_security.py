"""Config is data, names are names, and nothing is written outside of the results folder."""

import os
from pathlib import Path

import pytest
from shardwise import config
from shardwise.errors import InputError


def read(folder: Path, text: str) -> dict:
    """What a config file of this text holds."""
    file = folder / "mine.yaml"
    file.write_text(text)
    return config.read_files([file])


# A config file is data.


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "shards: 3\nkeep: sum\nshards: 4\n",
            "the key shards stands in line 1 and again in line 3",
        ),
        ("reduce:\n  ranks: 1\n  ranks: 2\n", "key ranks stands in line 2 and again in line 3"),
        ('{"shards": 3,\n "shards": 4}', "the key shards stands in line 1 and again in line 2"),
        ('{\n\t"shards": 3,\n\t"shards": 4}', "the key shards stands there twice"),
        ("shards: !!python/object/apply:os.system ['true']\n", "line 1: the tag .*system is not"),
        ("shards: !!int '3'\n", "line 1: the tag tag:yaml.org,2002:int is not allowed"),
        ("results: !secret x\n", "line 1: the tag !secret is not allowed"),
        ("a: &x [1]\nb: *x\n", r"line 2: the alias \*x is not allowed"),
        ("<<: {shards: 3}\n", "line 1: << is not allowed"),
        ("? [a, b]\n: 1\n", "line 1: a key must be a single word"),
        ("__use_yte__: true\nshards: 3\n", "can run any code.*write the values out"),
        ("__use_yte__: false\n", "can run any code"),
        ("shards: 3\n---\nshards: 4\n", "expected a single document"),
        ("[" * 20000, "nested too deeply"),
        ("[]", "must hold keys and values"),
        ("shards: 3 # " + "x" * 2**20, "more than 1048576 bytes"),
    ],
)
def test_what_is_more_than_data_is_refused(tmp_path, text, said):
    """Equal keys, tags, aliases, templates: refused with the line, before any value is used."""
    with pytest.raises(InputError, match=said):
        read(tmp_path, text)


def test_a_bomb_of_aliases_takes_no_memory(tmp_path):
    """Nine lines that stand for a billion values are refused at the first alias."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    with pytest.raises(InputError, match=r"line 2: the alias \*a0"):
        read(tmp_path, "\n".join(lines))


def test_data_is_taken_as_it_stands(tmp_path):
    """YAML, and JSON that is indented with tabs, as Snakemake reads it."""
    text = "input: 'a $(touch x) {b} `c`'\nreduce: {ranks: 3}\nresults: \"a\\nb\"\n"
    values = {"input": "a $(touch x) {b} `c`", "reduce": {"ranks": 3}, "results": "a\nb"}
    assert read(tmp_path, text) == values
    assert read(tmp_path, '{\n\t"shards": 3\n}') == {"shards": 3}


def test_a_pipe_is_no_config_file(tmp_path):
    """It would be waited for, and give its text only once."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="is not a file"):
        config.read_files([tmp_path / "pipe"])

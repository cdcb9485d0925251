"""Config files as plain YAML, each key once: Snakemake's own loader takes the last of two."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from yaml.parser import ParserError
from yaml.scanner import ScannerError

from shardwise.errors import InputError
from shardwise.files.lookup import reading

_ODD_NUMBER = re.compile(r"[-+]?(0[0-7_]+|[0-9_]+(:[0-5]?[0-9])+(\.[0-9_]*)?)")  # base 8, base 60


def read_files(files: list[Path]) -> dict[str, Any]:
    """Read config files and :func:`merge` them in order; raises InputError as :func:`read_file`."""
    return merge(map(read_file, files))


def merge(configs: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge configs in order, later ones over earlier ones, as Snakemake does."""
    merged: dict[str, Any] = {}
    for config in configs:
        for key, value in config.items():  # no key of the schema is nested deeper
            both = isinstance(value, dict) and isinstance(merged.get(key), dict)
            merged[key] = {**merged[key], **value} if both else value
    return merged


def read_file(file: Path) -> dict[str, Any]:
    """The keys and values of a config file; InputError, with the line, if it holds other data."""
    with reading(file, "config file "):
        raw = file.read_bytes()
    try:
        content = yaml.load(raw, _Loader)
    except Exception as error:  # such as Python's ValueError for a date that does not exist
        mark, what = getattr(error, "problem_mark", None), getattr(error, "problem", str(error))
        line, words = f", line {mark.line + 1}" if mark else "", " ".join((what or "").split())
        if isinstance(error, (ScannerError, ParserError)):
            words += "; write lines such as shards: 8, indented by spaces, not tabs"
        raise InputError(f"config file {file}{line}: {words:.400}") from error
    if not isinstance(content, dict):
        words = "holds no keys; write some, such as shards: 8, with a space after the colon"
        raise InputError(f"config file {file} {words}")
    return content


class _Loader(yaml.SafeLoader):
    """Refuses duplicate keys, of which YAML takes the last, and numbers that look like others."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Name the line of such a number, and both lines of a key that is there twice."""
        lines: dict[str, int] = {}
        for key, value in node.value:
            if value.tag.endswith((":int", ":float")) and _ODD_NUMBER.fullmatch(value.value):
                what = f"YAML reads {value.value:.80} as {self.construct_object(value)}"
                what += "; write that number, or put a text in quotes"
                raise yaml.MarkedYAMLError(problem=what, problem_mark=value.start_mark)
            name = str(key.value)
            if name in lines:
                what = f"the key {name:.80} is already in line {lines[name]}; keep one of them"
                raise yaml.MarkedYAMLError(problem=what, problem_mark=key.start_mark)
            lines[name] = key.start_mark.line + 1
        return super().construct_mapping(node, deep)

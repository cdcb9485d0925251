"""Config files as data: YAML without tags, aliases, merges and duplicate keys.

Snakemake reads the same files with its own loader. It silently takes the last of two equal keys,
reads 010 as 8, and runs a file as a template if the file asks for it. So the files are read again
here, before any job.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from shardwise.errors import InputError
from shardwise.files.lookup import reading

_MOST_BYTES = 1024**2
_TEMPLATE = "__use_yte__"  # with this key a file asks Snakemake to run it as a YTE template
# Numbers that YAML 1.1 reads in base 8 or base 60, which no user means.
_ODD_NUMBER = re.compile(r"[-+]?(0[0-7_]+|[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?)")


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
    """The keys and values of a config file.

    Raises InputError, with the line and what to do, if the file cannot be read or holds other data.
    """
    with reading(file, "config file "), open(file, "rb") as opened:
        raw = opened.read(_MOST_BYTES + 1)
    if len(raw) > _MOST_BYTES:
        raise InputError(f"config file {file} is not a config: it has over {_MOST_BYTES} bytes")
    try:
        content = yaml.load(raw, _Loader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise InputError(f"config file {file}, line {line}: {error.problem:.300}") from error
    except Exception as error:  # such as Python's ValueError for a date that does not exist
        what = (str(error).splitlines() or [repr(error)])[0]
        raise InputError(f"config file {file} cannot be read: {what:.300}") from error
    if not isinstance(content, dict):
        raise InputError(
            f"config file {file} holds no keys; write those that differ from config.yaml, such as "
            "shards: 8"
        )
    if _TEMPLATE in content:
        raise InputError(
            f"config file {file}: {_TEMPLATE} asks Snakemake to run the file as a template, which "
            "can run any code. A config is data here: write the values out, and remove the key"
        )
    return content


class _Loader(yaml.SafeLoader):
    """Refuses anything but plain data, and values that YAML reads differently from their looks."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Refuse tags, which can name Python types, and aliases, which make a small file huge."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            raise _refused(event, f"the alias *{event.anchor:.80} is not allowed; write the value")
        if event.tag:
            what = f"the tag {event.tag:.80} is not allowed; write the value alone, in quotes if "
            raise _refused(event, f"{what}it is a text that begins with !")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Refuse duplicate keys, of which YAML takes the last, and `<<`, which merges in others."""
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                raise _refused(key, "<< is not allowed; write the keys")
            name = str(key.value)
            if name in lines:
                first = f"is already in line {lines[name]}"
                raise _refused(key, f"the key {name:.80} {first}; keep one of them")
            lines[name] = key.start_mark.line + 1
        return super().construct_mapping(node, deep)

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """Refuse numbers that look decimal, but that YAML reads in base 8 or 60."""
        value = super().construct_object(node, deep)
        if type(value) in (int, float) and not node.style and _ODD_NUMBER.fullmatch(node.value):
            what = f"YAML reads {node.value:.80} as the number {value}"
            raise _refused(node, f"{what}; write that, or put it in quotes if it is a text")
        return value


def _refused(at: Any, what: str) -> yaml.YAMLError:
    return yaml.MarkedYAMLError(problem=what, problem_mark=at.start_mark)

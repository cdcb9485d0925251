"""Config files as data: YAML without tags, aliases, merges and duplicate keys.

Snakemake reads the same files with its own loader. It silently takes the last of two
equal keys, reads 010 as 8, and runs a file as a template if the file asks for it. So the files are
read again here, before any job.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from shardwise.errors import InputError, one_line, short
from shardwise.files.lookup import reading

_MOST_BYTES = 1024**2
_DEEPEST = 16
_TEMPLATE = "__use_yte__"  # the key by which a file asks Snakemake to run it as a template of YTE
# Numbers as YAML 1.1 reads them and no user means them: to base 8, and to base 60.
_ODD_NUMBER = re.compile(r"[-+]?(0[0-7_]+|[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?)")


def read_files(files: list[Path]) -> dict[str, Any]:
    """Merge config files in order, as :func:`merge`; raises InputError like :func:`read_file`."""
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

    Raises InputError, with the line and what to do, if it cannot be read or is not such data.
    """
    text = _text(file)
    try:
        content = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise InputError(f"config file {file}, {_problem(error, text)}") from error
    if content is None:
        raise InputError(
            f"config file {file} is empty; write the keys that differ from config.yaml, or leave "
            "the file out"
        )
    if not isinstance(content, dict):
        kind = "a list" if isinstance(content, list) else "a single value"
        raise InputError(
            f"config file {file} holds {kind}; it must hold keys and values, like config.yaml"
        )
    if _TEMPLATE in content:
        raise InputError(
            f"config file {file}: {_TEMPLATE} asks Snakemake to run the file as a template, which "
            "can run any code. A config is data here: write the values out, and remove the key"
        )
    return content


def _text(file: Path) -> str:
    with reading(file, "config file "), open(file, "rb") as opened:
        raw = opened.read(_MOST_BYTES + 1)
    if len(raw) > _MOST_BYTES:
        raise InputError(f"config file {file} has more than {_MOST_BYTES} bytes: it is no config")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"config file {file}, line {line}: is not UTF-8; save it as such"
        ) from error


class _Loader(yaml.SafeLoader):
    """Refuses anything but plain data, and values that YAML reads differently from their looks."""

    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Refuse tags, which can name Python types, and aliases, which can fill any memory."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            raise _refused(event, f"the alias *{event.anchor:.80} is not allowed; write the value")
        if event.tag:
            what = f"the tag {event.tag:.80} is not allowed; write the value alone, in quotes if "
            raise _refused(event, f"{what}it is a text that begins with !")
        self._depth += 1
        if self._depth > _DEEPEST:
            raise _refused(event, "is nested too deeply for a config")
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Refuse keys that are not words, and duplicate ones."""
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _refused(key, "a key must be a single word")
            if key.tag == "tag:yaml.org,2002:merge":
                raise _refused(key, "<< is not allowed; write the keys")
            if key.value in lines:
                first = f"is already in line {lines[key.value]}"
                raise _refused(key, f"the key {key.value:.80} {first}; keep one of them")
            lines[key.value] = key.start_mark.line + 1
        return super().construct_mapping(node, deep)

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """Refuse what only looks like a date or a number, and numbers that look like others."""
        try:
            value = super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, TypeError, ArithmeticError) as error:
            raise _refused(node, f"{short(node.value)} cannot be read: {error}") from error
        if type(value) in (int, float) and not node.style and _ODD_NUMBER.fullmatch(node.value):
            what = f"YAML reads {node.value:.80} as the number {value}"
            raise _refused(node, f"{what}; write that, or put it in quotes if it is a text")
        return value


def _refused(at: Any, what: str) -> yaml.YAMLError:
    return yaml.MarkedYAMLError(problem=what, problem_mark=at.start_mark)


def _problem(error: Any, text: str) -> str:
    """Where a text is not such data, and what is wrong there."""
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, error.position) + 1
        return f"line {line}: holds the character {chr(error.character)!r}, which no text has"
    at = error.problem_mark.line + 1
    if "\\t" in error.problem:
        return f"line {at}: holds a tab, which YAML does not allow here; indent with spaces"
    what = one_line(f"{error.problem:.300}")
    begins = error.context_mark.line + 1 if error.context_mark else at
    if begins != at:
        what += f" ({error.context:.300} that begins in line {begins})"
    return f"line {at}: {what}"

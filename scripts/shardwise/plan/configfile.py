"""A config file is data: keys and values, each key once, no tags, no aliases, no templates.

Snakemake reads the same files with its own loader. That takes the last of two equal keys without a
word, takes 010 for 8, and runs a file as a template, expressions in Python included, where the file
asks for it. So whatever Snakemake has read is read again here, before any job, and refused where it
is more than data, or something else than it looks.
"""

import json
import re
import stat
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml

from shardwise.errors import InputError, one_line, short

_TEMPLATE = "__use_yte__"
"""The key by which a file asks Snakemake to run it as a template of YTE."""

_MOST_BYTES = 1024**2
_DEEPEST = 16
_MERGE = "tag:yaml.org,2002:merge"
_UNREADABLE = (ValueError, LookupError, AttributeError, TypeError, ArithmeticError)
"""What PyYAML's own conversions raise, such as that of 2024-13-45 to a date."""

_ODD_NUMBERS = {
    "octal": re.compile(r"[-+]?0[0-7_]+"),
    "base 60": re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?"),
}
"""Ways to write a number that YAML 1.1 has and no user means."""


def read(file: Path) -> dict[str, Any]:
    """The keys and values of a config file, in YAML or JSON.

    Raises
    ------
    InputError
        Where it cannot be read, or is more than data; with the line, and what to do.
    """
    text = _text(file)
    try:
        loader = _Loader(text, file)
        node = loader.get_single_node()
        content = loader.construct_document(node) if node else None
    except yaml.YAMLError as error:
        content = _json(text, file)  # JSON may be indented with tabs, as YAML may not
        if content is None:
            raise InputError(f"config file {file}, {_told(error, text)}") from error
        node = None
    if content is None:
        raise InputError(
            f"config file {file}, line 1: is empty; write the keys that differ from config.yaml, "
            "or leave the file out"
        )
    if not isinstance(content, dict):
        line = f", line {node.start_mark.line + 1}" if node else ""
        kind = "a list" if isinstance(content, list) else "a single value"
        raise InputError(
            f"config file {file}{line}: holds {kind}; it must hold keys and values, like "
            "config.yaml"
        )
    if _TEMPLATE in content:
        raise InputError(
            f"config file {file}: {_TEMPLATE} asks Snakemake to run the file as a template, which "
            "can run any code. A config is data here: write the values out, and remove the key"
        )
    return content


def _text(file: Path) -> str:
    try:
        if not stat.S_ISREG(file.stat().st_mode):  # a pipe was emptied by Snakemake
            raise InputError(f"config file {file}: is not a file; write the config to one")
        with open(file, "rb") as opened:
            raw = opened.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        raise InputError(
            f"config file {file}: does not exist ({file.absolute()}); correct the name, or run "
            "from the folder that it counts from"
        ) from None
    except OSError as error:
        raise InputError(f"config file {file}: cannot be read: {error.strerror}") from error
    if len(raw) > _MOST_BYTES:
        raise InputError(
            f"config file {file}: has more than {_MOST_BYTES} bytes; it cannot be a config"
        )
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"config file {file}, line {line}: is not UTF-8 (byte 0x{raw[error.start]:02x}); save "
            "it as UTF-8"
        ) from error


class _Loader(yaml.SafeLoader):
    """PyYAML's loader of plain data, which takes no tag, alias, merge, or key that stands twice.

    A tag can name a type of Python. A few aliases of aliases can stand for more values than any
    memory holds.
    """

    def __init__(self, text: str, file: Path) -> None:
        self._file, self._depth, self._keys = file, 0, [""]
        super().__init__(text)

    def _refuse(self, line: int, what: str) -> NoReturn:
        raise InputError(f"config file {self._file}, line {line + 1}: {what}")

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """The next node of the file, if it is data."""
        event = self.peek_event()  # type: ignore[no-untyped-call]  # so are its stubs
        line = event.start_mark.line
        if isinstance(event, yaml.AliasEvent):
            self._refuse(
                line, f"the alias *{event.anchor:.80} is not allowed; write the value itself"
            )
        if event.tag:
            self._refuse(
                line, f"the tag {event.tag:.80} is not allowed; write the value alone, in quotes "
                "if it is a text that begins with !"
            )  # fmt: skip
        self._depth += 1
        if self._depth > _DEEPEST:
            self._refuse(line, "is nested too deeply for a config")
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Keys and values, if each key is a word that stands once."""
        lines: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line
            if key.tag == _MERGE:
                self._refuse(line, "<< is not allowed; write the keys")
            if not isinstance(key, yaml.ScalarNode):
                self._refuse(line, "a key must be a single word")
            if key.value in lines:
                raise InputError(
                    f"config file {self._file}: the key {key.value:.80} stands in line "
                    f"{lines[key.value] + 1} and again in line {line + 1}; keep one of them"
                )
            lines[key.value] = line
        return {
            self.construct_object(key): self._value_of(key.value, value)
            for key, value in node.value
        }

    def _value_of(self, key: str, node: yaml.Node) -> Any:
        """A value, all that lies within it included; messages name it by its key."""
        outer = self._keys[-1]
        self._keys.append(f"{outer}.{key}" if outer else key)
        value = self.construct_object(node, deep=True)
        self._keys.pop()
        return value

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """The value of a node, if it is the one that a reader sees there."""
        try:
            value = super().construct_object(node, deep)
        except _UNREADABLE as error:
            self._refuse(node.start_mark.line, f"{short(node.value)} cannot be read: {error}")
        if isinstance(node, yaml.ScalarNode) and node.style is None and type(value) in (int, float):
            self._refuse_odd(node, value)
        return value

    def _refuse_odd(self, node: yaml.ScalarNode, value: float) -> None:
        text = node.value
        for kind, pattern in _ODD_NUMBERS.items():
            if pattern.fullmatch(text):
                other = f'"{text}" if it is a text'
                if kind == "octal":
                    other = re.sub("^([-+]?)0+(?=.)", r"\1", text.replace("_", ""))
                self._refuse(
                    node.start_mark.line,
                    f"{self._keys[-1] or 'a key'}: YAML reads {text:.80} as the number {value} "
                    f"({kind}); write {value}, or {other:.100}",
                )


def _told(error: yaml.YAMLError, text: str) -> str:
    """Where a text is no YAML, and what stands there."""
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, error.position) + 1
        return f"line {line}: holds the character {chr(error.character)!r}, which no text has"
    if not isinstance(error, yaml.MarkedYAMLError):
        return f"line 1: cannot be read: {one_line(f'{error!s:.500}')}"
    mark = error.problem_mark or error.context_mark
    at = mark.line + 1 if mark else 1
    if "\\t" in (error.problem or ""):
        what = "holds a tab, which YAML does not take here; indent with spaces"
    else:
        what = one_line(f"{error.problem or error.context:.300}")
    begins = error.context_mark.line + 1 if error.context_mark else at
    if begins != at and error.context:
        what += f" ({error.context:.300} that begins in line {begins})"
    return f"line {at}: {what}"


def _json(text: str, file: Path) -> Any:
    """The content of a file in JSON, None where it is none."""

    def once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        if twice := sorted(name for name, n in Counter(n for n, _ in pairs).items() if n > 1):
            raise InputError(f"config file {file}: the key {twice[0]:.80} stands there twice")
        return dict(pairs)

    try:
        return json.loads(text, object_pairs_hook=once)
    except (ValueError, RecursionError):
        return None

"""A config file is data: keys and values, each key once, no tags, no aliases, no templates.

Snakemake reads the same files with its own loader. That takes the last of two equal keys without a
word, and runs a file as a template, expressions in Python included, where the file asks for it. So
whatever Snakemake has read is read again here, before any job, and refused where it is more than
data.
"""

import json
import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from shardwise.errors import InputError

_TEMPLATE = "__use_yte__"
"""The key by which a file asks Snakemake to run it as a template of YTE."""

_MOST_BYTES = 1024**2
_DEEPEST = 16
_UNREADABLE = (ValueError, LookupError, AttributeError, TypeError, ArithmeticError)
"""What PyYAML's own conversions raise, such as that of 2024-13-45 to a date."""

_MERGE = "tag:yaml.org,2002:merge"


def read(file: Path) -> dict[str, Any]:
    """The keys and values of a config file, in YAML or JSON.

    Raises
    ------
    InputError
        Where it cannot be read, or is more than data; with the line, and what to do.
    """
    import yaml  # here: jobs read no config file

    text = _text(file)
    try:
        _refuse_code(yaml.parse(text, yaml.SafeLoader), file)
        node = yaml.compose(text, yaml.SafeLoader)
        _refuse_twice(node, file)
        content = yaml.safe_load(text)
    except (yaml.YAMLError, *_UNREADABLE) as error:
        content = _json(text, file)  # JSON may be indented with tabs, as YAML may not
        if content is None:
            raise InputError(f"config file {file}: cannot be read: {error!s:.500}") from error
    if not isinstance(content, dict):
        raise InputError(f"config file {file}: must hold keys and values, like config.yaml")
    if _TEMPLATE in content:
        raise InputError(
            f"config file {file}: {_TEMPLATE} asks Snakemake to run the file as a template, which "
            "can run any code. A config is data here: write the values out, and remove the key"
        )
    return content


def _text(file: Path) -> str:
    try:
        if not stat.S_ISREG(os.stat(file).st_mode):  # a pipe was emptied by Snakemake
            raise InputError(f"config file {file}: is not a file; write the config to one")
        with open(file, "rb") as opened:
            raw = opened.read(_MOST_BYTES + 1)
        if len(raw) > _MOST_BYTES:
            raise InputError(
                f"config file {file}: has more than {_MOST_BYTES} bytes; it cannot be a config"
            )
        return raw.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"config file {file}: cannot be read: {error}") from error


def _refuse_code(events: Iterator[Any], file: Path) -> None:
    """Refuse what makes more of a text than keys and values: tags, aliases, endless nesting.

    A tag can name a type of Python. A few aliases of aliases can stand for more values than any
    memory holds.
    """
    import yaml

    depth = 0
    for event in events:
        line = event.start_mark.line + 1
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise InputError(f"config file {file}, line {line}: is nested too deeply for a config")
        if isinstance(event, yaml.AliasEvent):
            raise InputError(
                f"config file {file}, line {line}: the alias *{event.anchor:.80} is not allowed; "
                "write the value itself"
            )
        if getattr(event, "tag", None):
            raise InputError(
                f"config file {file}, line {line}: the tag {event.tag:.80} is not allowed; write "
                "the value alone, in quotes if it is a text that begins with !"
            )


def _refuse_twice(node: Any, file: Path) -> None:
    """Refuse a key that stands twice in one mapping, at any depth."""
    import yaml

    if isinstance(node, yaml.SequenceNode):
        for value in node.value:
            _refuse_twice(value, file)
    if not isinstance(node, yaml.MappingNode):
        return
    lines: dict[Any, int] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if key.tag == _MERGE:
            raise InputError(f"config file {file}, line {line}: << is not allowed; write the keys")
        if not isinstance(key, yaml.ScalarNode):
            raise InputError(f"config file {file}, line {line}: a key must be a single word")
        if key.value in lines:
            raise InputError(
                f"config file {file}: the key {key.value:.80} stands in line {lines[key.value]} "
                f"and again in line {line}; keep one of them"
            )
        lines[key.value] = line
        _refuse_twice(value, file)


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

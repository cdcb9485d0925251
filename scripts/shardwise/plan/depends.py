"""Files that a user's function imports or reads: part of the key, where the config lists them."""

import ast
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from shardwise.errors import InputError, IntegrityError, some
from shardwise.files.lookup import absent
from shardwise.files.small import refuse_special


def digests(paths: Iterable[str]) -> dict[str, str]:
    """A digest of the content of each file, by its path; InputError where one cannot be read."""
    return {path: _digest(Path(path)) for path in paths}


def _digest(path: Path) -> str:
    try:
        refuse_special(path, "depends: ")
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:32]
    except FileNotFoundError as error:
        raise InputError(f"depends: {absent(path)}") from error
    except OSError as error:
        raise InputError(f"depends: {path} cannot be read: {error.strerror}") from error


def check(planned: Mapping[str, str]) -> None:
    """Refuse files that are not those that the plan was made for."""
    changed = [path for path, digest in digests(planned).items() if digest != planned[path]]
    if changed:
        raise IntegrityError(
            f"{some(changed, 5)} has changed since the plan was made; run snakemake again"
        )


def unlisted(file: str, source: bytes, listed: Iterable[str]) -> str:
    """What to tell of the files that a function's file names but the config does not, if any."""
    known = {os.path.realpath(path) for path in (file, *listed)}
    named = dict.fromkeys(p for p in _named(file, source) if os.path.realpath(p) not in known)
    if not named:
        return ""
    return (
        f"product: {file} names {some(list(named), 5)}: after a change there no shard is computed "
        f"again, unless you add to the config: depends: [{', '.join([*listed, *named])}]"
    )


def _named(file: str, source: bytes) -> Iterator[str]:
    """Files from here, or beside a file of Python, that its texts and imports name."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError):  # the trial of the function says it
        return
    folder = os.path.dirname(file)
    for node in nodes:
        names = []
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value, os.path.join(folder, node.value)]
        elif isinstance(node, ast.Import | ast.ImportFrom):
            outer = [module] if (module := getattr(node, "module", None)) else []
            inner = [".".join([*outer, alias.name]) for alias in node.names]
            stems = [os.path.join(folder, *each.split(".")) for each in [*outer, *inner]]
            names = [f"{stem}{end}" for stem in stems for end in (".py", "/__init__.py")]
        yield from filter(os.path.isfile, names)

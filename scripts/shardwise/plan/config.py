"""The only reader of the configuration: files, schema, defaults, and messages about keys.

Nothing but the standard library is imported before a config is read: jobs only ask for the results
folder, and the doctor also runs where a package is missing.
"""

import difflib
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Any

from shardwise import host
from shardwise.errors import InputError, one_line, short
from shardwise.host import PROJECT
from shardwise.plan.problem import Recipe, check_statistics, function_parts
from shardwise.units import parse_bytes

SCHEMA = PROJECT / "workflow" / "schemas" / "config.schema.yaml"
PRODUCTS = ("A @ A", "A.T @ A", "A @ A.T", "A @ B")
DEFAULT_RESULTS = "results/default"  # as the schema has it, for jobs, which do not read the schema
# Keys that no plan depends on.
NO_PLAN = ("reduce", "dispatch", "workers", "array_tasks", "array_limit")
_MOST_NUMBER = 10**40
_MOST_NAMED = 20
_MOST_BYTES = 1024**2
_DEEPEST = 16
_TEMPLATE = "__use_yte__"  # the key by which a file asks Snakemake to run it as a template of YTE
_TYPES = {
    "string": "a string",
    "integer": "a whole number",
    "boolean": "true or false",
    "null": "null",
    "object": "a mapping of keys",
    "array": "a list",
}
_ADDRESS = re.compile(r"\s*([A-Za-z][A-Za-z0-9+-]*)://(.*)", re.DOTALL)
# Ways to write a number that YAML 1.1 has and no user means.
_ODD_NUMBERS = {
    "octal": re.compile(r"[-+]?0[0-7_]+"),
    "base 60": re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?"),
}


@dataclass(frozen=True)
class Settings:
    """A checked configuration, defaults filled in; sizes in bytes."""

    input: str | None
    synthetic: Recipe
    right: str | None
    product: str
    results: str
    shards: int | str
    shard_bytes: int
    materialize: bool | str
    keep: str
    dispatch: str
    workers: str
    array_tasks: int | str
    array_limit: int | None
    reproducible: bool
    backend: str
    precision: str
    verify: bool
    nonfinite: str
    reduce: dict[str, Any]


# What a config says, without checking it.


def results_folder(config: Mapping[str, Any]) -> str:
    """The results folder that a configuration names."""
    return str(config.get("results", DEFAULT_RESULTS))


def reduce_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the reduce, which are no part of a plan; the config has been checked."""
    return {"ranks": 2, "statistics": ["sum"]} | dict(config.get("reduce") or {})


def dispatch_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Who runs the shards, which is no part of a plan either; the config has been checked."""
    defaults = {
        "dispatch": "jobs", "workers": "device", "array_tasks": "auto", "array_limit": None
    }  # fmt: skip
    return {key: config.get(key, default) for key, default in defaults.items()}


# The results folder of a command.


def folder_of_run(files: list[Path] | None, results: Path | str | None) -> Path:
    """The results folder for who does something to a run, or judges it: never one that was guessed.

    ``results`` comes before that of the config files; where these are None, ``config.yaml`` of this
    folder counts, if there is one. Raises InputError where a config has to name the folder, and
    cannot be read or is wrong.
    """
    if results:
        return Path(results)
    files = config_files(files)
    try:
        return Path(load(read_files(files)).results if files else DEFAULT_RESULTS)
    except InputError as error:
        why = f"{error} (correct it)"
    except ImportError as error:  # a package is missing
        why = f"{', '.join(map(str, files))} cannot be read: {error} ({host.install()})"
    raise InputError(f"no results folder: {why}; or name the folder on the command line")


def existing_folder(files: list[Path] | None, results: Path | str | None) -> Path:
    """As :func:`folder_of_run`, for who looks at a run; refused where the folder is missing."""
    root = folder_of_run(files, results)
    if not root.is_dir():
        raise InputError(
            f"{root}: there is no such folder; start the run first, or name its results folder"
        )
    return root


def config_files(files: list[Path] | None) -> list[Path]:
    """Config files that a command names; where it names none, ``config.yaml`` if it is there."""
    shipped = Path("config.yaml")
    return files if files is not None else [shipped] if shipped.exists() else []


# Config files.


def read_files(files: list[Path]) -> dict[str, Any]:
    """Merge config files in order, later ones over earlier ones, as Snakemake does.

    Raises InputError as :func:`read_file`.
    """
    merged: dict[str, Any] = {}
    for file in files:
        for key, value in read_file(file).items():  # no key of the schema lies deeper than this
            both = isinstance(value, dict) and isinstance(merged.get(key), dict)
            merged[key] = {**merged[key], **value} if both else value
    return merged


def read_file(file: Path) -> dict[str, Any]:
    """The keys and values of a config file: data, each key once, nothing else.

    Snakemake reads the same files with its own loader. That takes the last of two equal keys
    without a word, takes 010 for 8, and runs a file as a template where the file asks for it. So
    what Snakemake has read is read again here, before any job. Raises InputError where it cannot be
    read, or holds tags, aliases, merges or equal keys; with the line, and what to do.
    """
    import yaml

    text, line = _text(file), ""
    try:
        _refuse_references(text, file)
        node = yaml.compose(text, yaml.SafeLoader)
        content = _value(node, "", file) if node else None
        line = f", line {node.start_mark.line + 1}" if node else ""
    except yaml.YAMLError as error:
        raise InputError(f"config file {file}, {_yaml_problem(error, text)}") from error
    return _mapping(content, file, line)


def _mapping(content: Any, file: Path, line: str) -> dict[str, Any]:
    """The content of a config file, refused where it is not keys and values."""
    if content is None:
        raise InputError(
            f"config file {file}, line 1: is empty; write the keys that differ from config.yaml, "
            "or leave the file out"
        )
    if not isinstance(content, dict):
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
            raise InputError(f"config file {file} is not a file; write the config to one")
        with open(file, "rb") as opened:
            raw = opened.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        raise InputError(
            f"config file {file} does not exist ({file.absolute()}); correct the name, or run "
            "where that path leads to it"
        ) from None
    except OSError as error:
        raise InputError(f"config file {file} cannot be read: {error.strerror}") from error
    if len(raw) > _MOST_BYTES:
        raise InputError(
            f"config file {file} has more than {_MOST_BYTES} bytes; it cannot be a config"
        )
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"config file {file}, line {line}: is not UTF-8 (byte 0x{raw[error.start]:02x}); save "
            "it as UTF-8"
        ) from error


def _refused(file: Path, mark: Any, what: str) -> InputError:
    return InputError(f"config file {file}, line {mark.line + 1}: {what}")


def _refuse_references(text: str, file: Path) -> None:
    """Refuse tags, which can name Python types, and aliases, of which a few can fill any memory."""
    import yaml

    depth = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            what = f"the alias *{event.anchor:.80} is not allowed; write the value itself"
            raise _refused(file, event.start_mark, what)
        if tag := getattr(event, "tag", None):
            what = f"the tag {tag:.80} is not allowed; write the value alone, in quotes if it is a "
            raise _refused(file, event.start_mark, what + "text that begins with !")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise _refused(file, event.start_mark, "is nested too deeply for a config")


def _value(node: Any, key: str, file: Path) -> Any:
    """The value of a YAML node; messages name it by its key."""
    import yaml

    if isinstance(node, yaml.SequenceNode):
        return [_value(item, key, file) for item in node.value]
    if isinstance(node, yaml.MappingNode):
        values: dict[Any, Any] = {}
        lines: dict[str, int] = {}
        for name, value in node.value:
            _refuse_key(name, lines, file)
            path = f"{key}.{name.value}" if key else name.value
            values[_value(name, key, file)] = _value(value, path, file)
        return values
    try:
        value = yaml.constructor.SafeConstructor().construct_object(node)
    except (ValueError, LookupError, AttributeError, TypeError, ArithmeticError) as error:
        what = f"{short(node.value)} cannot be read: {error}"
        raise _refused(file, node.start_mark, what) from error
    if node.style is None and type(value) in (int, float):
        _refuse_odd(node, key, value, file)
    return value


def _refuse_key(name: Any, lines: dict[str, int], file: Path) -> None:
    """Refuse what is no key, and a key that stands in one of these lines already."""
    line = name.start_mark.line + 1
    if name.tag == "tag:yaml.org,2002:merge":
        raise _refused(file, name.start_mark, "<< is not allowed; write the keys")
    if not isinstance(name.value, str):
        raise _refused(file, name.start_mark, "a key must be a single word")
    if name.value in lines:
        raise InputError(
            f"config file {file}: the key {name.value:.80} stands in line {lines[name.value]} and "
            f"again in line {line}; keep one of them"
        )
    lines[name.value] = line


def _refuse_odd(node: Any, key: str, value: float, file: Path) -> None:
    """Refuse a number that is another than it looks."""
    text = node.value
    for kind, pattern in _ODD_NUMBERS.items():
        if pattern.fullmatch(text):
            other = f'"{text}" if it is a string'
            if kind == "octal":
                other = re.sub("^([-+]?)0+(?=.)", r"\1", text.replace("_", ""))
            what = (
                f"{key or 'a key'}: YAML reads {text:.80} as the number {value} ({kind}); write "
                f"{value}, or {other:.100}"
            )
            raise _refused(file, node.start_mark, what)


def _yaml_problem(error: Any, text: str) -> str:
    """Where a text is no YAML, and what stands there."""
    import yaml

    if isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, error.position) + 1
        return f"line {line}: holds the character {chr(error.character)!r}, which no text has"
    if not isinstance(error, yaml.MarkedYAMLError):
        return f"line 1: cannot be read: {one_line(f'{error!s:.500}')}"
    mark = error.problem_mark or error.context_mark
    at = mark.line + 1 if mark else 1
    if "\\t" in (error.problem or ""):
        what = "holds a tab, which YAML does not allow here; indent with spaces"
    else:
        what = one_line(f"{error.problem or error.context:.300}")
    begins = error.context_mark.line + 1 if error.context_mark else at
    if begins != at and error.context:
        what += f" ({error.context:.300} that begins in line {begins})"
    return f"line {at}: {what}"


# Keys and values.


def load(config: Mapping[str, Any]) -> Settings:
    """Check a merged configuration and fill in the defaults.

    Raises InputError with a line for each key that is unknown, of the wrong type, or out of range.
    """
    _refuse_huge(config)
    schema = _schema()
    full: dict[str, Any] = {}
    problems = [line for e in _validator().iter_errors(dict(config)) for line in _explain(e)]
    if not problems:
        full = _with_defaults(config, schema)
        problems = [*_contradictions(full)]
    if problems:
        more = len(problems) - _MOST_NAMED
        lines = [*problems[:_MOST_NAMED], *([f"… and {more} more"] if more > 0 else [])]
        raise InputError("config: " + "\n        ".join(lines))
    return Settings(**{**full, "shard_bytes": parse_bytes(full["shard_bytes"])})


@lru_cache(1)
def _schema() -> dict[str, Any]:
    import yaml

    schema: dict[str, Any] = yaml.safe_load(SCHEMA.read_text())
    return schema


@lru_cache(1)
def _validator() -> Any:
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    # JSON Schema counts 4.0 as an integer; a number of shards is none.
    whole = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, v: type(v) is int)
    kind: Any = extend(Draft202012Validator, type_checker=whole)  # type: ignore[no-untyped-call]
    return kind(_schema())


def _refuse_huge(config: Mapping[str, Any]) -> None:
    """Refuse a number that is too long to be shown: Python prints no more than 4,300 digits."""
    values: list[Any] = [config]
    for value in values:  # which grows meanwhile
        if isinstance(value, Mapping):
            values += [*value, *value.values()]
        elif isinstance(value, list):
            values += value
        elif isinstance(value, int) and abs(value) >= _MOST_NUMBER:
            raise InputError("config: holds a number of more than 40 digits, and no key needs one")


def _with_defaults(config: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    full = {}
    for key, rule in schema["properties"].items():
        value = config.get(key, rule.get("default"))
        full[key] = _with_defaults(value, rule) if "properties" in rule else value
    return full


def _explain(error: Any) -> list[str]:
    """The lines that say what stands at one key, and what is allowed there."""
    key = ".".join(str(part) for part in error.absolute_path)
    rule, value = error.schema, error.instance
    if error.validator == "additionalProperties":
        allowed_keys = list(rule["properties"])
        prefix = key + "." if key else ""
        return [_unknown_key(prefix, str(k), allowed_keys) for k in value if k not in allowed_keys]
    limit = rule[error.validator]
    limits = limit if isinstance(limit, list) else [limit]
    allowed = {
        "enum": f"one of {', '.join(n if isinstance(n, str) else _shown(n) for n in limits)}",
        "oneOf": "auto or a whole number, 1 or more",
        "type": " or ".join(_TYPES.get(str(name), "") for name in limits),
        "minimum": f"{limit} or more",
        "maximum": f"{limit} or less",
        "minLength": "a non-empty string",
        "minItems": "a non-empty list",
        "uniqueItems": "a list without duplicates",
    }[error.validator]
    return [f"{key}: {_shown(value)} is not allowed; it must be {allowed}{_quotes(value, allowed)}"]


def _shown(value: Any) -> str:
    """A value as YAML has it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return value.isoformat() if isinstance(value, date) else short(value)


def _quotes(value: Any, allowed: str) -> str:
    """What quotes would change, where a text was meant, or a number."""
    if isinstance(value, str) and "number" in allowed and re.fullmatch("[0-9]+", value):
        return ": write it without quotes"
    texts_only = "a string" in allowed and "number" not in allowed
    if not texts_only or not isinstance(value, bool | int | float | date):
        return ""
    reason = "YAML reads yes, no, on and off as true or false; " if type(value) is bool else ""
    return f": {reason}write it in quotes"


def _unknown_key(prefix: str, key: str, keys: list[str]) -> str:
    near = difflib.get_close_matches(key, keys, n=1)
    hint = f"did you mean {prefix}{near[0]}?" if near else "known keys: " + ", ".join(keys)
    return f"{prefix}{key:.80}: unknown key; {hint}"


def _contradictions(full: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with a config whose types and ranges are right."""
    product = full["product"]
    yield from _product_problems(product, full["reproducible"])
    if product == "A @ B" and full["right"] is None:
        yield "right: the product A @ B needs it; name the .npy file of B"
    if product != "A @ B" and full["right"] is not None:
        yield f"right: the product {product:.200} has no B; remove it, or use A @ B"
    for key in ("input", "right", "product", "results"):
        yield from _path_problems(key, str(full[key]))
    try:
        parse_bytes(full["shard_bytes"])
    except ValueError as error:
        yield f"shard_bytes: {error}"
    try:
        check_statistics(full["reduce"]["statistics"], full["keep"])
    except InputError as error:
        yield str(error)


def _product_problems(product: str, reproducible: bool) -> Iterator[str]:
    if function_parts(product):
        if not reproducible:
            yield (
                "reproducible: false has no meaning for a function of your own: it lets sums "
                "accumulate inside the GEMM, and there is none; use true"
            )
    elif ".py" in product:
        yield f"product: {short(product)} names no function; write it as path/to/file.py:function"
    elif product not in PRODUCTS:
        near = difflib.get_close_matches(product, PRODUCTS, n=1)
        hint = f"did you mean {near[0]}? Known are" if near else "use one of"
        choices = f"{', '.join(PRODUCTS)}, or a function of your own, file.py:function"
        yield f"product: {short(product)}: unknown product; {hint} {choices}"


def _path_problems(key: str, text: str) -> Iterator[str]:
    if text.startswith("~"):
        yield f"{key}: {text:.200} begins with ~, which is not expanded here; write the whole path"
    if address := _ADDRESS.fullmatch(text):
        if address[1].lower() == "file":
            yield f"{key}: {text:.200} is an address; write the path alone: {address[2]:.200}"
        else:
            yield (
                f"{key}: {text:.200} is an address, but Shardwise reads and writes files only; "
                "copy it to a disk or mount it, and write its path"
            )
    if "\0" in text:
        yield f"{key}: {short(text)} holds a character that no file name can have"
    try:
        text.encode()
    except UnicodeEncodeError:
        yield f"{key}: {short(text)} is not UTF-8 text; rename the file or folder"

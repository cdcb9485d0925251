"""The only reader of the configuration: schema, defaults, and messages about keys."""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Any

from shardwise.errors import InputError, short
from shardwise.plan.problem import Recipe, check_statistics, function_parts
from shardwise.units import parse_bytes

SCHEMA = Path(__file__).parents[3] / "workflow" / "schemas" / "config.schema.yaml"
PRODUCTS = ("A @ A", "A.T @ A", "A @ A.T", "A @ B")
_MOST_VALUES = 10_000
_MOST_NUMBER = 10**40
_MOST_NAMED = 20
DEFAULT_RESULTS = "results/default"
"""As the schema has it, for jobs, which do not read the schema."""

NO_PLAN = ("reduce", "dispatch", "workers", "array_limit")
"""Keys that no plan depends on."""

_ADDRESS = re.compile(r"\s*([A-Za-z][A-Za-z0-9+-]*)://(.*)", re.DOTALL)


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
    materialize: bool
    keep: str
    dispatch: str
    workers: str
    array_limit: int | None
    reproducible: bool
    backend: str
    precision: str
    verify: bool
    nonfinite: str
    reduce: dict[str, Any]


def results_folder(config: Mapping[str, Any]) -> str:
    """The results folder that a configuration names, without checking anything else."""
    return str(config.get("results", DEFAULT_RESULTS))


def folder_of_run(files: list[Path] | None, results: Path | str | None) -> Path:
    """The results folder for who does something to a run, or judges it: never one that was guessed.

    Parameters
    ----------
    files
        Config files; None: ``config.yaml`` of this folder, where there is one.
    results
        A results folder that comes before that of the config.

    Raises
    ------
    InputError
        Where the config has to name the folder, and cannot be read or is wrong.
    """
    if results:
        return Path(results)
    files = config_files(files)
    try:
        return Path(load(read_files(files)).results if files else DEFAULT_RESULTS)
    except InputError as error:
        why = f"{error} (correct it)"
    except ImportError as error:  # a package is missing
        why = f"{', '.join(map(str, files))} cannot be read: {error} (make install)"
    raise InputError(f"no results folder: {why}; or name the folder on the command line")


def existing_folder(files: list[Path] | None, results: Path | str | None) -> Path:
    """The results folder for who looks at a run: as `folder_of_run` has it, and there already.

    Raises
    ------
    InputError
        Where there is none.
    """
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


def reduce_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the reduce, which are no part of a plan; the config has been checked."""
    return {"ranks": 2, "statistics": ["sum"]} | dict(config.get("reduce") or {})


def dispatch_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Who runs the shards, which is no part of a plan either; the config has been checked."""
    defaults = {"dispatch": "jobs", "workers": "device", "array_limit": None}
    return {key: config.get(key, default) for key, default in defaults.items()}


def load(config: Mapping[str, Any]) -> Settings:
    """Check a configuration and fill in the defaults.

    Parameters
    ----------
    config
        The merged mapping, as Snakemake or :func:`read_files` provides it.

    Raises
    ------
    InputError
        With one line for each key that is unknown, of the wrong type, or out of range.
    """
    import yaml  # here: tasks ask this module for the parts of a product, and read no YAML

    _refuse_huge(config)
    schema = _schema(yaml)
    problems = _schema_problems(config, schema)
    if not problems:
        full = _with_defaults(config, schema)
        problems = _contradictions(full)
    if problems:
        more = len(problems) - _MOST_NAMED
        told = [*problems[:_MOST_NAMED], *([f"… and {more} more"] if more > 0 else [])]
        raise InputError("config: " + "\n        ".join(told))
    full["shard_bytes"] = parse_bytes(full["shard_bytes"])
    return Settings(**full)


@lru_cache(1)
def _schema(yaml: Any) -> dict[str, Any]:
    schema: dict[str, Any] = yaml.safe_load(SCHEMA.read_text())
    return schema


def read_files(files: list[Path]) -> dict[str, Any]:
    """Merge config files in order, later ones over earlier ones, as Snakemake does.

    Raises
    ------
    InputError
        As :func:`configfile.read`.
    """
    from shardwise.plan import configfile  # here: jobs read no config file, and no YAML

    merged: dict[str, Any] = {}
    for file in files:
        _merge(merged, configfile.read(file))
    return merged


def _merge(base: dict[str, Any], over: Mapping[str, Any]) -> None:
    """Put a config over another; no key of the schema lies deeper than in a mapping."""
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(base.get(key), dict)
        base[key] = {**base[key], **value} if both else value


def _refuse_huge(config: Mapping[str, Any]) -> None:
    """Refuse a config whose aliases (``*name``) make a small file a huge or endless tree.

    And one with a number that is too long to be told of: Python prints no more than 4,300 digits.
    """
    left: list[Any] = [config]
    for _ in range(_MOST_VALUES):
        if not left:
            return
        value = left.pop()
        if isinstance(value, Mapping):
            left += [*value, *value.values()]
        elif isinstance(value, list | tuple | set):
            left += value
        elif isinstance(value, int) and abs(value) >= _MOST_NUMBER:
            raise InputError("config: holds a number of more than 40 digits, and no key needs one")
    raise InputError(f"config: holds more than {_MOST_VALUES} values; write each key once")


def _with_defaults(config: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    full = {}
    for key, rule in schema["properties"].items():
        value = config.get(key, rule.get("default"))
        full[key] = _with_defaults(value, rule) if "properties" in rule else value
    return full


def _schema_problems(config: Mapping[str, Any], schema: Mapping[str, Any]) -> list[str]:
    errors = _validator()(schema).iter_errors(dict(config))
    return [line for error in errors for line in _explain(error)]


@lru_cache(1)
def _validator() -> Any:
    # Imported here: job processes read the results folder from the config and check nothing.
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    # JSON Schema counts 4.0 as an integer; a number of shards is none.
    whole = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, v: type(v) is int)
    return extend(Draft202012Validator, type_checker=whole)  # type: ignore[no-untyped-call]  # so are its stubs


def _explain(error: Any) -> list[str]:
    """The lines that say what was found at one key, and what is allowed there."""
    key = ".".join(str(part) for part in error.absolute_path)
    rule = error.schema
    if error.validator == "additionalProperties":
        known = list(rule["properties"])
        prefix = key + "." if key else ""
        return [_unknown(prefix, str(k), known) for k in error.instance if k not in known]
    if error.validator == "enum":
        allowed = "one of " + ", ".join(map(str, rule["enum"]))
    elif error.validator == "oneOf":
        allowed = "auto or a whole number, 1 or more"
    elif error.validator == "type":
        allowed = _type_names(rule["type"])
    elif error.validator == "minimum":
        allowed = f"{rule['minimum']} or more"
    elif error.validator in ("minLength", "minItems"):
        allowed = "not empty"
    elif error.validator == "maximum":
        allowed = f"{rule['maximum']} or less"
    elif error.validator == "uniqueItems":
        allowed = "a list that names nothing twice"
    else:
        allowed = f"{error.message:.200}"
    found = error.instance
    return [f"{key}: {_shown(found)} is not allowed; it must be {allowed}{_quotes(found, allowed)}"]


def _shown(value: Any) -> str:
    """A value as YAML has it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return value.isoformat() if isinstance(value, date) else short(value)


def _quotes(found: Any, allowed: str) -> str:
    """What quotes would change, where a text was meant, or a number."""
    if isinstance(found, str) and "number" in allowed and re.fullmatch("[0-9]+", found):
        return ": write it without quotes"
    texts_only = "a text" in allowed and "number" not in allowed
    if not texts_only or not isinstance(found, bool | int | float | date):
        return ""
    reason = "YAML takes yes, no, on and off for true and false; " if type(found) is bool else ""
    return f": {reason}write it in quotes"


def _type_names(types: str | list[str]) -> str:
    names = {
        "string": "a text",
        "integer": "a whole number",
        "boolean": "true or false",
        "null": "null",
        "object": "a mapping of keys",
        "array": "a list",
    }
    return " or ".join(names[t] for t in ([types] if isinstance(types, str) else types))


def _unknown(prefix: str, key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {prefix}{near[0]}?" if near else "known keys: " + ", ".join(known)
    return f"{prefix}{key:.80}: unknown key; {hint}"


def _product_problems(full: Mapping[str, Any]) -> list[str]:
    product = full["product"]
    if function_parts(product):
        if full["reproducible"]:
            return []
        return [
            "reproducible: false has no meaning for a function of your own: it lets sums "
            "accumulate inside the GEMM, and there is none; use true"
        ]
    if product in PRODUCTS:
        return []
    if ".py" in product:
        return [
            f"product: {short(product)} names no function; write it as path/to/file.py:function"
        ]
    near = difflib.get_close_matches(product, PRODUCTS, n=1)
    hint = f"did you mean {near[0]}? Known are" if near else "use one of"
    known = f"{', '.join(PRODUCTS)}, or a function of your own, file.py:function"
    return [f"product: {short(product)}: unknown product; {hint} {known}"]


def _name_problems(key: str, name: str) -> list[str]:
    if "\0" in name:
        return [f"{key}: {short(name)} holds a character that no file name can have"]
    try:
        name.encode()
    except UnicodeEncodeError:
        return [f"{key}: {short(name)} is not UTF-8 text; rename the file or folder"]
    return []


def _address_problem(key: str, text: str) -> str:
    """Why an address, such as ``s3://bucket/a.npy``, cannot be used; empty where it is none."""
    address = _ADDRESS.fullmatch(text)
    if address is None:
        return ""
    if address[1].lower() == "file":
        return f"{key}: {text:.200} is an address; write the path alone: {address[2]:.200}"
    return (
        f"{key}: {text:.200} is an address, and Shardwise reads and writes files; copy it to a "
        "disk, or mount it, and write its path"
    )


def _contradictions(full: Mapping[str, Any]) -> list[str]:
    problems, product = _product_problems(full), f"{full['product']:.200}"
    if full["product"] == "A @ B" and full["right"] is None:
        problems.append("right: the product A @ B needs it; name the .npy file of B")
    if full["product"] != "A @ B" and full["right"] is not None:
        problems.append(f"right: the product {product} has no B; remove it, or use A @ B")
    problems += [
        f"{key}: {full[key]:.200} begins with ~, which is not expanded here; write the whole path"
        for key in ("input", "right", "product", "results")
        if str(full[key]).startswith("~")
    ]
    problems += [
        problem
        for key in ("input", "right", "product", "results")
        if (problem := _address_problem(key, str(full[key])))
    ]
    for key in ("input", "right", "product", "results"):
        problems += _name_problems(key, str(full[key]))
    try:
        parse_bytes(full["shard_bytes"])
    except ValueError as error:
        problems.append(f"shard_bytes: {error}")
    try:
        check_statistics(full["reduce"]["statistics"], full["keep"])
    except InputError as error:
        problems.append(str(error))
    return problems

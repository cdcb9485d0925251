"""The only reader of the configuration: schema, defaults, and messages about keys.

Jobs read no config, so only the standard library is imported before one is read.
"""

import difflib
import json
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from shardwise.errors import InputError, short, unread
from shardwise.files.paths import Results
from shardwise.files.remote import masked, problem
from shardwise.host import PROJECT
from shardwise.plan.problem import PRODUCTS, WITH_COVARIANCE, function_parts, takes_b
from shardwise.units import parse_bytes

SCHEMA = PROJECT / "workflow" / "schemas" / "config.schema.yaml"
# As in the schema, which jobs do not read.
_DISPATCH = {"dispatch": "jobs", "workers": "device", "array_tasks": "auto", "array_limit": None}
NO_PLAN = ("reduce", *_DISPATCH)  # keys that no plan depends on
_MOST_NAMED = 20


class Settings(SimpleNamespace):
    """A checked configuration: the keys of the schema, defaults filled in, sizes in bytes."""


def unchecked(config: Mapping[str, Any]) -> dict[str, Any]:
    """An unchecked config, with defaults for ``results`` and `NO_PLAN`: jobs read no schema."""
    own = config.get("reduce")
    reduce = {"ranks": 2, "statistics": ["sum"]} | (own if isinstance(own, dict) else {})
    return {"results": "results/default", **_DISPATCH, **config, "reduce": reduce}


def folder_of_run(files: list[Path] | None, results: Path | str | None) -> Path:
    """The results folder of a command: ``results``, or that of the `config_files`."""
    if results:
        return Path(results)
    from shardwise.plan.config_file import read_files

    return Path(load(read_files(config_files(files))).results)


def existing_folder(files: list[Path] | None, results: Path | str | None) -> Path:
    """Like :func:`folder_of_run`, for commands that look at a run; refuses what cannot be seen."""
    root = folder_of_run(files, results)
    if not os.path.isdir(root):  # for names that are too long, too
        raise InputError(f"{root}: no such folder; start the run first, or name its results folder")
    for folder in filter(Path.is_dir, (root, Results(root).products)):
        try:
            os.scandir(folder).close()
        except PermissionError as error:
            raise unread(folder, error) from error
    return root


def config_files(files: list[Path] | None) -> list[Path]:
    """The config files of a command, as of a run: ``config.yaml``, if any, under those it names."""
    named, shipped = files or [], Path("config.yaml")
    return [*[shipped] * (shipped.exists() and shipped not in named), *named]


def load(config: Mapping[str, Any]) -> Settings:
    """Check a merged config and fill in defaults; InputError with a line for each wrong key."""
    try:
        errors = _validator().iter_errors(dict(config))
        problems = [line for error in errors for line in _explain(error)]
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits, a list in itself
        problems = [f"{error!s:.300}"]
    full = {} if problems else _with_defaults(config, _validator().schema)
    if problems := problems or _contradictions(full):
        raise InputError("config: " + "\n        ".join(problems[:_MOST_NAMED]))
    return Settings(**{**full, "shard_bytes": parse_bytes(full["shard_bytes"])})


@lru_cache(1)
def _validator() -> Any:
    import yaml
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    # JSON Schema counts 4.0 as an integer, but 4.0 is not a number of shards.
    whole = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, v: type(v) is int)
    kind: Any = extend(Draft202012Validator, type_checker=whole)  # type: ignore[no-untyped-call]
    return kind(yaml.safe_load(SCHEMA.read_text()))


def _with_defaults(config: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    full = {}
    for key, rule in schema["properties"].items():
        value = config.get(key, rule.get("default"))
        full[key] = _with_defaults(value, rule) if "properties" in rule else value
    return full


def _explain(error: Any) -> list[str]:
    """The lines of a message about one key; the schema says in words what is allowed."""
    key = ".".join(part for part in error.absolute_path if isinstance(part, str))
    rule, value = error.schema, error.instance
    if error.validator == "additionalProperties":
        known, prefix = list(rule["properties"]), key + "." * bool(key)
        lines, known_keys = [], f"known keys: {', '.join(known)}"
        for name in (str(each) for each in value if each not in known):
            near = [prefix + other for other in difflib.get_close_matches(name, known, n=2)]
            hint = f"did you mean {' or '.join(near)}?" if near else known_keys
            outer, _, inner = name.partition(".")
            hint = f"write {outer}: {{{inner:.80}: …}}" if inner and outer in known else hint
            lines.append(f"{prefix}{name:.80}: unknown key; {hint}")
        return lines
    if error.validator == "not":  # of a path
        return [f"{key}: {short(masked(value))} {rule['description']}"]
    allowed = rule.get("allowed") or "one of " + json.dumps(rule["enum"])[1:-1].replace('"', "")
    told = f"{key}: {_shown(value)} is not allowed; it must be {allowed}"
    if value in ("true", "false"):  # Snakemake reads text into anything but True and False
        told += f"; after --config write {value.capitalize()}"
    elif isinstance(value, str) and value.isdecimal():
        told += "; it came as text: write it without quotes, and nested keys in a config file"
    return [told]


def _shown(value: Any) -> str:
    """A value as YAML writes it; of an address only the scheme, as the rest may hold a password."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    begin, address, _ = short(value).partition("://")
    return f"{begin}://…" if address else begin


def _contradictions(full: Mapping[str, Any]) -> list[str]:
    """What is wrong with a config whose types and ranges are right."""
    product, right, covariance = full["product"], full["right"], full["covariance"]
    address, size = problem(full["input"] or ""), ""
    try:
        parse_bytes(full["shard_bytes"])
    except ValueError as error:
        size = masked(str(error))
    rules = (
        (address, f"input: {address}"),
        (product not in PRODUCTS and not function_parts(product),
         f"product: {_shown(product)}: unknown product; use one of {', '.join(PRODUCTS)}, or a "
         "function of your own, file.py:function"),
        (takes_b(product) and right is None,
         f"right: {product} needs this key; name the .npy file of B"),
        (right is not None and not takes_b(product),
         f"right: the product {product:.200} has no B; remove it, or use one of "
         f"{', '.join(filter(takes_b, PRODUCTS))}"),
        (full["depends"] and not function_parts(product),
         f"depends: only a function of your own reads such files, not {short(product)}; remove it"),
        *((full[key] != default and not covariance,
           f"{key}: needs covariance: true; add that, or remove {key}")
          for key, default in (("offset", "auto"), ("ddof", 1))),
        (covariance and product not in WITH_COVARIANCE,
         f"covariance: needs product: {' or '.join(WITH_COVARIANCE)}, not {product:.200}"),
        (covariance and full["labels"] is not None,
         "covariance: cannot be split by labels; remove covariance, or labels"),
        (covariance and "sum" not in full["reduce"]["statistics"],
         "covariance: is computed from the sum; add sum to reduce.statistics"),
        (size, f"shard_bytes: {size}"),
    )  # fmt: skip
    return [words for wrong, words in rules if wrong]

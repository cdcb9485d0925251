"""A product of the user's own: a function in a Python file, called with ``(xp, block)``."""

import ast
import hashlib
import importlib.util
import io
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from typing import Any

import numpy as np

from shardwise import errors
from shardwise.errors import InputError, IntegrityError, Terminated, short, some
from shardwise.files.lookup import reading
from shardwise.files.small import checksum
from shardwise.plan.problem import ITEM_BYTES, Problem, Shape, product_dtype
from shardwise.processes import contain

# Element types that a function may return; integers are widened to int64, so uint64 is not one.
RESULTS = tuple(name for name in ITEM_BYTES if name != "uint64")

_TRIAL_SECONDS = "SHARDWISE_TRIAL_SECONDS"  # variable: how long a trial may take; default 60
_LONGEST_TRIAL = 1e6  # seconds; the system can wait for 2.1 million at once
_END_SECONDS = 30.0  # how long it may take to end what the function has started

_TRIAL = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from shardwise.plan.trial import main
main(*sys.argv[1:])
"""


@dataclass(frozen=True)
class Function:
    """A user's function, loaded."""

    spec: str  # file.py:function, as in the config
    file: str  # the whole path, as a traceback shows it
    target: Callable[[Any, Any], Any]


class _FromSource(SourceFileLoader):
    """Compiles a file when it is imported, and never reads its ``.pyc`` file.

    Python takes a ``.pyc`` file for current if its source has the same size and second of change.
    """

    def get_code(self, fullname: str) -> Any:
        return self.source_to_code(self.get_data(self.path), self.path)


class _Listed(MetaPathFinder):
    """Finds the modules whose files a config lists."""

    def __init__(self, files: Iterable[str]) -> None:
        self._files = set(map(os.path.realpath, files))

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or os.path.realpath(spec.origin or "") not in self._files:
            return None
        spec.loader = _FromSource(fullname, str(spec.origin))
        return spec


def load(spec: str, digest: str | None = None, depends: Iterable[str] = ()) -> Function:
    """Import the file of a function by its path, under a private name, and find the function.

    ``sys.path`` is left alone. No ``.pyc`` file is read for this file, or for files in ``depends``
    that it imports: so the code that runs is the code that was digested. Raises InputError if the
    file or the function does not exist, or the file fails on import; IntegrityError if the file no
    longer has this digest.
    """
    sys.meta_path.insert(0, _Listed(depends))
    source = read_source(spec, digest)
    path, _, name = spec.rpartition(":")
    # Under this name its classes and pickles can look it up.
    private_name = f"_shardwise_product_{checksum(source, 8)}"
    described = importlib.util.spec_from_file_location(private_name, path)
    assert described is not None  # it ends in .py
    module, file = importlib.util.module_from_spec(described), str(described.origin)
    sys.modules[private_name] = module
    try:
        exec(compile(source, file, "exec"), vars(module))
    except BaseException as error:
        del sys.modules[private_name]
        if not isinstance(error, Exception | SystemExit):
            raise
        raise InputError(_failure(f"{path} cannot be imported", error, file)) from error
    if not hasattr(module, name):
        raise InputError(f"product: {path} has no function {name!r}")
    return Function(spec, file, getattr(module, name))


def call(
    function: Function, xp: Any, block: Any, first: int, problem: Problem | None = None
) -> Any:
    """Call a function on the matrices of a block ``(n, m, k)``, and check what it returns.

    Under NumPy the block is read-only. The result ``(n, p, q)`` may share memory with the block,
    and lie in any order. ``first`` is the index of the block's first matrix in the whole stack;
    ``problem`` is what was planned, or None while the plan is made.

    Raises InputError if the function raises an exception, or its result is not what was planned.
    Lack of memory, errors of the device, Ctrl-C and SIGTERM pass through.
    """
    count, process = block.shape[0], os.getpid()
    where = f"matrix {first}" if count == 1 else f"matrices {first} to {first + count - 1}"
    not_theirs: tuple[type[BaseException], ...] = (
        MemoryError, KeyboardInterrupt, Terminated, *errors.device_errors(xp)
    )  # fmt: skip
    if xp is np:
        block = block.view()
        block.flags.writeable = False
    try:
        with np.errstate(all="ignore"):
            result = function.target(xp, block)
    except not_theirs:
        raise
    except BaseException as error:
        raise InputError(
            _failure(f"{function.spec} failed on {where}", error, function.file)
        ) from error
    finally:
        if os.getpid() != process:  # a child that the function forked must not go on from here
            os._exit(0)
    _check(function.spec, xp, result, count, where, problem)
    return result


def probe(spec: str, matrix: np.ndarray, depends: Iterable[str] = ()) -> tuple[Shape, str]:
    """Shape ``(p, q)`` and element type of what a function makes of a matrix ``(1, m, k)``.

    ``depends`` is as in :func:`load`. The function is called in another process, so that nothing it
    does can affect this one. Raises InputError if the function cannot be loaded, fails, ends its
    process, does not return in time, or does not return a stack of results; TryAgain if this
    machine has too little memory for it.
    """
    limit, given = _trial_seconds(), io.BytesIO()
    np.save(given, matrix, allow_pickle=False)
    # -P: modules do not come from the working directory.
    command = [sys.executable, "-P", "-c", _TRIAL, spec, *depends]
    tried = "on the first matrix, in the trial with NumPy before any job"
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True) as process:
        try:
            said, _ = process.communicate(given.getvalue(), limit)
        except subprocess.TimeoutExpired:
            contain.end([process], _END_SECONDS)
            raise InputError(
                f"product: your function {spec} did not return within {limit:g} s {tried}; "
                f"set {_TRIAL_SECONDS} to allow more"
            ) from None
        except BaseException:
            contain.end([process], _END_SECONDS)
            raise
    answer, status = json.loads(said) if process.returncode == 0 else (None, process.returncode)
    if answer is None:
        raise InputError(f"product: your function {spec} {contain.words(status)} {tried}")
    code, words, shape, dtype = answer
    if code:
        raise errors.of_code(code, words)
    return tuple(shape), dtype


def _trial_seconds() -> float:
    text = os.environ.get(_TRIAL_SECONDS, "60")
    with suppress(ValueError):
        if (limit := float(text)) > 0:
            return min(limit, _LONGEST_TRIAL)
    raise InputError(f"{_TRIAL_SECONDS} is {short(text)}; set it to a number of seconds above 0")


def read_source(spec: str, digest: str | None = None) -> bytes:
    """The file of a function; IntegrityError if it no longer has this digest."""
    path = spec.rpartition(":")[0]
    with reading(Path(path), "product: "):
        source = Path(path).read_bytes()
    if digest not in (None, checksum(source, 8)):
        raise IntegrityError(f"{path} has changed since the plan was made; start the run again")
    return source


def _failure(what: str, error: BaseException, file: str) -> str:
    """A message with an error and its line; then its traceback, from the user's file on down."""
    own, entry = [], error.__traceback__
    while entry is not None:
        own += [entry] * (entry.tb_frame.f_code.co_filename == file)
        entry = entry.tb_next
    lines = "".join(traceback.format_exception(type(error), error, own[0] if own else None))
    # Before it are the lines of a SyntaxError, indented; behind it are notes.
    only = traceback.format_exception_only(error)
    last = next(line for line in only if line[0] != " ").partition("\n")[0]
    if own:
        name = own[-1].tb_frame.f_code.co_name.strip("<>")
        last += f" ({os.path.basename(file)}, line {own[-1].tb_lineno}, in {name})"
    return f"product: {what}: {last}\n{lines.rstrip()}"


def _check(
    spec: str, xp: Any, result: Any, count: int, where: str, problem: Problem | None
) -> None:
    """Refuse a result that differs from the plan, or for which no plan can be made."""
    returned = f"product: {spec} returned "
    kind = type(result)
    if kind is not xp.ndarray:  # a subclass, such as a masked array, would lose its meaning
        raise InputError(
            f"{returned}{kind.__module__}.{kind.__name__} for {where}; it must return "
            f"{xp.__name__}.ndarray"
        )
    shape, name = result.shape, result.dtype.name
    if len(shape) != 3 or shape[0] != count or 0 in shape:
        raise InputError(
            f"{returned}shape {shape} for {where}; it must return ({count}, p, q): one "
            "array per matrix, in their order"
        )
    if name not in RESULTS:
        raise InputError(f"{returned}{name} for {where}; allowed are {', '.join(RESULTS)}")
    stored = product_dtype(name)
    planned = problem and (problem.product_shape, problem.product_dtype)
    if planned and (shape[1:], stored) != planned:
        raise InputError(
            f"{returned}{shape[1:]} of {stored} for each of {where}, but {planned[0]} of "
            f"{planned[1]} for the first matrix, in the trial with NumPy when the plan was made; "
            "all must have the same shape and dtype. If files that the function imports have "
            "changed since: rm -r .snakemake/shardwise"
        )


# Files that a function imports or reads: part of the key if the config lists them.


def digests_of(paths: Iterable[str]) -> dict[str, str]:
    """A digest of the content of each file, by its path; InputError if a file cannot be read."""
    found = {}
    for path in paths:
        with reading(Path(path), "depends: "), open(path, "rb") as file:
            found[path] = hashlib.file_digest(file, "sha256").hexdigest()[:32]
    return found


def check_used(planned: Mapping[str, str]) -> None:
    """Refuse files that have changed since the plan was made."""
    changed = [path for path, digest in digests_of(planned).items() if digest != planned[path]]
    if changed:
        raise IntegrityError(
            f"{some(changed, 5)} has changed since the plan was made; start the run again"
        )


def unlisted(file: str, source: bytes, listed: Iterable[str]) -> str:
    """A warning of files that the function's file names and the config does not; may be empty."""
    known = {os.path.realpath(path) for path in (file, *listed)}
    named = dict.fromkeys(p for p in _named(file, source) if os.path.realpath(p) not in known)
    if not named:
        return ""
    return (
        f"product: {file} names {some(list(named), 5)}: if these files change, no shard is "
        f"computed again, unless you add to the config: depends: [{', '.join([*listed, *named])}]"
    )


def _named(file: str, source: bytes) -> Iterator[str]:
    """Existing files that a Python file names in strings and imports: from here, or next to it."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError):  # the function's trial reports this
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

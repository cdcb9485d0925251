"""A product of the user's own: a function in a Python file, called with ``(xp, block)``."""

import ast
import contextlib
import hashlib
import importlib.util
import inspect
import io
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from shardwise.errors import (
    InputError,
    IntegrityError,
    Terminated,
    device_errors,
    of_code,
    short,
    some,
)
from shardwise.files.lookup import reading
from shardwise.files.small import checksum
from shardwise.plan.problem import ITEM_BYTES, Problem, Shape, function_parts, product_dtype
from shardwise.processes import contain
from shardwise.processes.contain import Ending

# Element types that a function may return; integers are widened to int64, which holds these.
RESULTS = tuple(name for name in ITEM_BYTES if name != "uint64")
TRIAL_SECONDS = 60.0  # how long the trial of a function may take, unless the user allows it more
_TRIAL_SECONDS = "SHARDWISE_TRIAL_SECONDS"
_START_SECONDS = 60.0  # how long its process may take beyond that, to start and to end

_SCRIPTS = Path(__file__).parents[2]
_TRIAL = f"""
import sys
sys.path[:] = [{str(_SCRIPTS)!r}, *filter(None, sys.path)]  # not the working directory
from shardwise.plan.trial import main
main()
"""


@dataclass(frozen=True)
class Function:
    """A user's function, loaded."""

    spec: str  # file.py:function, as in the config
    file: str  # the whole path, as a traceback shows it
    target: Callable[[Any, Any], Any]


def load(spec: str, digest: str | None = None) -> Function:
    """Import the file of a function by its path, under a private name, and find the function.

    ``sys.path`` is left alone, and no ``.pyc`` file is read or written: what runs is what the
    digest was taken of. Raises InputError if there is no such file or function, the file fails
    on import, or the function does not take ``(xp, block)``; IntegrityError if the file does not
    have this digest any more.
    """
    source = read_source(spec, digest)
    path, name = _parts(spec)
    module = _module(path, source)
    target = getattr(module, name, None)
    if target is None:
        names = [
            k for k, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__
        ]
        known = ", ".join(names) or "none"
        raise InputError(f"product: {path} has no function {name!r}; it has {known}")
    if not callable(target):
        raise InputError(f"product: {spec} is {_kind(target)}, not a function")
    try:
        inspect.signature(target).bind(np, None)
    except TypeError as error:
        raise InputError(
            f"product: {spec} takes {inspect.signature(target)}, but is called with (xp, block): "
            "the array module and a stack (n, m, k)"
        ) from error
    except ValueError:  # some callables of C have no signature
        pass
    return Function(spec, str(module.__file__), target)


def call(
    function: Function, xp: Any, block: Any, first: int, problem: Problem | None = None
) -> Any:
    """Call a function on the matrices of a block, and check what it returns.

    The function's block cannot be written to under NumPy. Its result ``(n, p, q)`` is made
    C-contiguous, integers become int64, and it is copied where it shares memory with the block.
    Afterwards the working directory is the same as before.

    Parameters
    ----------
    block
        Matrices ``(n, m, k)`` of the input's element type.
    first
        Index of the first of them in the whole stack.
    problem
        What was planned, or None while the plan is made.

    Raises
    ------
    InputError
        Where the function raises an exception, or returns what was not planned. Lack of memory,
        errors of the device, Ctrl-C and SIGTERM pass through.
    """
    where = _matrices(first, block.shape[0])
    result = _run(function, xp, block, where)
    result = _checked(function.spec, xp, result, block.shape[0], where, problem)
    return result.copy() if xp.may_share_memory(result, block) else result


def _run(function: Function, xp: Any, block: Any, where: str) -> Any:
    """What a function returns, with its own errors as `InputError`."""
    not_theirs: tuple[type[BaseException], ...] = (
        MemoryError, KeyboardInterrupt, Terminated, *device_errors(xp)
    )  # fmt: skip
    if xp is np:
        block = block.view()
        block.flags.writeable = False
    process = os.getpid()
    try:
        with np.errstate(all="ignore"), contextlib.chdir("."):  # it may change the folder
            return function.target(xp, block)
    except not_theirs:
        raise
    except BaseException as error:
        raise InputError(
            _failure(f"{function.spec} failed on {where}", error, function.file)
        ) from error
    finally:
        if os.getpid() != process:  # a fork that comes back from the call goes on with nothing
            os._exit(0)


def probe(spec: str, matrix: np.ndarray) -> tuple[Shape, str]:
    """Shape ``(p, q)`` and element type of what a function makes of a matrix ``(1, m, k)``.

    A process of its own calls it (`trial`), so that nothing that it does can touch this one. Raises
    InputError if the function cannot be loaded, fails, ends its process, does not return in
    time, or returns no stack of results; TryAgain if this machine has too little memory for it.
    """
    limit = _trial_seconds()
    ending = _tried(spec, matrix, limit)
    answer = ending.result
    if answer is None:
        tried = "on the first matrix, on which it is tried with NumPy before any job"
        did = f"{contain.words(ending.status)} {tried}"
        if ending.status is None:
            did = f"did not return within {limit:g} s {tried}; {_TRIAL_SECONDS} allows it more"
        raise InputError(f"product: your function {spec} {did}")
    if answer["code"]:
        raise of_code(answer["code"], answer["words"])
    return tuple(answer["shape"]), answer["dtype"]


def _trial_seconds() -> float:
    text = os.environ.get(_TRIAL_SECONDS, "")
    try:
        limit = float(text or TRIAL_SECONDS)
    except ValueError:
        limit = 0.0
    if not limit > 0:
        raise InputError(
            f"{_TRIAL_SECONDS} is {short(text)}; set it to a number of seconds above 0"
        )
    return limit


def _tried(spec: str, matrix: np.ndarray, limit: float) -> Ending:
    """How the process that calls a function has ended."""
    stack = io.BytesIO()
    np.save(stack, matrix, allow_pickle=False)
    task = json.dumps({"spec": spec, "limit": limit}).encode() + b"\n" + stack.getvalue()
    process = subprocess.Popen(
        [sys.executable, "-c", _TRIAL],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        answer, _ = process.communicate(task, limit + _START_SECONDS)
    except subprocess.TimeoutExpired:  # the function has stopped its parent, too
        process.kill()
        return Ending(None, None)
    except BaseException:
        process.terminate()  # it ends what it has started
        raise
    if process.returncode < 0:
        return Ending(None, process.returncode)
    return Ending(**json.loads(answer))


def _parts(spec: str) -> tuple[str, str]:
    parts = function_parts(spec)
    assert parts is not None  # the config was checked
    return parts


def read_source(spec: str, digest: str | None = None) -> bytes:
    """The file of a function; IntegrityError if it no longer has this digest."""
    path, _ = _parts(spec)
    with reading(Path(path), "product: "):
        source = Path(path).read_bytes()
    if digest not in (None, checksum(source, 8)):
        raise IntegrityError(f"{path} has changed since the plan was made; run snakemake again")
    return source


def _module(path: str, source: bytes) -> ModuleType:
    """Run a file as a module of a private name, which its classes and pickles can look up."""
    name = f"_shardwise_product_{checksum(source, 8)}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # it ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        exec(compile(source, str(spec.origin), "exec"), vars(module))
    except BaseException as error:
        del sys.modules[name]
        if not isinstance(error, Exception | SystemExit):
            raise
        raise InputError(_failure(f"{path} cannot be imported", error, str(spec.origin))) from error
    return module


def _failure(what: str, error: BaseException, file: str) -> str:
    """A message with an error and its line; then its traceback, from the user's file on down."""
    own, entry = [], error.__traceback__
    while entry is not None:
        own += [entry] * (entry.tb_frame.f_code.co_filename == file)
        entry = entry.tb_next
    lines = "".join(traceback.format_exception(type(error), error, own[0] if own else None))
    last = traceback.format_exception_only(error)[-1].partition("\n")[0]
    if own:
        name = own[-1].tb_frame.f_code.co_name.strip("<>")
        last += f" ({os.path.basename(file)}, line {own[-1].tb_lineno}, in {name})"
    return f"product: {what}: {last}\n{lines.rstrip()}"


def _checked(
    spec: str, xp: Any, result: Any, count: int, where: str, problem: Problem | None
) -> Any:
    """A result that is what was planned, or at least something that can be planned for."""
    returned = f"product: {spec} returned "
    if type(result) is not xp.ndarray:  # a subclass, such as a masked array, would lose its meaning
        raise InputError(
            f"{returned}{_kind(result)} for {where}; it must return a {xp.__name__}.ndarray"
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
            f"{planned[1]} for the matrix that it was tried on with NumPy when the plan was made; "
            "all must have one shape and dtype. If what the file imports has changed since: rm -r "
            ".snakemake/shardwise"
        )
    return xp.ascontiguousarray(result, dtype=stored)


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    kind = type(value)
    name = f"{kind.__module__}.{kind.__name__}".removeprefix("builtins.")
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _matrices(first: int, count: int) -> str:
    return f"matrix {first}" if count == 1 else f"matrices {first} to {first + count - 1}"


# Files that it imports or reads, which are part of the key where the config lists them.


def digests_of(paths: Iterable[str]) -> dict[str, str]:
    """A digest of the content of each file, by its path; InputError where one cannot be read."""
    found = {}
    for path in paths:
        with reading(Path(path), "depends: "), open(path, "rb") as file:
            found[path] = hashlib.file_digest(file, "sha256").hexdigest()[:32]
    return found


def check_used(planned: Mapping[str, str]) -> None:
    """Refuse files that are not those that the plan was made for."""
    changed = [path for path, digest in digests_of(planned).items() if digest != planned[path]]
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

"""A product of the user's own: a function in a Python file, called with ``(xp, block)``."""

import ast
import hashlib
import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, Popen
from types import ModuleType
from typing import Any

import numpy as np

from shardwise import errors
from shardwise.errors import InputError, IntegrityError, ShardwiseError, Terminated, some
from shardwise.files import small
from shardwise.files.lookup import reading
from shardwise.files.paths import for_bash
from shardwise.plan.problem import ITEM_BYTES, Problem, Shape, product_dtype
from shardwise.processes import contain

# Element types that a function may return; integers are widened to int64, so uint64 is not one.
RESULTS = tuple(name for name in ITEM_BYTES if name != "uint64")

Function = Callable[[Any, Any], Any]

_TRIAL = f"""import sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from shardwise.plan.user_function import trial
trial(*sys.argv[1:])"""


def load(
    spec: str, digest: str | None = None, depends: Mapping[str, str] | None = None
) -> Function:
    """Import a function's file; IntegrityError if this, or one it uses, has another digest."""
    source, depends, (path, _, name) = read_source(spec), depends or {}, spec.rpartition(":")
    found = {path: small.checksum(source, 8), **digests_of(depends)}
    for file, planned in {path: digest, **depends}.items():
        if planned not in (None, found[file]):
            raise IntegrityError(f"{file} has changed since the plan was made; start the run again")
    # Under this name its classes and pickles can look it up.
    private_name = f"_shardwise_product_{small.checksum(source, 8)}"
    module = sys.modules[private_name] = ModuleType(private_name)
    module.__file__ = os.path.abspath(path)
    try:
        exec(compile(source, module.__file__, "exec"), vars(module))
    except BaseException as error:
        del sys.modules[private_name]
        if not isinstance(error, Exception | SystemExit):
            raise
        raise InputError(_failure(f"{path} cannot be imported", error)) from error
    if not hasattr(module, name):
        raise InputError(f"product: {path} has no function {name!r}")
    function: Function = getattr(module, name)
    return function


def call(
    spec: str, function: Function, xp: Any, block: Any, first: int, problem: Problem | None = None
) -> Any:
    """Call a function on the matrices of a block ``(n, m, k)``, and check what it returns.

    The block begins at matrix ``first`` of the stack, and is read-only under NumPy. InputError if
    the function fails, or its result is not that of ``problem``, if given. Lack of memory, errors
    of the device, Ctrl-C and SIGTERM pass through.
    """
    count = block.shape[0]
    where = f"matrix {first}" if count == 1 else f"matrices {first} to {first + count - 1}"
    not_theirs: tuple[type[BaseException], ...] = (
        MemoryError, KeyboardInterrupt, Terminated, *errors.device_errors(xp)
    )  # fmt: skip
    if xp is np:
        block = block.view()
        block.flags.writeable = False
    try:
        with np.errstate(all="ignore"):
            result = function(xp, block)
    except not_theirs:
        raise
    except BaseException as error:
        raise InputError(_failure(f"{spec} failed on {where}", error)) from error
    kind = type(result)
    found = f"product: {spec} returned {kind.__module__}.{kind.__name__}"
    # A subclass, such as a masked array, would lose its meaning.
    if fits := kind is xp.ndarray:
        found += f" of shape {result.shape} in {result.dtype.name}"
        fits = result.ndim == 3 and result.shape[0] == count and 0 not in result.shape
    if not (fits and result.dtype.name in RESULTS):
        raise InputError(
            f"{found} for {where}; return {xp.__name__}.ndarray of shape ({count}, p, q), one "
            f"array per matrix, in one of {', '.join(RESULTS)}"
        )
    made = result.shape[1:], product_dtype(result.dtype.name)
    if problem and made != (planned := (problem.product_shape, problem.product_dtype)):
        words = f"{planned[0]} of {planned[1]} for each matrix, as for the first"
        raise InputError(f"{found} for {where}; return {words}")
    return result


def probe(spec: str, matrix: np.ndarray) -> tuple[Shape, str]:
    """Shape ``(p, q)`` and element type of what a function makes of a matrix ``(1, m, k)``.

    It is called in another process, so that nothing it does can affect this one. InputError if it
    cannot be used; TryAgain if this machine has too little memory for it.
    """
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder, "matrix.npy"), matrix, allow_pickle=False)
        # -P: no modules of the working directory. What it prints goes to stderr.
        command = [sys.executable, "-P", "-c", _TRIAL, spec, folder]
        # A session of its own: the function may end its group.
        trial = Popen(command, stdin=DEVNULL, stdout=2, start_new_session=True)
        try:
            trial.wait()
        finally:
            with suppress(ProcessLookupError):  # end it, and whatever the function has started
                os.killpg(trial.pid, signal.SIGKILL)
            trial.wait()
        answer = small.read(Path(folder, "answer.json"))
    if trial.returncode or not answer:
        words = f"{contain.words(trial.returncode)} on the first matrix, in the trial with NumPy"
        raise InputError(f"product: your function {spec} {words}")
    code, words, shape, dtype = json.loads(answer)
    if code:
        raise errors.of_code(code, words)
    return tuple(shape), dtype


def trial(spec: str, folder: str) -> None:
    """Call a function on the matrix in a folder, and leave the answer for `probe` there."""
    contain.end_with_parent()
    contain.adopt()
    said: tuple[Any, ...]
    try:
        block = np.load(Path(folder, "matrix.npy"), allow_pickle=False)
        result = call(spec, load(spec), np, block, 0)
        said = 0, "", result.shape[1:], product_dtype(result.dtype.name)
    except (ShardwiseError, MemoryError) as error:
        code, words = errors.verdict(error)
        said = code, words[:100_000], None, None  # a user's words may be longer than an answer
    Path(folder, "answer.json").write_text(json.dumps(said))
    sys.stdout.flush()
    contain.sweep()
    os._exit(0)  # the function may have left threads


def read_source(spec: str) -> bytes:
    """The file of a function; InputError if it cannot be read."""
    path = Path(spec.rpartition(":")[0])
    with reading(path, "product: "):
        return path.read_bytes()


def _failure(what: str, error: BaseException) -> str:
    """A message with an error and its line; then its traceback, without our own frame."""
    begin = error.__traceback__ and error.__traceback__.tb_next
    last = f"{type(error).__name__}: {error}".partition("\n")[0]
    if frames := traceback.extract_tb(begin):
        file = frames[0].filename
        frame = [frame for frame in frames if frame.filename == file][-1]
        last += f" ({os.path.basename(file)}, line {frame.lineno}, in {frame.name.strip('<>')})"
        if isinstance(error, ModuleNotFoundError):
            where = f'{for_bash(Path(file).parent)}"${{PYTHONPATH:+:$PYTHONPATH}}"'
            last += f"; export PYTHONPATH={where} if it lies there, else install it on every node"
    lines = traceback.format_exception(type(error), error, begin)
    return f"product: {what}: {last}\n{''.join(lines).rstrip()}"


def digests_of(paths: Iterable[str]) -> dict[str, str]:
    """Digests, by path, of files in ``depends``; InputError if a file cannot be read."""
    found = {}
    for path in paths:
        with reading(Path(path), "depends: "), open(path, "rb") as file:
            found[path] = hashlib.file_digest(file, "sha256").hexdigest()[:32]
    return found


def unlisted(file: str, source: bytes, listed: Iterable[str]) -> str:
    """A warning of files that a function's file names, and the config does not; or nothing."""
    try:
        nodes = [*ast.walk(ast.parse(source))]
    except (SyntaxError, ValueError, RecursionError):  # the function's trial reports this
        return ""
    folder, places = os.path.dirname(file), list[str]()
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            places += [node.value, os.path.join(folder, node.value)]
        elif isinstance(node, ast.Import | ast.ImportFrom):
            outer = [module] if (module := getattr(node, "module", None)) else []
            modules = [*outer, *(".".join([*outer, alias.name]) for alias in node.names)]
            stems = [os.path.join(folder, *module.split(".")) for module in modules]
            places += [stem + end for stem in stems for end in (".py", "/__init__.py")]
    known = {os.path.realpath(path) for path in (file, *listed)}
    found = (path for path in dict.fromkeys(places) if os.path.isfile(path))
    if not (named := [path for path in found if os.path.realpath(path) not in known]):
        return ""
    key, names = f"depends: [{', '.join([*listed, *named])}]", some(named, 5)
    words = f"product: {file} names {names}: a change there computes no shard again, unless the "
    return f"{words}config says {key}; adding that computes all shards once more"

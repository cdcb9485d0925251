"""What ends Snakemake with a traceback before our rules are asked: refused in words, with exit 2.

Snakemake believes that a config file can be read, that its own records are whole, and that the home
folder can be written. Where one is not so, users need to know which file, which line, and what to
do. So its functions that read and write these are wrapped, see `install`. All else stays as it is.

Nothing of ``shardwise`` is imported unless the run is refused: which copy of it is used is decided
by the Snakefile, which comes later.
"""

import contextlib
import fcntl
import functools
import importlib
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

_MOST_NAMED = 5
_UNREADABLE = (OSError, ValueError, TypeError, AttributeError, LookupError, RecursionError)
"""What Snakemake ends with where a record is not as it wrote it."""


def install() -> None:
    """Wrap the functions of this process's Snakemake; one of another version speaks for itself."""
    for module, name, wrapper in (
        ("snakemake.common.configfile", "load_configfile", _load_configfile),
        ("snakemake.settings.types", "load_configfile", _load_configfile),
        ("snakemake.workflow", "Workflow.configfile", _configfile),
        ("snakemake.persistence.file", "FilePersistence._read_record", _reading_records),
        ("snakemake.persistence.file", "FilePersistence._get_external_jobids", _reading_records),
        ("snakemake.persistence.file", "FilePersistence._read_locks", _read_locks),
        ("snakemake.logging", "DefaultFilter.filter", _let_errors_through),
        ("snakemake.sourcecache", "SourceCache.__init__", _open_source_cache),
        ("snakemake.workflow", "Workflow.__post_init__", _hold_folder),
    ):
        with contextlib.suppress(ImportError, AttributeError):
            *outer, own = name.split(".")
            owner = functools.reduce(getattr, outer, importlib.import_module(module))
            setattr(owner, own, _wrapped(getattr(owner, own), wrapper))


def _wrapped(original: Callable, wrapper: Callable) -> Callable:
    @functools.wraps(original)
    def wrapped(*words: Any, **named: Any) -> Any:
        return wrapper(original, *words, **named)

    return wrapped


def _refuse(text: str) -> NoReturn:
    from shardwise.errors import InputError

    sys.stderr.write(f"{text}\n")
    sys.exit(InputError.exit_code)


def _load_configfile(original: Callable, file: Any) -> Any:
    """Config files: the line, which Snakemake does not name, and no traceback."""
    path = Path(file)
    if path.is_fifo():  # Snakemake would wait for it
        _refuse_config(path)
    try:
        return original(file)
    except Exception:
        _refuse_config(path)
        raise


def _refuse_config(path: Path) -> None:
    from shardwise.errors import InputError
    from shardwise.plan import config

    try:
        config.read_file(path)
    except InputError as reason:
        _refuse(str(reason))


def _configfile(original: Callable, workflow: Any, file: Any) -> None:
    """The config file that the Snakefile names: where it is missing, Snakemake ends with 1."""
    instead = workflow.overwrite_configfiles or workflow.modifier.skip_configfile
    if not instead and not os.path.exists(file):
        _refuse_config(Path(file))
    original(workflow, file)


def _reading_records(original: Callable, persistence: Any, keys: Any) -> Any:
    """Records of files, which Snakemake keeps in ``.snakemake``."""
    try:
        return original(persistence, keys)
    except _UNREADABLE as error:
        folders = [persistence._metadata_path, persistence._incomplete_path]
        own = {Path(persistence._record_path(folders[0], keys))} if isinstance(keys, str) else set()
        damaged = sorted(own | {path for folder in folders for path in _damaged(Path(folder))})
        if not damaged:
            raise
        names = damaged if len(damaged) <= _MOST_NAMED else map(Path, folders)
        remove = shlex.join(["rm", "-rf", *(os.path.relpath(name) for name in names)])
        _refuse(
            f"{os.path.relpath(damaged[0])}: this record of Snakemake is damaged ({_reason(error)})"
            f"; {len(damaged)} in all. No result is in there. Remove what is damaged, then run the "
            f"same command again:\n  {remove}"
        )


def _damaged(folder: Path) -> Iterator[Path]:
    """The records of a folder that hold no record."""
    for path in folder.rglob("*"):
        try:
            whole = path.is_dir() or isinstance(json.loads(path.read_text("utf-8")), dict)
        except (OSError, ValueError, RecursionError):
            whole = False
        if not whole:
            yield path


def _reason(error: Exception) -> str:
    from shardwise.errors import one_line

    return one_line(f"{str(error).splitlines()[0]:.200}" if str(error) else type(error).__name__)


def _read_locks(original: Callable, persistence: Any) -> Any:
    """The locks of runs that go on, or were killed."""
    try:
        return list(original(persistence))
    except _UNREADABLE as error:
        _refuse(
            f"{os.path.relpath(persistence._lockdir)}: a lock of Snakemake is damaged "
            f"({_reason(error)}); if no other snakemake runs here, add --unlock to the same "
            "command, then run it again without"
        )


def _let_errors_through(original: Callable, quiet: Any, record: Any) -> bool:
    """Under ``--quiet all`` Snakemake ends with 1 without a word; users need to know why."""
    return original(quiet, record) or getattr(record, "exception", None) is not None


def _open_source_cache(original: Callable, cache: Any, path: Path, **named: Any) -> None:
    """Snakemake's cache of sources lies in the home folder; where it cannot, in ``.snakemake``."""
    own = Path(".snakemake", "source-cache").absolute()
    try:
        try:
            original(cache, path, **named)
        except OSError:
            original(cache, own, **named)
    except OSError as error:
        _refuse(
            f"neither {path} nor {own} can be written ({error}); run in a folder where you may "
            "write, or name one in XDG_CACHE_HOME"
        )


def _hold_folder(original: Callable, workflow: Any) -> None:
    """Snakemake's temporary folder: a lock tells that its process lives (`processes.leftovers`)."""
    original(workflow)
    folder = Path(workflow._snakemake_tmp_dir.name)
    with contextlib.suppress(OSError):  # no locks here, so nobody will know
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.write(descriptor, Path("/proc/sys/kernel/random/boot_id").read_bytes().strip())
        os.rename(folder / "lock", folder / ".shardwise.lock")  # from now on, held or abandoned

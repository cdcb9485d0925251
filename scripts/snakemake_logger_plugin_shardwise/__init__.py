"""Turns tracebacks with which Snakemake ends before it reads our rules into a message and exit 2.

Snakemake believes that a config file can be read, that the home folder can be written, and that the
user has a name. If it is wrong, users need to know which file, which line, and what to do. So its
functions that read and write these are wrapped, see `install`. Everything else stays as it is.

Snakemake imports every installed package with such a name as it starts, before it looks at its
command line. No other code of a project runs so early: the Snakefile comes after the config, and
decides which copy of ``shardwise`` is used. So that is not imported unless a run is refused.
"""

import contextlib
import functools
import importlib
import logging
import os
import pwd
import sys
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any, NoReturn

from snakemake_interface_logger_plugins.base import LogHandlerBase


def install() -> None:
    """Wrap the functions of this process's Snakemake; what another version lacks is left alone."""
    for module, name, wrapper in (
        ("snakemake.common.configfile", "load_configfile", _load_configfile),
        ("snakemake.settings.types", "load_configfile", _load_configfile),
        ("snakemake.workflow", "Workflow.configfile", _configfile),
        ("snakemake.logging", "DefaultFilter.filter", _let_errors_through),
        ("snakemake.sourcecache", "SourceCache.__init__", _open_source_cache),
    ):
        with contextlib.suppress(ImportError, AttributeError):
            *outer, own = name.split(".")
            owner = functools.reduce(getattr, outer, importlib.import_module(module))
            setattr(owner, own, _wrapped(getattr(owner, own), wrapper))


def provide_user(environ: MutableMapping[str, str] = os.environ) -> None:
    """Name a user without an entry, as of ``docker run -u 12345``, by number; the home is ``/``."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        environ.setdefault("LOGNAME", str(os.getuid()))
        environ.setdefault("HOME", "/")


def _wrapped(original: Callable, wrapper: Callable) -> Callable:
    @functools.wraps(original)
    def wrapped(*words: Any, **named: Any) -> Any:
        return wrapper(original, *words, **named)

    return wrapped


def _refuse(text: str) -> NoReturn:
    from shardwise.errors import InputError, tell

    tell(text)
    sys.exit(InputError.exit_code)


def _load_configfile(original: Callable, file: Any) -> Any:
    """Refuse a bad config file with its line, which Snakemake does not name, and no traceback."""
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
    from shardwise.plan import config_file

    try:
        config_file.read_file(path)
    except InputError as reason:
        _refuse(str(reason))


def _configfile(original: Callable, workflow: Any, file: Any) -> None:
    """Refuse if the config file that the Snakefile names is missing; Snakemake would end with 1."""
    instead = workflow.overwrite_configfiles or workflow.modifier.skip_configfile
    if not instead and not os.path.exists(file):
        _refuse_config(Path(file))
    original(workflow, file)


def _let_errors_through(original: Callable, quiet: Any, record: Any) -> bool:
    """Let errors through under ``--quiet all``, where Snakemake would end with 1 in silence."""
    return original(quiet, record) or getattr(record, "exception", None) is not None


def _open_source_cache(original: Callable, cache: Any, path: Path, **named: Any) -> None:
    """Put Snakemake's cache of sources into ``.snakemake`` if the home folder cannot hold it."""
    try:
        original(cache, path, **named)
    except OSError:
        original(cache, Path(".snakemake", "source-cache").absolute(), **named)


class LogHandler(LogHandlerBase):
    """What Snakemake expects of a logging plugin; if chosen by --logger, it writes nothing."""

    writes_to_stream = False
    writes_to_file = False
    has_filter = False
    has_formatter = False
    needs_rulegraph = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write nothing."""


provide_user()
install()

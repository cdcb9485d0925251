"""Corrects two assumptions of Snakemake that it makes before it reads our rules.

It assumes that a config file can be read: else it ends with a traceback that names no line. And
that the home folder can be written, which on the nodes of some clusters it cannot.

Snakemake imports every installed package with such a name as it starts, before it looks at its
command line. No other code of a project runs so early: the Snakefile comes after the config, and
decides which copy of ``shardwise`` is used. So that is not imported unless a run is refused.
"""

import logging
import sys
from pathlib import Path
from typing import Any

from snakemake import sourcecache
from snakemake.common import configfile
from snakemake.settings import types
from snakemake_interface_logger_plugins.base import LogHandlerBase

_load, _open_cache = configfile.load_configfile, sourcecache.SourceCache.__init__


def load_configfile(file: Any) -> Any:
    """Refuse a bad config file with its line, in one line, with the exit code of bad input."""
    try:
        return _load(file)
    except Exception:
        from shardwise.errors import InputError, tell
        from shardwise.plan import config_file

        try:
            config_file.read_file(Path(file))
        except InputError as reason:
            tell(str(reason))
            sys.exit(InputError.exit_code)
        raise


def open_cache(cache: Any, path: Path, **named: Any) -> None:
    """Put Snakemake's cache of sources into ``.snakemake`` if the home folder cannot hold it."""
    try:
        _open_cache(cache, path, **named)
    except OSError:
        _open_cache(cache, Path(".snakemake", "source-cache").absolute(), **named)


configfile.load_configfile = types.load_configfile = load_configfile
sourcecache.SourceCache.__init__ = open_cache


class LogHandler(LogHandlerBase):
    """What Snakemake expects of a logging plugin; if chosen by --logger, it writes nothing."""

    writes_to_stream = writes_to_file = has_filter = has_formatter = needs_rulegraph = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write nothing."""

"""Brings Shardwise's words into Snakemake before it reads a config file.

Snakemake imports every installed package of such a name as it starts, before it looks at its
command line. Nothing else of a project is asked so early: the Snakefile comes after the config.
As a logger, chosen by ``--logger shardwise``, it writes nothing.
"""

import logging

from snakemake_interface_logger_plugins.base import LogHandlerBase

from snakemake_logger_plugin_shardwise import refusals

refusals.install()


class LogHandler(LogHandlerBase):
    """What Snakemake expects of a plugin for logging; it writes nothing."""

    writes_to_stream = False
    writes_to_file = False
    has_filter = False
    has_formatter = False
    needs_rulegraph = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write nothing."""

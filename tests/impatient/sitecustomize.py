"""Let snakemake look at its jobs every second, or more often."""

import os
import sys

if "IMPATIENT" in os.environ and any("snakemake" in word for word in sys.orig_argv[:3]):
    import asyncio

    from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor

    async def _sleep(executor):
        await asyncio.sleep(min(executor.next_seconds_between_status_checks, 1.0))

    RemoteExecutor.sleep = _sleep

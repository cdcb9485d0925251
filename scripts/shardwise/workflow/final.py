"""Failures that another try would only repeat: Snakemake does not try such a job again.

Snakemake believes that any failed job may succeed at another try, as often as `retries` allows.
We need that bad input (2) and a failed check (3) end at the first try, after which the user has to
act. So `Job.restart_times`, for which Snakemake asks once a job has failed, is 0 where the job's
log says that it ended with one of these. The log tells it under every executor, also under those
that pass on no exit code. A next run of snakemake tries such a job as any other.
"""

import contextlib
import os
from pathlib import Path
from typing import Any

from shardwise.errors import InputError, IntegrityError
from shardwise.files.paths import Results
from shardwise.records import logs

_CODES = (InputError.exit_code, IntegrityError.exit_code)


def begin(results: Results) -> None:
    """Let this run of snakemake try no job again whose failure is final."""
    from snakemake.jobs import Job

    since = _now(results.running)

    def restart_times(job: Any) -> int:
        final = any(_is_final(Path(str(path)), since) for path in job.log)
        return 0 if final else job.rule.restart_times

    Job.restart_times = property(restart_times)


def _now(path: Path) -> float:
    """The time by the clock of the disk, as that of a log is."""
    with contextlib.suppress(OSError):
        os.utime(path)
        return path.stat().st_mtime
    return 0.0


def _is_final(log: Path, since: float) -> bool:
    """Whether a log of this run says that its job need not be tried again.

    A job that is lost before it begins leaves the log of an earlier run.
    """
    try:
        return log.stat().st_mtime >= since and logs.find_exit_code(logs.read_tail(log)) in _CODES
    except OSError:
        return False

"""Snakemake's executor for Grid Engine, ``executor: shardwise-grid-engine`` of profiles/uge.

Snakemake imports it before the Snakefile decides which copy of ``shardwise`` is used; that copy's
`workflow.grid_engine_executor` sets ``submissions`` before the first job.
"""

import shlex
from collections.abc import AsyncIterator
from typing import Any

from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.settings import CommonSettings

common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=False,
    job_deploy_sources=False,
    auto_deploy_default_storage_provider=False,
)


class Executor(RemoteExecutor):
    """Passes Snakemake's questions on to the submissions of one run."""

    submissions: Any = None

    def run_job(self, job: Any) -> None:
        """Submit a job; where that fails, the job has failed."""
        script = self.get_jobscript(job)
        self.write_jobscript(job, script)
        number, refused = self.submissions.submit(job, script)
        if refused:
            return self.report_job_error(SubmittedJobInfo(job), msg=refused)
        return self.report_job_submission(SubmittedJobInfo(job, number))

    async def check_active_jobs(
        self, active_jobs: list[SubmittedJobInfo]
    ) -> AsyncIterator[SubmittedJobInfo]:
        """Report the jobs that have ended, and yield the others."""
        for info, state in self.submissions.look(active_jobs) if active_jobs else ():
            if state == "running":
                yield info
            elif state == "success":
                self.report_job_success(info)
            else:
                self.report_job_error(info, msg=state)

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]) -> None:
        """Delete all jobs of the run: while they are looked at, Snakemake names only some here."""
        if self.submissions is not None:
            self.submissions.cancel()

    def get_job_exec_prefix(self, job: Any) -> str:
        """The folder in which a job's Snakemake starts."""
        return f"cd {shlex.quote(self.workflow.workdir_init)}"

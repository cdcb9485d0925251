"""Jobs as ``squeue`` shows them."""

from collections.abc import Iterable
from dataclasses import dataclass

FINAL_STATES = frozenset(
    {"CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT"}
)

SEPARATOR = "\x1f"  # comments may hold any printable character
JOB_FORMAT = SEPARATOR.join(("%A", "%F", "%K", "%T", "%N", "%k", "%j"))


@dataclass(frozen=True)
class Job:
    """A job, or one array task; the fields stand in the order of `JOB_FORMAT`.

    `array_job_id` is the number that ``sbatch`` answered. A plain job has it as its `job_id` as
    well, and no `task`; a task gets a `job_id` of its own when it starts. `nodes` is empty until
    then.
    """

    job_id: int
    array_job_id: int
    task: int | None
    state: str
    nodes: str
    comment: str
    name: str


def parse_jobs(lines: Iterable[str]) -> list[Job]:
    """Return the jobs that ``squeue`` printed in `JOB_FORMAT`, in the order of their numbers."""
    jobs = []
    for line in lines:
        job_id, array_job_id, task, *texts = line.split(SEPARATOR)
        number = None if task == "N/A" else int(task)
        jobs.append(Job(int(job_id), int(array_job_id), number, *texts))
    return sorted(jobs, key=lambda job: (job.array_job_id, job.task or 0))

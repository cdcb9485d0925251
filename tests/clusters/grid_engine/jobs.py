"""Jobs as ``qstat`` shows them, and what the accounting keeps of them."""

from dataclasses import dataclass
from xml.etree import ElementTree

from tests.clusters.grid_engine.config import attributes


@dataclass(frozen=True)
class Job:
    """A job, or one array task, that waits or runs.

    `state` is in Grid Engine's letters, such as ``qw``, ``r``, ``dr`` or ``Eqw``; `host` is
    empty until the job starts, `task` is so for a plain job.
    """

    job_id: int
    task: str
    name: str
    state: str
    host: str


@dataclass(frozen=True)
class Record:
    """What the accounting says of a job, or of one array task, that has ended."""

    job_id: int
    task: str
    name: str
    host: str
    slots: int
    exit_status: int
    state: str = "ended"


def parse_jobs(xml: str) -> list[Job]:
    """Return the jobs that ``qstat -xml`` printed."""
    found = ElementTree.fromstring(xml).iter("job_list")
    return [
        Job(
            job_id=int(job.findtext("JB_job_number", "")),
            task=job.findtext("tasks") or "",
            name=job.findtext("JB_name") or "",
            state=job.findtext("state") or "",
            host=job.findtext("queue_name", "").rpartition("@")[2],
        )
        for job in found
    ]


def parse_queues(xml: str) -> dict[str, str]:
    """Return the states of the queue on each host as ``qstat -f -xml`` printed them.

    The state is empty where the host takes jobs; a host that never reported has ``au``.
    """
    found = ElementTree.fromstring(xml).iter("Queue-List")
    return {queue.findtext("name", ""): queue.findtext("state") or "" for queue in found}


def parse_records(text: str) -> list[Record]:
    """Return the records that ``qacct -j`` printed, one after each line of equals signs."""
    records = []
    for block in text.split("=" * 62 + "\n")[1:]:
        fields = attributes(block)
        records.append(
            Record(
                job_id=int(fields["jobnumber"]),
                task=fields["taskid"].replace("undefined", ""),
                name=fields["jobname"],
                host=fields["hostname"],
                slots=int(fields["slots"]),
                exit_status=int(fields["exit_status"].split()[0]),  # a reason may follow
            )
        )
    return records

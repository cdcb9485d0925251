"""Jobs as ``qstat`` shows them, and what the accounting keeps of them."""

import re
from dataclasses import dataclass
from xml.etree import ElementTree

from tests.clusters.cluster import ARRAY, Job
from tests.clusters.grid_engine.config import attributes

_STATES = {"r": "running", "qw": "waiting"}
_NAME = re.compile(r"sw-[^-]+-([a-z]+)(?:-(\d{5}))?(?:-[0-9a-f]{12})?(?:-\d{1,2})?")


@dataclass(frozen=True)
class Record:
    """What the accounting says of a job, or of one array task, that has ended."""

    job: Job
    slots: int
    exit_status: int


def job(number: str, task: str, name: str, state: str, host: str) -> Job:
    """Return a job, or an array task, from what Grid Engine prints; ``task`` is empty for a job.

    States other than running and waiting stay as Grid Engine writes them: ``dr``, ``Eqw``.
    """
    what = "controller" if name == "shardwise" else name
    if match := _NAME.fullmatch(name):
        what = " ".join(filter(None, match.groups()))
    in_array = ARRAY.fullmatch(name) is not None
    what, handle = (task, f"{number}.{task}") if in_array else (what, number)
    return Job(int(number), what, _STATES.get(state, state), host, handle, in_array)


def parse_jobs(xml: str) -> list[Job]:
    """Return the jobs that ``qstat -xml`` printed."""
    names = ("JB_job_number", "tasks", "JB_name", "state")
    return [
        job(
            *(found.findtext(name) or "" for name in names),
            found.findtext("queue_name", "").rpartition("@")[2],
        )
        for found in ElementTree.fromstring(xml).iter("job_list")
    ]


def parse_queues(xml: str) -> dict[str, str]:
    """Return the states of the queue on each host as ``qstat -f -xml`` printed them.

    The state is empty if the host takes jobs; a host that never reported has ``au``.
    """
    found = ElementTree.fromstring(xml).iter("Queue-List")
    return {queue.findtext("name", ""): queue.findtext("state") or "" for queue in found}


def parse_records(text: str) -> list[Record]:
    """Return the records that ``qacct -j`` printed, one after each line of equals signs."""
    records = []
    for block in text.split("=" * 62 + "\n")[1:]:
        of = attributes(block)
        task = of["taskid"].replace("undefined", "")
        ended = job(of["jobnumber"], task, of["jobname"], "ended", of["hostname"])
        # A reason may follow the exit status.
        records.append(Record(ended, int(of["slots"]), int(of["exit_status"].split()[0])))
    return records

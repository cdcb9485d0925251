"""Jobs as ``qstat`` shows them, and what the accounting keeps of them."""

import re
from xml.etree import ElementTree

from tests.clusters.cluster import ARRAY, Job
from tests.clusters.grid_engine.config import attributes

_STATES = {"r": "running", "qw": "waiting"}
_NAME = re.compile(r"sw-[^-]+-([a-z]+)(?:-(\d{5}))?(?:-[0-9a-f]{12})?(?:-\d{1,2})?")


def _job(number: str, task: str, name: str, state: str, host: str) -> Job:
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
    names = ("JB_job_number", "tasks", "JB_name", "state", "queue_name")
    rows = ElementTree.fromstring(xml).iter("job_list")
    found = ([row.findtext(name) or "" for name in names] for row in rows)
    return [_job(*words, queue.rpartition("@")[2]) for *words, queue in found]


def parse_records(text: str) -> list[tuple[Job, int]]:
    """Return the jobs that have ended, by what ``qacct -j`` printed, each with its exit status."""
    records = []
    for of in map(attributes, text.split("=" * 62 + "\n")[1:]):
        task = of["taskid"].replace("undefined", "")
        ended = _job(of["jobnumber"], task, of["jobname"], "ended", of["hostname"])
        records.append((ended, int(of["exit_status"].split()[0])))  # a reason may follow
    return records

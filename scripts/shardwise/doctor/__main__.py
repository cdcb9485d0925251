"""One section of the doctor, in a process of its own: each finding is a line of JSON.

python -m shardwise.doctor SECTION OPTIONS, with the options as JSON.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from shardwise.doctor import folders, gpus, mpi, python, schedulers
from shardwise.doctor.findings import LIBRARY, Deadline, Finding

SECTIONS: dict[str, Callable[[dict[str, Any], Deadline], Iterator[Finding]]] = {
    "python": lambda options, deadline: python.findings(),
    "gpus": lambda options, deadline: gpus.findings(deadline, options["backend"]),
    "mpi": lambda options, deadline: mpi.findings(deadline, options["launcher"]),
    "slurm": lambda options, deadline: schedulers.slurm(deadline),
    "grid engine": lambda options, deadline: schedulers.grid_engine(deadline),
    "results": lambda options, deadline: folders.findings(Path(options["results"])),
}


def main(name: str, options: dict[str, Any]) -> None:
    """Write the findings of a section as they come."""
    if os.environ.get("PYTHONPATH"):  # only the user's own part is to be judged
        os.environ["PYTHONPATH"] = os.environ["PYTHONPATH"].removeprefix(f"{LIBRARY}").strip(":")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what it started is ended
    with closing(SECTIONS[name](options, Deadline(options["time_limit"]))) as found:
        for finding in found:
            sys.stdout.write(json.dumps(asdict(finding)) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))

"""A scheduler in the tests: real daemons on this machine, its jobs, and how to disturb them.

A third scheduler is one more class like `slurm.Slurm`, named in `places.KINDS`.
"""

import contextlib
import fcntl
import itertools
import os
import pwd
import random
import re
import shlex
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import processes
from tests.debian import PackagesError, none_here

# Below the range from which the kernel serves outgoing connections.
PORTS = range(20000, 30000)

LIMIT_S = 180

ARRAY = re.compile("sw-[0-9a-f]{12}-[0-9a-f]{8}-[0-9]+")
"""The name of an array of ours."""


USER = pwd.getpwuid(os.getuid()).pw_name


class ClusterError(RuntimeError):
    """The cluster, or one of its commands, failed; the message carries what was logged."""


@dataclass(frozen=True)
class Job:
    """A job, or a task of an array, that the scheduler has accepted."""

    number: int  # which its submission printed
    what: str  # ``rule`` or ``rule shard``, or the index of a task in its array
    state: str  # waiting, running, ended, or the scheduler's own word
    node: str  # empty until it starts
    handle: str  # to cancel it
    in_array: bool  # a task of a Shardwise array


@dataclass(frozen=True)
class Way:
    """A way to spread ranks over nodes: a job's options, and what each node then has."""

    options: tuple[str, ...]
    counts: tuple[int, ...]  # of a reduce's ranks, or of devices that compute shards
    launcher: str = "mpiexec"
    workers: str = "device"


class Cluster:
    """A scheduler's daemons as children of this process, its commands, and what tests ask of it."""

    title: str
    profile: str
    quick: tuple[str, ...]  # options to poll jobs more often than one should on a real site
    variables: Mapping[str, str] = {}  # of snakemake's environment, for the same purpose
    clients: tuple[str, ...]  # the scheduler's commands,
    submits: str  # the one of them that submits,
    looks: str  # the one that lists jobs,
    cancels: str  # and the one that cancels them
    full: str  # the exit code and message of `submits` when the queue is full
    no_scheduler: frozenset[str] = frozenset()  # commands that a dry run may call
    lost_node: str  # the node that the tests crash
    room: int  # how many jobs with a device can run at once
    devices: int  # of each node
    one_node = ""  # why it has no second node
    placements: Mapping[str, Way]
    reduces: Mapping[str, Way]
    shards_of_a_bad_night: int  # enough for `spoil`, a NaN, and a good one

    def __init__(self) -> None:
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._run_dir: Path | None = None

    @property
    def run_dir(self) -> Path:
        """Where the running cluster keeps all of its files."""
        assert self._run_dir, "the cluster is not running"
        return self._run_dir

    def start(self, run_dir: Path) -> None:
        """Start all daemons in `run_dir`, and wait until the cluster takes jobs.

        What an earlier cluster left there, running daemons included, is cleared away first.
        """
        self._run_dir = run_dir.resolve()
        try:
            processes.kill_all(self.own_processes)
            shutil.rmtree(run_dir, ignore_errors=True)
            run_dir.mkdir(parents=True)
            self._write_files()
            self._start_daemons()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the daemons, all jobs and all waiting clients; the logs stay, to be read."""
        if self._run_dir is None:
            return
        processes.kill_all(self.own_processes)
        for daemon in self._daemons.values():
            daemon.wait()
        self._daemons.clear()
        self._run_dir = None

    def need_several_nodes(self) -> None:
        """Skip a test that needs them if there are none."""
        if self.one_node:
            pytest.skip(f"no two hosts on this machine: {self.one_node}")

    def enter(self, folder: Path) -> list[str]:
        """Return the words before a command that make it run in a folder on a login node."""
        return []

    def newest(self) -> int:
        """Return the largest job number so far."""
        return max((job.number for job in self.jobs()), default=0)

    def finish(self, job: int) -> int:
        """Wait for a job; return its exit code."""
        self._await(lambda: self._states(job) == {"ended"})
        return self._exit_code(job)

    def _states(self, number: int) -> set[str]:
        """Return the states of a job, or of all tasks of an array."""
        return {job.state for job in self.jobs() if job.number == number}

    def idle(self, after: int) -> bool:
        """Whether all jobs with larger numbers have ended."""
        return all(job.state == "ended" for job in self.jobs() if job.number > after)

    def cancel(self, *handles: object) -> None:
        self.call(self.cancels, *map(str, handles))

    def kill_controller(self) -> None:
        """Kill the controller: jobs go on, and no command is answered until `start_controller`."""
        self._kill(self._controller)

    def report(self) -> str:
        """Return what the queue, the nodes and the daemons' logs say."""
        controller = self._daemons.get(self._controller)
        answers = controller is not None and controller.poll() is None
        said = [self.call(*words, check=False) for words in self._asked if answers]
        for path in (path for pattern in self._logs for path in sorted(self.run_dir.glob(pattern))):
            lines = path.read_text(errors="replace").splitlines()
            said += [f"--- {path}", *lines[-20:]]
        return "\n".join(said)

    def printed(self, job_id: int) -> str:
        """Return what a plain job printed so far."""
        return (self.run_dir / f"job-{job_id}.out").read_text()

    def saved_since(self, moment: float) -> bool:
        """Whether a restarted controller would know all jobs submitted before this time."""
        return True

    def call(self, command: str, *arguments: str, check: bool = True, stdin: str = "") -> str:
        """Run one of the scheduler's commands in the run folder; return what it printed."""
        line = self._command(command, *arguments)
        done = subprocess.run(
            line, env=self.env(), cwd=self.run_dir, input=stdin, capture_output=True, text=True,
            timeout=LIMIT_S, check=False,
        )  # fmt: skip
        if check and done.returncode != 0:
            said = (done.stderr + done.stdout).strip()
            raise ClusterError(f"`{shlex.join(map(str, line))}` exited {done.returncode}: {said}")
        return done.stdout

    def _launch(self, name: str, command: Sequence[str | Path], env: Mapping[str, str]) -> None:
        """Start a daemon as a child of ours, so that its end is noticed at once."""
        with (self.run_dir / f"{name}.out").open("ab") as sink:
            # In a session of its own: Ctrl-C reaches the tests only, which stop all in order.
            self._daemons[name] = subprocess.Popen(
                command, env=env, cwd=self.run_dir, stdin=subprocess.DEVNULL, stdout=sink,
                stderr=sink, start_new_session=True,
            )  # fmt: skip

    def _kill(self, daemon: str) -> None:
        killed = self._daemons.pop(daemon)
        killed.kill()
        killed.wait()

    def _await(self, condition: Callable[[], bool]) -> None:
        """Poll until `condition` holds; raise `ClusterError` when a daemon ends or time is up."""
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            ended = [name for name, daemon in self._daemons.items() if daemon.poll() is not None]
            if ended or time.monotonic() > deadline:
                why = f"ended by itself: {ended}" if ended else f"not reached within {LIMIT_S} s"
                raise ClusterError(f"{why}\n{self.report()}")
            time.sleep(0.2)


def free_ports(count: int) -> list[int]:
    """Return free TCP ports, drawn at random: clusters that start at once hardly take the same."""
    found = set[int]()
    while len(found) < count:
        port = random.choice(PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            found.add(port)
    return [*found]


@contextlib.contextmanager
def session_cluster(scheduler: str, make: Callable[[], Cluster]) -> Iterator[Any]:
    """Yield a running cluster; if there can be none, skip with the reason, or fail in CI.

    No other test session uses its folder. The folders have fixed names, so that the next session
    cleans up after one that crashed. They lie in the temporary folder, as a checkout's path may be
    too long for sockets.
    """
    base = Path(tempfile.gettempdir()) / f"shardwise-{scheduler}-{os.getuid()}"
    base.mkdir(mode=0o700, exist_ok=True)
    assert base.lstat().st_uid == os.getuid(), f"{base} belongs to somebody else: set TMPDIR"
    with contextlib.ExitStack() as stack:
        for number in itertools.count():
            lock = stack.enter_context((base / f"{number}.lock").open("w"))
            with contextlib.suppress(BlockingIOError):  # another session's
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
        try:
            cluster = make()
            stack.callback(cluster.stop)
            cluster.start(base / str(number))
        except (PackagesError, ClusterError) as error:
            none_here(f"{scheduler} test cluster", error)
        yield cluster

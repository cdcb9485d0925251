"""A real Grid Engine on this one machine: a master, and an execution daemon a host.

Nothing outside the run folder is written and no root is needed; without root, jobs are those of
this user only. The daemons listen on all interfaces and believe whoever asks: not for a machine
that people you do not trust can reach.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import processes
from tests.clusters.cluster import (
    ARRAY,
    JOB_LIMIT_S,
    Cluster,
    Submitted,
    Way,
    free_ports,
    tails,
    user_name,
)
from tests.clusters.grid_engine import config, packages
from tests.clusters.grid_engine.hosts import ThisMachine, TwoHosts
from tests.clusters.grid_engine.jobs import Job, Record, parse_jobs, parse_queues, parse_records

# Variables of an outer Grid Engine job, beside `SGE_*` and `JOB_*`, which must not reach ours.
STEERING = frozenset({"ARC", "NHOSTS", "NQUEUES", "NSLOTS", "PE", "PE_HOSTFILE", "QUEUE"})

_STATES = {"r": "running", "qw": "waiting"}
_JOB_NAME = re.compile(r"sw-[^-]+-([a-z]+)(?:-(\d{5}))?(?:-[0-9a-f]{12})?(?:-\d{1,2})?")


class GridEngine(Cluster):
    """One master and one queue on all hosts, with parallel environments and counted GPUs."""

    title, profile = "Grid Engine", "uge"
    quick = ("--seconds-between-status-checks", "1")
    clients = ("qsub", "qstat", "qdel", "qacct", "qconf", "qalter", "qhost", "qmod", "qrsh")
    submits, looks, cancels = "qsub", "qstat", "qdel"
    silence = "error: commlib error: got select error (Connection refused)"
    full = "25 job rejected: only 4 jobs are allowed per user"
    lost_node = "n2"
    room, devices = 4, 2
    shards_of_a_bad_night = 8
    placements = {
        "fill-up": Way(("-pe", "mpi", "3"), (1, 2)),
        "round-robin": Way(("-pe", "mpi_rr", "4"), (2, 2)),
        "a rank a host": Way(("-pe", "mpi_rr", "2"), (2, 2), workers="node"),
    }
    reduces = {
        "one host": Way(("-pe", "mpi", "2"), (2,)),
        "two hosts": Way(("-pe", "mpi_rr", "3"), (2, 1)),
    }

    def __init__(self, machines: ThisMachine | TwoHosts | None = None) -> None:
        super().__init__()
        self.prefix = packages.ensure()
        self.machines = machines or ThisMachine()
        self._ports: list[int] = []
        if len(self.machines.hosts) > 1:  # where a host that says nothing is soon lost
            self.variables = {"SHARDWISE_UNHEARD_SECONDS": "5"}

    @classmethod
    def of_several_nodes(cls) -> GridEngine:
        if reason := TwoHosts.missing():
            pytest.skip(f"no two hosts on this machine: {reason}")
        return cls(machines=TwoHosts())

    def _start_daemons(self) -> None:
        self.start_controller()
        self._configure()
        for host in self.machines.hosts:
            self._start("sge_execd", host.name)
        self._await(lambda: set(self.queues().values()) == {""})

    def stop(self) -> None:
        super().stop()
        self.machines.stop()

    def env(self) -> dict[str, str]:
        env = {
            key: value
            for key, value in os.environ.items()
            if key not in STEERING and not key.startswith(("SGE_", "JOB_"))
        }
        programs = packages.programs(self.prefix)
        return env | {
            "SGE_ROOT": str(self.run_dir / "root"),
            "SGE_CELL": config.CELL,
            "SGE_QMASTER_PORT": str(self._ports[0]),
            "SGE_EXECD_PORT": str(self._ports[1]),
            "PATH": f"{programs}:{env.get('PATH', os.defpath)}",
        }

    def call(self, command: str, *arguments: str, check: bool = True) -> str:
        return self._run(self._command(command, *arguments), check)

    def submit(self, command: str, *options: str) -> int:
        output = str(self.run_dir / "job-$JOB_ID.out")
        line = self._command("qsub", "-terse", "-cwd", "-j", "y", "-o", output, *options)
        answer = self._run(line, True, stdin=f"{command}\n")
        return int(answer.partition(".")[0])

    def finish(self, job: int) -> int:
        return self.wait_for(job)[0].exit_status

    def cancel(self, *handles: object) -> None:
        self.call("qdel", *map(str, handles))

    def newest(self) -> int:
        return max((job.job_id for job in [*self.jobs(), *self.all_records()]), default=0)

    def submitted(self, after: int) -> list[Submitted]:
        return self._accepted(after, lambda job: (what(job), str(job.job_id)))

    def tasks(self, after: int) -> list[Submitted]:
        def of_an_array(job: Job | Record) -> tuple[str, str] | None:
            return (job.task, f"{job.job_id}.{job.task}") if ARRAY.fullmatch(job.name) else None

        return self._accepted(after, of_an_array)

    def _accepted(
        self, after: int, name: Callable[[Job | Record], tuple[str, str] | None]
    ) -> list[Submitted]:
        """Return what has a name and a handle; what has just ended is in queue and accounting."""
        found: dict[str, Submitted] = {}
        for job in [*self.jobs(), *self.all_records()]:
            if job.job_id > after and (named := name(job)):
                state = _STATES.get(job.state, job.state)
                found.setdefault(
                    named[1], Submitted(named[0], state, named[1], job.host, job.job_id)
                )
        return [*found.values()]

    def spoil(self, jobs: Sequence[Submitted]) -> dict[Submitted, tuple[str, ...]]:
        deleted = next(job for job in jobs if job.state == "running")
        dropped, homeless, short = [job for job in jobs if job.state == "waiting"][:3]
        self.cancel(deleted.handle, dropped.handle)
        self.call("qalter", "-wd", "/nowhere", homeless.handle)
        self.call("qalter", "-l", "gpu=1,h_rt=0:0:3", short.handle)
        self._await(lambda: short.job not in {job.job_id for job in self.jobs()})
        return {
            deleted: ("deleted", "signal 9"),
            dropped: ("deleted",),
            homeless: ("/nowhere",),
            short: ("limit of run time",),
        }

    def idle(self, after: int) -> bool:
        return not any(job.job_id > after for job in self.jobs())

    def hold(self, job: Submitted) -> None:
        self.call("qalter", "-wd", "/nowhere", str(job.job))

    def jobs(self) -> list[Job]:
        """Return all jobs and array tasks that wait or run."""
        return parse_jobs(self.call("qstat", "-u", "*", "-g", "d", "-xml"))

    def queues(self) -> dict[str, str]:
        """Return the state of the queue on each host; it is empty where the host takes jobs."""
        return parse_queues(self.call("qstat", "-f", "-xml"))

    def records(self, job_id: int) -> list[Record]:
        """Return what the accounting keeps of a job; a job deleted while it waited has nothing."""
        return parse_records(self.call("qacct", "-j", str(job_id), check=False))

    def all_records(self) -> list[Record]:
        """Return what the accounting keeps of all jobs since the start."""
        return parse_records(self.call("qacct", "-j", "*", check=False))

    def wait_for(self, job_id: int) -> list[Record]:
        """Wait until a job has ended, with all its tasks, and return its records."""
        found: list[Record] = []

        def ended() -> bool:
            if any(job.job_id == job_id for job in self.jobs()):
                return False
            found[:] = self.records(job_id)
            return bool(found)

        self._await(ended, JOB_LIMIT_S)
        return found

    def wait_idle(self) -> None:
        self._await(lambda: not self.jobs())

    def check_doctor(self, findings: list[dict[str, Any]]) -> None:
        found = {finding["name"]: finding for finding in findings}
        assert {"gpu INT JOB", "gpuslot INT YES"} <= set(found["gpus"]["found"].split(", "))
        assert "mpi" in found["environments"]["found"].split(", ")
        assert found["grid engine"]["found"].startswith("SGE ")
        assert found["nodes"]["do"].startswith("qrsh -cwd -l gpu=1 ")

    def cancel_all(self) -> None:
        self.call("qdel", "-u", user_name(), check=False)  # fails where there is none
        self.wait_idle()

    def own_processes(self) -> set[int]:
        root = str(self.run_dir / "root")
        started = {
            pid for pid in processes.running() if processes.environment(pid).get("SGE_ROOT") == root
        }
        return started | processes.descendants(started)

    def enter(self, folder: Path) -> list[str]:
        return self.machines.enter(self._master, folder)

    def kill_controller(self) -> None:
        """Crash the master: no command is answered until `start_controller`; jobs go on."""
        self._kill(f"sge_qmaster.{self._master}")

    def start_controller(self) -> None:
        """Start the master, and wait until it answers."""
        self._start("sge_qmaster", self._master)
        self._await(lambda: bool(self.call("qconf", "-sh", check=False)))

    def crash(self, node: str) -> None:
        shepherds = processes.children(self._daemons[f"sge_execd.{node}"].pid)
        self._kill(f"sge_execd.{node}")
        processes.kill(shepherds)
        processes.kill_all(lambda: self.machines.processes(node))

    def restore(self, node: str) -> None:
        queue = f"{config.QUEUE}@{node}"
        self._start("sge_execd", node)
        self._await(lambda: "u" not in self.queues()[queue])
        # A job that the host was just starting as it crashed leaves the queue in an error state.
        self.call("qmod", "-cq", queue)
        self._await(lambda: self.queues()[queue] == "")

    def _kill(self, daemon: str) -> None:
        """End a daemon, which is then not missed."""
        killed = self._daemons.pop(daemon)
        killed.kill()
        killed.wait()

    @property
    def _master(self) -> str:
        """The host of the master."""
        return self.machines.hosts[0].name

    def _command(self, command: str, *arguments: str) -> list[str]:
        """Return the words that run a command of Grid Engine on the master's host."""
        program = packages.programs(self.prefix) / command
        return [*self.enter(self.run_dir), str(program), *arguments]

    def _write_files(self) -> None:
        self._ports = free_ports(2)
        folder, root = self.run_dir, self.run_dir / "root"
        common, programs = root / config.CELL / "common", packages.programs(self.prefix)
        # A folder for the temporary files of each host: their jobs have numbers in common.
        temporary = [f"tmp/{host.name}" for host in self.machines.hosts]
        for name in (common, "settings", "spool/qmaster/job_scripts", "spool/execd", *temporary):
            (folder / name).mkdir(parents=True)
        architecture = packages.architecture(self.prefix)
        for name in ("bin", "lib", "utilbin"):
            (root / name).mkdir()
            (root / name / architecture).symlink_to(programs)
        (root / "util").symlink_to(packages.shared(self.prefix) / "util")
        (common / "host_aliases").write_text(self.machines.start(folder))
        (common / "act_qmaster").write_text(f"{self._master}\n")
        admin = "none" if os.geteuid() == 0 else user_name()
        (common / "bootstrap").write_text(config.bootstrap(folder, admin))
        self._spool()

    def _spool(self) -> None:
        """Save what the master must find when it starts."""
        shared = packages.shared(self.prefix)
        resources = shared / "util" / "resources"
        defaults = (shared / "default-configuration").read_text()
        settings = self._setting("global", config.global_settings(self.run_dir, defaults))
        self.call("spooldefaults.bin", "configuration", settings)
        for index, host in enumerate(self.machines.hosts):
            local = self._setting(f"local.{host.name}", config.local_settings(index))
            self.call("spooldefaults.bin", "local_conf", local, host.name)
        self.call("spooldefaults.bin", "complexes", str(resources / "centry"))
        self.call("spooldefaults.bin", "usersets", str(resources / "usersets"))
        self.call("spooldefaults.bin", "managers", user_name())

    def _configure(self) -> None:
        """Tell the running master of resources, hosts, parallel environments and the queue."""
        complexes = config.complexes(self.call("qconf", "-sc"))
        self.call("qconf", "-Mc", self._setting("complexes", complexes))
        scheduler = config.scheduler(self.call("qconf", "-ssconf"))
        self.call("qconf", "-Msconf", self._setting("scheduler", scheduler))
        for host in self.machines.hosts:
            self.call("qconf", "-ah", host.name, check=False)  # the master's host is one already
            self.call("qconf", "-as", host.name)
            settings = self._setting(f"host.{host.name}", config.exec_host(host))
            self.call("qconf", "-Ae", settings)
        for name in config.PARALLEL:
            settings = self._setting(f"pe.{name}", config.parallel_environment(name))
            self.call("qconf", "-Ap", settings)
        queue = config.queue(self.run_dir, self.call("qconf", "-sq"), self.machines.hosts)
        self.call("qconf", "-Aq", self._setting("queue", queue))

    def _setting(self, name: str, text: str) -> str:
        """Write settings to a file, as ``qconf`` wants them, and return its path."""
        path = self.run_dir / "settings" / name
        path.write_text(text)
        return str(path)

    def _start(self, program: str, host: str) -> None:
        """Start a daemon on a host; it stays in front, so that its end is seen."""
        name = f"{program}.{host}"
        enter = self.machines.enter(host, self.run_dir)
        command = [*enter, packages.programs(self.prefix) / program]
        self._launch(name, command, self.env() | {"SGE_ND": "1"})

    def report(self) -> str:
        master = self._daemons.get(f"sge_qmaster.{self._master}")
        asked = master is not None and master.poll() is None
        said = [self.call("qstat", "-f", "-u", "*", check=False)] if asked else []
        logs = [*self.run_dir.glob("sge_*.out"), *self.run_dir.glob("spool/**/messages")]
        return "\n".join((*said, tails(sorted(logs))))


def what(job: Job | Record) -> str:
    """What a job computes, as ``rule`` or ``rule shard``."""
    if job.name == "shardwise":
        return "controller"
    match = _JOB_NAME.fullmatch(job.name)
    assert match, f"not a job of ours: {job}"
    return " ".join(filter(None, match.groups()))

"""A real Grid Engine on this one machine: a master, and one execution daemon per host.

Nothing is written outside the run folder, and root is not needed; without root, only this user can
run jobs. The daemons listen on all interfaces and trust every client: do not start it on a machine
that people you do not trust can reach.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests import processes
from tests.clusters.cluster import Cluster, Job, Way, free_ports, user_name
from tests.clusters.grid_engine import config, packages
from tests.clusters.grid_engine.hosts import ThisMachine, TwoHosts
from tests.clusters.grid_engine.jobs import parse_jobs, parse_records

# Variables of an outer Grid Engine job, besides `SGE_*` and `JOB_*`, that must not reach ours.
STEERING = frozenset({"ARC", "NHOSTS", "NQUEUES", "NSLOTS", "PE", "PE_HOSTFILE", "QUEUE"})


class GridEngine(Cluster):
    """One master and one queue on all hosts, with parallel environments and counted GPUs."""

    title, profile = "Grid Engine", "uge"
    quick = ("--seconds-between-status-checks", "1")
    clients = ("qsub", "qstat", "qdel", "qacct", "qconf", "qalter", "qhost", "qmod", "qrsh")
    submits, looks, cancels = "qsub", "qstat", "qdel"
    full = "25 job rejected: only 4 jobs are allowed per user"
    lost_node = "n2"
    room, devices = 4, 2
    shards_of_a_bad_night = 8
    _asked = (("qstat", "-f", "-u", "*"),)
    _logs = ("sge_*.out", "spool/**/messages")
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
        self._programs, self._shared = packages.ensure()
        self.machines = machines or ThisMachine()
        self._ports: list[int] = []
        if len(self.machines.hosts) > 1:  # tests crash one, and need not wait long for it
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
        return env | {
            "SGE_ROOT": str(self.run_dir / "root"),
            "SGE_CELL": config.CELL,
            "SGE_QMASTER_PORT": str(self._ports[0]),
            "SGE_EXECD_PORT": str(self._ports[1]),
            "PATH": f"{self._programs}:{env.get('PATH', os.defpath)}",
        }

    def submit(self, command: str, *options: str) -> int:
        output = str(self.run_dir / "job-$JOB_ID.out")
        line = ("-terse", "-cwd", "-j", "y", "-o", output, *options)
        return int(self.call("qsub", *line, stdin=f"{command}\n").partition(".")[0])

    def _exit_code(self, job: int) -> int:
        return self.records(job)[0][1]

    def jobs(self) -> list[Job]:
        queue = self.queue()  # first: a job that ends now is in both, and counts as in the queue
        ended = [job for job, _ in self.records("*")]
        return [*{job.handle: job for job in [*ended, *queue]}.values()]

    def spoil(self, jobs: Sequence[Job]) -> dict[Job, tuple[str, ...]]:
        deleted = next(job for job in jobs if job.state == "running")
        dropped, homeless, short = [job for job in jobs if job.state == "waiting"][:3]
        self.cancel(deleted.handle, dropped.handle)
        self.call("qalter", "-wd", "/nowhere", homeless.handle)
        self.call("qalter", "-l", "gpu=1,h_rt=0:0:3", short.handle)
        self._await(lambda: self._states(short.number) <= {"ended"})
        return {
            deleted: ("deleted", "signal 9"),
            dropped: ("deleted",),
            homeless: ("/nowhere",),
            short: ("limit of run time",),
        }

    def hold(self, job: Job) -> None:
        self.call("qalter", "-wd", "/nowhere", str(job.number))

    def queue(self) -> list[Job]:
        """Return all jobs and array tasks that wait or run."""
        return parse_jobs(self.call("qstat", "-u", "*", "-g", "d", "-xml"))

    def queues(self) -> dict[str, str]:
        """Return the state of the queue on each host.

        It is empty if the host takes jobs; a host that never reported has ``au``.
        """
        found = ElementTree.fromstring(self.call("qstat", "-f", "-xml")).iter("Queue-List")
        return {queue.findtext("name", ""): queue.findtext("state") or "" for queue in found}

    def records(self, number: int | str) -> list[tuple[Job, int]]:
        """Return what the accounting keeps of a job, or of all (``*``) since the start."""
        return parse_records(self.call("qacct", "-j", str(number), check=False))

    def wait_idle(self) -> None:
        self._await(lambda: not self.queue())

    def cancel_all(self) -> None:
        self.call("qdel", "-u", user_name(), check=False)  # fails if there is no job
        self.wait_idle()

    def own_processes(self) -> set[int]:
        root = str(self.run_dir / "root")
        env = processes.environment
        started = {pid for pid in processes.running() if env(pid).get("SGE_ROOT") == root}
        return started | processes.descendants(started)

    def enter(self, folder: Path) -> list[str]:
        return self.machines.enter(self._master, folder)

    def start_controller(self) -> None:
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

    @property
    def _master(self) -> str:
        return self.machines.hosts[0].name

    @property
    def _controller(self) -> str:
        return f"sge_qmaster.{self._master}"

    def _command(self, command: str, *arguments: str) -> list[str | Path]:
        return [*self.enter(self.run_dir), self._programs / command, *arguments]

    def _write_files(self) -> None:
        self._ports = free_ports(2)
        folder, root = self.run_dir, self.run_dir / "root"
        common = root / config.CELL / "common"
        # Each host has its own folder for temporary files: one job may run on both hosts.
        temporary = [f"tmp/{host.name}" for host in self.machines.hosts]
        for name in (common, "settings", "spool/qmaster/job_scripts", "spool/execd", *temporary):
            (folder / name).mkdir(parents=True)
        architecture = packages.architecture(self._shared)
        for name in ("bin", "lib", "utilbin"):
            (root / name).mkdir()
            (root / name / architecture).symlink_to(self._programs)
        (root / "util").symlink_to(self._shared / "util")
        (common / "host_aliases").write_text(self.machines.start(folder))
        (common / "act_qmaster").write_text(f"{self._master}\n")
        admin = "none" if os.geteuid() == 0 else user_name()
        (common / "bootstrap").write_text(config.bootstrap(folder, admin))
        self._spool()

    def _spool(self) -> None:
        """Save what the master must find when it starts."""
        resources = self._shared / "util" / "resources"
        defaults = (self._shared / "default-configuration").read_text()
        settings = config.text(config.global_settings(self.run_dir), defaults)
        self.call("spooldefaults.bin", "configuration", self._setting("global", settings))
        for index, host in enumerate(self.machines.hosts):
            # Additional group ids tell what to kill, and hosts on one machine see each other's.
            first = 65400 + 100 * index
            local = config.text({"gid_range": f"{first}-{first + 99}"})
            path = self._setting(f"local.{host.name}", local)
            self.call("spooldefaults.bin", "local_conf", path, host.name)
        self.call("spooldefaults.bin", "complexes", str(resources / "centry"))
        self.call("spooldefaults.bin", "usersets", str(resources / "usersets"))
        self.call("spooldefaults.bin", "managers", user_name())

    def _configure(self) -> None:
        """Tell the running master of resources, hosts, parallel environments and the queue."""
        qconf, hosts = partial(self.call, "qconf"), self.machines.hosts
        for host in hosts:
            qconf("-ah", host.name, check=False)  # the master's host is one already
            qconf("-as", host.name)
        for option, text in (
            ("-Mc", config.complexes(qconf("-sc"))),
            ("-Msconf", config.text(config.SCHEDULER, qconf("-ssconf"))),
            *(("-Ae", config.exec_host(host)) for host in hosts),
            *(("-Ap", config.parallel_environment(name)) for name in config.PARALLEL),
            ("-Aq", config.text(config.queue(self.run_dir, hosts), qconf("-sq"))),
        ):
            qconf(option, self._setting("setting", text))

    def _setting(self, name: str, text: str) -> str:
        """Write settings to a file, as ``qconf`` wants them, and return its path."""
        path = self.run_dir / "settings" / name
        path.write_text(text)
        return str(path)

    def _start(self, program: str, host: str) -> None:
        """Start a daemon on a host; it stays in the foreground, so that its end is noticed."""
        command = [*self.machines.enter(host, self.run_dir), self._programs / program]
        self._launch(f"{program}.{host}", command, self.env() | {"SGE_ND": "1"})

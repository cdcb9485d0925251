"""A real Slurm on this one machine: a controller and three virtual nodes with pretended GPUs.

Nothing is written outside the run folder, not even in /etc/slurm, and root is not needed. The
daemons listen on the loopback interface only, but trust every client there: do not start it on a
machine that you share with people you do not trust.
"""

import os
import re
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from tests import impatient, processes
from tests.clusters.cluster import ARRAY, Cluster, ClusterError, Job, Way, free_ports, user_name
from tests.clusters.slurm import config
from tests.clusters.slurm.programs import CLIENTS, Programs

# The daemons, by the names of their logs.
DAEMONS = ("slurmctld", *(node.name for node in config.NODES))

# Variables that steer Slurm's commands: those of an outer Slurm job must not reach ours.
STEERING = ("SLURM", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SINFO_", "SCANCEL_")

# Step daemons keep a socket in the spool folder, and such a path must stay below 108 bytes.
LONGEST_RUN_DIR = 60

# A node that takes jobs has one of these states and no flag, such as `+DRAIN`, behind it.
UP_STATES = frozenset({"IDLE", "MIXED", "ALLOCATED"})

_KEY = re.compile(r"(_wildcards)?_[0-9a-f]{12}$")
"""The key in a job's comment, after the shard or in place of it."""

_HELD = re.compile(r" CPUAlloc=[1-9]| GresUsed=(\w+:)+[1-9]")
"""A CPU or a device of a node that is held."""

_FINAL = ("CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT")
_STATES = {"PENDING": "waiting", "RUNNING": "running", **dict.fromkeys(_FINAL, "ended")}
_SEPARATOR = "\x1f"  # comments may hold any printable character

PMI = "srun --mpi=pmi2"
_SIX = ("--gpus=6", "-n6", "-c1")
_ON_BOTH = ("-p", "gpu", "-N2", "--gres=gpu:2", "-c1")
_ONE_NODE = ("-p", "cpu", "-N1", "-n3")
_TWO_NODES = ("-p", "gpu", "-N2", "-n3", "--ntasks-per-node=2")


class Slurm(Cluster):
    """One controller, and a slurmd for each of `config.NODES`."""

    title, profile = "Slurm", "slurm"
    quick = ("--slurm-init-seconds-before-status-checks", "1")
    variables = impatient.environment()
    clients = ("sbatch", "squeue", "scontrol", "scancel", "sacct", "sacctmgr", "sinfo")
    submits, looks, cancels = "sbatch", "squeue", "scancel"
    full = "1 sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying"
    no_scheduler = frozenset({"scontrol", "sacct"})  # the plugin asks them as it is loaded
    lost_node = "gpu1"
    room, devices = 6, 4
    shards_of_a_bad_night = 3
    _controller, _logs = "slurmctld", ("slurmctld.out", "?pu?.out")
    _asked = (("sinfo",), ("squeue",), ("scontrol", "-d", "-o", "show", "nodes"))
    placements = {
        "a rank a device": Way((*_SIX, "--ntasks-per-gpu=1"), (2, 4), PMI),
        "round-robin": Way(_SIX, (2, 4), f"{PMI} --distribution=cyclic"),
        "mpiexec": Way(_SIX, (2, 4), "mpiexec"),
        "a device bound to each": Way(("--gpus=4", "-n4"), (4,), f"{PMI} --gpu-bind=single:1"),
        "a rank a node": Way((*_ON_BOTH, "-n2", "--ntasks-per-node=1"), (2, 2), PMI, "node"),
        "two ranks a node": Way((*_ON_BOTH, "-n4", "--ntasks-per-node=2"), (2, 2), PMI, "node"),
    }
    reduces = {
        "one node": Way(_ONE_NODE, (3,), PMI),
        "one node, mpiexec": Way(_ONE_NODE, (3,), "mpiexec"),
        "two nodes": Way(_TWO_NODES, (2, 1), PMI),
        "two nodes, mpiexec": Way(_TWO_NODES, (2, 1), "mpiexec"),
    }

    def __init__(self) -> None:
        super().__init__()
        self._programs = Programs()
        self._ports: dict[str, int] = {}

    def _start_daemons(self) -> None:
        self.start_controller()
        for node in config.NODES:
            self._launch_node(node.name)
        self._await(lambda: set(self.nodes().values()) == {"IDLE"})

    def env(self) -> dict[str, str]:
        env = {key: value for key, value in os.environ.items() if not key.startswith(STEERING)}
        env["PATH"] = f"{self.run_dir}/bin:{env.get('PATH', os.defpath)}"
        return env

    def _command(self, command: str, *arguments: str) -> list[str | Path]:
        return [self.run_dir / "bin" / command, *arguments]

    def submit(self, command: str, *options: str) -> int:
        own = ("--parsable", "--output=job-%j.out", *options, f"--wrap={command}")
        return int(self.call("sbatch", *own).partition(";")[0])

    def _exit_code(self, job: int) -> int:
        shown = self.call("scontrol", "-o", "show", "job", str(job))
        code, signal = map(int, re.findall(r" ExitCode=(\d+):(\d+)", shown)[0])
        return 128 + signal if signal else code

    def jobs(self) -> list[Job]:
        form = _SEPARATOR.join(("%F", "%K", "%T", "%N", "%k", "%j"))
        found = []
        for line in self.call("squeue", "-h", "-r", "-t", "all", "-o", form).splitlines():
            number, task, state, node, comment, name = line.split(_SEPARATOR)
            what, handle = comment.removeprefix("rule_"), number
            if in_array := ARRAY.fullmatch(name) is not None:
                what, handle = task, f"{number}_{task}"
            what = _KEY.sub("", what).replace("_wildcards_", " ")
            state = _STATES.get(state, state)
            found.append(Job(int(number), what, state, node, handle, in_array))
        return found

    def spoil(self, jobs: Sequence[Job]) -> dict[Job, tuple[str, ...]]:
        cancelled = next(job for job in jobs if job.state == "running")
        self.cancel(cancelled.handle)
        return {cancelled: ("the scheduler says CANCELLED",)}

    def hold(self, job: Job) -> None:
        self.call("scontrol", "hold", job.handle)

    def wait_idle(self) -> None:
        """Wait until no job is left and all CPUs and devices are free.

        A restarted controller takes a node into service as soon as a job there ends. It may start
        the next job before the node has reported its devices, and Slurm 22.05 then never frees a
        device. Reconfiguring it makes it count again what living jobs hold.
        """
        self._await(lambda: not self.call("squeue", "-h"))
        devices = sum(node.gpus > 0 for node in config.NODES)
        self._await(lambda: self._shown_nodes().count("(IDX:") == devices)  # all have reported
        if _HELD.search(self._shown_nodes()):
            self.call("scontrol", "reconfigure")
            self._await(lambda: not _HELD.search(self._shown_nodes()))

    def _shown_nodes(self) -> str:
        return self.call("scontrol", "-d", "-o", "show", "nodes")

    def cancel_all(self) -> None:
        self.call("scancel", f"--user={user_name()}")
        self.wait_idle()

    def nodes(self) -> dict[str, str]:
        """Return each node's state in full, such as ``IDLE`` or ``DOWN+DRAIN``."""
        shown = self.call("scontrol", "-o", "show", "nodes")
        return dict(re.findall(r"NodeName=(\S+).*? State=(\S+)", shown))

    def start_controller(self) -> None:
        self._start("slurmctld", "slurmctld", "-D")
        self._await(lambda: "is UP" in self.call("scontrol", "ping", check=False))

    def saved_since(self, moment: float) -> bool:
        saved = (self.run_dir / "state" / "job_state").stat().st_mtime
        return max(saved, time.time() - 6) > moment  # it saves changes every five seconds

    def crash(self, node: str) -> None:
        """Crash a node, and mark it down, as otherwise Slurm would wait for it.

        slurmd is killed first and the step daemons second: either would report the end of a job's
        processes, and the job would end as FAILED instead of NODE_FAIL. The drain keeps Slurm from
        returning the node to service as soon as its slurmd lives again.
        """
        self._kill(node)
        steps = processes.holders(self.run_dir / f"{node}.log")
        orphans = processes.descendants(steps)  # found now, while step daemons link them
        processes.kill(steps)
        processes.kill(orphans)
        processes.kill_all(lambda: self._started_here(node))
        for state in ("DRAIN", "DOWN"):
            self.call("scontrol", "update", f"NodeName={node}", f"State={state}", "Reason=test")

    def restore(self, node: str) -> None:
        self._launch_node(node)
        # Soon after a crash the controller still takes the node for up: probe its port as well.
        wanted = UP_STATES | {f"{state}+DRAIN" for state in UP_STATES}
        self._await(lambda: _listens(self._ports[node]) and self.nodes()[node] in wanted)
        if self.nodes()[node] not in UP_STATES:
            self.call("scontrol", "update", f"NodeName={node}", "State=RESUME")
            self._await(lambda: self.nodes()[node] in UP_STATES)

    def _write_files(self) -> None:
        folder = self.run_dir
        if len(str(folder)) > LONGEST_RUN_DIR:
            raise ClusterError(f"{folder}: give a path of at most {LONGEST_RUN_DIR} characters")
        spools = [f"spool.{node.name}" for node in config.NODES]
        for name in ("bin", "state", "dev", *spools):
            (folder / name).mkdir()
        controller_port, *node_ports = free_ports(1 + len(config.NODES))
        self._ports = {node.name: port for node, port in zip(config.NODES, node_ports, strict=True)}
        plugins = self._programs.plugins
        text = config.slurm_conf(folder, user_name(), plugins, controller_port, self._ports)
        self._conf.write_text(text)
        (folder / "gres.conf").write_text(config.gres_conf(folder))
        # The plugin is named, as Slurm can detect one only with a running systemd.
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        for node in config.NODES:
            for index in range(node.gpus):
                (folder / "dev" / f"{node.name}-{index}").symlink_to(os.devnull)
        for name in CLIENTS:
            self._programs.write_wrapper(name, folder / "bin", self._conf)

    @property
    def _conf(self) -> Path:
        return self.run_dir / "slurm.conf"

    def _launch_node(self, name: str) -> None:
        """Start the slurmd of a node."""
        self._start(name, "slurmd", "-D", "-N", name, "-d", self._programs.daemon("slurmstepd"))

    def _start(self, name: str, program: str, *arguments: str | Path) -> None:
        """Start a daemon with the cluster's settings."""
        libraries = self._programs.library_path
        env = self.env() | {"SLURM_CONF": str(self._conf), "LD_LIBRARY_PATH": libraries}
        self._launch(name, [self._programs.daemon(program), *arguments], env)

    def own_processes(self) -> set[int]:
        logs = (self.run_dir / f"{name}.log" for name in DAEMONS)
        daemons = set[int]().union(*map(processes.holders, logs))
        return daemons | processes.descendants(daemons) | self._started_here()

    def _started_here(self, node: str | None = None) -> set[int]:
        """Return the clients and the jobs' processes of this cluster, or those of one node's jobs.

        Snakemake's jobs have lost ``SLURM_CONF`` but not ``PATH`` and ``SLURMD_NODENAME``. ``PATH``
        alone says nothing: the tests' own Snakemake has the same.
        """
        conf, bin_dir = str(self._conf), str(self.run_dir / "bin")
        found = set()
        for pid in processes.running():
            env = processes.environment(pid)
            on = env.get("SLURMD_NODENAME")
            here = env.get("SLURM_CONF") == conf or (
                on is not None and bin_dir in env.get("PATH", "").split(":")
            )
            if here and node in (None, on):
                found.add(pid)
        return found


def _listens(port: int) -> bool:
    """Whether a daemon takes connections on `port`."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0

"""A real Slurm on this one machine: a controller and three virtual nodes with pretended GPUs.

Nothing is written outside the run folder, not even in /etc/slurm, and root is not needed. The
daemons listen on the loopback interface only, but trust every client there: do not start it on a
machine that you share with people you do not trust.
"""

import os
import random
import re
import shlex
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from tests import debian, processes
from tests.clusters.cluster import ARRAY, USER, Cluster, Job, Way, free_ports

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins")

# In the order in which the scheduler fills them; the second also runs what asks for no GPU.
GPUS = {"cpu1": 0, "gpu1": 4, "gpu2": 2}

# Variables that steer Slurm's commands: those of an outer Slurm job must not reach ours.
STEERING = ("SLURM", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SINFO_", "SCANCEL_")

# A node that takes jobs has one of these states and no flag, such as `+DRAIN`, behind it.
UP_STATES = frozenset({"IDLE", "MIXED", "ALLOCATED"})

CONF = """\
ClusterName=shardwise-test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={slurmctld}
# Job numbers do not repeat, as on a real site: under srun MPICH names its shared memory by them,
# and would mistake what a killed job of an earlier cluster left in /dev/shm for its own.
FirstJobId={first_job}
SlurmUser={user}
SlurmdUser={user}
PluginDir={plugins}
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdLogFile={folder}/%n.log
SlurmdSpoolDir={folder}/spool.%n
TmpFS={folder}

# No munge: whoever reaches the ports is believed. Hence the loopback interface only.
AuthType=auth/none
CredType=cred/none
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
# Jobs of a lost node are held until their credentials have expired: 121 s by default.
AuthInfo=cred_expire=10

# Neither cgroups nor a database: both need root, and a real machine's help.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
AccountingStorageType=accounting_storage/none
MailProg=/bin/true
MpiDefault=pmi2

SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
# Without it each job gets the whole memory of its node, and runs alone there.
DefMemPerCPU=200
GresTypes=gpu
# Finished jobs stay visible to squeue for an hour: there is no accounting to ask.
MinJobAge=3600
SchedulerParameters=bf_interval=5,batch_sched_delay=0,sched_min_interval=0
KillWait=2
SlurmctldTimeout=30
SlurmdTimeout=10
ReturnToService=2
# Take the nodes' sizes at their word, whatever the machine has.
SlurmdParameters=config_overrides

NodeName=DEFAULT CPUs=8 RealMemory=10000
NodeName=cpu1 {at} Port={cpu1} Weight=1
NodeName=gpu1 {at} Port={gpu1} Weight=2 Gres=gpu:a100:4 Features=a100
NodeName=gpu2 {at} Port={gpu2} Weight=3 Gres=gpu:h200:2 Features=h200
# Not named `all`: in a Snakemake resource that is Python's function of that name.
PartitionName=main Nodes=ALL Default=YES MaxTime=1:00:00
PartitionName=gpu Nodes=gpu1,gpu2 MaxTime=1:00:00
PartitionName=cpu Nodes=cpu1 MaxTime=1:00:00
"""

# One file for each device stands for it.
GRES = """\
AutoDetect=off
NodeName=gpu1 Name=gpu Type=a100 File={folder}/dev/gpu1-[0-3]
NodeName=gpu2 Name=gpu Type=h200 File={folder}/dev/gpu2-[0-1]
"""

# It calls the loader that the program names in its header, with the unpacked libraries: every job
# would inherit an LD_LIBRARY_PATH.
WRAPPER = """\
#!/bin/sh
SLURM_CONF={conf}
export SLURM_CONF
exec {loader} --library-path {libraries} --argv0 {name} {program} "$@"
"""

_KEY = re.compile(r"(_wildcards)?_[0-9a-f]{12}$")
"""The key in a job's comment, after the shard or in place of it."""

_HELD = re.compile(r" CPUAlloc=[1-9]| GresUsed=(\w+:)+[1-9]")
"""A CPU or a device of a node that is held."""

_FINAL = ("CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT")
_STATES = {"PENDING": "waiting", "RUNNING": "running", **dict.fromkeys(_FINAL, "ended")}
_SEPARATOR = "\x1f"  # comments may hold any printable character

_PATH = (str(Path(__file__).parents[1] / "impatient"), os.environ.get("PYTHONPATH"))
"""Python reads `sitecustomize.py` of the first folder, which lets snakemake look every second.

Slurm's plugin waits 10 s more after each look at which no job had ended, and has no option for it.
"""

PMI = "srun --mpi=pmi2"
_SIX = ("--gpus=6", "-n6", "-c1")
_ON_BOTH = ("-p", "gpu", "-N2", "--gres=gpu:2", "-c1")
_ONE_NODE = ("-p", "cpu", "-N1", "-n3")
_TWO_NODES = ("-p", "gpu", "-N2", "-n3", "--ntasks-per-node=2")


def _name_daemons(prefix: Path) -> None:
    """Give the daemons their plain names, as Debian's installation scripts would.

    The names decide what the programs do: started as `slurmctld-wlm` it refuses every GPU job.
    """
    for program in prefix.glob("usr/sbin/*-wlm"):
        link = program.with_name(program.name.removesuffix("-wlm"))
        if not link.exists():
            link.symlink_to(program.name)


def unpacked() -> Path:
    """The folder that Slurm's packages are unpacked into, by the first call."""
    return debian.unpacked("slurm", PACKAGES, _name_daemons)


class Slurm(Cluster):
    """One controller, and a slurmd for each node."""

    title, profile = "Slurm", "slurm"
    quick = ("--slurm-init-seconds-before-status-checks", "1")
    variables = {"IMPATIENT": "1", "PYTHONPATH": os.pathsep.join(filter(None, _PATH))}
    clients = ("sbatch", "srun", "squeue", "scontrol", "scancel", "sacct", "sacctmgr", "sinfo")
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
        self._prefix = unpacked()
        (self._plugins,) = self._prefix.glob("usr/lib/*/slurm-wlm")
        libraries = self._plugins.parent
        system = self._prefix / "lib" / libraries.name
        self._libraries = f"{self._plugins}:{libraries}:{system}"
        self._ports: dict[str, int] = {}

    def env(self) -> dict[str, str]:
        env = {key: value for key, value in os.environ.items() if not key.startswith(STEERING)}
        env["PATH"] = f"{self.run_dir}/bin:{env.get('PATH', os.defpath)}"
        return env

    def submit(self, command: str, *options: str) -> int:
        own = ("--parsable", "--output=job-%j.out", *options, f"--wrap={command}")
        return int(self.call("sbatch", *own).partition(";")[0])

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

    def spoil(self, jobs: Sequence[Job]) -> dict[Job, str]:
        cancelled = next(job for job in jobs if job.state == "running")
        self.cancel(cancelled.handle)
        return {cancelled: "the scheduler says CANCELLED"}

    def hold(self, job: Job) -> None:
        self.call("scontrol", "hold", job.handle)

    def cancel_all(self) -> None:
        """Cancel all jobs; wait until all CPUs and devices are free.

        A restarted controller takes a node into service as soon as a job there ends. It may start
        the next job before the node has reported its devices, and Slurm 22.05 then never frees a
        device. Reconfiguring it makes it count again what living jobs hold.
        """
        self.call("scancel", f"--user={USER}")
        self._await(lambda: not self.call("squeue", "-h"))
        devices = sum(count > 0 for count in GPUS.values())
        self._await(lambda: self._shown_nodes().count("(IDX:") == devices)  # all have reported
        if _HELD.search(self._shown_nodes()):
            self.call("scontrol", "reconfigure")
            self._await(lambda: not _HELD.search(self._shown_nodes()))

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
        processes.kill(processes.holders(self.run_dir / f"{node}.log"))
        on_node = {"SLURMD_NODENAME": node}.items()
        processes.kill_all(lambda: {
            pid for pid in self.own_processes() if on_node <= processes.environment(pid).items()
        })  # fmt: skip
        for state in ("DRAIN", "DOWN"):
            self.call("scontrol", "update", f"NodeName={node}", f"State={state}", "Reason=test")

    def restore(self, node: str) -> None:
        self._launch_node(node)
        # Soon after a crash the controller still takes the node for up: probe its port as well.
        wanted = UP_STATES | {f"{state}+DRAIN" for state in UP_STATES}
        self._await(lambda: self._listens(node) and self._nodes()[node] in wanted)
        if self._nodes()[node] not in UP_STATES:
            self.call("scontrol", "update", f"NodeName={node}", "State=RESUME")
            self._await(lambda: self._nodes()[node] in UP_STATES)

    def own_processes(self) -> set[int]:
        """Return the daemons, the clients and the jobs' processes of this cluster.

        Snakemake's jobs have lost ``SLURM_CONF`` but not ``PATH`` and ``SLURMD_NODENAME``. ``PATH``
        alone says nothing: the tests' own Snakemake has the same.
        """
        bin_dir, found = str(self.run_dir / "bin"), set()
        for pid in processes.running():
            env = processes.environment(pid)
            in_job = "SLURMD_NODENAME" in env and bin_dir in env.get("PATH", "").split(":")
            if in_job or env.get("SLURM_CONF") == str(self._conf):
                found.add(pid)
        return found | processes.descendants(found)

    def _start_daemons(self) -> None:
        self.start_controller()
        for node in GPUS:
            self._launch_node(node)
        self._await(lambda: set(self._nodes().values()) == {"IDLE"})

    def _command(self, command: str, *arguments: str) -> list[str | Path]:
        return [self.run_dir / "bin" / command, *arguments]

    def _exit_code(self, job: int) -> int:
        shown = self.call("scontrol", "-o", "show", "job", str(job))
        code, signal = map(int, re.findall(r" ExitCode=(\d+):(\d+)", shown)[0])
        return 128 + signal if signal else code

    def _shown_nodes(self) -> str:
        return self.call("scontrol", "-d", "-o", "show", "nodes")

    def _nodes(self) -> dict[str, str]:
        """Return each node's state in full, such as ``IDLE`` or ``DOWN+DRAIN``."""
        return dict(re.findall(r"NodeName=(\S+).*? State=(\S+)", self._shown_nodes()))

    def _write_files(self) -> None:
        folder = self.run_dir
        for name in ("bin", "state", "dev", *(f"spool.{node}" for node in GPUS)):
            (folder / name).mkdir()
        for node, count in GPUS.items():
            for index in range(count):
                (folder / "dev" / f"{node}-{index}").symlink_to(os.devnull)
        self._ports = dict(zip(("slurmctld", *GPUS), free_ports(1 + len(GPUS)), strict=True))
        host = socket.gethostname().partition(".")[0]
        self._conf.write_text(CONF.format(
            folder=folder, host=host, at=f"NodeHostname={host} NodeAddr=127.0.0.1",
            user=USER, plugins=self._plugins, first_job=random.randrange(1, 60_000_000),
            **self._ports,
        ))  # fmt: skip
        (folder / "gres.conf").write_text(GRES.format(folder=folder))
        # The plugin is named, as Slurm can detect one only with a running systemd.
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        for name in self.clients:
            program = self._prefix / "usr" / "bin" / name
            loader = re.search(rb"/lib[^\0]*/ld-[^\0]+", program.read_bytes()[:4096])
            assert loader, f"{program} names no dynamic loader"
            words = {"conf": self._conf, "loader": os.fsdecode(loader.group()), "name": name,
                     "libraries": self._libraries, "program": program}  # fmt: skip
            quoted = {key: shlex.quote(str(word)) for key, word in words.items()}
            (folder / "bin" / name).write_text(WRAPPER.format(**quoted))
            (folder / "bin" / name).chmod(0o755)

    @property
    def _conf(self) -> Path:
        return self.run_dir / "slurm.conf"

    def _launch_node(self, name: str) -> None:
        self._start(name, "slurmd", "-D", "-N", name, "-d", f"{self._prefix}/usr/sbin/slurmstepd")

    def _start(self, name: str, program: str, *arguments: str) -> None:
        """Start a daemon with the cluster's settings."""
        env = self.env() | {"SLURM_CONF": str(self._conf), "LD_LIBRARY_PATH": self._libraries}
        self._launch(name, [self._prefix / "usr" / "sbin" / program, *arguments], env)

    def _listens(self, node: str) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._ports[node])) == 0

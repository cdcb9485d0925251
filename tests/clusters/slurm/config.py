"""The test cluster's configuration files, as text: three virtual nodes on one machine."""

from dataclasses import dataclass
from pathlib import Path

CPUS = 8
MEMORY_MB = 6000


@dataclass(frozen=True)
class Node:
    """A virtual node: one slurmd with a port of its own."""

    name: str
    gpus: int = 0
    model: str = ""


# In the order in which the scheduler fills them: a job that asks for no GPU goes to cpu1 first.
NODES = (Node("cpu1"), Node("gpu1", 4, "a100"), Node("gpu2", 2, "h200"))


@dataclass(frozen=True)
class Layout:
    """Every path of a running cluster, all below one folder."""

    run_dir: Path

    @property
    def bin(self) -> Path:
        return self.run_dir / "bin"

    @property
    def conf(self) -> Path:
        """The ``slurm.conf``; Slurm looks for its other files beside it."""
        return self.run_dir / "slurm.conf"

    @property
    def state(self) -> Path:
        return self.run_dir / "state"

    def log(self, daemon: str) -> Path:
        """Return the log of ``slurmctld``, or of a node's slurmd and step daemons."""
        return self.run_dir / f"{daemon}.log"

    def output(self, daemon: str) -> Path:
        return self.run_dir / f"{daemon}.out"

    def job_output(self, job_id: int | str) -> Path:
        return self.run_dir / f"slurm-{job_id}.out"

    def spool(self, node: str) -> Path:
        """Return a node's spool folder: job scripts and the sockets of its step daemons."""
        return self.run_dir / f"spool.{node}"

    @property
    def devices(self) -> Path:
        return self.run_dir / "dev"

    def device(self, node: str, index: int) -> Path:
        return self.devices / f"{node}-{index}"


@dataclass(frozen=True)
class Site:
    """What differs from machine to machine and from start to start.

    Numbers of jobs come once only, as on a real site: under srun MPICH calls its shared memory by
    them, and would take what a killed job of an earlier cluster has left in /dev/shm for its own.
    """

    host: str
    user: str
    plugin_dir: Path
    controller_port: int
    node_ports: dict[str, int]
    first_job: int


# What is the same for every cluster.
POLICY = """\
# No munge: whoever reaches the ports is believed. Hence the loopback interface only.
AuthType=auth/none
CredType=cred/none
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
# Jobs of a lost node are held until their credentials have expired: 121 s by default.
AuthInfo=cred_expire=10

# Neither cgroups nor a database: both need root, and a real machine's help.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SwitchType=switch/none
MailProg=/bin/true
MpiDefault=pmi2

SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
# Without it each job gets the whole memory of its node, and runs alone there.
DefMemPerCPU=200
GresTypes=gpu
MaxArraySize=1001
MaxJobCount=10000
# Finished jobs stay visible to squeue for an hour: there is no accounting to ask.
MinJobAge=3600

SchedulerType=sched/backfill
SchedulerParameters=bf_interval=5,batch_sched_delay=0,sched_min_interval=0
InactiveLimit=0
KillWait=2
SlurmctldTimeout=30
SlurmdTimeout=10
ReturnToService=2
# Take the nodes' sizes at their word, whatever the machine has.
SlurmdParameters=config_overrides
"""


def slurm_conf(layout: Layout, site: Site) -> str:
    """Return the ``slurm.conf`` of a cluster in `layout`."""
    return "\n".join((_daemons(layout, site), POLICY, _hardware(site)))


def _daemons(layout: Layout, site: Site) -> str:
    """Return who runs the daemons, where they listen and where they keep their files."""
    return f"""\
ClusterName=shardwise-test
SlurmctldHost={site.host}(127.0.0.1)
SlurmctldPort={site.controller_port}
FirstJobId={site.first_job}
SlurmUser={site.user}
SlurmdUser={site.user}
PluginDir={site.plugin_dir}

StateSaveLocation={layout.state}
SlurmctldPidFile={layout.run_dir}/slurmctld.pid
SlurmctldLogFile={layout.log("slurmctld")}
SlurmdPidFile={layout.run_dir}/slurmd.%n.pid
SlurmdLogFile={layout.log("%n")}
SlurmdSpoolDir={layout.spool("%n")}
TmpFS={layout.run_dir}
"""


def _hardware(site: Site) -> str:
    """Return the nodes and the partitions."""
    nodes = [_node_line(node, site, weight) for weight, node in enumerate(NODES, start=1)]
    with_gpus = ",".join(node.name for node in NODES if node.gpus)
    without = ",".join(node.name for node in NODES if not node.gpus)
    return "\n".join(
        (
            *nodes,
            # Not named `all`: in a Snakemake resource that is Python's function of that name.
            "PartitionName=main Nodes=ALL Default=YES MaxTime=1:00:00 State=UP",
            f"PartitionName=gpu Nodes={with_gpus} MaxTime=1:00:00 State=UP",
            f"PartitionName=cpu Nodes={without} MaxTime=1:00:00 State=UP\n",
        )
    )


def _node_line(node: Node, site: Site, weight: int) -> str:
    """Return the line of ``slurm.conf`` for one node."""
    line = (
        f"NodeName={node.name} NodeHostname={site.host} NodeAddr=127.0.0.1"
        f" Port={site.node_ports[node.name]} CPUs={CPUS} RealMemory={MEMORY_MB} Weight={weight}"
    )
    if node.gpus:
        line += f" Gres=gpu:{node.model}:{node.gpus} Features={node.model}"
    return line


def gres_conf(layout: Layout) -> str:
    """Return the ``gres.conf``: one line a device, with the file that stands for it."""
    lines = ["AutoDetect=off"]
    for node in NODES:
        for index in range(node.gpus):
            file = layout.device(node.name, index)
            lines.append(f"NodeName={node.name} Name=gpu Type={node.model} File={file}")
    return "\n".join(lines) + "\n"


def cgroup_conf() -> str:
    """Return the ``cgroup.conf``: a plugin named, as detecting one needs a running systemd."""
    return "CgroupPlugin=cgroup/v1\n"

"""The test cluster's configuration files, as text: three virtual nodes on one machine."""

from dataclasses import dataclass
from pathlib import Path

CPUS = 8
MEMORY_MB = 10000


@dataclass(frozen=True)
class Node:
    """A virtual node: one slurmd with a port of its own."""

    name: str
    gpus: int = 0
    model: str = ""


# In the order in which the scheduler fills them: a job that asks for no GPU goes to cpu1 first.
NODES = (Node("cpu1"), Node("gpu1", 4, "a100"), Node("gpu2", 2, "h200"))


@dataclass(frozen=True)
class Site:
    """What differs from machine to machine and from start to start.

    Numbers of jobs come once only, as on a real site: under srun MPICH calls its shared memory by
    them, and would take what a killed job of an earlier cluster has left in /dev/shm for its own.
    """

    folder: Path
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


def slurm_conf(site: Site) -> str:
    """Return the ``slurm.conf`` of a cluster."""
    nodes = [_node_line(node, site, weight) for weight, node in enumerate(NODES, start=1)]
    with_gpus = ",".join(node.name for node in NODES if node.gpus)
    without = ",".join(node.name for node in NODES if not node.gpus)
    return "\n".join(
        (
            _daemons(site),
            POLICY,
            *nodes,
            # Not named `all`: in a Snakemake resource that is Python's function of that name.
            "PartitionName=main Nodes=ALL Default=YES MaxTime=1:00:00 State=UP",
            f"PartitionName=gpu Nodes={with_gpus} MaxTime=1:00:00 State=UP",
            f"PartitionName=cpu Nodes={without} MaxTime=1:00:00 State=UP\n",
        )
    )


def _daemons(site: Site) -> str:
    """Return who runs the daemons, where they listen and where they keep their files."""
    return f"""\
ClusterName=shardwise-test
SlurmctldHost={site.host}(127.0.0.1)
SlurmctldPort={site.controller_port}
FirstJobId={site.first_job}
SlurmUser={site.user}
SlurmdUser={site.user}
PluginDir={site.plugin_dir}

StateSaveLocation={site.folder}/state
SlurmctldPidFile={site.folder}/slurmctld.pid
SlurmctldLogFile={site.folder}/slurmctld.log
SlurmdPidFile={site.folder}/slurmd.%n.pid
SlurmdLogFile={site.folder}/%n.log
SlurmdSpoolDir={site.folder}/spool.%n
TmpFS={site.folder}
"""


def _node_line(node: Node, site: Site, weight: int) -> str:
    """Return the line of ``slurm.conf`` for one node."""
    line = (
        f"NodeName={node.name} NodeHostname={site.host} NodeAddr=127.0.0.1"
        f" Port={site.node_ports[node.name]} CPUs={CPUS} RealMemory={MEMORY_MB} Weight={weight}"
    )
    if node.gpus:
        line += f" Gres=gpu:{node.model}:{node.gpus} Features={node.model}"
    return line


def gres_conf(folder: Path) -> str:
    """Return the ``gres.conf``: one line a device, with the file that stands for it."""
    devices = [
        f"NodeName={node.name} Name=gpu Type={node.model} File={folder}/dev/{node.name}-{index}"
        for node in NODES for index in range(node.gpus)
    ]  # fmt: skip
    return "\n".join(["AutoDetect=off", *devices, ""])

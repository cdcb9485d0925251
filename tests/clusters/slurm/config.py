"""The test cluster's configuration files, as text: three virtual nodes on one machine."""

import random
import socket
from pathlib import Path
from typing import NamedTuple

# The largest number of a first job; Slurm counts to 67 million, then again from the first number.
LAST_JOB = 60_000_000


class Node(NamedTuple):
    """A virtual node: one slurmd with a port of its own."""

    name: str
    gpus: int = 0
    model: str = ""


# In the order in which the scheduler fills them: a job that asks for no GPU goes to cpu1 first.
NODES = (Node("cpu1"), Node("gpu1", 4, "a100"), Node("gpu2", 2, "h200"))


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


def slurm_conf(folder: Path, user: str, plugin_dir: Path, port: int, ports: dict[str, int]) -> str:
    """Return the ``slurm.conf`` of a cluster, with the ports of the controller and of the nodes.

    Job numbers do not repeat, as on a real site: under srun MPICH names its shared memory by them,
    and would mistake what a killed job of an earlier cluster left in /dev/shm for its own.
    """
    host = socket.gethostname().partition(".")[0]
    nodes = ""
    for weight, node in enumerate(NODES, 1):
        nodes += f"NodeName={node.name} NodeHostname={host} NodeAddr=127.0.0.1"
        nodes += f" Port={ports[node.name]} CPUs=8 RealMemory=10000 Weight={weight}"
        nodes += (
            f" Gres=gpu:{node.model}:{node.gpus} Features={node.model}\n" if node.gpus else "\n"
        )
    return f"""\
ClusterName=shardwise-test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
FirstJobId={random.randrange(1, LAST_JOB)}
SlurmUser={user}
SlurmdUser={user}
PluginDir={plugin_dir}

StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdLogFile={folder}/%n.log
SlurmdSpoolDir={folder}/spool.%n
TmpFS={folder}

{POLICY}
{nodes}\
# Not named `all`: in a Snakemake resource that is Python's function of that name.
PartitionName=main Nodes=ALL Default=YES MaxTime=1:00:00 State=UP
PartitionName=gpu Nodes={",".join(n.name for n in NODES if n.gpus)} MaxTime=1:00:00 State=UP
PartitionName=cpu Nodes={",".join(n.name for n in NODES if not n.gpus)} MaxTime=1:00:00 State=UP
"""


def gres_conf(folder: Path) -> str:
    """Return the ``gres.conf``: one line per device, with the file that stands for it."""
    devices = [
        f"NodeName={node.name} Name=gpu Type={node.model} File={folder}/dev/{node.name}-{index}"
        for node in NODES for index in range(node.gpus)
    ]  # fmt: skip
    return "\n".join(["AutoDetect=off", *devices, ""])

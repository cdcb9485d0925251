"""The test cluster's settings, as text: hosts with slots and pretended GPUs."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

CELL = "default"
QUEUE = "all.q"

# By its name, how a parallel environment spreads a job's slots over hosts.
PARALLEL = {"mpi": "$fill_up", "mpi_rr": "$round_robin"}

# The scheduler looks every second, and at once after each event.
SCHEDULER = {
    "schedule_interval": "0:0:1", "flush_submit_sec": "1", "flush_finish_sec": "1",
    "job_load_adjustments": "NONE",
}  # fmt: skip


class Host(NamedTuple):
    """A host that runs jobs."""

    name: str
    slots: int = 8
    gpus: int = 4


def attributes(text: str) -> dict[str, str]:
    """Return the settings in a text of Grid Engine's, a name and its value in each line."""
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    pairs = (re.split(r"\s+", line.strip(), maxsplit=1) for line in lines)
    return {name: value for name, value in pairs}


def text(own: dict[str, str], defaults: str = "") -> str:
    """Return settings as Grid Engine reads them, ours in place of some defaults."""
    return "".join(f"{name} {value}\n" for name, value in (attributes(defaults) | own).items())


def bootstrap(folder: Path, admin: str) -> str:
    """Return the file that daemons and commands read first."""
    spool, root = folder / "spool" / "qmaster", folder / "root"
    return text({
        "admin_user": admin, "default_domain": "none", "ignore_fqdn": "true",
        "spooling_method": "classic", "spooling_lib": "libspoolc",
        "spooling_params": f"{root / CELL / 'common'};{spool}", "binary_path": str(root / "bin"),
        "qmaster_spool_dir": str(spool), "security_mode": "none",
        "listener_threads": "2", "worker_threads": "2", "scheduler_threads": "1",
    })  # fmt: skip


def global_settings(folder: Path) -> dict[str, str]:
    """Return our part of the cluster's configuration."""
    return {
        "execd_spool_dir": f"{folder}/spool/execd",
        # Root may run jobs here: CI often runs as root.
        "min_uid": "0",
        "min_gid": "0",
        "mailer": "/bin/true",
        "administrator_mail": "none",
        "load_report_time": "00:00:01",
        # A host that is silent for this long is lost, and the state of its queue gets a `u`.
        "max_unheard": "00:00:10",
        "shell_start_mode": "unix_behavior",
        # Jobs start from a clean environment, not from that of the tests. Processes that a job
        # leaves behind are found by its additional group id and killed; that takes root.
        "execd_params": "INHERIT_ENV=false,ENABLE_ADDGRP_KILL=TRUE",
        "reporting_params": "accounting=true reporting=false flush_time=00:00:01"
        " accounting_flush_time=00:00:00 joblog=false sharelog=00:00:00",
    }


def complexes(defaults: str) -> str:
    """Return the resources that jobs may request: the defaults, and ``gpu``, once per job."""
    kept = [line for line in defaults.splitlines() if not line.startswith("#")]
    return "\n".join((*kept, "gpu gpu INT <= YES JOB 0 0")) + "\n"


def exec_host(host: Host) -> str:
    """Return a host's settings: the resources that its jobs can take."""
    unused = ("load_scaling", "user_lists", "xuser_lists", "projects", "xprojects",
              "usage_scaling", "report_variables")  # fmt: skip
    values = f"slots={host.slots},gpu={host.gpus}"
    return text({"hostname": host.name, "complex_values": values} | dict.fromkeys(unused, "NONE"))


def parallel_environment(name: str) -> str:
    """Return one of the environments of `PARALLEL`; launchers in it reach other hosts by qrsh."""
    unused = ("user_lists", "xuser_lists", "start_proc_args", "stop_proc_args", "qsort_args")
    return text({
        "pe_name": name, "slots": "999", "allocation_rule": PARALLEL[name],
        "control_slaves": "TRUE", "job_is_first_task": "FALSE", "urgency_slots": "min",
        "accounting_summary": "TRUE", **dict.fromkeys(unused, "NONE"),
    })  # fmt: skip


def queue(folder: Path, hosts: Sequence[Host]) -> dict[str, str]:
    """Return our part of the only queue, on all hosts; it ignores the load of this machine."""
    return {
        "qname": QUEUE,
        "hostlist": " ".join(host.name for host in hosts),
        "load_thresholds": "NONE",
        "pe_list": " ".join(PARALLEL),
        "slots": ",".join(("1", *(f"[{host.name}={host.slots}]" for host in hosts))),
        "tmpdir": ",".join(("/tmp", *(f"[{h.name}={folder}/tmp/{h.name}]" for h in hosts))),
        "shell": "/bin/sh",
        "shell_start_mode": "unix_behavior",
        "rerun": "FALSE",
        "notify": "00:00:05",
    }

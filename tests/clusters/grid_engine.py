"""A real Grid Engine on this one machine: a master, and one execution daemon per host.

Nothing is written outside the run folder, and root is not needed; without root, only this user can
run jobs. The daemons listen on all interfaces and trust every client: do not start it on a machine
that people you do not trust can reach.
"""

import os
import re
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

from tests import debian, processes
from tests.clusters.cluster import ARRAY, USER, Cluster, Job, Way, free_ports
from tests.clusters.hosts import ThisMachine, TwoHosts

PACKAGES = ("gridengine-master", "gridengine-exec", "gridengine-client", "gridengine-common")
PROGRAMS, SHARED = Path("usr/lib/gridengine"), Path("usr/share/gridengine")

# Debian's programs load their spooling library from this path only. If its name has no folder,
# the loader searches where it finds their other libraries.
SPOOLING = b"/usr/lib/gridengine/%s%s\0"
ANYWHERE = b"%s%s\0".ljust(len(SPOOLING), b"\0")

CELL, QUEUE = "default", "all.q"


def none(names: str) -> str:
    """Settings without a value, which Grid Engine wants to see all the same."""
    return "\n".join(f"{name} NONE" for name in names.split())


# By its name, how a parallel environment spreads a job's slots over hosts.
PARALLEL = {"mpi": "$fill_up", "mpi_rr": "$round_robin"}

# Daemons and commands read it first.
BOOTSTRAP = """\
admin_user {admin}
default_domain none
ignore_fqdn true
spooling_method classic
spooling_lib libspoolc
spooling_params {root}/default/common;{folder}/spool/qmaster
binary_path {root}/bin
qmaster_spool_dir {folder}/spool/qmaster
security_mode none
listener_threads 2
worker_threads 2
scheduler_threads 1
"""

# Root may run jobs here: CI often runs as root. A host that is silent for ten seconds is lost, and
# the state of its queue gets a `u`. Jobs do not inherit the environment of the tests. What a job
# leaves behind is found by its additional group id and killed, as root only.
GLOBAL = """\
execd_spool_dir {folder}/spool/execd
min_uid 0
min_gid 0
mailer /bin/true
administrator_mail none
load_report_time 00:00:01
max_unheard 00:00:10
shell_start_mode unix_behavior
execd_params INHERIT_ENV=false,ENABLE_ADDGRP_KILL=TRUE
reporting_params accounting=true reporting=false flush_time=00:00:01 \
accounting_flush_time=00:00:00 joblog=false sharelog=00:00:00
"""

# It looks every second, and at once after each event.
SCHEDULER = """\
schedule_interval 0:0:1
flush_submit_sec 1
flush_finish_sec 1
job_load_adjustments NONE
"""

# Resources that its jobs can take.
HOST = f"""\
hostname {{host.name}}
complex_values slots={{host.slots}},gpu={{host.gpus}}
{none("load_scaling user_lists xuser_lists projects xprojects usage_scaling report_variables")}
"""

# Launchers in it reach other hosts by qrsh.
ENVIRONMENT = f"""\
pe_name {{name}}
slots 999
allocation_rule {{rule}}
control_slaves TRUE
job_is_first_task FALSE
urgency_slots min
accounting_summary TRUE
{none("user_lists xuser_lists start_proc_args stop_proc_args qsort_args")}
"""

# It ignores the load of this machine.
ONLY_QUEUE = """\
qname {queue}
hostlist {names}
load_thresholds NONE
pe_list {environments}
slots {slots}
tmpdir {folders}
shell /bin/sh
shell_start_mode unix_behavior
rerun FALSE
notify 00:00:05
"""

_STATES = {"r": "running", "qw": "waiting"}
_NAME = re.compile(r"sw-[^-]+-([a-z]+)(?:-(\d{5}))?(?:-[0-9a-f]{12})?(?:-\d{1,2})?")


def _make_movable(prefix: Path) -> None:
    """Let the programs find their libraries: they look in ``../../lib/ARCHITECTURE``.

    So no job inherits an ``LD_LIBRARY_PATH`` that it would not have elsewhere.
    """
    programs = prefix / PROGRAMS
    for program in programs.iterdir():
        if program.is_file() and SPOOLING in (code := program.read_bytes()):
            program.write_bytes(code.replace(SPOOLING, ANYWHERE))
    libraries = prefix / "usr" / "lib" / _architecture(prefix / SHARED)
    libraries.mkdir()
    found = [*programs.glob("*.so"), *prefix.glob("usr/lib/*-linux-*/*.so*")]
    for library in (*found, *prefix.glob("lib/*-linux-*/*.so*")):
        (libraries / library.name).symlink_to(os.path.relpath(library, libraries))


def _architecture(shared: Path) -> str:
    """Return Grid Engine's name for this kind of machine, such as ``lx-amd64``."""
    line, env = ["/bin/sh", shared / "util" / "arch"], os.environ | {"SGE_ROOT": str(shared)}
    return subprocess.run(line, env=env, capture_output=True, text=True, check=True).stdout.strip()


def attributes(text: str) -> dict[str, str]:
    """Return the settings in a text of Grid Engine's, a name and its value in each line."""
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    pairs = (re.split(r"\s+", line.strip(), maxsplit=1) for line in lines)
    return {name: value for name, value in pairs}


def changed(defaults: str, own: str) -> str:
    """Return settings as Grid Engine reads them, ours in place of some defaults."""
    every = attributes(defaults) | attributes(own)
    return "".join(f"{name} {value}\n" for name, value in every.items())


def _job(number: str, task: str, name: str, state: str, host: str) -> Job:
    """Return a job, or an array task, from what Grid Engine prints; ``task`` is empty for a job.

    States other than running and waiting stay as Grid Engine writes them: ``dr``, ``Eqw``.
    """
    what = "controller" if name == "shardwise" else name
    if match := _NAME.fullmatch(name):
        what = " ".join(filter(None, match.groups()))
    in_array = ARRAY.fullmatch(name) is not None
    what, handle = (task, f"{number}.{task}") if in_array else (what, number)
    return Job(int(number), what, _STATES.get(state, state), host, handle, in_array)


class GridEngine(Cluster):
    """One master and one queue on all hosts, with parallel environments and counted GPUs."""

    title, profile = "Grid Engine", "uge"
    quick = ("--seconds-between-status-checks", "1")
    variables = {"SHARDWISE_UNHEARD_SECONDS": "5"}  # tests crash a host
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

    def __init__(self) -> None:
        super().__init__()
        prefix = debian.unpacked("uge", PACKAGES, _make_movable)
        self._programs, self._shared = prefix / PROGRAMS, prefix / SHARED
        self.one_node = TwoHosts.missing()
        self.machines = ThisMachine() if self.one_node else TwoHosts()
        self._master = self.machines.hosts[0].name
        self._controller = f"sge_qmaster.{self._master}"

    def stop(self) -> None:
        super().stop()
        self.machines.stop()

    def env(self) -> dict[str, str]:
        outer = ("SGE_", "JOB_")  # variables of an outer job must not reach ours
        own = {name: text for name, text in os.environ.items() if not name.startswith(outer)}
        qmaster, execd = self._ports
        return own | {
            "SGE_ROOT": f"{self.run_dir}/root", "SGE_CELL": CELL, "SGE_QMASTER_PORT": str(qmaster),
            "SGE_EXECD_PORT": str(execd), "PATH": f"{self._programs}:{own.get('PATH', os.defpath)}",
        }  # fmt: skip

    def enter(self, folder: Path) -> list[str]:
        return self.machines.enter(self._master, folder)

    def submit(self, command: str, *options: str) -> int:
        output = str(self.run_dir / "job-$JOB_ID.out")
        line = ("-terse", "-cwd", "-j", "y", "-o", output, *options)
        return int(self.call("qsub", *line, stdin=f"{command}\n").partition(".")[0])

    def jobs(self) -> list[Job]:
        queue = self._queue()  # first: a job that ends now is in both, and counts as in the queue
        ended = [job for job, _ in self._records("*")]
        return [*{job.handle: job for job in [*ended, *queue]}.values()]

    def spoil(self, jobs: Sequence[Job]) -> dict[Job, str]:
        deleted = next(job for job in jobs if job.state == "running")
        dropped, homeless, short = [job for job in jobs if job.state == "waiting"][:3]
        self.cancel(deleted.handle, dropped.handle)
        self.call("qalter", "-wd", "/nowhere", homeless.handle)
        self.call("qalter", "-l", "gpu=1,h_rt=0:0:3", short.handle)
        self._await(lambda: self._states(short.number) <= {"ended"})
        return {deleted: "deleted", dropped: "deleted", homeless: "/nowhere", short: "past a limit"}

    def hold(self, job: Job) -> None:
        self.call("qalter", "-wd", "/nowhere", str(job.number))

    def cancel_all(self) -> None:
        self.call("qdel", "-u", USER, check=False)  # fails if there is no job
        self._await(lambda: not self._queue())

    def own_processes(self) -> set[int]:
        root = {"SGE_ROOT": f"{self.run_dir}/root"}.items()
        found = {p for p in processes.running() if root <= processes.environment(p).items()}
        return found | processes.descendants(found)

    def start_controller(self) -> None:
        self._start("sge_qmaster", self._master)
        self._await(lambda: bool(self.call("qconf", "-sh", check=False)))

    def crash(self, node: str) -> None:
        shepherds = processes.children(self._daemons[f"sge_execd.{node}"].pid)
        self._kill(f"sge_execd.{node}")
        processes.kill(shepherds)
        processes.kill_all(lambda: self.machines.processes(node))

    def restore(self, node: str) -> None:
        queue = f"{QUEUE}@{node}"
        self._start("sge_execd", node)
        self._await(lambda: "u" not in self._queues()[queue])
        # A job that the host was just starting as it crashed leaves the queue in an error state.
        self.call("qmod", "-cq", queue)
        self._await(lambda: self._queues()[queue] == "")

    def _queue(self) -> list[Job]:
        """Return all jobs and array tasks that wait or run."""
        xml = self.call("qstat", "-u", "*", "-g", "d", "-xml")
        names = ("JB_job_number", "tasks", "JB_name", "state", "queue_name")
        rows = ElementTree.fromstring(xml).iter("job_list")
        found = ([row.findtext(name) or "" for name in names] for row in rows)
        return [_job(*words, queue.rpartition("@")[2]) for *words, queue in found]

    def _queues(self) -> dict[str, str]:
        """Return the state of the queue on each host.

        It is empty if the host takes jobs; a host that never reported has ``au``.
        """
        found = ElementTree.fromstring(self.call("qstat", "-f", "-xml")).iter("Queue-List")
        return {queue.findtext("name", ""): queue.findtext("state") or "" for queue in found}

    def _records(self, number: int | str) -> list[tuple[Job, int]]:
        """Return a job that has ended, or all (``*``) since the start, with their exit codes."""
        text, records = self.call("qacct", "-j", str(number), check=False), []
        for of in map(attributes, text.split("=" * 62 + "\n")[1:]):
            task = of["taskid"].replace("undefined", "")
            ended = _job(of["jobnumber"], task, of["jobname"], "ended", of["hostname"])
            records.append((ended, int(of["exit_status"].split()[0])))  # a reason may follow
        return records

    def _exit_code(self, job: int) -> int:
        return self._records(job)[0][1]

    def _command(self, command: str, *arguments: str) -> list[str | Path]:
        return [*self.enter(self.run_dir), self._programs / command, *arguments]

    def _write_files(self) -> None:
        self._ports = free_ports(2)
        folder, root = self.run_dir, self.run_dir / "root"
        common = root / CELL / "common"
        # Each host has its own folder for temporary files: one job may run on both hosts.
        temporary = [f"tmp/{host.name}" for host in self.machines.hosts]
        for name in (common, "settings", "spool/qmaster/job_scripts", "spool/execd", *temporary):
            (folder / name).mkdir(parents=True)
        for name in ("bin", "lib", "utilbin"):
            (root / name).mkdir()
            (root / name / _architecture(self._shared)).symlink_to(self._programs)
        (root / "util").symlink_to(self._shared / "util")
        (common / "host_aliases").write_text(self.machines.start(folder))
        (common / "act_qmaster").write_text(f"{self._master}\n")
        admin = "none" if os.geteuid() == 0 else USER
        bootstrap = BOOTSTRAP.format(folder=folder, root=root, admin=admin)
        (common / "bootstrap").write_text(bootstrap)
        # What the master must find when it starts.
        resources, spool = self._shared / "util/resources", partial(self.call, "spooldefaults.bin")
        defaults = (self._shared / "default-configuration").read_text()
        own = changed(defaults, GLOBAL.format(folder=folder))
        spool("configuration", self._setting(own))
        for index, host in enumerate(self.machines.hosts):
            # Additional group ids tell what to kill, and hosts on one machine see each other's.
            first = 65400 + 100 * index
            spool("local_conf", self._setting(f"gid_range {first}-{first + 99}\n"), host.name)
        spool("complexes", str(resources / "centry"))
        spool("usersets", str(resources / "usersets"))
        spool("managers", USER)

    def _start_daemons(self) -> None:
        """Start the master, tell it of resources, hosts, environments and queue; start hosts."""
        self.start_controller()
        qconf, hosts = partial(self.call, "qconf"), self.machines.hosts
        for host in hosts:
            qconf("-ah", host.name, check=False)  # the master's host is one already
            qconf("-as", host.name)
        queue = ONLY_QUEUE.format(
            queue=QUEUE, names=" ".join(host.name for host in hosts),
            environments=" ".join(PARALLEL),
            slots=",".join(("1", *(f"[{host.name}={host.slots}]" for host in hosts))),
            folders=",".join(("/tmp", *(f"[{h.name}={self.run_dir}/tmp/{h.name}]" for h in hosts))),
        )  # fmt: skip
        for option, text in (
            ("-Mc", f"{qconf('-sc')}gpu gpu INT <= YES JOB 0 0\n"),
            ("-Msconf", changed(qconf("-ssconf"), SCHEDULER)),
            *(("-Ae", HOST.format(host=host)) for host in hosts),
            *(("-Ap", ENVIRONMENT.format(name=name, rule=PARALLEL[name])) for name in PARALLEL),
            ("-Aq", changed(qconf("-sq"), queue)),
        ):
            qconf(option, self._setting(text))
        for host in hosts:
            self._start("sge_execd", host.name)
        self._await(lambda: set(self._queues().values()) == {""})

    def _setting(self, text: str) -> str:
        """Write settings to a file, as Grid Engine's programs want them, and return its path."""
        path = self.run_dir / "settings" / "own"
        path.write_text(text)
        return str(path)

    def _start(self, program: str, host: str) -> None:
        """Start a daemon on a host; it stays in the foreground, so that its end is noticed."""
        command = [*self.machines.enter(host, self.run_dir), self._programs / program]
        self._launch(f"{program}.{host}", command, self.env() | {"SGE_ND": "1"})

"""Hosts for a cluster of Grid Engine: this machine, or two that are made of it."""

import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import NamedTuple

from tests import processes
from tests.clusters.cluster import ClusterError

UNSHARE = ("unshare", "--net", "--uts", "--mount")


class Host(NamedTuple):
    """A host that runs jobs."""

    name: str
    slots: int = 8
    gpus: int = 4


class ThisMachine:
    """One host, this machine, under a name that works whatever /etc/hosts says."""

    hosts = (Host("localhost"),)

    def start(self, _: Path) -> str:
        """Return the text of ``host_aliases``: all names of this machine mean one host."""
        name = socket.gethostname()
        try:
            official, aliases, _ = socket.gethostbyname_ex(name)
        except OSError:
            official, aliases = name, []
        names = {name, name.partition(".")[0], official, *aliases, "localhost.localdomain"}
        return " ".join(("localhost", *sorted(names - {"localhost"}))) + "\n"

    def enter(self, _: str, folder: Path) -> list[str]:
        return []

    def stop(self) -> None:
        """Leave the machine as it is."""


class TwoHosts:
    """Two hosts in network namespaces, each with a name and an address; needs root.

    The process that holds them ends when its standard input is closed: at our end at the latest.
    """

    hosts = (Host("n1", slots=2, gpus=2), Host("n2", slots=2, gpus=2))

    def __init__(self) -> None:
        self._holders: dict[str, subprocess.Popen[bytes]] = {}

    @staticmethod
    def missing() -> str:
        """Return why such hosts cannot be made here; empty if they can."""
        for tool in ("ip", "unshare", "nsenter"):
            if shutil.which(tool) is None:
                return f"{tool} not found"
        if os.geteuid() != 0:
            return "network namespaces need root"
        tried = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, check=False)
        return tried.stderr.strip()

    def start(self, run_dir: Path) -> str:
        """Make the hosts and the cable between them; return no aliases, as none are needed."""
        known = run_dir / "hosts"
        known.write_text("127.0.0.1 localhost\n10.77.0.1 n1\n10.77.0.2 n2\n")
        one, two = [self._hold(host.name, known) for host in self.hosts]
        _ip(one, f"link add eth0 type veth peer name eth0 netns {two}")
        for number, pid in enumerate((one, two), 1):
            _ip(pid, f"addr add 10.77.0.{number}/24 dev eth0")
            _ip(pid, "link set eth0 up")
        return ""

    def enter(self, name: str, folder: Path) -> list[str]:
        target = ["nsenter", "-t", str(self._holders[name].pid), "--net", "--uts", "--mount"]
        return [*target, "env", "-C", str(folder)]

    def processes(self, name: str) -> set[int]:
        holder = self._holders[name].pid
        return processes.in_network_of(holder) - {holder}

    def stop(self) -> None:
        """Kill the holders of the hosts; their network goes with them."""
        for holder in self._holders.values():
            holder.kill()
            holder.communicate()
        self._holders.clear()

    def _hold(self, name: str, known: Path) -> int:
        """Start the process that holds a host's namespaces; return its id."""
        setup = 'hostname "$1" && mount --bind "$2" /etc/hosts && ip link set lo up && echo up'
        command = [*UNSHARE, "--propagation", "private", "sh", "-c", f"{setup} && exec cat"]
        self._holders[name] = holder = subprocess.Popen(
            [*command, "sh", name, str(known)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        if (said := holder.stdout.readline()) != b"up\n":
            raise ClusterError(f"host {name} did not start: {said.decode().strip()}")
        return holder.pid


def _ip(pid: int, words: str) -> None:
    subprocess.run(["nsenter", "-t", str(pid), "--net", "ip", *words.split()], check=True)

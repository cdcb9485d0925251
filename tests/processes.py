"""Find and end processes by what /proc says of them; write commands for them to run."""

import contextlib
import glob
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path


def heed_interrupts() -> None:
    """In a new process: heed Ctrl-C again, which a parent in a shell's background ignores."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def commands(folder: Path, path: str | None = None, /, **scripts: str) -> str:
    """Write scripts as the commands of a folder; return a PATH that begins with it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in scripts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return f"{folder}:{path or os.environ['PATH']}"


def running() -> list[int]:
    """Return the ids of all processes but this one."""
    return [
        int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()
    ]


def living(pids: Iterable[int]) -> set[int]:
    """Return those processes that have not ended; a zombie has."""
    return {pid for pid in pids if _stat(pid)[:1] not in ([], ["Z"])}


def until(
    true: Callable[[], object], limit_s: float = 180, report: Callable[[], str] = str,
    pause_s: float = 0.05,
) -> None:  # fmt: skip
    """Wait until something holds; `report` says more if it never does."""
    end = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < end, f"never happened\n{report()}"
        time.sleep(pause_s)


def parents(pids: Iterable[int]) -> set[int]:
    """Return the processes that started these."""
    return {_parent(pid) for pid in pids}


def children(parent: int) -> set[int]:
    """Return the processes that one has started and that live."""
    return {pid for pid in running() if _parent(pid) == parent}


def descendants(roots: Iterable[int]) -> set[int]:
    """Return the children of `roots`, their children, and so on."""
    started_by = {pid: _parent(pid) for pid in running()}
    found, front = set[int](), set(roots)
    while front := {pid for pid, parent in started_by.items() if parent in front} - found:
        found |= front
    return found


def in_network_of(member: int) -> set[int]:
    """Return the processes in the network namespace of ``member``, itself included."""
    network = _links(member, "ns/net")
    return {pid for pid in running() if network & _links(pid, "ns/net")}


def holders(path: Path) -> set[int]:
    """Return the processes that have the file at `path` open."""
    wanted = {str(path), f"{path} (deleted)"}
    return {pid for pid in running() if wanted & _links(pid, "fd/*")}


def environment(pid: int) -> dict[str, str]:
    """Return the environment a process was started with; empty if it cannot be read."""
    pairs = (item.partition("=") for item in _strings(pid, "environ") if item)
    return {key: value for key, _, value in pairs}


def words(pid: int) -> list[str]:
    """Return the command line of a process; empty if it is gone."""
    return _strings(pid, "cmdline")


def _parent(pid: int) -> int:
    """Return the parent's id, or 0 for a process that is gone."""
    return int((_stat(pid) or ["", "0"])[1])


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state and the parent on; none if it is gone."""
    # The name, in parentheses, may itself hold spaces and parentheses.
    return "".join(_strings(pid, "stat")).rpartition(")")[2].split()


def _strings(pid: int, name: str) -> list[str]:
    """Return what a file in /proc says of a process; nothing if it is gone or another user's."""
    try:
        return os.fsdecode(Path("/proc", str(pid), name).read_bytes()).split("\0")
    except OSError:
        return []


def _links(pid: int, pattern: str) -> set[str]:
    """Return where links in /proc lead for a process, but for those that cannot be read."""
    found = set()
    for link in glob.iglob(f"/proc/{pid}/{pattern}"):
        with contextlib.suppress(OSError):
            found.add(os.readlink(link))
    return found


def kill(pids: Iterable[int]) -> None:
    """Send SIGKILL to each process that has not ended yet."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def kill_all(find: Callable[[], set[int]]) -> None:
    """Kill what `find` returns until it returns nothing: a process may fork while we look."""
    deadline = time.monotonic() + 60
    while pids := find():
        kill(pids)
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {sorted(pids)} did not end within a minute")
        time.sleep(0.02)

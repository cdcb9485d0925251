"""Find and end processes by what /proc says of them; write commands for them to run."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

PROC = Path("/proc")


def heed_interrupts() -> None:
    """In a new process: heed Ctrl-C again, which a parent in a shell's background ignores."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def commands(folder: Path, **scripts: str) -> str:
    """Write scripts as the commands of a folder; return a PATH that begins with it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in scripts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def running() -> list[int]:
    """Return the ids of all processes but this one."""
    own = os.getpid()
    ids = [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]
    return [pid for pid in ids if pid != own]


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


def in_network_of(member: int) -> set[int]:
    """Return the processes in the network namespace of ``member``, itself included."""
    network = (PROC / str(member) / "ns" / "net").readlink()
    found = set()
    for pid in running():
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if (PROC / str(pid) / "ns" / "net").readlink() == network:
                found.add(pid)
    return found


def environment(pid: int) -> dict[str, str]:
    """Return the environment a process was started with; empty if it cannot be read."""
    try:
        raw = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    pairs = (item.partition("=") for item in os.fsdecode(raw).split("\0") if item)
    return {key: value for key, _, value in pairs}


def words(pid: int) -> list[str]:
    """Return the command line of a process; empty if it is gone."""
    try:
        raw = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return []
    return os.fsdecode(raw).split("\0")


def holders(path: Path) -> set[int]:
    """Return the processes that have the file at `path` open."""
    wanted = {str(path), f"{path} (deleted)"}
    return {pid for pid in running() if wanted & _open_files(pid)}


def _open_files(pid: int) -> set[str]:
    """Return the targets of a process's file descriptors."""
    folder = PROC / str(pid) / "fd"
    targets = set()
    # The process may have ended or be another user's; a file may be closed meanwhile.
    with contextlib.suppress(OSError):
        for entry in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                targets.add(str(entry.readlink()))
    return targets


def descendants(roots: Iterable[int]) -> set[int]:
    """Return the children of `roots`, their children, and so on."""
    children: dict[int, list[int]] = {}
    for pid in running():
        children.setdefault(_parent(pid), []).append(pid)
    found: set[int] = set()
    front = list(roots)
    while front:
        fresh = set(children.get(front.pop(), ())) - found
        found |= fresh
        front.extend(fresh)
    return found


def _parent(pid: int) -> int:
    """Return the parent's id, or 0 for a process that is gone."""
    return int((_stat(pid) or ["", "0"])[1])


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state and the parent on; none if it is gone."""
    try:
        stat = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return []
    # The name, in parentheses, may itself hold spaces and parentheses.
    return stat.rpartition(")")[2].split()


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

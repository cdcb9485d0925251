"""Which driver this node has, and which device is this task's: of those granted, one by a lock.

Standard library only: the Makefile asks this module before anything is installed.
"""

import ctypes
import fcntl
import logging
import os
import re
import shlex
import shutil
import time
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from shardwise import host
from shardwise.devices.nvml import Device, present
from shardwise.errors import TryAgain, one_line
from shardwise.units import clock, human_bytes

log = logging.getLogger(__name__)

VISIBLE = "CUDA_VISIBLE_DEVICES"
# Of Grid Engine, named after the site's complex, as SGE_HGR_gpu; SGE_SGR_… if the request was soft.
_GRANTS = re.compile(r"SGE_GPU|SGE_[HS]GR_\w*(?:gpu|cuda)\w*", re.IGNORECASE)
_BEFORE_INDEX = re.compile(r"^(?:/dev/)?(?:gpu|cuda|nvidia)?[:_]?(?=[0-9]+$)", re.IGNORECASE)
SCHEDULER_CLIENTS = ("sbatch", "qsub")
CUDA_MAJORS = (12, 13)
# The folder of the leases: local to the node, and unlike TMPDIR the same for all its users.
LEASES = "/tmp/shardwise-leases"
# While no lease changes hands. A job has only some minutes beyond its work, and is killed then.
WAIT_SECONDS, JOB_WAIT_SECONDS, POLL_SECONDS = 3600.0, 300.0, 1.0
# Between two messages. A job whose devices all failed in this run keeps them as long: else the
# scheduler would give them to the next job in the queue, and retries would be used up in seconds.
_MINUTE = 60.0

# The device of this process, once taken; it stays, as CUDA reads the variables only once.
_taken: list[Device] = []


def taken_uuid() -> str | None:
    """The UUID of the device that this process has taken; None before."""
    return _taken[0].uuid if _taken else None


def driver_cuda_version() -> int | None:
    """Highest CUDA version of the NVIDIA driver, such as 13000 for 13.0; None without a driver."""
    version = ctypes.c_int()
    with suppress(OSError):
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    return version.value or None


def cuda_extra() -> str:
    """The newest CUDA that cupy can be installed for and the driver runs: ``12``, ``13``, ``none``.

    A login node has a scheduler's client and no driver: 12 there, as newer drivers run it as well.
    """
    found = driver_cuda_version()
    if found is None:
        found = 1000 * CUDA_MAJORS[0] if any(map(shutil.which, SCHEDULER_CLIENTS)) else 0
    return str(max((major for major in CUDA_MAJORS if major <= found // 1000), default="none"))


def versions(cupy: Any) -> dict[str, str]:
    """The versions of what a GPU needs besides cupy: the CUDA runtime, cuBLAS and the driver."""
    runtime, cublas, driver = cupy.cuda.runtime.runtimeGetVersion(), cupy.cuda.cublas, "unknown"
    with suppress(OSError):  # NVML would take 70 ms to start
        driver = Path("/sys/module/nvidia/version").read_text().strip()
    return {
        "cuda": f"{runtime // 1000}.{runtime % 1000 // 10}",
        "cublas": str(cublas.getVersion(cupy.cuda.device.get_cublas_handle())),
        "driver": driver,
    }


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that grant devices here; the first counts: SGE_HGR_TASK_gpu, the task's own."""
    own = [] if "SLURM_JOB_ID" in environ else sorted(filter(_GRANTS.fullmatch, environ))
    return {name: environ[name] for name in [*own, VISIBLE] if name in environ}


def candidates(
    environ: Mapping[str, str] = os.environ, devices: Sequence[Device] | None = None
) -> list[Device]:
    """The devices that this task may take: those of this node that a variable names, or all.

    A number is the index of a GPU; if MIG cuts that GPU, it means all its instances. TryAgain if
    there is no device, or the variable names none or one of another node.
    """
    devices, given = present() if devices is None else devices, variables(environ)
    if not devices:
        raise TryAgain("there is an NVIDIA driver but no usable device: NVML lists none here")
    if not given and "SLURM_JOB_ID" not in environ:  # Slurm then has granted no GPU
        return [*devices]
    name, value = next(iter(given.items()), (VISIBLE, ""))
    words = {_BEFORE_INDEX.sub("", word) for word in re.split(r"[\s,]+", value.strip())}
    if not words <= {word for device in devices for word in (device.uuid, str(device.index))}:
        here = ", ".join(f"{device.index} ({device.uuid})" for device in devices)
        raise TryAgain(
            f"there is an NVIDIA driver but no usable device: {name}={value!r} does not name "
            f"devices of this node, which are: {here}; ask for one GPU per shard in the "
            f"profile's block multiply, or unset {name} if no scheduler has set it"
        )
    return [device for device in devices if words & {device.uuid, str(device.index)}]


def workers(backend: str, barred: Collection[str] = ()) -> int:
    """How many workers can compute at once on this node: one per device that is not barred."""
    cpu = backend == "numpy" or driver_cuda_version() is None
    usable = [] if cpu else [one for one in candidates() if one.uuid not in barred]
    return max(1, len(usable))  # if no device is left, one worker will say so


def take(
    needed: int, limit: float | None = None, prefer: int | None = None,
    barred: Callable[[], Mapping[str, str]] = dict,
    environ: MutableMapping[str, str] = os.environ,
) -> Device:  # fmt: skip
    """Lease a device to this process until its end, and make CUDA see only that device.

    ``needed`` are bytes of its memory. The wait ends, with `TryAgain`, ``limit`` seconds after a
    lease last changed hands; left out, after an hour, or five minutes in a job of a cluster.
    ``prefer`` is the place of the device to look at first, so that one on which all die does not
    attract every worker; None: the freest. ``barred`` returns the devices that failed, and how, by
    UUID; none of them is taken.
    """
    if _taken:
        return _taken[0]
    in_job = host.job(environ) is not None
    limit = (JOB_WAIT_SECONDS if in_job else WAIT_SECONDS) if limit is None else limit
    last, last_change, next_message = dict[str, str](), 0.0, 0.0
    while True:
        devices, failed, reasons = candidates(environ), barred(), dict[str, str]()
        if prefer is None:
            devices.sort(key=lambda device: -device.free / device.memory)
        for device in devices[prefer:] + devices[: prefer or 0]:
            if not (why := _try(device, needed, failed)):
                log.info("computing on %s, %s", device.uuid, device.name)
                environ[VISIBLE] = device.uuid
                _taken.append(device)
                return device
            reasons[f"{device.uuid} ({device.name})"] = why
        now, situation = time.monotonic(), "; ".join(map(": ".join, reasons.items()))
        if reasons != last:  # a lease has changed hands
            last, last_change = reasons, now
        lost = all(device.uuid in failed for device in devices)
        patience = min(limit, _MINUTE * in_job) if lost else limit
        if now - last_change >= patience:
            if lost:
                raise TryAgain(f"no device is left ({situation}); run again on another node")
            raise TryAgain(
                f"no device became free, and no lease changed hands for {patience:.0f} s: "
                f"{situation}; end what hangs (shardwise doctor on this node shows it), and run "
                "again. If shards really take that long, start only as many at once as there are "
                "devices (snakemake --cores), or set a longer --device-wait"
            )
        if now >= next_message:
            log.warning("waiting for a free device: %s", situation)
            next_message = now + _MINUTE
        time.sleep(min(POLL_SECONDS, last_change + patience - now))


def _try(device: Device, needed: int, failed: Mapping[str, str]) -> str | None:
    """Lease a device, or say why not, in words that change only if its lease changes hands."""
    enough = min(needed, device.memory // 2)  # a task can halve its batches
    full = device.free < enough
    if device.uuid in failed:
        return f"it failed in this run, a new run may take it: {failed[device.uuid]}"
    if holder := lease(device.uuid, look=full):
        return f"leased to {holder}"
    return f"other processes fill it: {human_bytes(enough)} should be free" if full else None


def lease(uuid: str, look: bool = False) -> str | None:
    """Lease a device to this process, unless this is a mere look; return who else holds it.

    The lease is a lock, which looks share, on a file that this process and its children, which
    inherit it, keep open until they end. `TryAgain` if the folder cannot be used.
    """
    folder = Path("/tmp", os.environ.get("SHARDWISE_LEASES") or LEASES)
    try:
        descriptor = _open(folder, f"{uuid}.lease")
        fcntl.flock(descriptor, (fcntl.LOCK_SH if look else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        with open(descriptor, "rb", 0) as file:
            # Every user may write to a lease, so none of it is trusted.
            text = one_line(file.read(4096).decode(errors="replace"))
        return text or "a process that does not say who it is"
    except OSError as error:
        raise TryAgain(
            f"device leases cannot be kept in {folder}: {error.strerror}. It must be a folder on "
            f"this node that all users may write to: mkdir -m 1777 {shlex.quote(str(folder))}, or "
            "name another one for all users of the node in SHARDWISE_LEASES"
        ) from error
    if look:
        os.close(descriptor)
        return None
    os.set_inheritable(descriptor, True)
    with suppress(OSError):  # on a full disk the lease merely lacks its signature
        os.ftruncate(descriptor, 0)
        text = f"process {os.getpid()} of user {os.getuid()} since {clock(time.time())}"
        os.pwrite(descriptor, text.encode(), 0)
    return None


def _open(folder: Path, name: str) -> int:
    """A descriptor of a lease file, which is made if it is missing, with its folder."""
    flags = os.O_RDWR | os.O_NOFOLLOW
    before = os.umask(0)  # all users of the node share them
    try:
        folder.mkdir(0o1777, exist_ok=True)
        # If fs.protected_regular is set, O_CREAT is refused on a file of another user, even of
        # mode 666. So it is used for new files only.
        with suppress(FileExistsError):
            return os.open(folder / name, flags | os.O_CREAT | os.O_EXCL, 0o666)
    finally:
        os.umask(before)
    return os.open(folder / name, flags)

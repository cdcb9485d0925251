"""What a scheduler, or the user, says about the devices of a task: variables read, devices named.

Pure: the environment and the devices of the node are arguments.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardwise.devices.nvml import Device
from shardwise.errors import TryAgain

VISIBLE = "CUDA_VISIBLE_DEVICES"

_NONE = ("", "-1", "NoDevFiles")
"""Values of the variable if a task was given no device; the last is Slurm's."""

# Grid Engine names the variable after the site's complex: SGE_HGR_gpu, SGE_HGR_TASK_cuda_id, and
# SGE_SGR_… where the request was soft.
_GRID_ENGINE = re.compile(r"SGE_[HS]GR_\w*(?:gpu|cuda)\w*", re.IGNORECASE)
_GRID_ENGINE_ID = re.compile(r"(?:/dev/)?(?:gpu|cuda|nvidia)?[:_]?([0-9]{1,4})", re.IGNORECASE)
_INDEX = re.compile(r"([0-9]{1,4})")

# Of a type or none, as `gpu:4` or `gres/gpu:a100:2(S:0)`; and `gpu=4`, but not `gpu_mem=40G`.
_SLURM_COUNT = re.compile(r"(?:^|[,/])gpu(?::[^,:()]*[^,:()\d][^,:()]*)?:(\d+)")
_GRID_ENGINE_COUNT = re.compile(r"(?:^|[\s,])n?(?:gpus?|cuda)=(\d+)(?=[\s,]|$)")

_CURES = {
    "slurm": "ask for one GPU per shard: gres under multiply in profiles/slurm/config.yaml",
    "grid engine": "ask the site which GPU it means, or unset the variable in the set-up line of "
    "profiles/uge/config.yaml: the task then leases a free GPU",
    "lease": f"unset {VISIBLE}, or name GPUs by these numbers or UUIDs",
}


@dataclass(frozen=True)
class Grant:
    """A variable that names devices, and who has set it.

    ``source`` is ``slurm`` or ``grid engine`` where a scheduler granted the devices to this job.
    It is ``lease`` where the variable only says among which ones a task may choose.
    """

    source: str
    variable: str
    value: str

    def __str__(self) -> str:
        """As a shell would show it."""
        return f"{self.variable}={self.value!r}"


def asked(resources: Mapping[str, str]) -> int:
    """GPUs of a node that the resources of a job ask for, in the words of its scheduler.

    ``gres: "gpu:a100:4"`` for Slurm, ``uge_gpu: "-l gpu=4"`` for Grid Engine (or any other word of
    it that begins with ``uge_``) are those of a node. ``gpu`` and ``tasks``, a GPU each, are those
    of all ``nodes``, and may lie on one where nothing is said of nodes. 1 where nothing says more,
    or an expression says it, such as ``2 * attempt``.
    """
    slurm = sum(map(int, _SLURM_COUNT.findall(resources.get("gres", ""))))
    everywhere = max(_number(resources, name) for name in ("gpu", "tasks"))
    return max(1, slurm + counted(resources), -(-everywhere // nodes(resources)))


def counted(resources: Mapping[str, str]) -> int:
    """GPUs that a Grid Engine job is granted by their number alone; 0 where its words name none.

    Plain Grid Engine does not say which ones. So a job has to keep to their number itself.
    """
    words = [words for name, words in resources.items() if name.startswith("uge_")]
    return sum(int(count) for some in words for count in _GRID_ENGINE_COUNT.findall(some))


def nodes(resources: Mapping[str, str]) -> int:
    """Nodes that the resources of a job ask for."""
    return _number(resources, "nodes")


def _number(resources: Mapping[str, str], name: str) -> int:
    """A resource that is a number; 1 where it is none, or an expression of Snakemake's."""
    word = resources.get(name, "")
    return max(1, int(word)) if word.isdecimal() else 1


def variables(environ: Mapping[str, str]) -> list[str]:
    """The names of all that may speak of devices; it holds on the host where it was said."""
    plain = (VISIBLE, "SGE_GPU")
    return [name for name in environ if name in plain or _GRID_ENGINE.fullmatch(name)]


def read(environ: Mapping[str, str]) -> Grant | None:
    """What the environment says of this task's devices; TryAgain: a Slurm job without a GPU."""
    visible = environ.get(VISIBLE)
    if "SLURM_JOB_ID" in environ:
        if visible is None:
            raise TryAgain(
                f"there is an NVIDIA driver but no usable device: {VISIBLE} is not set in this "
                f"Slurm job, so it was given no GPU; {_CURES['slurm']}"
            )
        return Grant("slurm", VISIBLE, visible)
    if "JOB_ID" in environ and "SGE_ROOT" in environ:
        names = [name for name in variables(environ) if name != VISIBLE]
        if names:
            # A task's own part before the whole job's, and the plain name before longer ones.
            first = min(names, key=lambda name: ("_TASK_" not in name, len(name), name))
            return Grant("grid engine", first, environ[first])
    return None if visible is None else Grant("lease", VISIBLE, visible)


def named(grant: Grant, devices: Sequence[Device]) -> list[Device]:
    """The devices that a grant names, in its order.

    A number is the index of a device, a MIG instance counts under that of its GPU. A UUID may be
    cut short as long as it fits one device only. Raises TryAgain if it names none, one that this
    node does not have, or one twice.
    """
    if grant.value.strip() in _NONE:
        raise _refusal(grant, devices, "names none")
    granted: list[Device] = []
    for entry in re.split(r"[\s,]+", grant.value.strip()):
        fitting = _fitting(grant, entry, devices)
        if any(device in granted for device in fitting):
            raise _refusal(grant, devices, f"names {entry!r} twice")
        granted += fitting
    return granted


def _fitting(grant: Grant, entry: str, devices: Sequence[Device]) -> list[Device]:
    """The device of one entry; the instances where it is the index of a GPU that is cut in some."""
    if re.match("(GPU|MIG)-", entry, re.IGNORECASE):
        fitting = [d for d in devices if d.uuid.lower().startswith(entry.lower())]
        if len(fitting) > 1:
            raise _refusal(grant, devices, f"has {entry!r}, which fits {len(fitting)} devices")
    else:
        form = _GRID_ENGINE_ID if grant.source == "grid engine" else _INDEX
        number = form.fullmatch(entry)
        fitting = [d for d in devices if number and d.index == int(number[1])]
    if not fitting:
        raise _refusal(grant, devices, f"has {entry!r}, which is none of this node's")
    return fitting


def _refusal(grant: Grant, devices: Sequence[Device], fault: str) -> TryAgain:
    here = ", ".join(f"{d.index} ({d.uuid})" for d in devices) or "none"
    return TryAgain(
        f"there is an NVIDIA driver but no usable device: {grant} {fault}; devices here: {here}; "
        f"{_CURES[grant.source]}"
    )

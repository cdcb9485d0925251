"""Which devices a scheduler or the user grants to a task, as environment variables say it."""

import re
from collections.abc import Mapping, Sequence

from shardwise import host
from shardwise.devices.nvml import Device
from shardwise.errors import TryAgain

VISIBLE = "CUDA_VISIBLE_DEVICES"

# Named after the site's complex, such as SGE_HGR_gpu; SGE_SGR_… if the request was soft.
_GRID_ENGINE = re.compile(r"SGE_GPU|SGE_[HS]GR_\w*(?:gpu|cuda)\w*", re.IGNORECASE)
_INDEX = re.compile(r"(?:/dev/)?(?:gpu|cuda|nvidia)?[:_]?([0-9]{1,4})", re.IGNORECASE)
# With a type or without, as `gpu:4` or `gres/gpu:a100:2(S:0)`; `gpu=4`, but not `gpu_mem=40G`.
_SLURM_COUNT = re.compile(r"(?:^|[,/])gpu(?::[^,:()]*[^,:()\d][^,:()]*)?:(\d+)")
_GRID_ENGINE_COUNT = re.compile(r"(?:^|[\s,])n?(?:gpus?|cuda)=(\d+)(?=[\s,]|$)")


def asked(resources: Mapping[str, str]) -> int:
    """GPUs per node, at least 1, that the resources of a job ask its scheduler for.

    ``gres: "gpu:a100:4"`` of Slurm and ``uge_gpu: "-l gpu=4"`` of Grid Engine (or any other
    resource named ``uge_...``) count per node, ``gpu`` and ``tasks`` over all ``nodes``.
    """
    slurm = sum(map(int, _SLURM_COUNT.findall(resources.get("gres", ""))))
    gpus, tasks, nodes = (number(resources, name) for name in ("gpu", "tasks", "nodes"))
    return max(slurm + counted(resources), -(-max(gpus, tasks) // nodes))


def counted(resources: Mapping[str, str]) -> int:
    """GPUs that a Grid Engine job requests as a mere number; 0 if it requests none.

    Plain Grid Engine does not say which GPUs it grants, so the job itself must not use more.
    """
    words = " ".join(words for name, words in resources.items() if name.startswith("uge_"))
    return sum(map(int, _GRID_ENGINE_COUNT.findall(words)))


def number(resources: Mapping[str, str], name: str) -> int:
    """A resource as a number; 1 if it is missing, or an expression such as ``2 * attempt``."""
    word = resources.get(name, "")
    return max(1, int(word)) if word.isdecimal() else 1


def variables(environ: Mapping[str, str]) -> list[str]:
    """The names of all variables that may grant devices; their values hold on one host only."""
    return [name for name in environ if name == VISIBLE or _GRID_ENGINE.fullmatch(name)]


def variable(environ: Mapping[str, str]) -> str | None:
    """The variable that grants devices to this process; None if it may take any."""
    if "SLURM_JOB_ID" in environ:  # if the variable is missing, the job was given no GPU
        return VISIBLE
    own = variables(environ) if host.job(environ) else []
    # SGE_HGR_TASK_gpu, the task's own, before that of the whole job.
    first = min((name for name in own if name != VISIBLE), default=VISIBLE)
    return first if first in environ else None


def granted(environ: Mapping[str, str], devices: Sequence[Device]) -> list[Device]:
    """The devices that this process may take: those that its variable names, or all.

    A number is the index of a GPU; if MIG cuts that GPU, it means all its instances. Raises
    TryAgain if the variable names no device, or one that this node does not have.
    """
    if (name := variable(environ)) is None:
        return list(devices)
    value, named = environ.get(name, ""), list[Device]()
    for word in re.split(r"[\s,]+", value.strip()):
        index = _INDEX.fullmatch(word)
        found = [d for d in devices if (d.index == int(index[1]) if index else d.uuid == word)]
        if not found:
            here = ", ".join(f"{d.index} ({d.uuid})" for d in devices)
            raise TryAgain(
                f"there is an NVIDIA driver but no usable device: {name}={value!r} does not name "
                f"devices of this node, which are: {here}; ask for one GPU per shard in the "
                f"profile's block multiply, or unset {name} if no scheduler has set it"
            )
        named += [device for device in found if device not in named]
    return named

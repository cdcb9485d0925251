"""What the options of ``scripts/dispatch.py`` mean: which dispatch runs, and with what."""

from argparse import Namespace
from typing import Any

from shardwise.dispatch.events import Limits
from shardwise.dispatch.tally import DEFAULT_RETRIES
from shardwise.errors import InputError
from shardwise.mpi import launch
from shardwise.plan import plan as plans
from shardwise.plan.memory import REDUCE_LIMIT_SECONDS

WAYS = ("pool", "array", "mpi")

_OWNERS = {
    "devices": ("pool",),
    "workers": ("mpi",),
    "ranks": ("mpi",),
    "launcher": ("mpi",),
    "time_limit": ("pool", "mpi"),
    "array_tasks": ("array",),
    "array_limit": ("array",),
    "array_task": ("array",),
    "recipe": ("array",),
}
"""The ways of dispatch that an option applies to, if not to all."""


def check(options: Namespace) -> None:
    """Refuse options that would do nothing.

    Raises InputError with the ways that the option applies to.
    """
    for name, ways in _OWNERS.items():
        if getattr(options, name) is not None and options.dispatch not in ways:
            raise InputError(
                f"--{name.replace('_', '-')} applies only with --dispatch {' or '.join(ways)}"
            )


def ranks(options: Namespace) -> Any:
    """mpi4py's ``MPI`` if ranks compute; None for every other way, which is a single process."""
    check(options)
    if options.dispatch != "mpi":
        return None
    from shardwise.dispatch import mpi

    return mpi.ranks(options)


def run(options: Namespace) -> None:
    """Compute all shards that are missing, in the way that ``--dispatch`` names."""
    plan = plans.load(options.plan)
    hang = options.time_limit or REDUCE_LIMIT_SECONDS
    limits = Limits(options.memory, options.device_wait, hang, options.run_time)
    retries = DEFAULT_RETRIES if options.retries is None else options.retries
    if options.array_task:
        from shardwise.dispatch.array import puller

        puller.run(plan, options.array_task, limits)
    elif options.dispatch == "array":
        from shardwise.dispatch.array import follow

        follow.run(plan, options.recipe, options.array_limit, options.retries, options.array_tasks)
    elif options.dispatch == "mpi":
        from shardwise.dispatch import mpi

        comm = launch.get_world(options.ranks, "multiply")
        mpi.run(comm, plan, options.workers or "device", retries, limits)
    else:
        from shardwise.dispatch import pool

        pool.run(plan, retries, limits, options.devices or 0)

"""Multiply the matrices of one shard: products/SHARD.npy, and its receipt products/SHARD.json."""

from argparse import Namespace

from shardwise import cli, devices, planfile
from shardwise.multiply import run_shard
from shardwise.sizes import MIB


def main(options: Namespace) -> None:
    """Compute one shard."""
    plan = planfile.load(options.plan)
    memory = options.mem_mb and options.mem_mb * MIB
    run_shard(plan, options.shard, memory, options.device_wait)
    cli.log.info("%s written", plan.results.receipt(options.shard))


if __name__ == "__main__":
    arguments = cli.parser(__doc__)
    cli.add_plan(arguments, shard=True)
    arguments.add_argument(
        "--mem-mb",
        type=cli.positive,
        metavar="N",
        help="host memory that the task may take, in MiB; with less than the plan says, fewer "
        "pieces of files are under way at once; left out: what the plan says",
    )
    arguments.add_argument(
        "--device-wait",
        type=cli.seconds,
        metavar="SECONDS",
        help="how long to wait for a free GPU, counted from the last time that one changed hands; "
        f"then the task ends with 75; left out: {devices.JOB_WAIT_SECONDS:.0f} in a job of Slurm "
        f"or Grid Engine, whose run time is limited, {devices.WAIT_SECONDS:.0f} elsewhere and "
        "behind tasks of the same job",
    )
    cli.run(main, arguments)

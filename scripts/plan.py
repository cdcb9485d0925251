"""Write plan.tsv: which matrices each shard holds, from the headers of the input alone."""

from argparse import Namespace
from pathlib import Path

from shardwise import cli, config, planner
from shardwise.paths import CACHE


def main(options: Namespace) -> None:
    """Check config and input, cut the stack, write the plan."""
    values = config.read_files([Path(file) for file in options.configfile])
    plan, sources = planner.make(config.load(values), CACHE if CACHE.is_dir() else None)
    planner.check_folder(plan)
    planner.write(plan, sources)
    cli.log.info("%s: %s", plan.results.plan, planner.describe(plan))


if __name__ == "__main__":
    arguments = cli.parser(__doc__)
    arguments.add_argument(
        "--configfile",
        nargs="+",
        default=["config.yaml"],
        help="config files, later over earlier",
    )
    cli.run(main, arguments)

"""Write plan.tsv: which matrices each shard holds, from the headers of the input alone."""

from argparse import Namespace
from pathlib import Path

from shardwise import cli
from shardwise.command import quote
from shardwise.errors import InputError
from shardwise.files.paths import CACHE
from shardwise.plan import config, config_file, planner
from shardwise.plan import plan as plans
from shardwise.records import failures, others


def main(options: Namespace) -> None:
    """Make the plan of a config, or use that of a run; check the folder, write the plan."""
    looks = options.quote or options.trial
    if options.planned and not looks:
        plan = planner.read_planned(options.planned)
        plans.expect(plan, plan.facts.digest, options.digest)
    else:
        under = config.config_files(None) if looks else []
        settings = config.load(config_file.read_files([*under, *map(Path, options.configfile)]))
        plan = planner.make(settings, CACHE if CACHE.is_dir() else None)
    if (options.trial or not looks) and not options.replace and others.config_differs(plan):
        raise InputError(
            f"{plan.results.plan} is the plan of another config; choose another results folder, or "
            "give --replace"
        )
    if looks:
        return quote.show(plan, settings, options)
    with failures.noted(plan.results, f"plan-{plan.key}", plan.results.log("plan")):
        planner.check_folder(plan)
        planner.write(plan)
    return cli.log.info("%s: %s", plan.results.plan, planner.describe(plan))


if __name__ == "__main__":
    arguments = cli.parser(__doc__)
    add, words = arguments.add_argument, "config files; later ones override earlier ones; "
    words += "with --quote and --trial over config.yaml, as in a run"
    add("--configfile", nargs="+", default=["config.yaml"], help=words)
    add("--planned", type=Path, help="plan.tsv that snakemake made; commit it")
    words = "replace the plan of another config; its products stay"
    add("--replace", action="store_true", help=words)
    add("--digest", help="digest that the plan must have; snakemake passes it")
    quote.add_options(arguments)
    cli.run(main, arguments)

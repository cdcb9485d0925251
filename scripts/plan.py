"""Write plan.tsv: which matrices each shard holds, from the headers of the input alone."""

from argparse import Namespace
from pathlib import Path

from shardwise import cli
from shardwise.command import quote
from shardwise.errors import InputError, ShardwiseError
from shardwise.files.paths import CACHE
from shardwise.plan import config, config_file, planner
from shardwise.plan import plan as plans
from shardwise.records import failures


def main(options: Namespace) -> None:
    """Make the plan of a config, or use that of a run; check the folder, write the plan."""
    if options.planned and not (options.quote or options.trial):
        plan = planner.read_planned(options.planned)
        plans.expect(plan, plan.facts.digest, options.digest)
    else:
        values = config_file.read_files([Path(file) for file in options.configfile])
        settings = config.load(values)
        plan = planner.make(settings, CACHE if CACHE.is_dir() else None)
        if options.quote or options.trial:
            if options.trial and not options.replace:
                _refuse_to_replace(plan)
            return quote.show(plan, settings, options)
    with failures.noted(plan.results, f"plan-{plan.key}", plan.results.log("plan")):
        planner.check_folder(plan)
        if not options.replace:
            _refuse_to_replace(plan)
        planner.write(plan)
    return cli.log.info("%s: %s", plan.results.plan, planner.describe(plan))


def _refuse_to_replace(plan: plans.Plan) -> None:
    """Refuse to replace the plan of another config."""
    try:
        present = plans.load_facts(plan.results.plan)
    except ShardwiseError:
        return  # there is none, or none that can be used
    planned = plan.facts
    if present.digest != planned.digest and present.config_digest != planned.config_digest:
        raise InputError(
            f"{plan.results.plan} is the plan of another config; choose another results folder, or "
            "give --replace"
        )


if __name__ == "__main__":
    arguments = cli.parser(__doc__)
    add, words = arguments.add_argument, "config files; later ones override earlier ones"
    add("--configfile", nargs="+", default=["config.yaml"], help=words)
    add("--planned", type=Path, help="plan.tsv that snakemake made; commit it")
    words = "replace the plan of another config; its products stay"
    add("--replace", action="store_true", help=words)
    add("--digest", help="digest that the plan must have; snakemake passes it")
    quote.add_options(arguments)
    cli.run(main, arguments)

"""Write the synthetic stack, input.npy, that the plan asks for."""

from argparse import Namespace

from shardwise import cli
from shardwise.errors import InputError
from shardwise.multiply import synthetic
from shardwise.plan import plan as plans
from shardwise.records import failures


def main(options: Namespace) -> None:
    """Generate the stack from the plan's recipe."""
    plan = plans.load(options.plan)
    if plan.facts.synthetic is None:
        raise InputError(f"{options.plan}: the plan has an input of its own; nothing to generate")
    with failures.noted(plan.results, f"synthesize-{plan.key}", plan.results.log("synthesize")):
        synthetic.write(plan)
    cli.log.info("%s written", plan.results.synthetic)


if __name__ == "__main__":
    arguments = cli.parser(__doc__)
    cli.add_plan(arguments)
    cli.run(main, arguments)

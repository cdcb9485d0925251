"""Measure the raw rates of this node: disk, page cache, PCIe and products, in about 10 seconds.

They are kept in logs/ceilings/ of the results folder, a file a node; the report shows the stages of
each shard beside them. Run it on each kind of node, when nothing else is at work there.
"""

import sys
from argparse import ArgumentParser, Namespace
from functools import partial

from shardwise import ceilings, cli, devices, planfile, quarantine
from shardwise.ceilings import Ceilings
from shardwise.doctor import settings
from shardwise.errors import DeviceFailed, one_line
from shardwise.guard import refuse_links
from shardwise.paths import Results
from shardwise.planfile import Plan
from shardwise.units import decimal


def main(options: Namespace) -> None:
    """Measure, write the file, and print the figures."""
    from shardwise import multiply, probes  # here: --help needs no NumPy
    from shardwise.lanes import CudaLane, HostLane

    results = Results(settings.existing_folder(options.configfile, options.results))
    refuse_links(results)
    plan = _plan(results)
    backend = options.backend or (plan.settings["backend"] if plan else "auto")
    barred = partial(quarantine.barred, results)
    needed = probes.DEVICE_BYTES
    xp, device = multiply.load_backend(backend, needed, options.device_wait, barred=barred)
    try:
        lane = HostLane() if xp.__name__ == "numpy" else CudaLane(xp)
        made = probes.measure(results, lane, device, plan)
    except devices.device_errors(xp) as error:
        raise DeviceFailed(f"device {device['uuid']}: {error}; nothing was measured") from error
    path = ceilings.write(results, made)
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr] # names of any alphabet
    sys.stdout.write(table(made))
    cli.log.info("%s written", path)


def _plan(results: Results) -> Plan | None:
    """The plan, whose products are timed; None where there is none yet."""
    return planfile.load(results.plan, 0) if results.plan.exists() else None


def table(made: Ceilings) -> str:
    """The figures, a line each."""
    device = f"{made.device.name} {made.device.uuid or ''}".strip()
    lines = [f"{made.node}, {device}"]
    for what, rate in made.rates.items():
        lines.append(f"  {what:<16} {'-' if rate is None else decimal(rate, 'B/s'):>12}")
    for what, rate in made.compute.items():
        lines.append(f"  {what:<16} {decimal(rate, 'FLOP/s'):>12}")
    lines += [f"  note: {remark}" for remark in made.remarks]
    return "".join(f"{one_line(line)}\n" for line in lines)


def arguments() -> ArgumentParser:
    """The command line."""
    made = cli.parser(__doc__)
    cli.add_results(made)
    made.add_argument(
        "--backend", choices=("auto", "cupy", "numpy"),
        help="whose products are timed; left out, that of the plan",
    )  # fmt: skip
    made.add_argument(
        "--device-wait", type=cli.seconds, default=devices.JOB_WAIT_SECONDS, metavar="SECONDS",
        help="how long to wait for a free GPU; then it ends with 75, and nothing is measured",
    )  # fmt: skip
    return made


if __name__ == "__main__":
    cli.run(main, arguments())

"""The stages, as they run by hand and in the jobs of a run: each is a function of its options.

A stage imports what it computes with only when it begins: each process runs one stage. The
first line of a stage's docstring is its line in ``shardwise --help``.
"""

import os
import sys
from argparse import Namespace
from contextlib import nullcontext
from pathlib import Path

from shardwise.errors import InputError, ShardwiseError, TryAgain, log, of_code, one_line, some
from shardwise.files import small
from shardwise.files.paths import CACHE, Results, freed_by
from shardwise.plan import config
from shardwise.plan import plan as plan_file
from shardwise.records import failures, locks
from shardwise.records.store import Store
from shardwise.units import count, human_bytes

_MOST_LISTED = 50  # files that clean names


def plan(options: Namespace) -> None:
    """Write plan.tsv: which matrices each shard holds, from the headers of the input alone."""
    from shardwise.plan import config_file, planner

    if options.planned:
        made = planner.read_planned(options.planned)
        plan_file.expect(made, made.facts.digest, options.digest)
    else:
        files = config.config_files(options.configfile) or [Path("config.yaml")]
        settings = config.load(config_file.read_files(files))
        made = planner.make(settings, CACHE if CACHE.is_dir() else None)
        if options.quote or options.trial:
            from shardwise.command import forecast

            return forecast.show(made, settings, options)
    with Store(made).attempt("plan"):
        planner.check_folder(made)
        planner.write(made)
    return log.info("%s: %s", made.results.plan, planner.describe(made))


def synthesize(options: Namespace) -> None:
    """Write the synthetic stack, input.npy, that the plan asks for."""
    from shardwise.multiply import copy

    plan = plan_file.load(options.plan)
    if plan.facts.synthetic is None:
        raise InputError(f"{options.plan}: this plan has its own input; nothing to generate")
    with Store(plan).attempt("synthesize"):
        copy.synthesize(plan)
    log.info("%s written", plan.results.synthetic)


def shard(options: Namespace) -> None:
    """Copy the matrices of one shard into a file of their own: shards/SHARD-KEY.npy."""
    from shardwise.multiply import copy

    plan = plan_file.load(options.plan)
    row = plan.shard(options.shard)
    plan_file.expect(plan, row.input_key, options.key)
    with Store(plan).attempt(f"copy-{row.shard}"):
        copy.materialize(plan, row.shard)
    log.info("%s written", plan.results.shard(row.input_name))


def multiply(options: Namespace) -> None:
    """Multiply the matrices of one shard: products/SHARD-KEY.npy, and its receipt."""
    from shardwise.devices import choose
    from shardwise.processes import contain

    plan = plan_file.load(options.plan)
    if plan.function:  # it may change the working directory, and leave processes
        plan = plan.anchored(Path.cwd())
        contain.adopt()
    shard, store = plan.shard(options.shard), Store(plan)
    plan_file.expect(plan, shard.key, options.key)
    if (before := store.failure(shard.shard)) and failures.needs_user(before):
        raise of_code(before.code, before.reason)  # a retry in the same run is useless
    store.withdraw()
    with store.attempt(shard.shard, choose.taken_uuid):
        from shardwise.multiply.job import run_shard

        try:
            run_shard(plan, shard.shard, options.memory, options.device_wait)
        finally:
            if plan.function:
                contain.sweep()
    log.info("%s written", plan.results.receipt(shard.name))


def ledger(options: Namespace) -> None:
    """Write ledger.tsv: one row per shard, from the receipts, each checked against the plan."""
    from shardwise.records import ledger

    plan = plan_file.load(options.plan)
    with Store(plan).attempt("ledger"):
        ledger.write(plan)
    log.info("%s: %d shards are whole", plan.results.ledger, len(plan.shards))


def reduce(options: Namespace) -> None:
    """Sum all products with MPI; the command starts its ranks itself.

    Under a launcher of your own it is one of the ranks: mpiexec -n 2 python -m mpi4py
    scripts/reduce.py
    """
    from shardwise.mpi import together
    from shardwise.reduce import reducer  # after MPI: a rank that fails here then ends the others

    comm = together.world()
    plan = reducer.run(comm, options.plan, options.statistics)
    if comm.rank == 0:
        log.info("%s: results of %d matrices", plan.results.root, plan.problem.matrices)


def merge(options: Namespace) -> None:
    """Add the sums of finished results folders, and write OUT/sum.npy, mean.npy and summary.json.

    All must be of the same problem: product, shapes, dtype, precision and backend. They are added
    in the order given, and stay as they are.
    """
    from shardwise.merge import total

    matrices = total.run(options.out, options.folders)
    log.info("%s: the total of %d matrices", options.out, matrices)


def report(options: Namespace) -> None:
    """Write the page on a run, report.html: what was computed, if it is proven, where time went.

    It also writes the same figures for Prometheus, metrics.prom, and works at any time.
    """
    from shardwise.observe import page, status

    seen = status.look(config.existing_folder(options.configfile, options.results))
    small.refuse_unmarked(seen.results)
    with Store(seen.plan).attempt("report") if seen.plan else nullcontext():
        log.info("report: %s", page.write(seen))


def watch(options: Namespace) -> int:
    """Watch a run from any shell that sees its results folder, while its jobs run anywhere.

    In a pipe it writes a line when something has changed. It waits for a run that has not begun,
    and ends with it. Exit codes: 0 all is done; 75 unfinished; 3 failed or damaged.
    """
    from shardwise.observe import status, watch

    named = options.configfile, options.results
    if options.once:
        seen = status.look(config.existing_folder(*named))
        watch.show(seen, options.json)
        return seen.code
    return watch.follow(config.folder_of_run(*named), options.json, options.interval)


def verify(options: Namespace) -> int:
    """Check whether a results folder is whole, on any later day and machine. It changes nothing.

    It reads every byte there; the last line is the verdict. Exit codes: 0 whole; 2 it cannot
    be read; 3 damaged; 75 unfinished: nothing is damaged, and the next run continues.
    """
    from shardwise.observe import audit

    result = audit.look(config.existing_folder(options.configfile, options.results))
    sys.stdout.write(result.json() if options.json else result.text())
    return result.code


def doctor(options: Namespace) -> None:
    """Say what would run on this machine and what is missing. It changes and kills nothing.

    Exit codes: 0 the main job can run here; 2 something has to be installed or changed first; 75
    try again (devices busy or lost). The keys of --json are in docs/doctor.md.
    """
    from shardwise.doctor import report
    from shardwise.processes import contain

    contain.clear_stray()
    others = contain.children()  # of the program that became the doctor, such as a job's script
    contain.adopt()
    try:
        checks = report.sections(options)
        found = report.look(checks, min(options.time_limit, 1e6))
    finally:  # what it has started itself, and nothing else, is ended
        contain.sweep(spare=others)
    lines = [report.to_json(found)] if options.json else report.to_text(found)
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()
    os._exit(report.verdict(found)["exit_code"])  # never waits for threads that hang in the kernel


def clean(options: Namespace) -> None:
    """List what other configs or inputs left in a results folder, and remove it with --yes.

    A file stays if nothing shows that a run wrote it, such as a product without a matching receipt.
    """
    from shardwise.plan import config_file, planner

    results = Results(config.existing_folder(options.configfile, options.results))
    if not options.results and (files := config.config_files(options.configfile)):
        own = planner.planned(config.load(config_file.read_files(files)))
        last = plan_file.load_facts(results.plan).config if results.plan.exists() else own
        if last | {"results": None} != own | {"results": None}:
            raise InputError(
                f"{results.root} was last used with another config, so clean would remove files of "
                "yours; run yours first"
            )
    small.refuse_unmarked(results)
    small.refuse_links(results)
    busy = f"a run is working in {results.root}; let it finish, or end it, then clean again"
    # No run begins while files are removed.
    with locks.take_lock(results.running, busy) if options.yes else nullcontext():
        if options.yes and locks.is_job_locked(results.living):
            raise TryAgain(busy)
        found = list(Store(plan_file.load(results.plan)).others())
        ours = {path: freed_by(path) for path in found if _is_ours(results, path)}
        names = {path: str(path.relative_to(results.root)) for path in found}
        listed = () if options.yes else ours
        lines = [f"{human_bytes(ours[path]):>12}  {names[path]}" for path in listed]
        if (more := len(lines) - _MOST_LISTED) > 0:
            lines[_MOST_LISTED:] = [f"and {more} more"]
        done = " removed" if options.yes else "; to remove them, add --yes" * bool(ours)
        nbytes = human_bytes(sum(ours.values()))
        what = f"{count(len(ours), 'file')}, {nbytes} of other configs or inputs"
        lines.append(f"{results.root}: {what}{done}")
        if left := [names[path] for path in found if path not in ours]:
            lines.append(f"these stay, as no run is known to have written them: {some(left)}")
        # Receipts go last: they show who wrote a product.
        for path in sorted(ours if options.yes else (), key=lambda path: path.suffix == ".json"):
            path.unlink(missing_ok=True)
    sys.stdout.writelines(f"{one_line(line)}\n" for line in lines)


def _is_ours(results: Results, path: Path) -> bool:
    """Whether a regular file itself, or its receipt, shows that a run of ours has written it."""
    from shardwise.records import receipts

    if path.is_symlink() or not path.is_file():
        return False
    kinds = {"products": receipts.ProductReceipt, "shards": receipts.CopyReceipt}
    try:
        if kind := kinds.get(path.relative_to(results.root).parts[0]):
            receipt = receipts.read(path.with_suffix(".json"), kind)
            if path.suffix == ".npy":
                receipts.check_file(path, receipt.file)
            return f"{receipt.shard}-{receipt.key}" == path.stem
        failure = failures.read(path)
        return failure is not None and failure.name == path.stem
    except (ShardwiseError, OSError):
        return False


_WORKERS = "--plan --mem-mb --device-wait --run-time --round"

STAGES = {
    "init": ("command.runs:init", "--profile"),
    "run": ("command.runs:run", "--profile ..."),
    "submit": ("command.runs:submit", "--profile --job ..."),
    "watch": ("command.stages:watch", "results --configfile --once --json --interval"),
    "report": ("command.stages:report", "results --configfile"),
    "verify": ("command.stages:verify", "results --configfile --json"),
    "merge": ("command.stages:merge", "out folders"),
    "clean": ("command.stages:clean", "results --configfile --yes"),
    "doctor": ("command.stages:doctor", "--configfile --results --launcher --time-limit --json"),
    "plan": (
        "command.stages:plan",
        "--configfile --planned --digest --quote --trial --devices --profile",
    ),
    "synthesize": ("command.stages:synthesize", "--plan"),
    "shard": ("command.stages:shard", "--plan --shard --key"),
    "multiply": ("command.stages:multiply", "--plan --shard --key --mem-mb --device-wait"),
    "work": ("work.dispatch:work", f"{_WORKERS} --seat --parent --until"),
    "dispatch": (
        "work.dispatch:run",
        f"{_WORKERS} --dispatch --devices --workers --ranks --launcher --array-tasks --array-limit "
        "--scheduler --job --setup",
    ),
    "ledger": ("command.stages:ledger", "--plan"),
    "reduce": ("command.stages:reduce", "--plan --statistics --ranks --launcher"),
}
"""Where every command stands, and the names of its options."""

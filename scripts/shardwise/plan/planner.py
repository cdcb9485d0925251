"""From a config to a plan: look at the headers, do the arithmetic, refuse what cannot work."""

import json
import logging
import os
import shutil
from collections.abc import Iterable
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from shardwise import ALGORITHM, errors
from shardwise.errors import InputError, one_line, short, some
from shardwise.files import small
from shardwise.files.commit import commit
from shardwise.files.lookup import file_of, mode_of, refuse_undecodable
from shardwise.files.npy import Header
from shardwise.files.paths import Results, for_bash, id_digits
from shardwise.files.remote import is_url
from shardwise.plan import covariance, cut, memory, per_matrix, user_function
from shardwise.plan import plan as plan_file
from shardwise.plan.config import NO_PLAN, Settings
from shardwise.plan.per_matrix import PerMatrix
from shardwise.plan.plan import Facts, Plan, Shard, ShardSettings, Source
from shardwise.plan.problem import Problem, check, function_parts
from shardwise.plan.sources import labels_of_sheet, right_of, stack_of
from shardwise.plan.stack import Stack, first_rows
from shardwise.units import count, human_bytes


def make(settings: Settings, cache: Path | None = None, log: logging.Logger = errors.log) -> Plan:
    """The plan for a config; InputError if the input is bad, or does not fit the config.

    Matrices are read only to try a user's function, and for the offset of a covariance. Nothing is
    written but headers, to the folder ``cache``.
    """
    results = Results(Path(settings.results))
    refuse_undecodable(results.root.absolute())
    # A new field of `Header` starts a new cache file: an old one would yield the field's default.
    known = plan_file.digest([settings.input, *(field.name for field in fields(Header))])
    left = stack_of(settings, results.synthetic, cache and cache / f"{known}.json")
    given = [] if settings.input is None else [source.path for source in left.sources]
    if len(given) > 1:
        ends = one_line(f"{len(given):,} arrays in this order, {given[0]} to {given[-1]}")
        log.info(f"shardwise: input: {ends}, hold {left.matrices:,} matrices")
    right, shared = right_of(settings, left)
    named = [*given, settings.right, settings.weights, settings.labels, settings.offset]
    _refuse_names(results, [name for name in named if name not in (None, "auto", "none")])
    said = per_matrix.read(settings, left.matrices, labels_of_sheet(settings, left))
    problem = Problem(
        left.matrices, left.shape, settings.product, left.dtype, right.shape if right else None,
        shared, covariance=settings.covariance, labels=len(said.names),
    )  # fmt: skip
    problem, function = _tried(settings, left, said, problem, log)
    centre = covariance.plan(settings, left, problem, said.weights)
    bare = centre is not None and settings.offset == "none" and "int" not in left.dtype
    notes = list(filter(None, (left.unwritten, covariance.UNCENTRED * bare)))
    for note in notes:
        log.warning(f"shardwise: {note}")
    check(problem, settings.reduce["statistics"], settings.keep, said.total_weight)
    runs = _runs(settings, problem)
    chosen = {field.name: getattr(settings, field.name) for field in fields(ShardSettings)}
    chosen["materialize"] = _is_copied(settings, left, len(runs), log)
    facts = Facts(
        problem, ShardSettings(**chosen), function, right.sources if right else (),
        settings.synthetic if settings.input is None else None, "", said.whole_digests,
        list(said.names), said.counts, user_function.digests_of(settings.depends), centre,
        decoded=left.decoded, notes=notes,
    )  # fmt: skip
    rows = _rows(facts, left, runs, said)
    digest = plan_file.digest([asdict(facts), *map(small.checksum, plan_file.to_tsv(rows, Shard))])
    facts = replace(facts, digest=digest, config=planned(settings))
    return Plan(results, {row.shard: row for row in rows}, facts, left.sources, said)


def _tried(
    settings: Settings, left: Stack, said: PerMatrix, problem: Problem, log: logging.Logger
) -> tuple[Problem, str | None]:
    """The problem with the results of a user's function, and a digest of that; both if any."""
    if not (parts := function_parts(settings.product)):
        return problem, None
    code = user_function.read_source(settings.product)
    if told := user_function.unlisted(parts[0], code, settings.depends):
        log.warning(f"shardwise: {told}")
    # Formatted here: Snakemake's logger prints messages without filling in arguments.
    log.info(f"shardwise: trying {settings.product} on the first matrix, with NumPy")
    matrix = first_rows(settings, left, said.weights, left.shape[0])[np.newaxis]
    result, dtype = user_function.probe(settings.product, matrix)
    return replace(problem, result=result, result_dtype=dtype), small.checksum(code, 8)


def _is_copied(settings: Settings, left: Stack, shards: int, log: logging.Logger) -> bool:
    """Whether each shard is copied first; auto: if reading in place is slow, or impossible."""
    reason = left.why_copied
    if settings.materialize is False and left.must_copy:
        raise InputError(f"materialize: false cannot be, as {reason}; use auto or true")
    if settings.materialize != "auto":
        return bool(settings.materialize)
    if len(left.sources) > shards:
        reason = f"the input is {len(left.sources)} files, for {shards} shards"
    does = f"copies each shard first: {reason}" if reason else "reads the input in place"
    log.info(f"shardwise: materialize: auto {does}")
    return bool(reason)


def planned(settings: Settings) -> dict[str, Any]:
    """The settings that a plan depends on."""
    return {key: value for key, value in vars(settings).items() if key not in NO_PLAN}


def write(plan: Plan) -> None:
    """Commit a plan: the tables first, ``plan.json`` with their checksums last."""
    results, facts, kept = plan.results, asdict(plan.facts), plan.per_matrix
    small.mark(results)
    for path, array in ((results.weights, kept.weights), (results.labels, kept.labels)):
        if array is not None:
            with commit(path) as file:
                np.lib.format.write_array(file, np.ascontiguousarray(array), allow_pickle=False)
    del facts["checksums"]
    proven = json.dumps(facts, sort_keys=True).encode()
    checksums = {results.plan_facts.name: small.checksum(proven)}
    sources = plan_file.to_tsv(plan.sources, Source)
    rows = plan_file.to_tsv(plan.shards.values(), Shard)
    for path, table in ((results.sources, sources), (results.plan, rows)):
        raw = b"".join(table)
        checksums[path.name] = small.checksum(raw)
        with commit(path) as file:
            file.write(raw)
    marker = results.planned(plan.mark)
    for other in marker.parent.glob("[0-9a-f]" * len(marker.name)):
        other.unlink(missing_ok=True)  # another command may write the plan as well
    with commit(results.plan_facts) as file:
        file.write(json.dumps({**facts, "checksums": checksums}, indent=1).encode() + b"\n")
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.touch()


def read_planned(path: Path) -> Plan:
    """Read a plan that :func:`write` has put into another folder than its results folder."""
    plan = plan_file.load(path)
    results = Results(Path(plan.facts.config["results"]))
    return replace(plan, results=results, made_of=plan.sources, made_with=plan.per_matrix)


def check_folder(plan: Plan) -> int:
    """Refuse a results folder that cannot be used, or has too small a disk; its free bytes."""
    root, results = plan.results.root, plan.results
    try:
        mode_of(root)  # raises for a name that is too long, and for a link that leads to itself
        small.refuse_links(results)
        older = "*.npy", "000/*.npy"
        stems = [path.stem for part in older for path in results.products.glob(part)]
        if stems and all(map(str.isdecimal, stems)):
            raise InputError(
                f"results: {root} is of a version whose files, such as {stems[0]}.npy, have no "
                "keys in their names; choose another folder, or move this one away: all is "
                "computed again"
            )
        taken = [name for name in results.names() if os.path.lexists(root / name)]
        if taken and not results.marker.is_file():
            raise InputError(
                f"results: {root} holds {some(taken, 5)}, which a run would replace; choose "
                f"another folder, or, if a run made this one: touch {for_bash(results.marker)}"
            )
        existing = next(p for p in (root, *root.absolute().parents) if p.exists() or p.is_symlink())
        if not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)):
            raise OSError(0, f"{existing} is not a folder that you may write in")
    except OSError as error:  # such as a folder that we may not read
        words = f"results: {short(str(root))} cannot be used: {error.strerror}"
        raise InputError(f"{words}; choose another folder") from error
    free, needed = shutil.disk_usage(existing).free, sum(plan.written.values())
    if needed > free:  # only then is it worth looking at what is there already
        rows = plan.shards.values()
        paths = [results.synthetic, *(results.shard(row.input_name) for row in rows)]
        paths += [results.product(row.name) for row in rows]
        needed -= sum(path.stat().st_size for path in paths if path.exists())
    if needed > free:
        parts = ", ".join(f"{kind} {human_bytes(n)}" for kind, n in plan.written.items() if n)
        told = f"{root} needs {human_bytes(needed)} more (of {parts}), but its disk has"
        cure = "keep no shards (materialize: false) or products (keep: sum)"
        raise InputError(f"results: {told} {human_bytes(free)} free; {cure}")
    return free


def describe(plan: Plan) -> str:
    """One line about a plan, for the log and the dry run."""
    problem, most = plan.problem, human_bytes(max(row.bytes for row in plan.shards.values()))
    product = problem.product + " of A minus an offset" * (plan.offset is not None)
    if problem.result:
        product += f" to {problem.result} of {problem.result_dtype} (which cannot be verified)"
    return (
        f"{problem.matrices} matrices {problem.left} of {problem.dtype}, {product}, in "
        f"{count(len(plan.shards), 'shard')} of {most} or less"
    )


def _refuse_names(results: Results, names: Iterable[str]) -> None:
    """Refuse names that Snakemake would fill in, and input where a run writes its own files."""
    root = Path(os.path.realpath(results.root))
    reserved = {root / name for name in results.names()}
    for name in (str(results.root), *names):
        path = Path(os.path.realpath(file_of(name)))
        if {"{", "}"} & {*file_of(name)}:
            raise InputError(f"{name}: file names with braces are not supported; rename it")
        if not is_url(name) and (path.parent == root or reserved.intersection(path.parents)):
            words = "lies where the run writes its own files; choose another results folder"
            raise InputError(f"{name} {words}")


def _runs(settings: Settings, problem: Problem) -> list[range]:
    """The matrices of each shard."""
    matrices, shards = problem.matrices, settings.shards
    if shards == "auto":
        return cut.cut_aligned(matrices, problem.matrix_bytes, settings.shard_bytes)
    if int(shards) > (most := min(matrices, cut.MAX_SHARDS)):
        words = f"is too many for {matrices} matrices; use at most {most}"
        raise InputError(f"shards: {short(shards)} {words}")
    return cut.cut(matrices, int(shards))


def _rows(facts: Facts, left: Stack, runs: list[range], said: PerMatrix) -> list[Shard]:
    """The rows of the plan; as it may have a million, the text that they share is made once."""
    problem, settings, known = facts.problem, facts.settings, dict[Any, tuple[int, int, int, int]]()
    right = [[source.path, source.identity] for source in facts.right_sources]
    common = plan_file.digest([facts.recipe, right])
    head = json.dumps([ALGORITHM["shard"], left.dtype])
    one = _files_text(left.sources) if len(left.sources) == 1 else None
    rows, digits, keep = [], id_digits(len(runs)), settings.keep
    for number, run in enumerate(runs):
        files = one or _files_text(plan_file.between(left.sources, run.start, run.stop))
        input_key = plan_file.key_of(f"{head} {run} {files}".encode())
        key = plan_file.key_of(f"{common} {input_key} {said.digest(run, keep)}".encode())
        spans = [places for _, places in said.spans(run)] if keep == "sum" else [range(len(run))]
        counts = cut.count_nodes, cut.most_held
        kind = (len(run), *(f(places.start, places.stop) for places in spans for f in counts))
        if kind not in known:  # true for few runs: most are like an earlier one
            own = memory.Budget(problem, settings, spans)
            host, nbytes = own.host_bytes + facts.decoded, len(run) * problem.matrix_bytes
            known[kind] = nbytes, own.result_bytes, host, own.device_bytes
        rows.append(Shard(f"{number:0{digits}}", run.start, run.stop, *known[kind], input_key, key))
    return rows


def _files_text(sources: Iterable[Source]) -> str:
    """The files as a key takes them; a synthetic stack counts by its values, not by its path."""
    return json.dumps([[s.path if s.identity[:1].isdigit() else "", s.first, s.identity]
                       for s in sources])  # fmt: skip

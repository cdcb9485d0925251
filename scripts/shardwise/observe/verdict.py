"""One line on the state of a results folder."""

from shardwise import host
from shardwise.errors import one_line, some
from shardwise.observe.observation import DAMAGED, FAILED, RUNNING, Observation, Verdict
from shardwise.observe.shards import stamped
from shardwise.plan.plan import Plan
from shardwise.records import ledger
from shardwise.records.receipts import SumReceipt

_MOST_LETTERS = 2000
_MOST_NAMED = 5
_UNREAD = f"The files were not read again for this: `{host.command('verify')}` does that."


def verdict(seen: Observation) -> Verdict:
    """Whether the number is right.

    It rests on what the tasks and the reduce have proven and checked when they wrote, and on what
    their receipts say. The elements of the files are not read: the audit (`make verify`) does that.
    """
    if seen.plan is None:
        return _without_plan(seen)
    counts, done, shards = seen.counts, len(seen.done), len(seen.shards)
    if counts[DAMAGED]:
        return _damaged(seen)
    if done < shards:
        named = ((RUNNING, "running"), (FAILED, "failed"))
        parts = [f"{counts[state]} {word}" for state, word in named if counts[state]]
        told = ", ".join([f"{done} of {shards} shards are done", *parts])
        told += "".join(f"; {rule}: {why.reason}" for rule, why in seen.failures.items())
        kind = "failed" if counts[FAILED] or seen.failures else "unfinished"
        return Verdict(kind, f"Not finished: {told}.")
    if seen.summary is None or seen.flaw:
        return _without_sum(seen)
    return _of_sum(seen)


def _without_plan(seen: Observation) -> Verdict:
    if failure := seen.failures.get("plan"):
        return Verdict("failed", f"Nothing is computed: no plan could be made: {failure.reason}.")
    if seen.problems:
        return Verdict("damaged", f"Damaged: {seen.problems[0]}.")
    where = one_line(str(seen.results.root))
    return Verdict("empty", f"Nothing is here yet: {where} holds no plan; run snakemake first.")


def _damaged(seen: Observation) -> Verdict:
    bad = [name for name, sighting in seen.shards.items() if sighting.state == DAMAGED]
    named = some(bad, _MOST_NAMED)
    cure = ledger.build_repair(seen.plan, bad[:_MOST_NAMED])  # type: ignore[arg-type]
    more = ", and so on" if len(bad) > _MOST_NAMED else ""
    return Verdict(
        "damaged",
        one_line(
            f"Damaged: the files of {len(bad)} of {len(seen.shards)} shards ({named}) cannot "
            f"be used. To compute them again: {cure}{more}; then snakemake as before."
        ),
    )


def _without_sum(seen: Observation) -> Verdict:
    begin = f"all {len(seen.shards)} shards are done, but"
    if seen.flaw:
        damaged = seen.flaw.kind == "damaged"
        word = "Damaged" if damaged else "Not finished"
        kind = "damaged" if damaged else "unfinished"
        return Verdict(
            kind, one_line(f"{word}: {begin} the sum is not of them: {seen.flaw.words}.")
        )
    for rule in ("ledger", "reduce"):
        if failure := seen.failures.get(rule):
            return Verdict("failed", f"Not finished: {begin} {rule} failed: {failure.reason}.")
    if stamped(seen.results.summary):
        own = [text for text in seen.problems if seen.results.summary.name in text]
        return Verdict("damaged", f"Damaged: {begin} {''.join(own[:1])}.")
    return Verdict("unfinished", f"Not finished: {begin} they are not summed yet.")


def _of_sum(seen: Observation) -> Verdict:
    summary: SumReceipt = seen.summary  # type: ignore[assignment]  # `verdict` has seen it
    shards = len(seen.shards)
    unproven = [name for name, sighting in seen.shards.items() if not sighting.proven]
    if not summary.proven or unproven:
        why = _why_unproven(seen, unproven)
        words = f"The sum is whole, but nothing has proven it: {why}."
        return Verdict("unproven", f"{words} {_UNREAD}")
    begin = f"all {shards} shards have proven their products"
    if summary.end_to_end:
        words = f"The sum is right: {begin}, and it agrees with them end to end."
    else:
        why = summary.no_end_to_end
        because = f" ({one_line(why)[:_MOST_LETTERS]})" if why else ""
        words = f"Proven: {begin}; the sum was not compared with them end to end{because}."
    return Verdict("proven", f"{words} {_UNREAD}")


def _why_unproven(seen: Observation, unproven: list[str]) -> str:
    plan: Plan = seen.plan  # type: ignore[assignment]
    if plan.settings.verify is False:
        return "verify is false in the config; set it to true and run snakemake again"
    if plan.problem.result is not None:
        return "a function of your own makes the products, and only you know what is right"
    if unproven:
        named = some(unproven, _MOST_NAMED)
        return f"{len(unproven)} of {len(seen.shards)} shards ({named}) have no proof"
    return "its summary does not say that it was"

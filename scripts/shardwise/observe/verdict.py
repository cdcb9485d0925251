"""One line on the state of a results folder."""

from shardwise import host
from shardwise.errors import one_line, some
from shardwise.observe.observation import DAMAGED, FAILED, RUNNING, Observation, Verdict
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
        return _damaged(seen, seen.plan)
    if done < shards:
        named = ((RUNNING, "running"), (FAILED, "failed"))
        parts = [f"{counts[state]} {word}" for state, word in named if counts[state]]
        told = ", ".join([f"{done} of {shards} shards are done", *parts])
        told += "".join(f"; {rule}: {why.reason}" for rule, why in seen.failures.items())
        kind = "failed" if counts[FAILED] or seen.failures else "unfinished"
        return Verdict(kind, f"Not finished: {told}.")
    if seen.summary is None or seen.flaw:
        return _without_sum(seen)
    return _of_sum(seen, seen.plan, seen.summary)


def _without_plan(seen: Observation) -> Verdict:
    if failure := seen.failures.get("plan"):
        return Verdict("failed", f"Nothing is computed: no plan could be made: {failure.reason}.")
    if seen.problems:
        return Verdict("damaged", f"Damaged: {seen.problems[0]}.")
    where = one_line(str(seen.results.root))
    return Verdict("empty", f"Nothing is here yet: {where} holds no plan; run snakemake first.")


def _damaged(seen: Observation, plan: Plan) -> Verdict:
    bad = [name for name, sighting in seen.shards.items() if sighting.state == DAMAGED]
    cure = ledger.build_repair(plan, bad[:_MOST_NAMED])
    more = ", and so on" if len(bad) > _MOST_NAMED else ""
    words = (
        f"Damaged: the files of {len(bad)} of {len(seen.shards)} shards ({some(bad, _MOST_NAMED)}) "
        f"cannot be used. To compute them again: {cure}{more}; then snakemake as before."
    )
    return Verdict("damaged", one_line(words))


def _without_sum(seen: Observation) -> Verdict:
    begin = f"all {len(seen.shards)} shards are done, but"
    if seen.flaw:
        word = "Damaged" if seen.flaw.kind == "damaged" else "Not finished"
        words = f"{word}: {begin} {seen.flaw.words}."
        return Verdict(seen.flaw.kind, one_line(words))
    for rule in ("ledger", "reduce"):
        if failure := seen.failures.get(rule):
            return Verdict("failed", f"Not finished: {begin} {rule} failed: {failure.reason}.")
    return Verdict("unfinished", f"Not finished: {begin} they are not summed yet.")


def _of_sum(seen: Observation, plan: Plan, summary: SumReceipt) -> Verdict:
    unproven = [name for name, sighting in seen.shards.items() if not sighting.proven]
    if not summary.proven or unproven:
        if plan.settings.verify is False:
            why = "verify is false in the config; set it to true and run snakemake again"
        elif plan.problem.result is not None:
            why = "a function of your own makes the products, and only you know what is right"
        else:
            named = some(unproven, _MOST_NAMED)
            why = f"{len(unproven)} of {len(seen.shards)} shards ({named}) have no proof"
        words = f"The sum is whole, but nothing has proven it: {why}."
        return Verdict("unproven", f"{words} {_UNREAD}")
    begin = f"all {len(seen.shards)} shards have proven their products"
    words = f"The sum is right: {begin}, and it agrees with them end to end."
    if not summary.end_to_end:
        why = one_line(summary.no_end_to_end or "")[:_MOST_LETTERS]
        because = f" ({why})" if why else ""
        words = f"Proven: {begin}; the sum was not compared with them end to end{because}."
    return Verdict("proven", f"{words} {_UNREAD}")

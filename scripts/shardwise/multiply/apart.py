"""A shard whose product is a user's function: its job watches over the process that computes it.

Whatever the function does to that process, the job ends when it should, with an exit code that says
how, and with a reason in the log; what the function leaves behind is ended with it.
"""

import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

from shardwise import errors
from shardwise.errors import InputError, TryAgain
from shardwise.plan.plan import Plan, Shard
from shardwise.processes import contain
from shardwise.records import failures

_WORDS_LETTERS = 100_000


def run(plan: Plan, shard: Shard, compute: Callable[[Plan], None]) -> None:
    """Have a child process compute a shard by the plan's function.

    Parameters
    ----------
    compute
        Takes the plan with absolute paths: the function may change the working directory. It writes
        down itself why it fails.

    Raises
    ------
    InputError
        Where the function has ended the process.
    TryAgain
        Where a signal has.
    ShardwiseError
        What it has raised itself.
    """
    ending = contain.run(partial(_end_of, partial(compute, plan.anchored(Path.cwd()))))
    if ending.result is None:
        words = f"product: your function {plan.problem.product} {contain.words(ending.status)}"
        kind = InputError if ending.status >= 0 else TryAgain
        log = plan.results.log("multiply", shard.name)
        failures.note(plan.results, shard.name, kind.exit_code, words, log=log)
        raise kind(words)
    code, words = ending.result
    if code:
        raise errors.of_code(code, words)


def _end_of(compute: Callable[[], None]) -> tuple[int, str]:
    try:
        compute()
    except BaseException as error:
        code, words = errors.verdict(error)
        report = f"{words}\n{traceback.format_exc()}" if code == errors.FAULT else words
        return code, report[:_WORDS_LETTERS]
    return 0, ""

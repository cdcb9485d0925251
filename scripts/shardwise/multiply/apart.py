"""A shard whose product is a user's function: its job watches the child process that computes it.

Whatever the function does to that process, the job ends when it should, with an exit code that says
how and a reason in the log. It also ends any processes that the function leaves behind.
"""

import traceback
from collections.abc import Callable
from pathlib import Path

from shardwise import errors
from shardwise.errors import InputError, TryAgain
from shardwise.plan.plan import Plan, Shard
from shardwise.processes import contain
from shardwise.records import failures

_WORDS_LETTERS = 100_000


def run(plan: Plan, shard: Shard, compute: Callable[[Plan], None]) -> None:
    """Have a child process compute a shard by the plan's function.

    ``compute`` gets the plan with absolute paths, as the function may change the working directory.
    An error that it raises is raised here too, and it has noted that failure itself. InputError if
    the function has ended the process, TryAgain if a signal has.
    """
    own = plan.anchored(Path.cwd())

    def end() -> tuple[int, str]:
        try:
            compute(own)
        except BaseException as error:
            code, words = errors.verdict(error)
            report = f"{words}\n{traceback.format_exc()}" if code == errors.FAULT else words
            return code, report[:_WORDS_LETTERS]
        return 0, ""

    result, status = contain.run(end)
    if result is None:
        words = f"product: your function {plan.problem.product} {contain.words(status)}"
        kind = InputError if status >= 0 else TryAgain
        with failures.noted(plan.results, shard.name, plan.results.log("multiply", shard.name)):
            raise kind(words)
    code, words = result
    if code:
        raise errors.of_code(code, words)

"""`docs/errors.md`: messages about bad input that a page can explain further."""

from tests.factories import SCRIPTS

PAGE = SCRIPTS.parent / "docs" / "errors.md"
_ABOUT = """
A command that refuses bad input says what it found, what is allowed, and what to do. This page
shows the messages that need more explanation. For messages about a scheduler or a GPU, see
[clusters](clusters.md#when-it-does-not-work); for exit codes, the [cheatsheet](cheatsheet.md).
`make errors` writes this page.
"""
_TABLE = "| message | exit code | what else helps |\n|---|---|---|\n"

MORE = {
    "shorter than its header says": "Often a copy that was interrupted or is still going on: "
    "compare its size with that of the original",
    "Python objects": "Rows of different lengths, or `None` among numbers, make such an array. "
    'Once you have corrected that: `np.save("new.npy", np.array(rows, dtype="float32"))`',
    "other shapes in one folder": "A [sheet](config.md#keys) lists just the files that fit; the "
    "others may stay where they are",
    "`std` under `keep: sum`": "The spread of the *rows* of all matrices needs no single "
    "products: [covariance](statistics.md#covariance)",
    "it cannot be imported": "A module next to the function is found after "
    "`export PYTHONPATH=$PWD`; any other has to be installed where Shardwise is",
    "it raises": "A dry run calls the function with NumPy on the first matrix alone, a block "
    "`(1, m, k)` ([functions](config.md#a-function-of-your-own))",
    "its disk is too small": "`shardwise clean` says how much other configs left there",
    "a NaN": "[Weight](sums.md#weights) 0 takes the matrix out of the sum. Under "
    "`nonfinite: allow` each NaN spreads over a row and a column of the sum",
    "no driver under `backend: cupy`": "[`shardwise doctor`](doctor.md), in a job on the GPU "
    "node, says what that node lacks",
    "the input has changed since the plan": "The next run makes a new plan, and "
    "[keeps](reruns.md#the-same-bytes-under-another-key) the shards whose bytes are the same. If "
    "nobody changed the file, look for a program that still writes it",
    "a product was cut off": "The `rm` removes only receipts; the next run computes these "
    "shards again. If it happens again, suspect the disk: `shardwise verify` reads every byte",
    "there is no launcher": "What starts MPI ranks at your site: "
    "[the reduce](clusters.md#the-reduce)",
    "another problem": "[What must match](reruns.md#several-runs-one-sum)",
}
"""What else helps, by the name of the case in `bad_inputs`."""


def page(rows: dict[str, str]) -> str:
    """The page, from the message and the code of each case."""
    told = "".join(f"{rows[what]} {more} |\n" for what, more in MORE.items())
    return f"# Errors\n\n{' '.join(_ABOUT.split())}\n\n{_TABLE}{told}"

"""Whatever happens to a results folder, "done" and "nothing to be done" are true."""

import pytest

from tests.histories.steps import BASE, Step, history
from tests.histories.world import DifferenceError, Stage

SEED = 32
"""Results that are moved to and fro."""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """Where histories are played."""
    return Stage(tmp_path_factory.mktemp("histories"))


def test_a_difference_is_found(stage: Stage) -> None:
    """A "done" that is not of the config, and one that is."""
    by_hand = (
        "cd a\nprintf 'input: in.npy\\nshards: 2\\nresults: results\\n' > mine.yaml\n"
        "$PYTHON scripts/plan.py --configfile config.yaml mine.yaml\n"
        "$PYTHON scripts/shard.py --plan results/plan.tsv --shard 00000\n"
        "$PYTHON scripts/shard.py --plan results/plan.tsv --shard 00001\n"
        "$PYTHON scripts/multiply.py --plan results/plan.tsv --all\n"
        "$PYTHON scripts/ledger.py --plan results/plan.tsv\n"
        "$PYTHON scripts/reduce.py --plan results/plan.tsv --ranks 1\n"
    )
    right = Step("by hand", by_hand, BASE, check="hand")
    stage.play([right])
    wrong = Step("nothing", "echo done", BASE | {"input": "other.npy"}, check="hand")
    with pytest.raises(DifferenceError, match="wrong sum: step 2, nothing"):
        stage.play([right, wrong])


def test_a_history_keeps_the_promises(stage: Stage) -> None:
    """Each run that ends with 0 leaves what a fresh run in an empty folder does."""
    stage.play(history(SEED))


@pytest.mark.nightly
@pytest.mark.timeout(12 * 3600)
def test_300_histories_keep_the_promises(stage: Stage) -> None:
    """The same for many; what fails is told with its seed."""
    failed = []
    for seed in range(300):
        try:
            stage.play(history(seed))
        except DifferenceError as error:
            failed.append(f"seed {seed}: {error}")
    assert not failed, "\n".join(failed)

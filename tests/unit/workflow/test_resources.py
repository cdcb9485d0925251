"""The resources that the rules ask for."""

from shardwise.plan import plan
from shardwise.workflow.run import Run

from tests import factories
from tests.factories import save, stack


def test_no_list_of_files_is_read_for_the_memory_of_jobs(tmp_path):
    """Each job parses the rules again, and there may be a million files."""
    for i in range(6):
        save(tmp_path / f"m{i}.npy", stack((3, 3), seed=i))
    made = factories.plan(tmp_path, input=str(tmp_path / "*.npy"), shards=2)
    run = object.__new__(Run)
    run.plan, run.reduce, run.dispatch = plan.load(made.results.plan), {"ranks": 2}, "array"
    made.results.sources.unlink()
    for rule in ("shard", "synthesize", "reduce", "multiply"):
        assert run.mib(rule)(None, 2) == 2 * run.mib(rule)(None, 1) > 0

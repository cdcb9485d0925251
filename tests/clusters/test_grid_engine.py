"""What only Grid Engine has, on a real one: devices per slot, parallel environments."""

import pytest

pytestmark = [
    pytest.mark.grid_engine,
    pytest.mark.timeout(600),
    pytest.mark.parametrize("site", ["grid_engine"], indirect=True),
]


def change_profile(night, rule: str, old: str, new: str) -> None:
    """Change what a rule asks for, in the workspace's own profile."""
    path = night.root / "profiles" / "uge" / "config.yaml"
    before, block, after = path.read_text().partition(f"\n  {rule}:")
    assert old in after, f"the profile has no {old} in the block of {rule}"
    path.write_text(before + block + after.replace(old, new, 1))


@pytest.mark.nightly  # by day test_profiles.py checks the words of the profile
def test_a_site_that_counts_devices_by_slot(night):
    """One line of the profile gives each shard a parallel environment and a device per slot."""
    change_profile(night, "multiply", '"-l gpu=1"', '"-pe smp 2 -l gpuslot=1,gputype=a100"')
    night.configure(2)
    done = night.run()
    assert done.code == 0, done.output
    night.wait_for("the queue is empty", night.idle)
    own = night.jobs()
    records = [one for one in night.cluster.records("*") if one.job in own]
    slots = {record.job.what: record.slots for record in records}
    assert slots == {f"multiply {i:05}": 2 for i in range(2)} | {"reduce": 2}
    night.check_sum()


def test_a_parallel_environment_that_is_not_there_is_refused_before_any_job(night):
    """The run ends with 2, not only once the shards are done, and names the profile's block."""
    change_profile(night, "reduce", '"-pe mpi {ranks}"', '"-pe nope {ranks}"')
    night.configure(2)
    done = night.run()
    assert done.code == 2, done.output
    assert 'environment "nope" does not exist; change the block reduce' in done.output
    assert not night.jobs()

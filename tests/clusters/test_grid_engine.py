"""What only Grid Engine has, on a real one: parallel environments."""

import pytest

pytestmark = [
    pytest.mark.grid_engine,
    pytest.mark.timeout(600),
    pytest.mark.parametrize("site", ["grid_engine"], indirect=True),
]


def test_a_parallel_environment_that_is_not_there_is_refused_before_any_job(night):
    """The run ends with 2, not only once the shards are done, and names the profile's block."""
    path = night.root / "profiles" / "uge" / "config.yaml"
    path.write_text(path.read_text().replace('"-pe mpi {ranks}"', '"-pe nope {ranks}"'))
    night.configure(2)
    done = night.run()
    assert done.code == 2, done.output
    assert 'environment "nope" does not exist; change the block reduce' in done.output
    assert not night.jobs()

"""The test cluster itself does what the tests that use it rely on."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import processes
from tests.cluster import ClusterError
from tests.uge.cluster import UgeCluster

pytestmark = pytest.mark.uge


@pytest.fixture(autouse=True)
def _no_job_remains(uge: UgeCluster) -> Iterator[None]:
    """Give each test an empty queue."""
    yield
    uge.cancel_all()


def test_the_queue_has_gpus_and_parallel_environments(uge: UgeCluster) -> None:
    """What profiles name is there: `mpi` for several slots, and the consumable `gpu`."""
    assert uge.queues() == {"all.q@localhost": ""}
    assert "mpi" in uge.call("qconf", "-spl").split()
    assert "hc:gpu=4" in uge.call("qhost", "-F", "gpu")


def test_the_accounting_keeps_exit_codes(uge: UgeCluster) -> None:
    """A job that fails by itself ends with its own code, one with a bad folder waits as Eqw."""
    (record,) = uge.wait_for(uge.submit("echo said; exit 3"))
    assert (record.failed, record.exit_status, record.host) == (0, 3, "localhost")
    assert uge.printed(record.job_id) == "said\n"
    uge.wait_state(uge.submit("true", "-wd", "/nowhere"), "Eqw")


def test_a_deleted_job_is_told_from_a_failed_one(uge: UgeCluster) -> None:
    """``qdel`` of a running job is failed 100; one that still waits leaves no record."""
    running = uge.submit("sleep 600", "-l", "gpu=4")
    uge.wait_state(running)
    waiting = uge.submit("true", "-l", "gpu=1")
    uge.wait_state(waiting, "qw")
    uge.call("qdel", str(waiting), str(running))
    (record,) = uge.wait_for(running)
    assert (record.failed, record.exit_status) == (100, 137)
    uge.wait_idle()
    assert uge.records(waiting) == []


def test_a_fifth_job_waits_for_one_of_four_gpus(uge: UgeCluster, tmp_path: Path) -> None:
    """No more tasks of an array run at once than there are devices, though slots are free."""
    gate = tmp_path / "gate"
    wait = f"while [ ! -e {gate} ]; do sleep 0.1; done"
    array = uge.submit(f'{wait}; [ "$SGE_TASK_ID" != 2 ]', "-t", "1-5", "-l", "gpu=1")
    uge.wait_until(lambda: sorted(job.state for job in uge.jobs()) == ["qw", *["r"] * 4])
    gate.touch()
    ended = {record.task: record.exit_status for record in uge.wait_for(array)}
    assert ended == {"1": 0, "2": 1, "3": 0, "4": 0, "5": 0}


def test_jobs_start_from_a_clean_environment(
    uge: UgeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the tests' environment reaches a job, nor does where Grid Engine's files lie."""
    monkeypatch.setenv("OF_THE_TESTS", "1")
    job = uge.submit("echo ${OF_THE_TESTS-unset} ${LD_LIBRARY_PATH-unset} ${SGE_ND-unset}")
    uge.wait_for(job)
    assert uge.printed(job).split() == ["unset"] * 3


def test_a_second_cluster_clears_a_crashed_one_away(uge: UgeCluster) -> None:
    """Two clusters live side by side; one started in a folder ends what was left running there."""
    with (
        tempfile.TemporaryDirectory(prefix="uge-") as folder,
        UgeCluster(uge.prefix).start(Path(folder)) as crashed,
    ):
        crashed.wait_state(crashed.submit("env -i setsid sleep 600 & sleep 600"))
        left = crashed.own_processes()
        assert len(left) >= 6, "two daemons, a shepherd, a shell and two that sleep"
        with UgeCluster(uge.prefix).start(Path(folder)) as fresh:
            assert not processes.living(left)
            assert fresh.jobs() == []
            assert set(uge.queues().values()) == {""}
        fresh.stop()  # a second time
        with pytest.raises(ClusterError, match="not running"):
            fresh.jobs()

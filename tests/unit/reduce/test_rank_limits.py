"""More ranks than can be of use are refused, with the figures; what is reasonable is not."""

import os

import pytest
from shardwise.errors import InputError
from shardwise.plan import planner
from shardwise.reduce import job, launch, rank_limits

from tests import factories
from tests.factories import run, stack

CORES = len(os.sched_getaffinity(0))


@pytest.fixture
def made(tmp_path):
    """Three shards that wait to be multiplied."""
    return factories.plan(tmp_path, stack((6, 4, 4)), shards=3, materialize=False)


SLURM = {"SLURM_JOB_ID": "7", "SLURM_NNODES": "2", "SLURM_NTASKS": "1"}


@pytest.mark.parametrize(
    ("launcher", "environ", "most"),
    [
        (None, {}, 8 * max(2, CORES)),
        ("/opt/site/bin/mpirun -v", {}, 8 * max(2, CORES)),
        ("mpiexec -hosts node1,node2", {}, None),
        ("mpirun --hostfile=hosts", {}, None),
        ("srun --mpi=pmi2", {}, None),
        (None, {"HYDRA_HOST_FILE": "hosts"}, None),
        ("mpiexec -ppn 1", {"NSLOTS": "96"}, 768),
        (None, {"SLURM_JOB_ID": "7"}, None),
        (None, SLURM, 16),
        (None, SLURM | {"SLURM_CPUS_ON_NODE": "64"}, 1024),
        ("mpiexec 'half", {}, None),
    ],
)
def test_the_places_that_are_known(launcher, environ, most):
    """Cores of this machine, or what a scheduler grants; unknown where hosts are named."""
    limit = rank_limits.limit_by_machine(launcher, environ)
    assert (limit.most if limit else None) == most


def test_what_is_reasonable_is_allowed():
    """Some ranks too many only wait, and small machines are shared by a few more."""
    laptop = rank_limits.limit_by_places(2, "2 cores")
    rank_limits.refuse_more(16, "reduce.ranks", rank_limits.limit_by_work(1, "1 piece"), laptop)
    rank_limits.refuse_more(64, "reduce.ranks", rank_limits.limit_by_work(1, "1 piece"), None)
    rank_limits.refuse_more(10**6, "reduce.ranks", None)


def test_the_figures_are_in_the_message():
    """Those of all limits, and the least of them."""
    with pytest.raises(InputError) as caught:
        rank_limits.refuse_more(
            10**6,
            "reduce.ranks",
            rank_limits.limit_by_work(100, "100 pieces"),
            rank_limits.limit_by_places(2, "2 cores"),
        )
    assert str(caught.value) == (
        "reduce.ranks: 1000000 ranks are more than can be of use (100 pieces, 2 cores); ask for 16 "
        "or fewer"
    )


def test_large_sums_take_many_ranks(tmp_path):
    """64 and more ranks have work on 8 shards of 4096²: each has pieces of its own."""
    recipe = {"matrices": 8, "dim": 4096}
    made = planner.make(factories.settings(results=str(tmp_path), synthetic=recipe, shards=8))
    assert job.most_ranks(made).most >= 512


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["reduce", "--ranks", 1_000_000], "--ranks"),
        (["dispatch", "--dispatch", "mpi", "--ranks", 1_000_000], "--ranks"),
        (["reduce", "--ranks", 1_000_000, "--launcher", "mpiexec -hosts a,b"], "--ranks"),
    ],
)
def test_by_hand_they_are_refused_before_any_rank(made, words, named):
    """Exit code 2, at once, by the command that would start them."""
    done = run(*words, "--plan", made.results.plan)
    assert done.returncode == 2, done.stderr
    assert f"{named}: 1000000 ranks are more than can be of use" in done.stderr
    assert "starting" not in done.stderr


def test_a_program_of_ones_own_is_kept_from_it_too(monkeypatch):
    """Whatever is relaunched as ranks, such as an example of training."""
    monkeypatch.setattr(os, "execve", lambda *words: pytest.fail("ranks were started"))
    with pytest.raises(InputError, match=f"this process may use {CORES} core"):
        launch.relaunch(1_000_000)

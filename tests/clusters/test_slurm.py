"""What only Slurm has, on a real one: its words of refusal, srun, and ranks over nodes."""

import json
import re
import shlex

import pytest

from tests import factories
from tests.factories import nightly

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.timeout(600),
    pytest.mark.parametrize("site", ["slurm"], indirect=True),
]


def test_what_slurm_refuses_is_told_in_its_words(night):
    """Before the first job if Slurm can tell by then; else once, for the job that it refuses."""
    night.configure(2)
    done = night.run("--default-resources", "slurm_partition=nowhere")
    assert done.code == 2, done.output
    assert "does not take the jobs of rule " in done.output
    assert "invalid partition" in done.output.lower()
    assert not night.jobs()

    words = "Batch job submission failed: Invalid account or account/partition combination"
    refusal = f"1 sbatch: error: {words}\n"
    (night.shim() / "sbatch.next").write_text(2 * refusal)
    done = night.run()
    assert done.code == 1
    assert f"take the jobs of rule multiply: {words}; change the block multiply" in done.output
    assert not night.jobs(), "it is not tried again"
    night.finish()


@pytest.fixture
def made(tmp_path):
    """A plan of seven matrices in three shards, computed."""
    return factories.listed(factories.plan(tmp_path, factories.stack((7, 4, 4)), shards=3))


def test_mpiexec_works_in_any_shell_of_a_job(idle, made):
    """Under an srun that holds the only CPU and all memory, with more ranks than CPUs."""
    words = factories.command("reduce", "--plan", made.results.plan, "--ranks", "3")
    line = f"srun -n1 sh -c {shlex.quote(shlex.join(words))}"
    job = idle.submit(line, "-p", "cpu", "-n1")
    assert idle.finish(job) == 0, idle.printed(job)
    assert json.loads(made.results.summary.read_text())["nodes"] == {"cpu1": 3}


@pytest.mark.parametrize("by_srun", [True, nightly(False)])
def test_a_launcher_of_another_mpi_is_refused(idle, made, by_srun):
    """A rank that is alone in its world refuses to sum, and starts no further ranks."""
    line, own = "srun --mpi=none", factories.command("reduce", "--plan", made.results.plan)
    words = f"{line} {shlex.join(own)}" if by_srun else shlex.join([*own, "--launcher", line])
    job = idle.submit(words, "-p", "cpu", "-N1", "-n2")
    # srun may end the slower rank with 143 before it prints the same error.
    assert idle.finish(job) in (2, 143), idle.printed(job)
    assert "asked for 2 ranks, but MPI has 1" in idle.printed(job)
    assert not made.results.summary.exists()


@pytest.mark.parametrize("mpi", ["srun --mpi=pmi2", nightly("mpiexec")])
def test_the_profile_spreads_the_ranks(night, mpi):
    """A whole run; either launcher spreads the ranks evenly over the nodes.

    With ``--quiet rules`` the run prints at most 20 lines.
    """
    night.configure(1, reduce={"ranks": 2})
    profile = night.root / "profiles" / "slurm" / "config.yaml"
    others, reduce, block = profile.read_text().partition("\n  reduce:")
    spread = re.sub(r"# (nodes: 2|slurm_extra: )", r"\1", block).replace("node=2", "node=1")
    text = spread.replace('mpi: "srun --mpi=pmi2"', f'mpi: "{mpi}"\n    slurm_partition: gpu')
    profile.write_text(others + reduce + text)
    done = night.run("--quiet", "rules")
    assert done.code == 0, done.output
    assert len(done.output.splitlines()) <= 20, done.output
    assert sorted(job.what for job in night.jobs()) == ["multiply 00000", "reduce"]
    summary = json.loads(night.workspace.file("summary.json").read_text())
    assert summary["nodes"] == {"gpu1": 1, "gpu2": 1}
    assert f"/{mpi} -n 2" in night.workspace.file("logs/reduce/reduce.log").read_text()

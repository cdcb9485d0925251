"""The doctor on a login node of a real Slurm, and inside a job."""

import json
import shlex
from pathlib import Path

import pytest

from tests import factories
from tests.slurm.cluster import SlurmCluster

pytestmark = pytest.mark.slurm


def test_the_doctor_names_the_gpus_of_slurm(slurm: SlurmCluster, tmp_path: Path) -> None:
    """By kind and node, with the MPI types, and how to look at a node."""
    slurm.wait_idle()
    done = factories.run("doctor", "--json", "--time-limit", 60, cwd=tmp_path, env=slurm.env())
    said = json.loads(done.stdout)
    assert done.returncode == said["verdict"]["exit_code"]
    found = {f["name"]: f for f in said["findings"] if f["section"] == "slurm"}
    assert {f["level"] for name, f in found.items() if name != "nodes"} == {"ok"}
    nodes = {(row["name"], row["gres"]) for row in found["gpus"]["facts"]["nodes"]}
    assert nodes == {("gpu1", "gpu:a100:4"), ("gpu2", "gpu:h200:2")}
    assert "gpu:a100:4 on 1 node (1 idle)" in found["gpus"]["text"]
    assert "pmi2" in found["mpi types"]["facts"]["types"]
    assert found["nodes"]["cure"].startswith("srun --gres=gpu:1 ")


def test_the_doctor_inside_a_job_starts_its_ranks_by_srun(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    """As the reduce would there: one world, on the node of the job."""
    words = factories.command("doctor", "--time-limit", 60, "--results", tmp_path)
    job = slurm.submit(shlex.join(words), "-p", "gpu", "-n2", "--gres=gpu:a100:1")
    slurm.wait_for(job, timeout_s=180)
    printed = slurm.printed(job)
    assert "srun --mpi=pmi2 --overlap" in printed
    assert "2 ranks in one world on " in printed

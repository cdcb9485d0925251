"""What a user's shell holds: what is not for a run goes, what is the user's is named."""

import pytest
from shardwise.errors import InputError
from shardwise.processes import environment


def test_what_others_left_goes_and_what_the_user_set_stays():
    """Filters, formats, what a rank was told of itself; not where Slurm is, nor MPI's tuning."""
    stray = (
        "SQUEUE_PARTITION", "SQUEUE_FORMAT", "SCANCEL_QOS", "SACCT_FORMAT", "SLURM_CLUSTERS",
        "SLURM_TIME_FORMAT", "PMI_RANK", "PMIX_SERVER_URI", "OMPI_COMM_WORLD_SIZE",
    )  # fmt: skip
    kept = ("SLURM_CONF", "SLURM_JOB_ID", "SBATCH_ACCOUNT", "PMIX_MCA_gds", "PMI_DEBUG", "PATH")
    shell = dict.fromkeys((*stray, *kept), "x")
    environment.clear_stray(shell)
    assert set(shell) == set(kept)


@pytest.mark.parametrize("file", ["numpy.py", "numpy/__init__.py", "yaml.so", "numba/x", "x.py"])
def test_another_copy_of_a_package_that_does_not_load_is_refused(tmp_path, file):
    """A module or package that Python would find first; not a folder of another kind."""
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("raise ImportError('for another Python')")
    environ = {"PYTHONPATH": f":{tmp_path}"}
    if file in ("numba/x", "x.py"):
        environment.refuse_other_packages(environ)
    else:
        with pytest.raises(InputError, match=f"PYTHONPATH names {tmp_path}, whose "):
            environment.refuse_other_packages(environ)


def test_another_copy_of_a_package_that_loads_may_be_meant(tmp_path):
    """As modules of clusters bring them."""
    (tmp_path / "numpy.py").touch()
    environment.refuse_other_packages({"PYTHONPATH": str(tmp_path)})

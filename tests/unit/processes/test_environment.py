"""Variables of a user's shell: stray ones are cleared, and broken copies of packages refused."""

from contextlib import nullcontext

import pytest
from shardwise.errors import InputError
from shardwise.processes import environment


def test_what_others_left_goes_and_what_the_user_set_stays():
    """Filters, formats and a rank's identity are cleared; Slurm's and MPI's settings stay."""
    stray = (
        "SQUEUE_PARTITION", "SQUEUE_FORMAT", "SCANCEL_QOS", "SACCT_FORMAT", "SLURM_CLUSTERS",
        "SLURM_TIME_FORMAT", "PMI_RANK", "PMIX_SERVER_URI", "OMPI_COMM_WORLD_SIZE",
        "MV2_COMM_WORLD_SIZE",
    )  # fmt: skip
    kept = ("SLURM_CONF", "SLURM_JOB_ID", "SBATCH_ACCOUNT", "PMIX_MCA_gds", "PMI_DEBUG", "PATH")
    shell = dict.fromkeys((*stray, *kept), "x")
    environment.clear_stray(shell)
    assert set(shell) == set(kept)


BROKEN = "raise ImportError('for another Python')"


@pytest.mark.parametrize(("file", "text", "refused"), [
    ("numpy.py", BROKEN, True), ("numpy/__init__.py", BROKEN, True), ("yaml.so", BROKEN, True),
    ("numba/x", BROKEN, False), ("x.py", BROKEN, False),  # not a package; not a name of ours
    ("numpy.py", "", False),  # a copy that loads may be intended: cluster modules bring them
])  # fmt: skip
def test_another_copy_of_a_package_that_does_not_load_is_refused(tmp_path, file, text, refused):
    """A module or package on PYTHONPATH, which Python would find first."""
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    told = pytest.raises(InputError, match=f"PYTHONPATH names {tmp_path}, whose ")
    with told if refused else nullcontext():
        environment.refuse_other_packages({"PYTHONPATH": f":{tmp_path}"})

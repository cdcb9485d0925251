"""Variables of a user's shell: stray ones are cleared."""

from shardwise.processes import contain


def test_what_others_left_goes_and_what_the_user_set_stays():
    """Filters, formats and a rank's identity are cleared; Slurm's and MPI's settings stay."""
    stray = (
        "SQUEUE_PARTITION", "SQUEUE_FORMAT", "SCANCEL_QOS", "SACCT_FORMAT", "SLURM_CLUSTERS",
        "SLURM_TIME_FORMAT", "PMI_RANK", "PMIX_SERVER_URI", "OMPI_COMM_WORLD_SIZE",
        "MV2_COMM_WORLD_SIZE",
    )  # fmt: skip
    kept = ("SLURM_CONF", "SLURM_JOB_ID", "SBATCH_ACCOUNT", "PMIX_MCA_gds", "PMI_DEBUG", "PATH")
    shell = dict.fromkeys((*stray, *kept), "x")
    contain.clear_stray(shell)
    assert set(shell) == set(kept)

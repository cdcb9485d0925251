"""What a user's shell holds: what is not for a run goes."""

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

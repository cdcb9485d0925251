"""Make the `slurm` fixture known to the tests in this folder."""

from tests.slurm.fixtures import slurm

__all__ = ["slurm"]

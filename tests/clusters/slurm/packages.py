"""Slurm out of Debian's or Ubuntu's own packages."""

from pathlib import Path

from tests import debian

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins")

# Raise the number when what is unpacked changes: folders of earlier recipes are then left aside.
PREFIX_NAME = "prefix-1"

# The names decide what the programs do: started as `slurmctld-wlm` it refuses every GPU job.
DAEMONS = ("slurmctld", "slurmd", "slurmstepd")


def ensure(folder: Path = debian.CACHE / "slurm") -> Path:
    """Return a folder holding Slurm, unpacked into `folder` by the first call."""
    return debian.unpacked(folder, PREFIX_NAME, PACKAGES, _name_daemons)


def _name_daemons(prefix: Path) -> None:
    """Give the daemons their plain names, as Debian's installation scripts would."""
    for name in DAEMONS:
        link = prefix / "usr" / "sbin" / name
        if not link.exists():
            link.symlink_to(f"{name}-wlm")

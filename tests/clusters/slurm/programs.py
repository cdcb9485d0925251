"""Slurm out of Debian's or Ubuntu's own packages, and what it takes to run it from a folder."""

import os
import re
import shlex
from pathlib import Path

from tests import debian

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins")

# The names decide what the programs do: started as `slurmctld-wlm` it refuses every GPU job.
DAEMONS = ("slurmctld", "slurmd", "slurmstepd")

CLIENTS = (
    *("salloc", "sbatch", "srun", "scancel"),
    *("squeue", "sinfo", "scontrol", "sdiag"),
    *("sacct", "sacctmgr", "sshare"),
)


def _name_daemons(prefix: Path) -> None:
    """Give the daemons their plain names, as Debian's installation scripts would."""
    for name in DAEMONS:
        link = prefix / "usr" / "sbin" / name
        if not link.exists():
            link.symlink_to(f"{name}-wlm")


class Programs:
    """Slurm, unpacked by the first call.

    Attributes
    ----------
    prefix
        The folder that Slurm's packages are unpacked into.
    plugins
        The folder with Slurm's plugins, whose path names the machine's architecture.
    library_path
        Where the unpacked libraries lie, as the dynamic loader wants it.
    """

    def __init__(self) -> None:
        self.prefix = debian.unpacked("slurm", PACKAGES, _name_daemons)
        (self.plugins,) = self.prefix.glob("usr/lib/*/slurm-wlm")
        libraries = self.plugins.parent
        system = self.prefix / "lib" / libraries.name
        self.library_path = f"{self.plugins}:{libraries}:{system}"

    def daemon(self, name: str) -> Path:
        """Return the path of ``slurmctld``, ``slurmd`` or ``slurmstepd``."""
        return self.prefix / "usr" / "sbin" / name

    def write_wrapper(self, name: str, bin_dir: Path, conf: Path) -> None:
        """Write the script that runs one of Slurm's commands against the cluster of `conf`.

        It calls the dynamic loader that the program names in its header: every job would inherit
        an ``LD_LIBRARY_PATH``.
        """
        program = self.prefix / "usr" / "bin" / name
        loader = re.search(rb"/lib[^\0]*/ld-[^\0]+", program.read_bytes()[:4096])
        assert loader, f"{program} names no dynamic loader"
        found = (os.fsdecode(loader.group()), "--library-path", self.library_path, "--argv0", name)
        wrapper = bin_dir / name
        wrapper.write_text(
            "#!/bin/sh\n"
            f"SLURM_CONF={shlex.quote(str(conf))}\n"
            "export SLURM_CONF\n"
            f'exec {shlex.join((*found, str(program)))} "$@"\n'
        )
        wrapper.chmod(0o755)

"""Slurm out of Debian's or Ubuntu's own packages, and what it takes to run it from a folder."""

import os
import re
import shlex
from dataclasses import dataclass
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


def ensure() -> Path:
    """Return a folder holding Slurm, unpacked by the first call."""
    return debian.unpacked("slurm", PACKAGES, _name_daemons)


def _name_daemons(prefix: Path) -> None:
    """Give the daemons their plain names, as Debian's installation scripts would."""
    for name in DAEMONS:
        link = prefix / "usr" / "sbin" / name
        if not link.exists():
            link.symlink_to(f"{name}-wlm")


@dataclass(frozen=True)
class Programs:
    """Slurm as `ensure` unpacked it into `prefix`."""

    prefix: Path

    def daemon(self, name: str) -> Path:
        """Return the path of ``slurmctld``, ``slurmd`` or ``slurmstepd``."""
        return self.prefix / "usr" / "sbin" / name

    @property
    def plugin_dir(self) -> Path:
        """The folder with Slurm's plugins, whose path names the machine's architecture."""
        (folder,) = self.prefix.glob("usr/lib/*/slurm-wlm")
        return folder

    @property
    def library_path(self) -> str:
        """Where the unpacked libraries lie, as the dynamic loader wants it."""
        plugins = self.plugin_dir
        system = self.prefix / "lib" / plugins.parent.name
        return ":".join(map(str, (plugins, plugins.parent, system)))

    def write_wrapper(self, name: str, bin_dir: Path, conf: Path) -> None:
        """Write the script that runs one of Slurm's commands against the cluster of `conf`.

        It calls the dynamic loader directly: every job would inherit an ``LD_LIBRARY_PATH``.
        """
        program = self.prefix / "usr" / "bin" / name
        loader = (_loader(program), "--library-path", self.library_path, "--argv0", name)
        wrapper = bin_dir / name
        wrapper.write_text(
            "#!/bin/sh\n"
            f"SLURM_CONF={shlex.quote(str(conf))}\n"
            "export SLURM_CONF\n"
            f'exec {shlex.join((*loader, str(program)))} "$@"\n'
        )
        wrapper.chmod(0o755)


def _loader(program: Path) -> str:
    """Return the dynamic loader that a program names in its header."""
    found = re.search(rb"/lib[^\0]*/ld-[^\0]+", program.read_bytes()[:4096])
    if found is None:
        raise ValueError(f"{program} names no dynamic loader")
    return os.fsdecode(found.group())

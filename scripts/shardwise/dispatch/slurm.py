"""What the project asks of Slurm itself; all else is its plugin's matter."""

import subprocess

from shardwise.errors import TryAgain

CLIENT = "squeue"
"""The command whose presence says that this machine can reach a Slurm."""

_QUERY_SECONDS = 30


def living(names: list[str]) -> list[str]:
    """The jobs of these names that still wait or work.

    Raises
    ------
    TryAgain
        Where Slurm does not answer.
    """
    command = ["squeue", "--noheader", "--format=%i", f"--name={','.join(names)}"]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=_QUERY_SECONDS, check=True
        )
    except (subprocess.SubprocessError, OSError) as error:
        raise TryAgain(str(error)) from None
    return answer.stdout.split()


def commands(names: list[str], numbers: list[str]) -> tuple[str, str]:
    """The commands that show these jobs, and that cancel them."""
    return f"squeue -j {','.join(numbers)}", f"scancel {' '.join(numbers)}"

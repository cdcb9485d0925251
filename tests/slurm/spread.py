"""Jobs on Slurm that compute all shards of a plan."""

from tests.slurm.cluster import SlurmCluster
from tests.slurm.jobs import FINAL_STATES
from tests.spread import Site, Spread


class SlurmSite(Site):
    """The cluster of the tests."""

    def __init__(self, slurm: SlurmCluster, spread: Spread, dispatch: str, *four: str) -> None:
        super().__init__(spread, dispatch, four)
        self._slurm = slurm

    def send(self, line: str, *options: str) -> int:
        """Submit a command line as a job."""
        return self._slurm.submit(line, *options)

    def finish(self, job: int) -> tuple[int, str]:
        """Wait for the end of a job: its exit code, that of a signal as a shell has it."""
        self._slurm.wait_for(job, FINAL_STATES, timeout_s=180)
        code, signal = map(int, self._slurm.show_job(job)["ExitCode"].split(":"))
        return (128 + signal if signal else code), self.printed(job)

    def printed(self, job: int) -> str:
        """What a job has printed so far."""
        return self._slurm.printed(job)

    def cancel(self, job: int) -> None:
        """Cancel a job."""
        self._slurm.call("scancel", str(job))

"""Jobs on Grid Engine that compute all shards of a plan."""

from tests.spread import Site, Spread
from tests.uge.cluster import UgeCluster


class UgeSite(Site):
    """One of the clusters of the tests."""

    def __init__(self, uge: UgeCluster, spread: Spread, dispatch: str, *four: str) -> None:
        super().__init__(spread, dispatch, four)
        self._uge = uge

    def send(self, line: str, *options: str) -> int:
        """Submit a command line as a job."""
        return self._uge.submit(line, *options)

    def finish(self, job: int) -> tuple[int, str]:
        """Wait for the end of a job: its exit code, and what it printed."""
        records = self._uge.wait_for(job, timeout_s=180)
        return records[0].exit_status, self.printed(job)

    def printed(self, job: int) -> str:
        """What a job has printed so far."""
        return self._uge.printed(job)

    def cancel(self, job: int) -> None:
        """Cancel a job."""
        self._uge.call("qdel", str(job))

"""What a killed snakemake leaves in TMPDIR, until the next run."""

import os
import signal
from pathlib import Path

from shardwise.processes import leftovers

from tests import processes
from tests.workspace import Workspace


def test_the_next_run_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    """Its folders, as their locks are free; what only has such a name stays."""
    temporary = tmp_path / "tmp"
    (temporary / "snakemake-of-mine").mkdir(parents=True)
    workspace = Workspace.create(tmp_path / "w", os.environ | {"TMPDIR": str(temporary)})
    workspace.configure(synthetic={"matrices": 4, "dim": 4}, shards=2, backend="numpy")

    def left() -> set[Path]:
        return {path.parent for path in temporary.glob(f"snakemake*/{leftovers.LOCK}")}

    run = workspace.start()
    processes.until(lambda: workspace.file("logs/run.lock").exists())
    assert left()
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    processes.until(lambda: not processes.descendants([run.pid]))

    assert workspace.run("--unlock").code == 0
    again = workspace.run()
    assert again.code == 0, again.output
    assert "removed what killed runs left: " in again.output
    assert not left()
    assert list(temporary.glob("snakemake*")) == [temporary / "snakemake-of-mine"]

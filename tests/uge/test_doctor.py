"""The doctor on the login node of a real Grid Engine."""

import json
from pathlib import Path

import pytest

from tests import factories
from tests.uge import config
from tests.uge.cluster import UgeCluster

pytestmark = pytest.mark.uge


def test_the_doctor_names_the_gpus_of_grid_engine(uge: UgeCluster, tmp_path: Path) -> None:
    """The complexes, where they are, the parallel environments, and how to look at a node."""
    uge.wait_idle()
    done = factories.run("doctor", "--json", "--time-limit", 60, cwd=tmp_path, env=uge.env())
    said = json.loads(done.stdout)
    assert done.returncode == said["verdict"]["exit_code"]
    own = [finding for finding in said["findings"] if finding["section"] == "grid engine"]
    gpus = {f["facts"]["complex"]["name"]: f for f in own if f["name"] == "gpus"}
    assert gpus["gpu"]["text"].startswith("gpu (INT, counted once a job); free: ")
    assert list(gpus["gpu"]["facts"]["hosts"].values()) == ["4"]
    assert "counted for each slot" in gpus["gpuslot"]["text"]
    found = {finding["name"]: finding for finding in own}
    assert set(found["environments"]["facts"]["names"]) == set(config.PARALLEL)
    assert found["environments"]["level"] == "ok"
    assert found["grid engine"]["facts"]["version"].startswith("SGE ")
    assert found["nodes"]["cure"].startswith("qrsh -cwd -l gpu=1 ")

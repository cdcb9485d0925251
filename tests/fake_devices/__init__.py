"""Devices that do not exist, for jobs of whole runs on a machine without a GPU."""

from pathlib import Path


def environment(count: int, leases: Path) -> dict[str, str]:
    """Variables for a job, so that it finds so many devices here and leases them in a folder.

    It takes its device as on a GPU node, then computes with NumPy; the receipt names the device.
    Python reads `sitecustomize.py` of this folder, which does it, in every process that has these.
    """
    return {
        "PYTHONPATH": str(Path(__file__).parent),
        "FAKE_DEVICES": str(count),
        "SHARDWISE_LEASES": str(leases),
    }

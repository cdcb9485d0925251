"""A product that is wrong once on a device, by injection: the proof sees it, and what follows."""

import os
import subprocess

import numpy as np
import pytest
from shardwise.devices import nvml, quarantine

from tests import factories
from tests.gpu.conftest import HAS_DRIVER, needs_gpu

SHARDS = 8
DIM = 256

# Python reads a file of this name when it starts. This one lets a kernel be off by one element,
# once, on the device that comes to it first.
WRONG_ONCE = """
import importlib.abc, importlib.util, os, sys

def change(module):
    honest = module.kernel

    def kernel(xp, problem, precision):
        run = honest(xp, problem, precision)
        multiply = run.multiply

        def wrong(block, other, out, count):
            multiply(block, other, out, count)
            if not out[0, 0, 1:].any():
                return  # no product of the input: it has numbers beside the diagonal
            try:
                os.unlink(os.environ["WRONG_MARK"])
            except FileNotFoundError:
                return
            out[0, 0, 0] += 1

        run.multiply = wrong
        return run

    module.kernel = kernel

class Patch(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "shardwise.multiply.operation":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def patched(module):
            execute(module)
            change(module)

        spec.loader.exec_module = patched
        return spec

sys.meta_path.insert(0, Patch())
"""


@pytest.fixture
def pooled(tmp_path, environment):
    """Compute what is missing on some devices, of which one is wrong once."""
    (tmp_path / "sitecustomize.py").write_text(WRONG_ONCE)
    mark = tmp_path / "wrong"
    mark.touch()
    path = os.pathsep.join([str(tmp_path), environment["PYTHONPATH"]])
    own = environment | {"PYTHONPATH": path, "WRONG_MARK": str(mark)}

    def run(made, visible=None):
        env = own | ({"CUDA_VISIBLE_DEVICES": visible} if visible else {})
        line = factories.command("dispatch", "--plan", made.results.plan)
        return subprocess.run(line, capture_output=True, text=True, check=False, env=env)

    return run


def planned(folder, backend):
    """A plan of some shards, and the products that it should give."""
    left = factories.stack((2 * SHARDS, DIM, DIM), "float64")
    return factories.plan(folder, left, backend=backend, shards=SHARDS), left @ left


@pytest.mark.skipif(not HAS_DRIVER or len(nvml.present()) < 2, reason="no two NVIDIA GPUs are here")
def test_the_shard_goes_to_the_other_gpu(tmp_path, pooled):
    """One wrong element: the GPU is named and left out, no product of it is kept after that."""
    made, expected = planned(tmp_path, "cupy")
    done = pooled(made)
    assert done.returncode == 0, done.stderr
    assert "is wrong: Freivalds' check" in done.stderr
    (entry,) = quarantine.entries(made.results)
    receipt = factories.receipt(made, entry.shard)
    assert receipt.device.uuid != entry.uuid
    assert receipt.attempt == 2
    np.testing.assert_array_equal(factories.products(made), expected)


@needs_gpu
def test_the_only_gpu_is_refused_until_it_is_cleared(tmp_path, pooled):
    """Two pools end with 75; once the entry is cleared, the same GPU computes all."""
    made, expected = planned(tmp_path, "cupy")
    uuid = nvml.present()[0].uuid
    for said in ("no device is left", "each device that this task may take is in quarantine"):
        refused = pooled(made, visible=uuid)
        assert refused.returncode == 75
        assert said in refused.stderr.splitlines()[-1]
    cleared = factories.run("doctor", "--results", made.results.root, "--clear-quarantine", uuid)
    assert cleared.returncode == 0, cleared.stderr
    done = pooled(made, visible=uuid)
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(factories.products(made), expected)

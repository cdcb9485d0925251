"""Let a job take one of FAKE_DEVICES devices of this host, and compute with NumPy."""

import importlib.abc
import importlib.util
import os
import sys
import uuid


class _Patch(importlib.abc.MetaPathFinder):
    """Changes two modules of `shardwise` once they are imported, from wherever that is."""

    def find_spec(self, name, path=None, target=None):
        change = _CHANGES.pop(name, None)
        if change is None:
            return None
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (execute(module), change(module))
        return spec


def _change_multiply(module):
    module.load_backend = _load_backend


def _change_devices(module):
    workers = module.workers
    module.present = _present
    module.driver_cuda_version = lambda: 12000
    module.workers = lambda backend, barred=(): workers("cupy", barred)


def _load_backend(requested, needed=0, wait=None, prefer=None, barred=dict):
    """As `backend.load_backend`, but with a fake device and NumPy."""
    import numpy
    from shardwise.devices import choose

    device = choose.take(needed, wait, prefer, barred)
    return numpy, {"name": device.name, "uuid": device.uuid}


def _present():
    from shardwise.devices.nvml import Device
    from shardwise.host import node

    uuids = [uuid.uuid5(uuid.NAMESPACE_DNS, f"{node()} {i}") for i in range(_COUNT)]
    return [Device(f"GPU-{each}", "Fake", i, 2**34, 2**34) for i, each in enumerate(uuids)]


_CHANGES = {
    "shardwise.multiply.backend": _change_multiply, "shardwise.devices.choose": _change_devices,
}  # fmt: skip
if _COUNT := int(os.environ.get("FAKE_DEVICES", "0")):
    sys.meta_path.insert(0, _Patch())

"""Let a job take one of FAKE_DEVICES devices of this host, and compute with NumPy."""

import importlib.abc
import importlib.util
import os
import sys
import uuid


class _Patch(importlib.abc.MetaPathFinder):
    """Changes modules once they are imported, from wherever that is."""

    def find_spec(self, name, path=None, target=None):
        change = _CHANGES.pop(name, None)
        if change is None:
            return None
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def patched(module):
            execute(module)
            change(module)

        spec.loader.exec_module = patched
        return spec


def _change_devices(module):
    """A driver, and the fake devices of this host, or of the Slurm node that stands for one."""

    def present():
        names = [f"{module.node()} {number}" for number in range(int(os.environ["FAKE_DEVICES"]))]
        return [
            module.Device(f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, name)}", "Fake", i, 2**34, 2**34)
            for i, name in enumerate(names)
        ]

    module.present, module.driver_cuda_version = present, lambda: 12000


def _change_multiply(module):
    """As `multiply.load_backend`, but with a fake device and NumPy."""

    def load_backend(requested, *options, **named):
        taken = module.devices.take(*options, **named)
        facts = {"name": taken.device.name, "uuid": taken.device.uuid}
        return module.np, facts | {"source": taken.source, "granted": taken.granted}

    module.load_backend = load_backend


_CHANGES = {"shardwise.devices": _change_devices, "shardwise.multiply": _change_multiply}

if "FAKE_DEVICES" in os.environ:
    sys.meta_path.insert(0, _Patch())

"""Let a job take one of FAKE_DEVICES devices of this host, and compute with NumPy."""

import importlib.abc
import importlib.util
import os
import socket
import sys
import uuid


class _Patch(importlib.abc.MetaPathFinder):
    """Changes `shardwise.multiply` once it is imported, from wherever that is."""

    def find_spec(self, name, path=None, target=None):
        if name != "shardwise.multiply":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def patched(module):
            execute(module)
            module.load_backend = _load_backend

        spec.loader.exec_module = patched
        return spec


def _load_backend(requested, needed=0, wait=None):
    """As `multiply.load_backend`, but with a fake device and NumPy."""
    import numpy
    from shardwise import devices

    taken = devices.take(needed, wait, _present)
    facts = {"name": taken.device.name, "uuid": taken.device.uuid}
    return numpy, facts | {"source": taken.source, "granted": taken.granted}


def _present():
    from shardwise.devices import Device

    host = socket.gethostname()
    return [
        Device(f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{host} {i}')}", "Fake", i, 2**34, 2**34)
        for i in range(int(os.environ["FAKE_DEVICES"]))
    ]


if "FAKE_DEVICES" in os.environ:
    sys.meta_path.insert(0, _Patch())

"""Ceilings on a real device: PCIe and products have rates that such hardware has."""

from pathlib import Path

import numpy as np
from shardwise import ceilings, devices, probes
from shardwise.lanes import CudaLane, HostLane
from shardwise.paths import Results


def test_a_device_is_measured(xp, tmp_path: Path) -> None:
    """Every rate of this node is there, and is read as it was measured."""
    results = Results(tmp_path)
    lane = HostLane() if xp is np else CudaLane(xp)
    made = probes.measure(results, lane, {"name": "this one", "uuid": devices.own()}, None)
    on_gpu = xp is not np
    for way in ("upload", "download"):
        assert (made.rates[way] is not None) == on_gpu
        assert not on_gpu or 1e9 < made.rates[way] < 1e12
    wanted = {"float32", "float64"} | ({"float32 tf32"} if on_gpu else set())
    assert made.compute.keys() == wanted
    assert not on_gpu or 1e12 < made.compute["float32"] < 1e16
    assert len(lane._kept) == probes.SLABS
    ceilings.write(results, made)
    assert ceilings.read(results) == {made.node: made}


def test_every_element_type_has_a_rate(xp) -> None:
    """Integers, halves and complex numbers fit the memory that the probes ask for."""
    lane = HostLane() if xp is np else CudaLane(xp)
    for dtype in ("float16", "complex64", "complex128", "int8", "int64"):
        rate = probes._timed(lane, 512, dtype, "ieee", once=True)
        assert rate > 1e6, dtype
    if xp is np:
        return
    dim = probes.DEVICE_DIM
    probes._timed(lane, dim, "complex128", "ieee", once=True)
    used = xp.get_default_memory_pool().total_bytes()
    lane.release()
    assert used < probes.DEVICE_BYTES

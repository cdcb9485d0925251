"""Who is to blame for a failure, and what is recorded about it."""

from unittest.mock import Mock

import numpy as np
import pytest
from shardwise import host
from shardwise.devices import choose
from shardwise.devices.nvml import Device
from shardwise.errors import DeviceFailed, IntegrityError
from shardwise.multiply import backend, job, operation
from shardwise.records import failures
from shardwise.records.store import Store

from tests import factories

A, B = (f"GPU-{digit * 8}-0000-4000-8000-000000000000" for digit in "ab")


@pytest.fixture
def planned(tmp_path, monkeypatch):
    """A plan of one shard, and the shard; all in one run."""
    monkeypatch.setenv(failures.RUN, "0123456789ab")
    made = factories.plan(tmp_path, factories.stack((4, 6, 6)), shards=1, materialize=False)
    return made, made.shards["00000"]


def on(monkeypatch, uuid):
    """Let this process compute with NumPy, as if on a GPU; on the CPU without a UUID."""
    device = Device(uuid, "Fake", 0, 2**34, 2**34)
    monkeypatch.setattr(choose, "_taken", [device] if uuid else [])
    facts = {"name": "Fake"} | ({"uuid": uuid} if uuid else {})
    monkeypatch.setattr(backend, "load_backend", lambda *_: (np, facts))


def compute(made, shard):
    """Compute the shard as its job does."""
    with Store(made).attempt(shard.shard, choose.taken_uuid):
        job.run_shard(made, shard.shard)


@pytest.mark.parametrize(("uuid", "suspect", "kind", "code"), [
    (A, True, DeviceFailed, 75), (A, False, DeviceFailed, 75), (None, True, IntegrityError, 3),
])  # fmt: skip
def test_a_failed_proof_is_tried_on_another_gpu_not_cpu(
    planned, monkeypatch, uuid, suspect, kind, code
):
    """Message and failure name node and GPU; this run takes a suspect GPU no more."""
    on(monkeypatch, uuid)
    made, shard = planned
    error = DeviceFailed("the product of matrix 2 is wrong", suspect=suspect)
    with monkeypatch.context() as patch:
        patch.setattr(operation.Operation, "examine", Mock(side_effect=error))
        with pytest.raises(kind, match="product of matrix 2 is wrong") as caught:
            compute(made, shard)
    assert caught.value.exit_code == code
    failure = Store(made).failure(shard.shard)
    assert (failure.code, failure.device, failure.attempt) == (code, uuid, 1)
    assert failure.reason == str(caught.value)
    assert list(failures.barred(made.results)) == ([uuid] if uuid and suspect else [])
    assert failure.reason.endswith(f"({A} of {host.node()})") == (uuid is not None)
    on(monkeypatch, uuid and B)
    compute(made, shard)
    assert factories.receipt(made).attempt == 2
    assert Store(made).failed([shard.shard]) == {}


def test_a_device_that_fails_as_it_is_taken(planned, monkeypatch):
    """If its first call ends with a hardware error, it is to blame, before any shard begins."""
    on(monkeypatch, A)
    error = DeviceFailed("no usable device")
    error.__cause__ = of_hardware = Exception()
    of_hardware.status = 214
    monkeypatch.setattr(backend, "load_backend", Mock(side_effect=error))
    with pytest.raises(DeviceFailed, match=f"no usable device .{A} of "):
        compute(*planned)
    assert list(failures.barred(planned[0].results)) == [A]

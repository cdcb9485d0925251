"""Who is to blame for a failure, and what is written down of it."""

import numpy as np
import pytest
from shardwise import host
from shardwise.devices import choose
from shardwise.devices.nvml import Device
from shardwise.errors import DeviceFailed, InputError, IntegrityError
from shardwise.multiply import backend, checks, job
from shardwise.records import failures

from tests import factories

A, B = (f"GPU-{digit * 8}-0000-4000-8000-000000000000" for digit in "ab")


class CudaError(Exception):
    """An error as cupy raises it."""

    status = 214


@pytest.fixture(autouse=True)
def _run(monkeypatch):
    """The tests are of one run."""
    monkeypatch.setenv(failures.RUN, "0123456789ab")


def on(monkeypatch, uuid):
    """Let this process compute with NumPy, as if on a GPU; on the CPU without a UUID."""
    device = Device(uuid, "Fake", 0, 2**34, 2**34)
    monkeypatch.setattr(choose, "_taken", [choose.Taken(device, "lease")] if uuid else [])
    facts = {"name": "Fake"} | ({"uuid": uuid} if uuid else {})
    monkeypatch.setattr(backend, "load_backend", lambda *_: (np, facts))


def planned(tmp_path, left=None):
    """A plan of one shard, and the shard."""
    left = factories.stack((4, 6, 6)) if left is None else left
    made = factories.plan(tmp_path, left, shards=1, materialize=False)
    return made, made.shards["00000"]


def compute(made, shard):
    """Compute the shard as its job does."""
    log = made.results.log("multiply", shard.name)
    with failures.noted(made.results, shard.name, log, choose.taken_uuid):
        job.run_shard(made, shard.shard)


def disprove(self, report, weights):
    """What a proof says of a wrong product."""
    raise DeviceFailed("the product of matrix 2 is wrong", suspect=True)


@pytest.mark.parametrize(
    ("uuid", "kind", "code"), [(A, DeviceFailed, 75), (None, IntegrityError, 3)]
)
def test_a_failed_proof_is_tried_on_another_gpu_not_cpu(tmp_path, monkeypatch, uuid, kind, code):
    """The message and the failure name node and GPU; no task of this run takes that GPU again."""
    on(monkeypatch, uuid)
    made, shard = planned(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(checks.ShardChecks, "examine", disprove)
        with pytest.raises(kind, match="product of matrix 2 is wrong") as error:
            compute(made, shard)
    assert error.value.exit_code == code
    failure = failures.of(made.results, [shard.name])[shard.name]
    assert (failure.code, failure.device, failure.attempt) == (code, uuid, 1)
    assert failure.reason == str(error.value)
    assert made.results.root / failure.log == made.results.log("multiply", shard.name)
    assert list(failures.barred(made.results)) == ([uuid] if uuid else [])
    assert failure.reason.endswith(f"({A} of {host.node()})") == (uuid is not None)
    on(monkeypatch, uuid and B)
    compute(made, shard)
    assert factories.receipt(made).attempt == 2
    assert failures.of(made.results, [shard.name]) == {}


def test_a_device_that_fails_as_it_is_taken(tmp_path, monkeypatch):
    """Its first call ends with an error of hardware: it is to blame, before any shard began."""
    on(monkeypatch, A)

    def fail(*_):
        raise DeviceFailed("no usable device") from CudaError()

    monkeypatch.setattr(backend, "load_backend", fail)
    made, shard = planned(tmp_path)
    with pytest.raises(DeviceFailed, match=f"no usable device .{A} of .*, an uncorrectable ECC"):
        compute(made, shard)
    assert failures.of(made.results, [shard.name])[shard.name].device == A
    assert list(failures.barred(made.results)) == [A]


def test_a_device_that_is_full_is_not_to_blame(tmp_path, monkeypatch):
    """It ends its process, and the next task may take it."""
    on(monkeypatch, A)
    made, shard = planned(tmp_path)

    def fail(self, report, weights):
        raise DeviceFailed("out of memory")

    monkeypatch.setattr(checks.ShardChecks, "examine", fail)
    with pytest.raises(DeviceFailed, match=f"out of memory .{A} of {host.node()}.$") as error:
        compute(made, shard)
    assert not error.value.suspect
    assert failures.of(made.results, [shard.name])[shard.name].device == A
    assert failures.barred(made.results) == {}


@pytest.mark.parametrize("uuid", [A, None])
def test_bad_input_is_nobodys_fault(tmp_path, monkeypatch, uuid):
    """No device is barred, and the failure counts the tries."""
    on(monkeypatch, uuid)
    left = factories.stack((4, 6, 6))
    left[3, 1, 1] = np.nan
    made, shard = planned(tmp_path, left)
    for run, attempt in (("a", 1), ("b", 2)):
        monkeypatch.setenv(failures.RUN, run)
        with pytest.raises(InputError, match="matrix 3 holds NaN"):
            compute(made, shard)
        failure = failures.of(made.results, [shard.name])[shard.name]
        assert (failure.code, failure.run, failure.attempt) == (2, run, attempt)
    assert failures.barred(made.results) == {}

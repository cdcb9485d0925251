"""Devices in quarantine: the journal, who writes it, who obeys it, and how an entry ends."""

import logging
import os
import re
import shlex
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from shardwise import errors as failures
from shardwise import host
from shardwise.devices import choose, leases, quarantine, wait
from shardwise.devices.nvml import Device
from shardwise.devices.quarantine import Entry
from shardwise.errors import (
    Disproven,
    Quarantined,
    ShardwiseError,
    TryAgain,
    WrongInput,
    WrongProduct,
)
from shardwise.files.paths import Results
from shardwise.multiply import backend
from shardwise.multiply import job as multiply_job
from shardwise.numerics import gemm
from shardwise.records import receipts, remaining
from shardwise.workflow import progress

from tests import factories, fake_devices
from tests.unit.devices import test_choose
from tests.unit.devices.test_choose import GIB, SLURM, A, B, Clock, take
from tests.unit.dispatch.test_pool import fake_uuid, planned, pooled, receipt

NOON = 1_800_000_000.0
DAY = 86_400.0
MIG = "MIG-dddddddd-0000-4000-8000-000000000000"
NODE = test_choose.NODE[:2]


@pytest.fixture
def results(tmp_path: Path) -> Results:
    """An empty results folder."""
    quarantine._warn.cache_clear()
    return Results(tmp_path)


def uuids(results: Results, now: float = NOON) -> list[str]:
    """What is in quarantine at a moment."""
    return [entry.uuid for entry in quarantine.entries(results, lambda: now)]


def put(results: Results, uuid: str, at: float = NOON, shard: str | None = "00003") -> Entry:
    """Put a device into quarantine at a moment."""
    return quarantine.note(results, uuid, "a product failed its proof", shard, lambda: at)


# The journal.


def test_what_is_noted_is_read_again(results):
    """A GPU and an instance of one, in order, each with its reason; one line each."""
    noted = [put(results, A), put(results, MIG, shard=None)]
    assert quarantine.entries(results, lambda: NOON) == noted
    assert [entry.uuid for entry in noted] == [A, MIG]
    assert noted[0].host == host.node()
    assert noted[0].expires == NOON + DAY
    assert len(results.quarantine.read_text().splitlines()) == 3
    assert "(shard 00003)" in str(noted[0])
    assert "shard" not in str(noted[1])


def test_a_reason_of_many_lines_stays_in_its_row(results):
    """Tabs and line ends of an error of the driver do not reach the file, nor does its length."""
    entry = quarantine.note(results, A, "an\tugly\nreason " + 5000 * "x", "1", lambda: NOON)
    assert entry.why.startswith("an ugly reason x")
    assert quarantine.entries(results, lambda: NOON) == [entry]
    assert results.quarantine.stat().st_size < 600


def test_entries_expire(results):
    """After a day, to the second; an older row of the same device does not come back."""
    put(results, A)
    put(results, B, NOON + 100)
    assert uuids(results, NOON + DAY - 1) == [A, B]
    assert uuids(results, NOON + DAY) == [B]
    put(results, A, NOON + 200)
    assert uuids(results, NOON + DAY) == [B, A]


@pytest.mark.parametrize(
    ("said", "hours"),
    [("2", 2), ("0.5", 0.5), ("0", 0), ("inf", 87_600), ("soon", 24), ("-1", 24), ("nan", 24)],
)
def test_how_long_is_set_by_a_variable(results, monkeypatch, caplog, said, hours):
    """In hours; what is none is said, and the default holds."""
    monkeypatch.setenv("SHARDWISE_QUARANTINE_HOURS", said)
    entry = put(results, A)
    assert entry.expires == NOON + hours * 3600
    assert ("SHARDWISE_QUARANTINE_HOURS" in caplog.text) is (said in ("soon", "-1", "nan"))
    assert uuids(results) == [A] * (hours > 0)


def test_a_device_is_cleared(results):
    """One, or all; the rows stay as a record, and a device that fails again is back."""
    for uuid in (A, B, MIG):
        put(results, uuid)
    (cleared,) = quarantine.clear(results, B, lambda: NOON + 1)
    assert cleared.uuid == B
    assert uuids(results, NOON + 1) == [A, MIG]
    assert len(quarantine.clear(results, now=lambda: NOON + 2)) == 2
    assert uuids(results, NOON + 2) == []
    assert quarantine.clear(results, now=lambda: NOON + 2) == []
    assert results.quarantine.read_text().count(B) == 2
    put(results, B, NOON + 3)
    assert uuids(results, NOON + 3) == [B]


def test_a_device_is_barred_whatever_its_node_is_called(results, monkeypatch):
    """A node has one name in a job of Slurm and another in a container: the UUID counts."""
    for name, uuid in (("n1", A), ("n2", B), ("n1.example.org", A)):
        monkeypatch.setenv("SLURMD_NODENAME", name)
        noted = quarantine.note(results, uuid, "lost")
        assert noted.host == name
    assert list(quarantine.barred(results)) == [B, A]  # the last row of a device counts
    assert f"{A} of n1.example.org until" in quarantine.barred(results)[A]
    assert f"{B} of n2" in "\n".join(quarantine.report(results))
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    quarantine.clear(results, A)
    assert list(quarantine.barred(results)) == [B]


WRITE = """
import sys
from pathlib import Path
from shardwise.devices import quarantine
from shardwise.files.paths import Results
for number in range(100):
    quarantine.note(Results(Path(sys.argv[1])), f"GPU-{sys.argv[2]}-{number}", "why", str(number))
"""


def test_processes_that_write_at_once_lose_nothing(results):
    """Each row of each of them is whole, and there is one row of titles."""
    env = os.environ | {"PYTHONPATH": str(factories.SCRIPTS)}
    lines = [[sys.executable, "-c", WRITE, str(results.root), str(n)] for n in range(3)]
    running = [subprocess.Popen(line, env=env) for line in lines]
    assert [process.wait() for process in running] == [0, 0, 0]
    found = {entry.uuid for entry in quarantine.entries(results)}
    assert found == {f"GPU-{n}-{number}" for n in range(3) for number in range(100)}
    assert results.quarantine.read_text().count("expires") == 1


@pytest.mark.parametrize(
    "rubbish",
    [
        b"half a li",
        b"2027-01-15T08:00:00+00:00\tn1\tGPU-1\twhy",
        f"2027-01-15T08:00:00\tn1\t{B}\twhy\t1\t2099-01-15T08:00:00".encode(),
        f"2027-01-15T08:00:00+00:00\tn1\t{B}\twhy\t1\t99999-01-15T08:00:00+00:00".encode(),
        f"2027-01-15T08:00:00+00:00\tn1\t{B}\t\x1b[2J\t1\t2099-01-15T08:00:00+00:00".encode(),
        b"2027-01-15T08:00:00+00:00\tn1\t\twhy\t1\t2099-01-15T08:00:00+00:00",
    ],
)
def test_what_is_no_entry_is_skipped(results, caplog, rubbish):
    """Half a line costs itself, not the next row; a warning names it, once."""
    put(results, A)
    with open(results.quarantine, "ab") as file:
        file.write(rubbish)
    put(results, MIG)
    for _ in range(2):
        assert uuids(results) == [A, MIG]
    assert caplog.text.count("is no entry and is skipped") == 1


def test_a_journal_that_is_no_file(results, caplog):
    """Nothing is read or written through a link, and what has failed is told all the same."""
    other = results.root / "precious"
    other.write_text("mine\n")
    results.quarantine.symlink_to(other)
    assert put(results, A).uuid == A
    assert "could not be recorded" in caplog.text
    assert uuids(results) == []
    assert "no device is left alone" in caplog.text
    assert other.read_text() == "mine\n"
    results.quarantine.unlink()
    os.mkfifo(results.quarantine)
    assert uuids(results) == []


# Who obeys.


@pytest.mark.parametrize(
    "environ", [{}, {"CUDA_VISIBLE_DEVICES": "0,1"}, SLURM | {"CUDA_VISIBLE_DEVICES": "0,1"}]
)
@pytest.mark.parametrize("choice", [None, choose.Choice(0)])
def test_another_device_is_taken(folder, environ, choice):
    """Of several, one that is not in quarantine, at once."""
    assert take(environ, NODE, barred=lambda: {A: "bad"}, choice=choice)[0].device.uuid == B


def test_where_there_is_no_other_the_task_says_so(folder, results):
    """Try again, with the device, why, until when, and the command that clears it."""
    entry = quarantine.note(results, A, "a product failed its proof", "00003")
    with pytest.raises(Quarantined) as refusal:
        take({"CUDA_VISIBLE_DEVICES": "0"}, barred=lambda: quarantine.barred(results))
    assert refusal.value.exit_code == 75
    for words in (str(entry), f"--results {results.root} --clear-quarantine {A}"):
        assert words in str(refusal.value)
    assert leases.holder(A) is None


@pytest.mark.parametrize(("limit", "held"), [(None, 60), (5, 5), (1000, 60)])
def test_a_granted_device_in_quarantine_is_held_for_a_while(folder, monkeypatch, limit, held):
    """So that the scheduler does not give it to the next job at once."""
    clock = Clock([])
    monkeypatch.setattr(wait, "time", clock)
    with pytest.raises(Quarantined):
        take(SLURM | {"CUDA_VISIBLE_DEVICES": "0"}, barred=lambda: {A: "bad"}, limit=limit)
    assert clock.now - 1000 == held


def test_a_device_that_is_cleared_meanwhile_is_taken(folder, monkeypatch):
    """A job that holds one looks every second."""
    clock = Clock([])
    monkeypatch.setattr(wait, "time", clock)
    barred = lambda: {A: "bad"} if clock.now < 1010 else {}  # noqa: E731
    assert take(SLURM | {"CUDA_VISIBLE_DEVICES": "0"}, barred=barred)[0].device.uuid == A


def test_a_device_that_fails_while_it_is_waited_for_is_not_taken(folder, monkeypatch):
    """Its lease comes free, as its task has failed: it is in quarantine by then."""
    said = iter([{}])
    with pytest.raises(Quarantined):
        take({"CUDA_VISIBLE_DEVICES": "0"}, barred=lambda: next(said, {A: "bad"}))
    assert leases.holder(A) is None


# What is a reason.


class CudaError(Exception):
    """An error as cupy raises it."""

    def __init__(self, status: int) -> None:
        super().__init__(f"error {status}")
        self.status = status


def taken(monkeypatch, errors: int | None, now: list[Device] | ShardwiseError) -> None:
    """Let this process have a device with so many memory errors, and NVML answer now."""
    device = Device(A, "Fake", 0, 16 * GIB, 15 * GIB, errors=errors)

    def present():
        if isinstance(now, ShardwiseError):
            raise now
        return now

    monkeypatch.setattr(choose, "_taken", [choose.Taken(device, "lease", None)])
    monkeypatch.setattr(choose, "present", present)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (CudaError(214), "an uncorrectable ECC error"),
        (CudaError(220), "an uncorrectable NVLink error"),
        (WrongProduct("off"), "a product failed its proof"),
        (WrongInput("another matrix"), None),  # the copy, or the host, may have changed it
        (CudaError(2), None),  # out of memory
        (CudaError(46), None),  # busy
        (CudaError(700), None),  # an illegal address, of a function of the user's
        (CudaError(714), None),  # its stack is full
        (MemoryError(), None),
    ],
)
def test_which_errors_blame_the_device(monkeypatch, error, why):
    """Those that only a device causes, and a failed proof; not that it is busy or full."""
    taken(monkeypatch, 0, NODE)
    assert choose.fault(error, A) == why
    caused = RuntimeError("cannot begin")
    caused.__cause__ = error
    if isinstance(error, CudaError):
        assert choose.fault(caused, A) == why


@pytest.mark.parametrize(
    ("before", "now", "why"),
    [
        (0, [Device(A, "Fake", 0, 1, 1, errors=2)], "uncorrectable ECC errors: 2 while this task"),
        (2, [Device(A, "Fake", 0, 1, 1, errors=2)], None),
        (None, [Device(A, "Fake", 0, 1, 1, errors=2)], None),
        (0, [Device(A, "Fake", 0, 1, 1)], None),
        (0, NODE[1:], "lost: NVML does not list it any more"),
        (0, TryAgain("NVML says GPU is lost"), "lost: NVML says GPU is lost"),
    ],
)
def test_what_nvml_says_blames_the_device(monkeypatch, before, now, why):
    """Memory errors that are new, and a device that is gone, after an error that may mean all."""
    taken(monkeypatch, before, now)
    found = choose.fault(CudaError(719), A)
    assert found is None if why is None else found.startswith(why)


def wrong(monkeypatch) -> None:
    """Let NumPy's products be off by one."""
    honest = gemm.MatmulKernel.multiply

    def multiply_batch(self, block, other, out, count):
        honest(self, block, other, out, count)
        out[0, 0, 0] += 1

    monkeypatch.setattr(gemm.MatmulKernel, "multiply", multiply_batch)


@pytest.mark.parametrize(("uuid", "kind", "code"), [(A, Disproven, 75), (None, WrongProduct, 3)])
def test_a_failed_proof_is_tried_on_another_gpu_not_cpu(tmp_path, monkeypatch, uuid, kind, code):
    """With the device and the command that clears it; on a CPU it is final, as any damage."""
    taken(monkeypatch, 0, NODE)
    monkeypatch.setattr(backend, "load_backend", lambda *_: (np, {"uuid": uuid}))
    made = factories.plan(tmp_path, factories.stack((4, 6, 6)), shards=2, materialize=False)
    with monkeypatch.context() as patch:
        wrong(patch)
        with pytest.raises(kind, match="product of matrix 2 is wrong") as error:
            multiply_job.run_shard(made, "00001")
    assert error.value.exit_code == code
    assert (f"--clear-quarantine {A}" in str(error.value)) == (uuid is not None)
    entries = [(entry.uuid, entry.shard) for entry in quarantine.entries(made.results)]
    assert entries == ([(uuid, "00001")] if uuid else [])
    assert not made.results.receipt("00001").exists()
    if uuid is None:  # the next try is not refused
        multiply_job.run_shard(made, "00001")


def test_a_device_that_does_not_even_begin(tmp_path, monkeypatch):
    """It was taken, and its first call fails: it is noted, with no shard."""
    taken(monkeypatch, 0, NODE[1:])

    def fail(*_):
        raise failures.DeviceFailed("no usable device") from CudaError(719)

    monkeypatch.setattr(backend, "load_backend", fail)
    made = factories.plan(tmp_path, factories.stack((2, 6, 6)), shards=1, materialize=False)
    with pytest.raises(Quarantined, match="no usable device"):
        multiply_job.run_shard(made, "00000")
    (entry,) = quarantine.entries(made.results)
    assert (entry.uuid, entry.shard) == (A, "-")


# Whole tasks, on devices that do not exist.

# Products of the devices that a file names fail their proof; the others wait until one has.
DISPROVE = """
from shardwise.multiply import checks
from shardwise.errors import WrongProduct
honest = checks.ShardChecks.examine
bad = (HERE / 'bad').read_text()
is_bad = os.environ['CUDA_VISIBLE_DEVICES'] in bad

def examine(self, *words):
    if is_bad:
        (HERE / 'disproven').touch()
        raise WrongProduct('the product is wrong')
    honest(self, *words)

if honest.__name__ == 'examine' and honest.__module__ == checks.__name__:
    checks.ShardChecks.examine = examine
if bad and not is_bad:
    until((HERE / 'disproven').exists)
"""


def bad(folder: Path, *numbers: int) -> list[str]:
    """Let products of some fake devices fail their proof; returns their UUIDs."""
    found = [f"GPU-{fake_uuid(number)}" for number in numbers]
    (folder / "bad").write_text(" ".join(found))
    return found


def shard(made, number: int, count: int, **variables) -> subprocess.CompletedProcess:
    """Compute a shard by its command, on a machine with some fake devices."""
    folder = made.results.root.parent
    env = os.environ | fake_devices.environment(count, folder / "leases") | variables
    return factories.run(
        "multiply", "--plan", made.results.plan, "--shard", f"{number:05}", "--device-wait", 0.1,
        env=env,
    )  # fmt: skip


def test_the_only_device_is_refused_until_it_is_cleared(tmp_path):
    """The message has the command that clears it; after that the same device computes."""
    made = planned(tmp_path, DISPROVE, shards=1)
    (uuid,) = bad(tmp_path, 0)
    granted = SLURM | {"CUDA_VISIBLE_DEVICES": "0"}
    assert shard(made, 0, 2, **granted).returncode == 75
    bad(tmp_path)
    refused = shard(made, 0, 2, **granted)
    assert refused.returncode == 75
    assert "each device that this task may take is in quarantine" in refused.stderr
    (command,) = re.findall(r"once it is mended: (.*?)\. Until then", refused.stderr)
    cleared = subprocess.run(shlex.split(command), capture_output=True, text=True, check=True)
    assert f"no longer in quarantine: {uuid}" in cleared.stdout
    assert shard(made, 0, 2, **granted).returncode == 0
    assert receipt(made, 0).attempt == 2  # the refusal began no shard


def test_a_pool_goes_on_with_the_other_device(tmp_path):
    """One wrong product is enough; the shard is tried again, and a second pool knows it too."""
    made = planned(tmp_path, DISPROVE)
    (uuid,) = bad(tmp_path, 0)
    said = pooled(made, "--retries", 1)
    assert said.count(f"{uuid} of ") >= 1
    assert "is left out: the product is wrong" in said
    assert {receipt(made, n).device.uuid for n in range(12)} == {f"GPU-{fake_uuid(1)}"}
    assert [entry.uuid for entry in quarantine.entries(made.results)] == [uuid]
    made.results.receipt("00005").unlink()
    again = pooled(made)
    assert f"left out, being in quarantine: {uuid}" in again
    assert "waiting for a free device" not in again


def test_a_pool_whose_devices_all_fail_ends(tmp_path):
    """With 75, each device and its reason; a second one begins nothing."""
    made = planned(tmp_path, DISPROVE)
    both = bad(tmp_path, 0, 1)
    last = pooled(made, code=75).splitlines()[-1]
    assert "no device is left to compute on" in last
    assert all(uuid in last for uuid in both)
    again = pooled(made, code=75)
    assert "each device that this task may take is in quarantine" in again.splitlines()[-1]
    assert list(made.results.product("x").parent.glob("*.json")) == []


def test_ranks_leave_it_out(tmp_path):
    """Under mpi, too: the rank of a device in quarantine has nothing to do, and says why."""
    left = factories.stack((3, 6, 6))
    made = factories.plan(tmp_path, left, backend="auto", shards=3, materialize=False)
    uuid = f"GPU-{fake_uuid(0)}"
    quarantine.note(made.results, uuid, "lost", "00001")
    env = os.environ | fake_devices.environment(2, tmp_path / "leases")
    done = factories.run(
        "dispatch", "--plan", made.results.plan, "--dispatch", "mpi", "--ranks", 2, env=env
    )
    assert done.returncode == 0, done.stderr
    assert f"2 ranks, 1 devices, 1 workers: left out, being in quarantine: {uuid}" in done.stderr
    assert {receipt(made, n).device.uuid for n in range(3)} == {f"GPU-{fake_uuid(1)}"}


def test_the_summary_names_them(tmp_path):
    """What was in quarantine when the sum was made stands beside the sum."""
    made = factories.computed(factories.plan(tmp_path, factories.stack((2, 4, 4)), shards=1))
    entry = quarantine.note(made.results, A, "lost", "00000")
    assert factories.run("ledger", "--plan", made.results.plan).returncode == 0
    done = factories.run("reduce", "--plan", made.results.plan, "--ranks", 1)
    assert done.returncode == 0, done.stderr
    (said,) = receipts.read(made.results.summary, receipts.SumReceipt).quarantined
    assert said == pytest.approx(asdict(entry), abs=1e-3)


@pytest.mark.parametrize("done", [1, 0], ids=["done", "not finished"])
def test_the_last_words_of_a_run_name_them(results, capsys, monkeypatch, done):
    """However it ends: the device, until when, why, and the one command that clears all."""
    entry = quarantine.note(results, A, "lost", "00001")
    plan = SimpleNamespace(shards={"00000": None})
    run = SimpleNamespace(
        results=results, dispatch="jobs", plan=plan, in_the_end=lambda: ["sum"],
        reduce={"statistics": ["sum"]}, began=True, succeeded=False, interrupted=False,
    )  # fmt: skip
    workflow = SimpleNamespace(dryrun=False, output_settings=SimpleNamespace(quiet=None))
    listener = progress.Listener(workflow, run)
    if done:
        results.report.touch()
    found = remaining.RemainingWork([] if done else ["00000"], None)
    monkeypatch.setattr(remaining, "find", lambda plan, statistics, jobs: found)
    listener.last_words()
    said = capsys.readouterr().err
    assert f"  {entry}\n" in said
    assert f"{quarantine.clearing(results)}\n" in said


# The doctor.


def test_the_doctor_clears_one_or_all(results):
    """And refuses a UUID that is not there, with 2."""
    for uuid in (A, B, MIG):
        quarantine.note(results, uuid, "lost", "00001")
    words = ("--results", results.root, "--clear-quarantine")
    assert factories.run("doctor", *words, B, cwd=results.root).returncode == 0
    wrong_one = factories.run("doctor", *words, B, cwd=results.root)
    assert wrong_one.returncode == 2
    assert f"{B} is not in quarantine" in wrong_one.stderr
    rest = factories.run("doctor", *words, cwd=results.root)
    assert rest.stdout.count("no longer in quarantine") == 2
    none = factories.run("doctor", *words, cwd=results.root)
    assert (none.returncode, "nothing is in quarantine" in none.stdout) == (0, True)


def test_the_doctor_shows_them(results, caplog):
    """As notes on the results folder, each with the command that clears it."""
    from shardwise.doctor import folders

    caplog.set_level(logging.WARNING)
    entry = quarantine.note(results, A, "lost", "00001")
    found = [f for f in folders.findings(results.root) if f.name == "quarantine"]
    assert [f.level for f in found] == ["note"]
    assert found[0].text == str(quarantine.entries(results)[0])
    assert found[0].facts["uuid"] == entry.uuid
    assert f"--clear-quarantine {A}" in found[0].cure

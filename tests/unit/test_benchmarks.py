"""The benchmarks run: each in its tiny form, without a GPU."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.workspace import REPO

BENCHMARKS = REPO / "benchmarks"
FOLDERLESS = ("accuracy", "kernels", "makespan", "proof")
FEW = {
    "dispatch": ["--scheduler", "none"],
    "reduce": ["--only", "d=8 products cold ranks=2|d=520 sum cached ranks=1"],
    "shard_jobs": ["--only", "float32 d=16 .* cold"],
}


@pytest.fixture
def modules(monkeypatch):
    """The benchmarks' folder on the path, as their own scripts have it."""
    monkeypatch.syspath_prepend(BENCHMARKS)


def run(script: str, *words: object) -> str:
    """What a benchmark prints; it must succeed."""
    line = [sys.executable, str(BENCHMARKS / f"{script}.py"), *map(str, words)]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def tiny(script: str, folder: Path, *words: object) -> tuple[str, dict]:
    """What a tiny run prints, and the figures that it writes."""
    where = [] if script in FOLDERLESS else ["--folder", folder / "work"]
    figures = folder / "figures.json"
    text = run(script, "--tiny", "--json", figures, *where, *FEW.get(script, ()), *words)
    return text, json.loads(figures.read_text()) if figures.exists() else {}


def test_kernels(tmp_path: Path) -> None:
    """Ours is measured and right; a peer that needs a GPU says so below the table."""
    text, figures = tiny("kernels", tmp_path)
    rows = figures["kernels"]["rows"]
    assert {row["dtype"] for row in rows} == {"float64", "float32", "float16"}
    assert all(row["seconds_a_matrix"]["shardwise"] > 0 for row in rows)
    assert all(row["cells"]["strided cuBLAS"] == "failed" for row in rows)
    assert "strided cuBLAS: RuntimeError: needs a GPU" in text


def test_small_tables(tmp_path: Path) -> None:
    """Three share one file of figures: each sum has an error, each schedule and rate a row."""
    for script in ("accuracy", "makespan", "raw"):
        _, figures = tiny(script, tmp_path)
    sums, schedules = figures["accuracy"]["rows"], figures["makespan"]["rows"]
    assert [row["cells"]["dtype"] for row in sums] == ["float32"] * 5 + ["float64"] * 5
    assert sums[7]["errors"]["shardwise"] == 0 < sums[7]["errors"]["`acc += m`"]
    assert len(schedules) == 12
    for row in schedules:
        assert all(least > 0.999 for found in row["ratios"] for least in found)
        if row["cells"]["costs"] == "equal":
            ((ours, ahead, in_order, even),) = row["ratios"]
            assert ours == ahead <= in_order < even
    rates = {row["cells"]["what"]: row.get("per_second") for row in figures["raw"]["rows"]}
    assert len(rates) == 12
    assert rates["buffered write, 1 thread"] > 0


def test_dispatch(tmp_path: Path) -> None:
    """Runs without a scheduler have their figures, and the folder is left empty."""
    text, figures = tiny("dispatch", tmp_path)
    rows = figures["dispatch"]["rows"]
    assert [row["cells"]["dispatch"] for row in rows] == ["`jobs`", "`pool`", "`mpi`"], text
    for row in rows:
        (seconds,) = row["rounds"]
        assert 0 < seconds["own"] < seconds["whole"]
        assert min(seconds.values()) >= 0
    assert list((tmp_path / "work").iterdir()) == []


def test_proof(tmp_path: Path) -> None:
    """No honest product is refused, wrong ones have their rates, and the price is measured."""
    _, figures = tiny("proof", tmp_path, "--only", "float32", "complex64", "int16")
    assert [row["alarms"] for row in figures["false alarms"]["rows"]] == [0, 0, 0]
    assert all(row["tried"][0] >= 100 for row in figures["false alarms"]["rows"])
    seen = [row["cells"]["2 × tolerance"] for row in figures["one wrong element"]["rows"]]
    assert seen == ["100 %"] * 4
    assert [row["cells"]["swapped matrix"] for row in figures["wrong products"]["rows"]] == seen
    assert len(figures["flipped bits"]["rows"]) == len(figures["price"]["rows"]) == 4
    assert len(figures["vectors"]["rows"]) == 3


def test_telemetry(tmp_path: Path) -> None:
    """Shards with and without it come in pairs, and no file is left."""
    _, figures = tiny("telemetry", tmp_path)
    (row,) = figures["cost of telemetry"]["rows"]
    assert len(row["with"]) == len(row["without"]) == 6
    assert list((tmp_path / "work").iterdir()) == []


def test_many_shards(tmp_path: Path) -> None:
    """Each stage takes a while, all succeed, and no file is left."""
    _, figures = tiny("many_shards", tmp_path)
    rows = [row["cells"] for row in figures["many shards"]["rows"]]
    assert [row["after the shards"] for row in rows] == [
        "ledger", "reduce, 2 ranks", "verify", "together"
    ]  # fmt: skip
    assert list((tmp_path / "work").iterdir()) == []


def test_shard_jobs(tmp_path: Path) -> None:
    """Ours and the plain loop have times for each row, and the folder is left empty."""
    _, figures = tiny("shard_jobs", tmp_path, "--verify", "both")
    rows = figures["shard_jobs"]["rows"]
    assert [row["keep"] for row in rows] == ["sum", "products"]
    for row in rows:
        for peer in ("shardwise", "shardwise, verify: false", "plain CuPy loop"):
            assert row["seconds"][peer][0], row["broken"]
        assert row["broken"].keys() >= {"torch", "kvikio"}
    assert list((tmp_path / "work").iterdir()) == []


def test_scaling(tmp_path: Path) -> None:
    """On one device each stack has a rate and what bounds it, and the folder is left empty."""
    text, figures = tiny("scaling", tmp_path)
    rows = figures["scaling"]["rows"]
    assert [row["cells"]["speed-up"] for row in rows] == ["1", "1"], text
    assert [row["rate"] > 0 for row in rows] == [True, True]
    assert {"page cache", "GEMM", "sums to the disk"} == rows[0]["limits"].keys()
    assert {"disk", "GEMM", "sums to the disk"} == rows[1]["limits"].keys()
    assert list((tmp_path / "work").iterdir()) == []


def test_reduce(tmp_path: Path) -> None:
    """All peers add the same files to the same sum, in worlds of as many ranks as asked for."""
    text, figures = tiny("reduce", tmp_path)
    rows = figures["reduce"]["rows"]
    assert [(row["dim"], row["keep"], row["ranks"]) for row in rows] == [
        (8, "products", 2),
        (520, "sum", 1),
    ]
    for row in rows:
        assert row["broken"] == {}, text
        (answers,) = row["answers"]
        peers = {"shardwise", "plain loop", "prerounded sum", "lower-case reduce"}
        assert answers.keys() == {*peers, "raw"}
        for answer in answers.values():
            assert answer["seconds"] > 0
            assert answer.get("peak", 1) > 0
    assert list((tmp_path / "work").iterdir()) == []


def test_startup(tmp_path: Path) -> None:
    """The task of one shard is timed beside an import."""
    text, figures = tiny("startup", tmp_path)
    assert all(len(row["seconds"]) == 1 for row in figures["startup"]["rows"])
    assert "times as long" in text


@pytest.mark.parametrize("script", ["kernels", "raw", "reduce", "shard_jobs"])
def test_a_spent_budget_skips_and_says_so(script: str, tmp_path: Path) -> None:
    """Out of time, nothing is begun, and every row that is missing is named."""
    text, _ = tiny(script, tmp_path, "--minutes", 0)
    assert text.count("skipped, out of time") >= 2


def test_a_wrong_product_is_no_figure(modules) -> None:
    """A kernel that leaves the last product unwritten, or is off, is found."""
    import kernels

    cell = kernels.Cell("float32", 8, "A @ A", "ieee")
    a = np.random.default_rng(0).standard_normal((4, 8, 8)).astype("float32")
    out = a @ a
    assert kernels.wrongness(np, cell, a, out, 4) < kernels.ERRORS["float32"]
    out[3, 5, 5] += 0.1
    assert kernels.wrongness(np, cell, a, out, 4) > kernels.ERRORS["float32"]
    out[3, 0, 0] = np.nan
    assert np.isnan(kernels.wrongness(np, cell, a, out, 4))


@pytest.mark.parametrize(("keep", "gib"), [("products", 2**-20), ("sum", 0)])
def test_fabricated_files_are_what_multiply_leaves(
    modules, tmp_path: Path, keep: str, gib: float
) -> None:
    """The ledger takes the receipts, the checksums are true, and no two products are equal."""
    import reduce as benchmark
    from shardwise.files import checksum as checksums
    from shardwise.files import pieces as piecess
    from shardwise.records import ledger

    stack = benchmark.Stack("float32", 8, keep, gib)
    plan = stack.plan(tmp_path / "files")
    found = [np.load(path) for path, _ in benchmark.files_of(plan)]
    assert sum(array.nbytes for array in found) == stack.nbytes
    for said, array in zip(ledger.read(plan), found, strict=True):
        row = piecess.natural_row(array.shape, array.itemsize)
        pieces = piecess.checksum_pieces(row, array.itemsize)
        checksum = checksums.PieceChecksum(array.nbytes, *pieces)
        checksum.append(checksums.raw_bytes(array))
        assert checksum.hexdigest() == said.file.checksum
    if keep == "products":
        products = np.concatenate(found)
        assert len(np.unique(products[:, 0], axis=0)) == len(products)


@pytest.mark.parametrize(("keep", "most"), [("products", 4), ("sum", None)])
def test_a_wrong_sum_is_no_figure(modules, tmp_path: Path, keep: str, most: int | None) -> None:
    """What a peer adds is compared with a sum by NumPy, also where it adds a part of the files."""
    import reduce as benchmark

    stack = benchmark.Stack("float32", 8, keep, 2**-16)
    bench = benchmark.Bench(tmp_path, np.zeros(0))
    bench.prepare(stack)
    plan = bench._plans[0]
    total = np.zeros((8, 8))
    for path, count in benchmark.files_of(plan, most):
        for array in benchmark.arrays_in(plan, path)[:count]:
            total += array
    bench._check("plain loop", total, most)
    total[3, 5] += 1e-4
    with pytest.raises(ValueError, match="wrong result"):
        bench._check("plain loop", total, most)


def test_a_peer_that_dies_is_named_and_started_again(modules, monkeypatch) -> None:
    """The death of one process is an answer, not an end; after two of them it is left alone."""
    import peers

    monkeypatch.setenv("PYTHONPATH", str(BENCHMARKS))
    worker = peers.Worker("plain CuPy loop", tiny=True)
    try:
        for _ in range(peers.DEATHS):
            worker.ask({})  # no job: an error, the process ends
            worker._start()
            worker._process.kill()
            assert "died" in worker.ask({})["error"]
        assert worker.ask({})["error"].startswith("the process died")
        assert worker._process is None
    finally:
        worker.stop()


def test_cold_means_cold(modules, tmp_path: Path) -> None:
    """A file that was just written is cached; after its eviction hardly a page is.

    A page that the kernel holds at that moment stays.
    """
    import transfers

    path = tmp_path / "file"
    path.write_bytes(bytes(8 * 2**20))
    try:
        written = transfers.cached_fraction(path)
        transfers.evict(path)
    except (OSError, RuntimeError) as error:
        pytest.skip(f"this file system keeps its pages: {error}")
    if written is None:
        pytest.skip("this file system tells nothing of its page cache")
    assert written == 1
    assert transfers.cached_fraction(path) < 0.05

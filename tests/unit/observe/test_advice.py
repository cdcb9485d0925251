"""Advice: each rule speaks where it has a cause, and is silent beside it."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardwise.files.paths import Results
from shardwise.observe import advice, figures
from shardwise.observe.advice import Advice, advise
from shardwise.observe.folder import Observer
from shardwise.observe.observation import DONE, Device, Observation, Sighting, Timeline
from shardwise.plan.plan import Facts, Plan, Shard, ShardSettings, Written
from shardwise.plan.problem import Problem
from shardwise.records.timeline import PHASES, STAGES

from tests import pretend

GB = 10**9
EVEN = {"waiting": 0.2, "read": 1.5, "upload": 0.3, "compute": 1.5, "download": 0.3, "write": 0.2}
DIM = 1000


def plan(shards: int = 80, matrices: int = 1000, dtype: str = "float32", **settings: Any) -> Plan:
    """A plan of shards of 1 GB."""
    problem = Problem(shards * matrices, (DIM, DIM // 4), "A @ A", dtype)
    rows = {
        f"{i:05}": Shard(f"{i:05}", i * matrices, (i + 1) * matrices, GB, GB, 0, 0)
        for i in range(shards)
    }
    full = {"product": "A @ A.T", "keep": "sum", "reproducible": True, "backend": "auto",
            "precision": "ieee", "verify": True, "materialize": False,
            "nonfinite": "error"} | settings  # fmt: skip
    own = replace(problem, product=full["product"])
    facts = Facts(dtype, own, ShardSettings(**full), None, (), None, Written(0, 0, 0), "")
    return Plan(Results(Path("results")), rows, facts)


def gpu(number: int, nodes: int = 2) -> Device:
    """One of several GPUs on some nodes."""
    return Device("NVIDIA H200", f"GPU-{number}", f"n{number % nodes}")


def run(
    made: Plan | None = None, held: dict | None = None, devices: int = 4, gap: float = 0.0,
    slow: float = 1.0, slow_phase: str = "compute", cpu: bool = False, **over: Any,
) -> Observation:  # fmt: skip
    """A run in which devices took shards in turn; the last device is as slow as told."""
    made, held = made or plan(), EVEN | (held or {})
    work = {"read": GB, "upload": GB, "compute": 10**13, "download": GB, "write": GB // 10}
    work |= over.pop("work", {})
    clock = [0.0] * devices
    seen = {}
    for shard in made.shards.values():
        number = min(range(devices), key=lambda n: clock[n])
        own = dict(held)
        if number == devices - 1:
            own[slow_phase] += (slow - 1) * sum(held.values())
        who = Device("CPU", None, f"n{number}") if cpu else gpu(number)
        took = sum(own.values())
        busy = {stage: own[stage] for stage in STAGES}
        seen[shard.shard] = Sighting(
            shard.shard, DONE, shard.stop - shard.start, GB, 1, clock[number],
            clock[number] + took, who, "numpy" if cpu else "cupy", True,
            Timeline(own, busy, work), **over,
        )  # fmt: skip
        clock[number] += took + gap
    return Observation(made.results, 1e4, made, seen, None, False)


def of(rule: Any, seen: Observation) -> Advice | None:
    """What one rule says of a run."""
    return rule(figures.of(seen))


def keys(seen: Observation) -> list[str | None]:
    """The keys of all advice on a run."""
    return [each.key for each in advise(seen)]


def test_a_level_run_has_nothing_to_change() -> None:
    """An even run gets one sentence that says so, and no key."""
    (said,) = advise(run(plan(shards=81), devices=4))
    assert said.key is None
    assert said.words.startswith("Nothing to change")


@pytest.mark.parametrize(
    "seen",
    [
        Observation(Results(Path("r")), 0.0, None, {}, None, False),
        run(plan(shards=1)),
        run(plan(shards=2), {"compute": 100.0}),
        run(held=dict.fromkeys(PHASES, 0.001)),
        run(made=plan(shards=4), held=dict.fromkeys(PHASES, 0.0)),
    ],
    ids=["no plan", "one shard", "two", "moments", "no seconds"],
)
def test_too_little_to_advise_on(seen: Observation) -> None:
    """An empty or tiny run gets no advice, and is told why."""
    (said,) = advise(seen)
    assert said.words == "Too little was measured to advise on."
    assert said.key is None


def test_products_that_hold_up_the_disk() -> None:
    """Writing products takes the time: `keep: sum`, with its share and the bytes."""
    seen = run(plan(keep="products"), {"read": 4.0, "write": 5.0}, work={"write": 4 * GB})
    said = of(advice.keep_sum, seen)
    assert said.key == "keep: sum"
    assert "320 GB of products" in said.evidence
    assert "not kept" in said.words
    assert 0 < said.seconds < figures.of(seen).active


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (run(plan(keep="sum"), {"write": 5.0}, work={"write": 4 * GB}), "is kept already"),
        (run(plan(keep="products"), {"write": 0.1, "download": 0.1}), "writes cost nothing"),
        (run(plan(shards=40, matrices=2, keep="products"), {"write": 5.0}), "sums as large"),
    ],
)
def test_products_that_are_no_trouble(seen: Observation, why: str) -> None:
    """No `keep: sum` where it is set, where writes are hidden, or where sums are as large."""
    assert of(advice.keep_sum, seen) is None, why


def test_a_short_run_on_a_cpu_keeps_its_products() -> None:
    """There a sum has a start of its own, which a short run does not win back."""
    kept = plan(shards=4, keep="products")
    short = {phase: seconds / 10 for phase, seconds in EVEN.items()} | {"write": 0.7}
    for held, found in ((short, False), ({"write": 7.0}, True)):
        seen = run(kept, held, cpu=True, work={"write": 4 * GB})
        assert ("keep: sum" in keys(seen)) == found


def test_products_that_a_statistic_needs() -> None:
    """No `keep: sum` where the run has formed what the sums of shards do not give."""
    seen = run(plan(keep="products"), {"write": 5.0}, work={"write": 4 * GB})
    assert of(advice.keep_sum, seen) is not None
    summed = replace(seen, summary=SimpleNamespace(files={"sum": None, "std": None}))
    assert of(advice.keep_sum, summed) is None


def test_copies_of_shards() -> None:
    """Copying each shard first is named with its bytes and its seconds."""
    seen = run(plan(materialize=True))
    said = of(advice.read_in_place, seen)
    assert said.key == "materialize: false"
    assert "80 GB" in said.evidence
    assert of(advice.read_in_place, run(plan(materialize=False))) is None


def test_copies_that_cost_nothing_are_not_named() -> None:
    """A copy that is short beside the products is not worth a word."""
    seen = run(plan(materialize=True), {"compute": 500.0})
    assert "materialize: false" not in keys(seen)
    assert "materialize: false" in keys(run(plan(materialize=True)))


def test_reads_that_hold_the_run_up() -> None:
    """Disk-bound: the rate per node, what may mend it, and half the bytes with its price."""
    seen = run(held={"read": 8.0})
    said = of(advice.disk_bound, seen)
    assert "cpus_per_task" in said.key
    assert "at 190 MB/s per node" in said.evidence
    assert "float16. This changes the result" in said.words
    assert "float16" not in of(advice.disk_bound, run(plan(dtype="float16"), {"read": 8.0})).words
    assert of(advice.disk_bound, run(held={"read": 0.5})) is None
    assert of(advice.disk_bound, run(held={"read": 8.0}, work={"read": 0})) is None


def test_bytes_of_the_input_on_their_way_to_the_device() -> None:
    """Upload-bound: an input of half the bytes, and what that does to the result."""
    said = of(advice.narrower_input, run(held={"upload": 8.0}))
    assert said.key == "input: float16"
    assert "changes the result" in said.words
    assert said.evidence.startswith("Upload-bound")
    assert of(advice.narrower_input, run(held={"read": 8.0})) is None
    assert of(advice.narrower_input, run(plan(dtype="float16"), {"upload": 8.0})) is None


def test_sums_of_many_shards() -> None:
    """`keep: sum` with many small shards: fewer of them, or sums that are not reproducible."""
    small = plan(shards=400, matrices=20)
    seen = run(small, {"write": 3.0})
    said = of(advice.fewer_shards, seen)
    assert said.key == "shards: 16"
    assert "`reproducible: false`" in said.words
    assert of(advice.fewer_shards, run(plan(), {"write": 3.0})) is None  # large shards
    assert of(advice.fewer_shards, run(small, {"write": 0.1, "download": 0.1})) is None
    kept = run(plan(shards=400, matrices=20, keep="products"), {"write": 3.0})
    assert of(advice.fewer_shards, kept) is None


def test_pauses_between_shards() -> None:
    """A device that starts a process for each shard: keep the process."""
    said = of(advice.keep_process, run(gap=3.0))
    assert said.key == "dispatch: pool"
    assert "3 s" in said.evidence
    assert "start the next" in said.evidence
    assert "queue" in of(advice.keep_process, run(gap=300.0)).evidence
    assert of(advice.keep_process, run(gap=0.5)) is None
    # One process on each device from shard to shard already, as in a pool: it does not start anew.
    assert of(advice.keep_process, run(gap=3.0, process=4711)) is None


def test_one_long_pause_is_no_rule() -> None:
    """A rerun on the next day leaves one gap a device, which says nothing of the dispatch."""
    seen = run(plan(shards=8), gap=86_400.0)
    assert of(advice.keep_process, seen) is None


def test_shards_that_wait() -> None:
    """Many short shards that wait for what each needs once: fewer of them."""
    many = plan(shards=400)
    said = of(advice.longer_shards, run(many, {"waiting": 4.0}))
    assert said.key == "shards: 80"
    assert of(advice.longer_shards, run(many)) is None
    assert of(advice.longer_shards, run(plan(shards=100), {"waiting": 4.0})) is None


def test_reading_ahead_is_no_waiting() -> None:
    """A shard that is begun while the one before is computed waits for it, and loses nothing."""
    seen = run(plan(shards=400), {"waiting": 4.0})
    shifted = {
        name: replace(shard, started=shard.started - 4.0) for name, shard in seen.shards.items()
    }
    ahead = figures.of(replace(seen, shards=shifted))
    assert ahead.held["waiting"] < 0.05 * ahead.total


def test_devices_that_wait_for_the_last_shard() -> None:
    """Six shards on four devices: two wait while the others do a second one."""
    made = {"keep": "products"}
    said = of(advice.level, run(plan(shards=6, **made)))
    assert said.key == "shards: 80"
    assert "6 shards on 4 devices" in said.evidence
    assert of(advice.level, run(plan(shards=8, **made))) is None  # all end together
    assert of(advice.level, run(plan(shards=6, **made), devices=1)) is None
    uncut = run(plan(shards=6, matrices=1, **made))  # no matrices to cut finer
    assert of(advice.level, uncut) is None


def test_levelling_never_makes_large_sums_of_many_shards() -> None:
    """Where sums are large beside shards, more shards are no advice."""
    assert of(advice.level, run(plan(shards=6))) is None


def test_a_device_that_is_slower() -> None:
    """It is named with its node, how much slower it is, where, and whether it was throttled."""
    seen = run(slow=1.9)
    said = of(advice.slow_device, seen)
    assert said.key == "profile: --exclude=n1"
    assert "GPU-3 of n1 took 1.9 times" in said.evidence
    assert "compute" in said.evidence
    assert of(advice.slow_device, run(slow=1.1)) is None
    reads = of(advice.slow_device, run(slow=2.5, slow_phase="read"))
    assert "its disk" in reads.words
    alone = {n: replace(s, device=replace(s.device, node="n0")) for n, s in seen.shards.items()}
    said = of(advice.slow_device, replace(seen, shards=alone))
    assert said.key is None  # nobody leaves out the only node
    assert said.words.startswith("Have GPU-3 looked at")


def test_a_device_that_was_throttled() -> None:
    """The reason that NVML gave stands beside it."""
    seen = run(slow=1.9, telemetry={"seconds": 10.0, "throttled_seconds": {"power_cap": 6.2}})
    said = of(advice.slow_device, seen)
    assert "throttled (power_cap) for 62 % of the time" in said.evidence
    assert "power limit" in said.words


def test_devices_of_other_kinds_are_no_measure() -> None:
    """A single device of its kind is not called slow."""
    seen = run(slow=3.0)
    other = {
        name: replace(s, device=Device("Other", s.device.uuid, s.device.node))
        if s.device.uuid == "GPU-3" else s
        for name, s in seen.shards.items()
    }  # fmt: skip
    assert of(advice.slow_device, replace(seen, shards=other)) is None


def test_lost_attempts() -> None:
    """Attempts that ended without a result are counted, and their shards named."""
    seen = run()
    some = {n: replace(s, attempts=3) if n < "00004" else s for n, s in seen.shards.items()}
    said = of(advice.retries, replace(seen, shards=some))
    assert "8 attempts" in said.evidence
    assert "00003" in said.evidence
    assert of(advice.retries, seen) is None


def test_products_in_full_precision() -> None:
    """Compute-bound in float32 on a GPU: tf32, and what it does to the result."""
    said = of(advice.tf32, run(held={"compute": 20.0}))
    assert said.key == "precision: tf32"
    assert "changes the result" in said.words
    for other in (
        run(plan(precision="tf32"), {"compute": 20.0}),
        run(plan(dtype="float64"), {"compute": 20.0}),
        run(held={"read": 20.0}),
        run(held={"compute": 20.0}, cpu=True),
    ):
        assert of(advice.tf32, other) is None


def test_products_on_a_cpu() -> None:
    """Compute-bound without a GPU: a node with one."""
    assert of(advice.use_gpu, run(held={"compute": 20.0}, cpu=True)).key == "backend: cupy"
    assert of(advice.use_gpu, run(held={"compute": 20.0})) is None
    assert of(advice.use_gpu, run(held={"read": 20.0}, cpu=True)) is None
    short = {phase: seconds / 10 for phase, seconds in EVEN.items()} | {"compute": 2.0}
    assert "backend: cupy" not in keys(run(plan(shards=4), short, cpu=True))


def test_a_function_is_promised_no_gpu() -> None:
    """Nobody knows what it does there, or whether it can."""
    made = plan()
    problem = replace(made.problem, result=(3, 4), result_dtype="float32")
    made = replace(made, facts=replace(made.facts, problem=problem))
    words = of(advice.use_gpu, run(made, {"compute": 20.0}, cpu=True)).words
    assert "if the function can" in words
    assert "times as fast" not in words


def test_what_saves_most_comes_first() -> None:
    """Ranked by seconds; what saves next to nothing is left out, and no key comes twice."""
    seen = run(plan(keep="products", materialize=True), {"write": 9.0}, gap=4.0, slow=1.4,
               work={"write": 4 * GB})  # fmt: skip
    found = advise(seen)
    assert len(found) >= 3
    seconds = [each.seconds for each in found]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[-1] > 0.02 * figures.of(seen).active
    assert len({each.about for each in found}) == len(found)


def test_no_key_has_two_values() -> None:
    """Sums that are written too often and shards that wait both ask for fewer: one number is."""
    seen = run(plan(shards=400, matrices=20, keep="sum"), {"waiting": 4.0, "write": 3.0})
    assert of(advice.longer_shards, seen).key != of(advice.fewer_shards, seen).key
    keys = [each.key.partition(":")[0] for each in advise(seen) if each.key]
    assert keys.count("shards") == 1


def test_names_from_receipts_break_no_line() -> None:
    """Whatever a node is called, the sentences hold no control character, and have an end."""
    seen = run(slow=2.0)
    evil = {
        n: replace(s, device=replace(s.device, node="n\x1b[2J\n" + "x" * 9999))
        if s.device.uuid == "GPU-3" else s
        for n, s in seen.shards.items()
    }  # fmt: skip
    for each in advise(replace(seen, shards=evil)):
        text = each.words + each.evidence + str(each.key)
        assert text.isprintable()
        assert len(text) < 2000


NUMBERS = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True), st.integers(-5, 5), st.none(),
    st.sampled_from([0.0, 1e308, -0.0, 5.0, 10**400, True, "7"]),
)  # fmt: skip


@given(
    st.lists(
        st.tuples(
            NUMBERS, NUMBERS, st.dictionaries(st.sampled_from(PHASES), NUMBERS),
            st.integers(0, 3), st.sampled_from([DONE, "failed"]), st.booleans(),
        ),
        max_size=12,
    ),
    st.sampled_from(["products", "sum"]),
    st.booleans(),
)  # fmt: skip
def test_no_observation_is_too_odd(shards: list, keep: str, copied: bool) -> None:
    """Times that cannot be, nothing at all, half a receipt: there is always an answer."""
    made = plan(shards=max(1, len(shards)), matrices=3, keep=keep, materialize=copied)
    seen = {}
    for (began, ended, told, number, state, has), shard in zip(
        shards, made.shards.values(), strict=False
    ):
        timeline = Timeline(told, told, told) if has else None
        seen[shard.shard] = Sighting(
            shard.shard, state, 3, number * GB, number, began, ended,
            gpu(number) if number else None, "cupy", True, timeline, {"seconds": began},
        )  # fmt: skip
    found = advise(Observation(made.results, 0.0, made, seen, {"files": 3}, True))
    assert found
    assert all(math.isfinite(each.seconds) for each in found)


def test_ten_thousand_shards_take_a_moment() -> None:
    """However many CPUs have computed them, the slow one is found."""
    seen = run(plan(shards=10_000, matrices=3), devices=1, cpu=True)
    some = {
        n: replace(s, device=Device("CPU", None, f"n{int(n) // 4}")) for n, s in seen.shards.items()
    }
    late = {n: replace(some[n], finished=some[n].finished + 90) for n in list(some)[400:404]}
    said = of(advice.slow_device, replace(seen, shards=some | late))
    assert said.key == "profile: --exclude=n100"


def test_a_results_folder_is_advised_on(tmp_path: Path) -> None:
    """From receipts on disk to sentences: a slow device, and products that take the time."""
    made = pretend.run(tmp_path, shards=40, nodes=4, slow_device=True)
    seen = Observer(made.root).look(made.at)
    found = {each.key: each for each in advise(seen)}
    slow = next(key for key in found if key and key.startswith("profile: --exclude"))
    assert "power_cap" in found[slow].evidence or "compute" in found[slow].evidence
    assert "GB of products" in found["keep: sum"].evidence


def test_an_old_run_has_too_little(tmp_path: Path) -> None:
    """Receipts of a version before time lines say nothing of where the time went."""
    made = pretend.run(tmp_path, shards=12, old=12, telemetry=False)
    (said,) = advise(Observer(made.root).look(made.at))
    assert said.key is None
    assert said.evidence.startswith("Shards that say where their time went: 0, with 0 s in all")

"""Advice: each rule speaks where it has a cause, and is silent beside it."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardwise.files.paths import Results
from shardwise.observe import advice, run_table
from shardwise.observe.advice import Advice, advise
from shardwise.observe.folder import Observer
from shardwise.observe.observation import DONE, DeviceOfNode, Observation, Sighting
from shardwise.plan.plan import Facts, Plan, Shard, ShardSettings, Written
from shardwise.plan.problem import Problem
from shardwise.records.receipts import Timing
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


def gpu(number: int, nodes: int = 2) -> DeviceOfNode:
    """One of several GPUs on some nodes."""
    return DeviceOfNode("NVIDIA H200", f"GPU-{number}", f"n{number % nodes}")


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
        who = DeviceOfNode("CPU", None, f"n{number}") if cpu else gpu(number)
        took = sum(own.values())
        busy = {stage: own[stage] for stage in STAGES}
        seen[shard.shard] = Sighting(
            shard.shard, DONE, shard.stop - shard.start, GB, 1, clock[number],
            clock[number] + took, who, "numpy" if cpu else "cupy", True,
            Timing(own, busy, work), **over,
        )  # fmt: skip
        clock[number] += took + gap
    return Observation(made.results, 1e4, made, seen, None)


def of(rule: Any, seen: Observation) -> Advice | None:
    """What one rule says of a run."""
    return rule(run_table.of(seen))


def keys(seen: Observation) -> list[str | None]:
    """The keys of all advice on a run."""
    return [each.key for each in advise(seen)]


def test_a_level_run_has_nothing_to_change() -> None:
    """Of an even run nothing is said."""
    assert advise(run(plan(shards=81))) == []


@pytest.mark.parametrize(
    "seen",
    [
        Observation(Results(Path("r")), 0.0, None, {}, None),
        run(plan(shards=1), {"read": 100.0}),
        run(plan(shards=2), {"read": 100.0}),
        run(held=dict.fromkeys(PHASES, 0.01) | {"read": 1.0}),
        run(made=plan(shards=4), held=dict.fromkeys(PHASES, 0.0)),
    ],
    ids=["no plan", "one shard", "two", "seconds", "no seconds"],
)
def test_too_little_to_advise_on(seen: Observation) -> None:
    """Of an empty, tiny or short run nothing is said, not even that."""
    assert advise(seen) == []


def test_reads_and_writes_that_hold_the_run_up() -> None:
    """Disk-bound: the share of the time, and the rate per node."""
    said = of(advice.disk_bound, run(held={"read": 8.0}))
    assert "limits this run" in said.words
    assert "78 % of their time, at 210 MB/s per node" in said.evidence
    assert of(advice.disk_bound, run(held={"write": 8.0})) is not None
    assert of(advice.disk_bound, run(held={"compute": 8.0})) is None


def test_pauses_between_shards() -> None:
    """A device that starts a process for each shard: keep the process."""
    said = of(advice.idle_between_jobs, run(gap=3.0))
    assert said.key == "dispatch: pool"
    assert "`dispatch: array`" in said.words
    assert "idle for 3 s" in said.evidence
    assert "one process ended" in said.evidence
    assert "queue" in of(advice.idle_between_jobs, run(gap=300.0)).evidence
    assert of(advice.idle_between_jobs, run(gap=0.5)) is None
    # One process on each device from shard to shard already, as in a pool: it does not start anew.
    assert of(advice.idle_between_jobs, run(gap=3.0, process=4711)) is None


def test_a_device_that_is_slower() -> None:
    """It is named with its node, how much slower it is, where, and what slowed it down."""
    told = {"seconds": 10.0, "throttled_seconds": {"power_cap": 6.2}}
    seen = run(slow=1.9, telemetry=told)
    said = of(advice.slow_device, seen)
    assert "n1 · GPU-3 took 1.9 times as long per matrix" in said.evidence
    assert "in compute" in said.evidence
    assert "slowed down by power cap for" in said.evidence
    assert "leave n1 out" in said.words
    assert of(advice.slow_device, run(slow=1.1)) is None
    reads = of(advice.slow_device, run(slow=2.5, slow_phase="read"))
    assert "in read" in reads.evidence
    alone = {n: replace(s, device=replace(s.device, node="n0")) for n, s in seen.shards.items()}
    said = of(advice.slow_device, replace(seen, shards=alone))
    assert "leave" not in said.words  # nobody leaves out the only node


def test_lost_attempts() -> None:
    """Attempts that ended without a result are counted, and their shards named."""
    seen = run()
    some = {n: replace(s, attempts=3) if n < "00004" else s for n, s in seen.shards.items()}
    said = of(advice.failed_attempts, replace(seen, shards=some))
    assert "8 attempts" in said.evidence
    assert "00003" in said.evidence
    assert of(advice.failed_attempts, seen) is None


def test_what_saves_most_comes_first() -> None:
    """Ranked by seconds; what saves next to nothing is left out."""
    seen = run(held={"write": 9.0}, gap=4.0, slow=1.5)
    found = [each.seconds for each in advise(seen)]
    assert len(found) >= 3
    assert found == sorted(found, reverse=True)
    assert found[-1] > 0.02 * run_table.of(seen).seconds


def test_names_from_receipts_break_no_line() -> None:
    """Whatever a node is called, the sentences hold no control character, and have an end."""
    seen = run(slow=2.0)
    evil = {
        n: replace(s, device=replace(s.device, node="n\x1b[2J\n" + "x" * 9999))
        if s.device.uuid == "GPU-3" else s
        for n, s in seen.shards.items()
    }  # fmt: skip
    found = advise(replace(seen, shards=evil))
    assert found
    for each in found:
        text = each.words + each.evidence + str(each.key)
        assert text.isprintable()
        assert len(text) < 3000


AMOUNTS = st.one_of(st.floats(0, 2.0**63, exclude_max=True), st.sampled_from([0.0, 5e-324]))
MOMENTS = st.one_of(st.floats(-(2.0**62), 2.0**62), st.sampled_from([0.0, 5.0, 1e12]))


@given(
    st.lists(
        st.tuples(
            MOMENTS, MOMENTS, st.fixed_dictionaries(dict.fromkeys(PHASES, AMOUNTS)),
            st.integers(0, 3), st.sampled_from([DONE, "failed"]), st.booleans(),
        ),
        max_size=12,
    ),
    st.sampled_from(["products", "sum"]),
)  # fmt: skip
def test_no_observation_is_too_odd(shards: list, keep: str) -> None:
    """Whatever a receipt may say of times, the numbers stay finite."""
    made = plan(shards=max(1, len(shards)), matrices=3, keep=keep)
    seen = {}
    for (began, ended, amounts, number, state, has), shard in zip(
        shards, made.shards.values(), strict=False
    ):
        seen[shard.shard] = Sighting(
            shard.shard, state, 3, number * GB, number, began, ended,
            gpu(number) if number else None, "cupy", True,
            Timing(amounts, amounts, amounts) if has else None,
        )  # fmt: skip
    odd = run_table.of(Observation(made.results, 0.0, made, seen, None))
    found = [said for rule in advice.RULES if len(odd.timed) and (said := rule(odd))]
    assert all(math.isfinite(each.seconds) for each in found)
    assert math.isfinite(odd.seconds)


def test_a_results_folder_is_advised_on(tmp_path: Path) -> None:
    """From receipts on disk to sentences: a slow device, and a disk that limits."""
    made = pretend.run(tmp_path, shards=40, nodes=4, slow_device=True)
    found = advise(Observer(made.root).look(made.at))
    assert any("slowed down by power cap" in each.evidence for each in found)
    assert any("The disk limits" in each.words for each in found)

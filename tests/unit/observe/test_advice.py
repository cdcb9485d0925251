"""Advice: each rule speaks where it has a cause, and is silent beside it."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardwise.files.paths import Results
from shardwise.observe import run_table
from shardwise.observe.advice import Advice, advise
from shardwise.observe.observation import DONE, DeviceOfNode, Observation, Sighting
from shardwise.observe.report import tables
from shardwise.records.receipts import Timing
from shardwise.records.timeline import PHASES, STAGES

GB = 10**9
EVEN = {"waiting": 0.2, "read": 1.5, "upload": 0.3, "compute": 1.5, "download": 0.3, "write": 0.2}
WORK = {"read": GB, "upload": GB, "compute": 10**13, "download": GB, "write": GB // 10}


def observation(shards: list[Sighting]) -> Observation:
    """A run of these shards."""
    seen = {shard.shard: shard for shard in shards}
    return Observation(Results(Path("results")), 1e4, None, seen, None)


def gpu(number: int) -> DeviceOfNode:
    """One of several GPUs on two nodes."""
    return DeviceOfNode("NVIDIA H200", f"GPU-{number}", f"n{number % 2}")


def said(
    held: dict | None = None,
    shards: int = 80,
    gap: float = 0.0,
    process: int | None = None,
    slower: float = 1.0,
    again: int = 0,
    nodes: int = 2,
) -> list[Advice]:
    """What is said of a run in which four devices took shards of 1 GB in turn.

    The last device is so much ``slower``; of the first shards so many were tried ``again``, twice.
    """
    held = EVEN | (held or {})
    took = sum(held.values())
    timing = Timing(held, {stage: held[stage] for stage in STAGES}, WORK)
    found = []
    for number in range(shards):
        began, last = number // 4 * (slower * took + gap), number % 4 == 3
        device = replace(gpu(number % 4), node=f"n{number % nodes}")
        found.append(Sighting(
            f"{number:05}", DONE, 1000, GB, 3 if number < again else 1, began,
            began + took * (slower if last else 1), device, True,
            timing, process=process,
        ))  # fmt: skip
    return advise(run_table.of(observation(found)))


@pytest.mark.parametrize("held", [
    {}, {"compute": 8.0}, {phase: 0.01 for phase in PHASES} | {"read": 1.0},
    dict.fromkeys(PHASES, 0.0),
])  # fmt: skip
@pytest.mark.parametrize("shards", [0, 1, 2, 8])
def test_an_even_or_short_run_has_nothing_to_change(held: dict, shards: int) -> None:
    """Nothing is said, not even that."""
    assert said(held, shards) == []
    assert said() == []


@pytest.mark.parametrize("phase", ["read", "write"])
def test_reads_and_writes_that_hold_the_run_up(phase: str) -> None:
    """Disk-bound: the share of the time, and the rate per node."""
    (advice,) = said({phase: 9.0})
    assert "limits this run" in advice.words
    share, rate = ("81 %", "191 MB/s") if phase == "read" else ("83 %", "172 MB/s")
    assert share in advice.evidence
    assert f"at {rate} per node" in advice.evidence


def test_pauses_between_shards() -> None:
    """A device that starts a process for each shard: keep the process."""
    (advice,) = said(gap=3.0)
    assert "`dispatch: array`" in advice.words
    assert "idle for 3 s" in advice.evidence
    assert "one process ended" in advice.evidence
    assert "queue" in said(gap=300.0)[0].evidence
    assert said(gap=0.5) == []
    # One process on each device from shard to shard already, as in a pool: it does not start anew.
    assert said(gap=3.0, process=4711) == []


def test_a_device_that_is_slower() -> None:
    """It is named with its node, and how much slower it is; nobody leaves out the only node."""
    (advice,) = said(slower=1.9, process=4711)
    assert "n1 · GPU-3 looked at" in advice.words
    assert "1.9 times as long per matrix" in advice.evidence
    assert "leave n1 out" in advice.words
    assert "leave" not in said(slower=1.9, process=4711, nodes=1)[0].words
    assert said(slower=1.1, process=4711) == []


def test_lost_attempts() -> None:
    """Attempts that ended without a result are counted, and their shards named."""
    (advice,) = said(again=4)
    assert "8 attempts" in advice.evidence
    assert "00003" in advice.evidence


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
)  # fmt: skip
def test_no_observation_is_too_odd(shards: list[Any]) -> None:
    """Whatever a receipt may say of times, the numbers stay finite."""
    odd = run_table.of(observation([
        Sighting(
            f"{place:05}", state, 3, number * GB, number, began, ended,
            gpu(number) if number else None, True,
            Timing(amounts, amounts, amounts) if timed else None,
        )
        for place, (began, ended, amounts, number, state, timed) in enumerate(shards)
    ]))  # fmt: skip
    assert math.isfinite(odd.seconds)
    assert tables.devices(odd.seen, odd) is not None or odd.shards.empty
    assert tables.shards(odd) is not None or odd.shards.empty
    for advice in advise(odd):
        assert "nan" not in advice.evidence

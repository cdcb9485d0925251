"""What to change for a faster run next time, derived from what a run has measured.

Pure: an observation in, sentences out, the one that saves most first. Each rule looks for
one cause of lost time and is silent where it does not find it. What would change the meaning of the
result says so. Seconds saved are estimates, of the time in which shards were at work: they rank the
advice, and promise nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from shardwise.observe import figures
from shardwise.observe.figures import Run, clean, percent, rate, size, span
from shardwise.observe.observation import Observation
from shardwise.plan import memory
from shardwise.plan.problem import NEEDS_PRODUCTS, OF_SUMS

WORTH_SHARE = 0.03
"""What saves a smaller part of the run is not said: times of runs differ by as much anyway."""

HOLDS_UP = 0.4
"""From this share of a run's time on, a stage is what holds it up."""

WRITES_SHARE = 0.15
"""Of the time: so much of it must go to products before it is worth to give them up."""

SUM_START_SECONDS = 2.0
"""In which a process on a CPU makes its loops for sums ready; short runs are slower for it."""

WORTH_A_NODE_SECONDS = 10.0
"""Nobody moves to another node to win less."""

GAP_SHARE, FEWEST_GAPS = 0.15, 3
"""Of a device's time between shards, and how often: one pause may have any cause."""

QUEUE_SECONDS = 60.0
"""A longer pause is the queue of a cluster; no start of a process takes so long."""

TAIL_SHARE, ENOUGH_SHARDS = 0.1, 20
"""Of the run at its end with idle devices; shards a device from which on they are level within
some percent (docs/dispatch.md)."""

SLOWER = 1.3
"""Times as long as its peers: equal devices differ by 10 % for the room they stand in."""

WAITING_SHARE = 0.25
"""Of the time, in which no stage of a shard was at work: more than a start of anything takes in
shards of a sensible size."""

THROTTLED_SHARE = 0.1
PLANES_SHARE = 0.1
FASTER = 2.0
"""Times as fast as a CPU, or as full float32: a cautious guess."""

_NARROWER = {"float64": ("float32", 7), "float32": ("float16", 3), "complex128": ("complex64", 7)}
"""By element type: the one of half its bytes, and the decimal digits that are left."""


@dataclass(frozen=True)
class Advice:
    """Something to change, or that there is nothing.

    Attributes
    ----------
    words
        What to change, in a sentence or two.
    evidence
        The measurements that say so.
    key
        The config key, or the line of a profile, with the value to set; None where there is none.
    seconds
        About how much sooner the shards would be done; 0 where nobody can tell.
    """

    words: str
    evidence: str
    key: str | None
    seconds: float = 0.0

    @property
    def about(self) -> str | None:
        """The key without its value: two values of one key contradict each other."""
        name = (self.key or "").partition(":")[0]
        return self.key if name == "profile" else name or None


def advise(seen: Observation) -> list[Advice]:
    """What to change for a faster run next time; one that says so where there is nothing."""
    run = figures.of(seen)
    if run is None:
        return [_too_little(seen)]
    found = [advice for rule in RULES if (advice := rule(run)) is not None]
    worth = [advice for advice in found if advice.seconds >= WORTH_SHARE * run.active]
    best: dict[str | None, Advice] = {}
    for advice in sorted(worth, key=lambda advice: -advice.seconds):
        best.setdefault(advice.about, advice)
    return list(best.values()) or [_nothing(run)]


def _too_little(seen: Observation) -> Advice:
    told = [shard for shard in seen.shards.values() if shard.timeline is not None]
    seconds = sum(figures.amount(held) for s in told for held in s.timeline.held.values())
    return Advice(
        "Too little was measured to advise on.",
        f"Shards that say where their time went: {len(told)}, with {span(seconds)} in all; it "
        f"takes {figures.FEWEST_SHARDS} of them, and {figures.FEWEST_SECONDS:.0f} s, before a "
        "figure is more than chance.",
        None,
    )


def _nothing(run: Run) -> Advice:
    """The advice where no rule speaks: the phase that took most of the time."""
    phase = max(run.shares, key=lambda phase: run.shares[phase])
    evidence = f"{percent(run.shares[phase])} of the time went to {phase}"
    return Advice("Nothing to change was found.", f"{evidence}; no rule has a better setting.",
                  None)  # fmt: skip


# The disk.


def keep_sum(run: Run) -> Advice | None:
    """Products are written although only their sum may be wanted."""
    if run.plan.settings.keep != "products" or _needs_products(run):
        return None
    written = run.work["write"]
    instead = len(run.plan.shards) * memory.partial_bytes(run.plan.problem)
    spared = 1 - instead / written if written else 0.0
    out = run.held["write"] + run.held["download"]
    if spared <= 0.5 or out + run.held["read"] <= 0:
        return None
    moved = written + run.work["read"]
    # Reads go on behind the writes, and would show without them.
    saved = min((out + run.held["read"]) * written / moved, out)
    if saved < WRITES_SHARE * run.total:
        return None
    sooner = run.wall(saved * spared) - (0.0 if run.on_gpu else SUM_START_SECONDS)
    evidence = (
        f"Writing held the shards up for {percent(out / run.total)} of their time, for "
        f"{size(written)} of products; the sums of all shards would be {size(instead)}"
    )
    words = (
        f"`keep: sum` would leave {percent(spared * written / moved)} of the bytes unmoved. The "
        "products themselves are then not kept, only their sum."
    )
    if run.seen.summary is None:  # which statistics it makes, only the reduce says
        words += f" Of statistics it leaves {' and '.join(OF_SUMS)} alone."
    return Advice(words, f"{evidence}.", "keep: sum", sooner)


def _needs_products(run: Run) -> bool:
    """Whether a statistic was made that the sums of shards do not give."""
    files = run.seen.summary.files if run.seen.summary else {}
    return any(name in files for name in NEEDS_PRODUCTS)


def read_in_place(run: Run) -> Advice | None:
    """Each shard is copied before it is read."""
    if run.plan.settings.materialize is not True:
        return None
    problem = run.plan.problem
    nbytes = problem.matrices * problem.matrix_bytes
    read = run.stage_rate("read")
    write = run.stage_rate("write") or read
    if not read or not write:
        return None
    copying = nbytes * (1 / read + 1 / write) / max(1, len(run.nodes))
    words = (
        "`materialize: false` reads the input in place, with the same result. The input has to "
        "stay where it is, and as it is, until the run has ended."
    )
    evidence = (
        f"The shards were copied first: {size(nbytes)} read at {rate(read)} and written at "
        f"{rate(write)} are about {span(copying)}; tasks were at work on shards for "
        f"{span(run.active)}."
    )
    return Advice(words, evidence, "materialize: false", copying)


def disk_bound(run: Run) -> Advice | None:
    """Reading the input holds the run up."""
    share, speed = run.shares["read"], run.node_rate("read")
    if share < HOLDS_UP or not speed:
        return None
    words = (
        "If the disk can do more than that (`python benchmarks/raw.py` measures it), give each "
        "task more CPU cores and memory (`cpus_per_task` and `mem_mb` under `multiply` in the "
        "profile). If it cannot, a faster disk helps, or more nodes with disks of their own."
    )
    if half := _half_the_bytes(run):
        words += f" Or half the bytes: {half}"
    evidence = (
        f"Disk-bound: reading held the shards up for {percent(share)} of their time, at "
        f"{rate(speed)} per node."
    )
    key = "profile: cpus_per_task, mem_mb"
    return Advice(words, evidence, key, run.wall(run.held["read"] / 2))


def narrower_input(run: Run) -> Advice | None:
    """Uploads hold the run up, and half of the bytes would do."""
    share, half = run.shares["upload"], _half_the_bytes(run)
    if share < HOLDS_UP or not half:
        return None
    evidence = f"Upload-bound: uploading held the shards up for {percent(share)} of their time."
    key = f"input: {_NARROWER[run.plan.dtype][0]}"
    return Advice(f"Use {half}", evidence, key, run.wall(run.held["upload"] / 2))


def _half_the_bytes(run: Run) -> str:
    """The end of a sentence about an input of a narrower type; empty where there is none."""
    if run.plan.dtype not in _NARROWER:
        return ""
    dtype, digits = _NARROWER[run.plan.dtype]
    return (
        f"an input of {dtype}. This changes the result: about {digits} digits of each element are "
        "left."
    )


def fewer_shards(run: Run) -> Advice | None:
    """The sums that shards write are large beside what they read."""
    problem, count = run.plan.problem, len(run.plan.shards)
    out = run.held["write"] + run.held["download"]
    if run.plan.settings.keep != "sum" or out < PLANES_SHARE * run.total:
        return None
    planes = memory.partial_bytes(problem)
    least = max(1, 4 * len(run.devices))
    # So that the sums of all shards are a twentieth of the input, as the other stages hide that.
    wanted = int(0.05 * problem.matrices * problem.matrix_bytes / planes)
    wanted = max(least, wanted)
    if wanted > 0.75 * count:
        return None
    words = f"`shards: {wanted}`, instead of {count}: each shard writes a sum, whatever its size."
    if run.plan.settings.reproducible is True:
        words += (
            " Or `reproducible: false`, whose sums are smaller; then the last bits of the result "
            "depend on the cut."
        )
    evidence = (
        f"Writing the sums held the shards up for {percent(out / run.total)} of their time: "
        f"{size(planes)} a shard, {size(count * planes)} in all, beside "
        f"{size(problem.matrices * problem.matrix_bytes)} of input."
    )
    return Advice(words, evidence, f"shards: {wanted}", run.wall(out * (1 - wanted / count)))


# The devices.


def keep_process(run: Run) -> Advice | None:
    """Devices do nothing between shards."""
    gaps = [gap for device in run.devices for gap in device.gaps]
    # A run that was continued on another day has left one pause a device.
    if len(gaps) < max(FEWEST_GAPS, 2 * len(run.devices)):
        return None
    usual = median(gaps)
    lost = usual * len(gaps) / len(run.devices)
    busy = sum(device.busy for device in run.devices) / len(run.devices)
    if lost < GAP_SHARE * (lost + busy):
        return None
    per = "a CPU" if run.devices[0].uuid is None else "a GPU"
    cause = (
        "waiting in the queue" if usual > QUEUE_SECONDS else "to end a process and start the next"
    )
    words = (
        "`dispatch: pool` (one node) or `dispatch: mpi` (several) keeps one process on each device "
        "from shard to shard; `dispatch: array`, or fewer and larger shards, lose less as well."
    )
    evidence = (
        f"Between two shards {per} did nothing for {span(usual)} (median of {len(gaps)} pauses), "
        f"{percent(lost / (lost + busy))} of its time: {cause}."
    )
    return Advice(words, evidence, "dispatch: pool", lost)


def longer_shards(run: Run) -> Advice | None:
    """Shards wait for what each of them needs once: memory, files, compiled kernels."""
    count, share = len(run.plan.shards), run.shares["waiting"]
    wanted = max(1, ENOUGH_SHARDS * len(run.devices))
    if share < WAITING_SHARE or count < 2 * wanted:
        return None
    words = f"`shards: {wanted}`, instead of {count}: they pay their fixed costs less often."
    evidence = (
        f"Shards waited for {percent(share)} of their time, "
        f"{span(run.held['waiting'] / len(run.shards))} each, while no stage was at work."
    )
    lost = run.held["waiting"] * (1 - wanted / count)
    return Advice(words, evidence, f"shards: {wanted}", run.wall(lost))


def level(run: Run) -> Advice | None:
    """Devices are idle at the end while others finish the last shards."""
    count, devices = len(run.plan.shards), len(run.devices)
    if devices < 2 or count >= ENOUGH_SHARDS * devices:
        return None
    longest = max(shard.seconds or 0.0 for shard in run.shards)
    end = max(device.end for device in run.devices)
    # Who stopped earlier than one shard before the end had another reason, such as a rerun.
    idle = sum(min(end - device.end, longest) for device in run.devices) / devices
    wanted = min(ENOUGH_SHARDS * devices, run.plan.problem.matrices)
    if idle < TAIL_SHARE * run.active or wanted <= count or _too_many_planes(run, wanted):
        return None
    words = f"`shards: {wanted}`: with about {ENOUGH_SHARDS} a device they end together."
    evidence = (
        f"At the end devices waited {span(idle)} on average for the last shards, "
        f"{percent(idle / run.active)} of the run: {count} shards on {devices} devices, up to "
        f"{span(longest)} each."
    )
    return Advice(words, evidence, f"shards: {wanted}", idle * (1 - count / wanted))


def _too_many_planes(run: Run, shards: int) -> bool:
    """Whether so many shards would write more sums than :func:`fewer_shards` lets pass."""
    problem = run.plan.problem
    planes = shards * memory.partial_bytes(problem)
    total = problem.matrices * problem.matrix_bytes
    return run.plan.settings.keep == "sum" and planes > 2 * PLANES_SHARE * total


def slow_device(run: Run) -> Advice | None:
    """A device takes longer than the others of its kind."""
    found = [(times, device) for device in run.devices if (times := run.slower(device))]
    times, device = max(found, key=lambda pair: pair[0], default=(0.0, None))
    if device is None or times < SLOWER:
        return None
    node, name = clean(device.node), clean(device.uuid or "the CPU")
    phase, held, usual = run.where_slower(device)
    evidence = (
        f"{name} of {node} took {times:.1f} times as long for its bytes as the other "
        f"{len(run.peers(device))} of its kind; most of it in {phase}: {span(held)} a GB, where "
        f"the others took {span(usual)}."
    )
    reason, share = device.throttled()
    if share >= THROTTLED_SHARE:
        evidence += f" It was throttled ({clean(reason)}) for {percent(share)} of the time."
    others = sum(1 for slower, _ in found if slower >= SLOWER) - 1
    evidence += f" {others} more are slow." if others else ""
    lost = device.busy * (1 - 1 / times) / len(run.devices)
    if len(run.nodes) == 1:
        return Advice(f"Have {name} looked at: {_look_at(phase, share)}", evidence, None, lost)
    words = (
        f"Leave {node} out (`slurm_extra: \"--exclude={node}\"` under `multiply` in the profile), "
        "or have it looked at: " + _look_at(phase, share)
    )  # fmt: skip
    return Advice(words, evidence, f"profile: --exclude={node}", lost)


def _look_at(phase: str, throttled: float) -> str:
    if throttled >= THROTTLED_SHARE:
        return "power limit and cooling."
    places = {"read": "its disk, or its way to it.", "write": "its disk, or its way to it.",
              "upload": "the link of its GPU (PCIe).", "download": "the link of its GPU (PCIe).",
              "compute": "who else computes there, clocks and cooling."}  # fmt: skip
    return places.get(phase, "who else computes there.")


def retries(run: Run) -> Advice | None:
    """Attempts were lost."""
    extra = sum(max(0, shard.attempts - 1) for shard in run.shards)
    if not extra:
        return None
    some = [shard.shard for shard in run.shards if shard.attempts > 1]
    lost = extra * run.total / len(run.shards) / 2  # on average they fail half-way
    words = (
        "Find out why attempts ended, in the logs of those shards: out of memory asks for more "
        "`mem_mb`, out of time for more `runtime`, a device that fails for another node."
    )
    named = ", ".join(map(clean, some[:5])) + (" …" if len(some) > 5 else "")
    evidence = f"{extra} attempts more were begun than shards were done: {named}."
    return Advice(words, evidence, "profile: mem_mb, runtime", run.wall(lost))


# The products.


def tf32(run: Run) -> Advice | None:
    """Products in full float32 hold the run up, and the GPU has a faster arithmetic."""
    plan, share = run.plan, run.shares["compute"]
    asked = run.plan.settings.precision == "ieee" and plan.dtype in ("float32", "complex64")
    if share < HOLDS_UP or not asked or plan.problem.result or not run.on_gpu:
        return None
    words = (
        "`precision: tf32` would multiply several times as fast. This changes the result: about 3 "
        "digits of each product are right, instead of 7."
    )
    evidence = f"Compute-bound: products held the shards up for {percent(share)} of their time."
    saved = run.held["compute"] * (1 - 1 / FASTER)
    return Advice(words, evidence, "precision: tf32", run.wall(saved))


def use_gpu(run: Run) -> Advice | None:
    """A CPU multiplies, and that holds the run up."""
    share = run.shares["compute"]
    sooner = run.wall(run.held["compute"] * (1 - 1 / FASTER))
    if run.on_gpu or share < HOLDS_UP or sooner < WORTH_A_NODE_SECONDS:
        return None
    speed = run.stage_rate("compute")
    done = f", at {speed / 1e9:.3g} GFLOP/s" if speed else ""
    words = (
        "`backend: cupy` on a node with a GPU, if the function can compute there."
        if run.plan.problem.result else
        "`backend: cupy` on a node with a GPU, which multiplies many times as fast. Products are "
        "the same within rounding; a run has to stay on one kind of device to its end."
    )  # fmt: skip
    evidence = f"Compute-bound on a CPU for {percent(share)} of the time{done}."
    return Advice(words, evidence, "backend: cupy", sooner)


RULES: Sequence[Callable[[Run], Advice | None]] = (
    keep_sum, read_in_place, disk_bound, narrower_input, fewer_shards, keep_process,
    longer_shards, level, slow_device, retries, tf32, use_gpu,
)  # fmt: skip
"""All that is looked for."""

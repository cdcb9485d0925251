"""A product: read a slab, multiply, prove, write; on NumPy or cupy through one code path.

The only importer of cupy. Every matrix is multiplied by a call of its own, so a product's bits
depend on its factors alone, never on how many matrices come with it.
"""

import logging
import os
import shlex
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from shardwise import plan as counts
from shardwise import proof, receipts
from shardwise.arrays import StackWriter, commit, hasher, raw_bytes
from shardwise.devices import driver_cuda_version, facts, granted
from shardwise.errors import InputError, IntegrityError, TryAgain
from shardwise.plan import Problem, Shard, Source
from shardwise.planfile import Plan, load_sources
from shardwise.shard import materialize
from shardwise.sources import StackReader
from shardwise.sums import RunningSum

log = logging.getLogger(__name__)

_INT64_MAX = 2**63 - 1


def run_shard(plan: Plan, shard_id: str) -> None:
    """Compute the products of one shard, or their sum, and commit them with a receipt.

    Raises
    ------
    InputError
        NaN or Inf under ``nonfinite: error``, overflow, or a config that does not fit the machine.
    IntegrityError
        An input that is not the planned one, or a product that fails its proof.
    TryAgain
        The device is busy, lost, or out of memory.
    """
    started = time.time()
    shard = plan.shard(shard_id)
    attempt = receipts.note_start(plan.results.starts(shard_id))
    xp, device = load_backend(plan.settings["backend"])
    try:
        with np.errstate(all="ignore"):  # overflow is found and named by the checks below
            body = _compute(plan, shard, xp)
    except _device_errors(xp) as error:
        raise TryAgain(f"device {device.get('uuid', '?')}: {error}") from error
    versions = {"numpy": np.__version__} | ({"cupy": xp.__version__} if xp is not np else {})
    receipts.write(
        plan.results.receipt(shard_id),
        {
            "shard": shard_id,
            "start": shard.start,
            "stop": shard.stop,
            "fingerprint": shard.fingerprint,
            "backend": xp.__name__,
            "device": device,
            "attempt": attempt,
            **body,
            **receipts.provenance("multiply", started, versions),
        },
    )


def load_backend(requested: str) -> tuple[Any, dict[str, Any]]:
    """The array module to compute with, and facts about its device.

    Parameters
    ----------
    requested
        ``auto``, ``cupy`` or ``numpy``.
    """
    driver = driver_cuda_version()
    if requested == "auto" and driver is None:
        log.warning("no NVIDIA driver here: computing with NumPy (backend: auto)")
    if requested == "numpy" or (requested == "auto" and driver is None):
        return np, {"name": "CPU", "granted": granted()}
    if driver is None:
        raise InputError(
            "backend: cupy needs an NVIDIA driver, but libcuda.so.1 was not found here; "
            "run on a GPU node, or set backend: numpy"
        )
    # Both switches would turn float32 into tf32 behind our back.
    os.environ.update(CUPY_TF32="0", NVIDIA_TF32_OVERRIDE="0", CUDA_DEVICE_ORDER="PCI_BUS_ID")
    try:
        import cupy
    except ImportError as error:
        raise InputError(
            f"there is an NVIDIA driver (CUDA {driver // 1000}) but cupy cannot be imported "
            f"({error}); install it with: make run CUDA={driver // 1000}, or set backend: numpy"
        ) from error
    try:
        cupy.cuda.Device(0).use()
        cupy.zeros(1)
        return cupy, facts(cupy)
    except _device_errors(cupy) as error:
        raise TryAgain(
            f"there is an NVIDIA driver but no usable device: {error} "
            f"(CUDA_VISIBLE_DEVICES={granted()!r})"
        ) from error


def _device_errors(xp: Any) -> tuple[type[BaseException], ...]:
    if xp is np:
        return ()
    return (
        xp.cuda.memory.OutOfMemoryError,
        xp.cuda.runtime.CUDARuntimeError,
        xp.cuda.driver.CUDADriverError,
    )


def _compute(plan: Plan, shard: Shard, xp: Any) -> dict[str, Any]:
    """Stream the slabs of a shard through the device; the receipt's account of it."""
    problem, keep = plan.problem, plan.settings["keep"]
    stored = counts.product_dtype(problem.dtype)
    shape = problem.product_shape
    if keep == "sum":
        stored = counts.sum_dtype(problem.dtype)
    else:
        shape = (shard.stop - shard.start, *shape)
    product_file = plan.results.product(shard.shard)
    checksum_of_input = _expected_checksum(plan, shard)
    seed = int.from_bytes(os.urandom(6)) if plan.settings["verify"] else None
    digest = hasher()
    total = RunningSum(problem.product_shape, counts.sum_dtype(problem.dtype))
    with commit(product_file, sweep=True) as file:
        writer = StackWriter(file, shape, np.dtype(stored))
        for block in _products(plan, shard, xp, seed, digest):
            if keep == "sum":
                total.add(block)
            else:
                writer.append(block)
        if keep == "sum":
            writer.append(_finite_total(total.total(), plan.settings["nonfinite"], shard))
        checksum, _ = writer.checksums()
        if checksum_of_input not in (None, digest.hexdigest()):
            raise IntegrityError(
                f"{plan.results.shard(shard.shard)}: is damaged: its checksum differs from its "
                f"receipt; rm {shlex.quote(str(plan.results.shard_receipt(shard.shard)))}, then "
                "snakemake as before"
            )
    return {
        "file": receipts.file_facts(product_file, shape, stored, checksum),
        "input_checksum": digest.hexdigest(),
        "proof": _proof_facts(seed),
    }


def _proof_facts(seed: int | None) -> dict[str, Any] | None:
    return None if seed is None else {"method": "freivalds", "vectors": proof.VECTORS, "seed": seed}


def _finite_total(total: np.ndarray, nonfinite: str, shard: Shard) -> np.ndarray:
    if nonfinite == "error" and not np.isfinite(total).all():
        raise InputError(f"the sum of shard {shard.shard} overflows {total.dtype}")
    return total


def _expected_checksum(plan: Plan, shard: Shard) -> str | None:
    """What the materialized shard's receipt says of its elements; None where nothing was copied."""
    if not plan.settings["materialize"]:
        return None
    path = plan.results.shard_receipt(shard.shard)
    if not path.exists():  # no receipt, no shard: the copy is made again
        log.warning("%s is missing: copying the matrices of the shard again", path)
        materialize(plan, shard.shard)
    receipt = receipts.read(path)
    said = tuple(receipt.get(key) for key in ("shard", "start", "stop", "matrices"))
    if said != (shard.shard, shard.start, shard.stop, shard.matrices):
        raise IntegrityError(
            f"{path}: belongs to another plan; rm {shlex.quote(str(path))}, then snakemake "
            "as before"
        )
    return str(receipt.get("data_checksum"))


def _products(
    plan: Plan, shard: Shard, xp: Any, seed: int | None, digest: Any
) -> Iterator[np.ndarray]:
    """The products of a shard, a slab at a time, proven, in host memory."""
    problem = plan.problem
    left, right = _readers(plan, shard)
    shared = _to_device(xp, right.read(0, 1)[0]) if right and problem.shared_right else None
    slab = counts.slab_matrices(problem)
    checker = None if seed is None else _checker(xp, problem, seed)
    for low in range(shard.start, shard.stop, slab):
        high = min(low + slab, shard.stop)
        host = left.read(low, high)
        digest.update(raw_bytes(host.astype(host.dtype.newbyteorder("<"), copy=False)))
        block = _to_device(xp, host)
        other = shared
        if right is not None and shared is None:
            other = _to_device(xp, right.read(low, high))
        block, other = _checked_factors(xp, problem, block, other, low, plan.settings["nonfinite"])
        yield _proven(xp, problem, block, other, low, checker, plan.settings["nonfinite"])
        log.info(
            "shard %s: %d of %d matrices", shard.shard, high - shard.start, shard.stop - shard.start
        )


def _readers(plan: Plan, shard: Shard) -> tuple[StackReader, StackReader | None]:
    problem = plan.problem
    if plan.settings["materialize"]:
        own = Source(
            str(plan.results.shard(shard.shard)), shard.start, shard.stop - shard.start, ""
        )
        sources = [own]
    else:
        sources = load_sources(plan)
    left = StackReader(sources, problem.left, plan.dtype)  # type: ignore[arg-type]
    if problem.right is None:
        return left, None
    facts_of_right = [Source(**s) for s in plan.facts["right_sources"]]
    return left, StackReader(facts_of_right, problem.right, plan.dtype)  # type: ignore[arg-type]


def _to_device(xp: Any, block: np.ndarray) -> Any:
    return xp.asarray(block)


def _to_host(xp: Any, block: Any) -> np.ndarray:
    return block if xp is np else xp.asnumpy(block)


def _checked_factors(
    xp: Any, problem: Problem, left: Any, right: Any, first: int, nonfinite: str
) -> tuple[Any, Any]:
    """Refuse NaN and Inf, and integers whose products could overflow; integers become int64."""
    if left.dtype.kind in "iu":
        return _checked_integers(xp, problem, left, right, first)
    if nonfinite == "error":
        for name, block in (("input", left), ("right", right)):
            bad = None if block is None else _first_nonfinite(xp, block)
            if bad is not None:
                where = f"matrix {first + bad}" if block.ndim == 3 else "the matrix"
                raise InputError(
                    f"{name}: {where} holds NaN or Inf; correct it, or set nonfinite: allow"
                )
    return left, right


def _first_nonfinite(xp: Any, block: Any) -> int | None:
    finite = xp.isfinite(block).reshape(block.shape[0] if block.ndim == 3 else 1, -1).all(axis=1)
    return None if bool(finite.all()) else int(xp.argmin(finite))


def _checked_integers(
    xp: Any, problem: Problem, left: Any, right: Any, first: int
) -> tuple[Any, Any]:
    inner = problem.factor_shapes[0][1]
    sizes = [_largest(xp, block) for block in (left, right) if block is not None]
    for i, own in enumerate(sizes[0]):
        other = sizes[-1][i if len(sizes[-1]) > 1 else 0]
        if max(own, other) > _INT64_MAX or inner * own * other > _INT64_MAX:
            raise InputError(
                f"the product of matrix {first + i} may not fit int64 (its largest element is "
                f"{max(own, other)}); save the input as float64"
            )
    return left.astype(xp.int64), None if right is None else right.astype(xp.int64)


def _largest(xp: Any, block: Any) -> list[int]:
    """The largest modulus of each matrix, as Python integers, which do not overflow."""
    flat = block.reshape(block.shape[0] if block.ndim == 3 else 1, -1)
    tops, bottoms = _to_host(xp, flat.max(axis=1)), _to_host(xp, flat.min(axis=1))
    return [max(int(t), -int(b)) for t, b in zip(tops, bottoms, strict=True)]


def _proven(
    xp: Any,
    problem: Problem,
    block: Any,
    other: Any,
    first: int,
    checker: proof.Checker | None,
    nonfinite: str,
) -> np.ndarray:
    """Products of one slab, checked, in host memory."""
    left, right = factors(problem.product, block, other)
    product, _ = multiply(xp, left, right)
    finite = None
    if product.dtype.kind != "i":
        finite = xp.isfinite(product).all(axis=(1, 2))
        if nonfinite == "error" and not bool(finite.all()):
            bad = first + int(xp.argmin(finite))
            raise InputError(
                f"the product of matrix {bad} overflows {product.dtype.name}, although its factors "
                "are finite; save the input as float64 (or scale it), or set nonfinite: allow"
            )
    if checker is not None:
        _prove(xp, checker.check(block, other, product), finite, first)
    return _to_host(xp, product)


def factors(product: str, block: Any, other: Any) -> tuple[Any, Any]:
    """The two factors of a product, as stacks; transposes are views."""
    transposed = block.transpose(0, 2, 1)
    return {
        "A @ A": (block, block),
        "A.T @ A": (transposed, block),
        "A @ A.T": (block, transposed),
        "A @ B": (block, other),
    }[product]


def multiply(xp: Any, left: Any, right: Any) -> tuple[Any, str]:
    """Stack of products, and the dtype in which they were accumulated.

    Parameters
    ----------
    left, right
        Stacks ``(n, m, k)`` and ``(n, k, p)``, or ``(k, p)`` for all.
    """
    stored = left.dtype
    # float16 is accumulated in float32 and rounded once.
    compute = np.dtype("float32") if stored == np.float16 else stored
    product = xp.empty((left.shape[0], left.shape[1], right.shape[-1]), stored)
    for i in range(left.shape[0]):
        a, b = left[i], right[i] if right.ndim == 3 else right
        if compute == stored:
            xp.matmul(a, b, out=product[i])
        else:
            product[i] = xp.matmul(a.astype(compute), b.astype(compute))
    return product, compute.name


def _checker(xp: Any, problem: Problem, seed: int) -> proof.Checker:
    """Freivalds' check of the products of a problem."""
    stored = counts.product_dtype(problem.dtype)
    compute = "float32" if stored == "float16" else stored
    group = counts.check_matrices(problem)
    return proof.Checker(
        xp, problem.product, problem.left, problem.right, stored, compute, seed, group
    )


def _prove(xp: Any, ratio: Any, finite: Any, first: int) -> None:
    """Refuse a slab with a product that is further off than rounding explains."""
    wrong = ~(ratio <= 1.0)
    if finite is not None:
        wrong &= finite  # nothing can be proven of NaN and Inf, which were allowed
    if bool(wrong.any()):
        i = int(xp.argmax(wrong))
        raise IntegrityError(
            f"the product of matrix {first + i} is wrong: Freivalds' check is off by "
            f"{float(ratio[i]):.3g} times its tolerance; suspect the device and try another"
        )

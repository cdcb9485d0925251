"""Train a softmax regression on handwritten digits, data-parallel over MPI ranks.

It starts its ranks itself: python examples/data_parallel/train.py --ranks 4
"""

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from shardwise import cli
from shardwise.errors import InputError, IntegrityError
from shardwise.files.commit import commit
from shardwise.files.npy import StackWriter
from shardwise.multiply.backend import array_module
from shardwise.processes import launch
from shardwise.reduce.collectives import average, broadcast, shard_indices, total

CLASSES = 10
HELD_OUT = 6
"""Every sixth digit is kept from training."""


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Pixels ``(1797, 64)`` between 0 and 1, and labels ``(1797,)``."""
    try:
        from sklearn.datasets import load_digits  # noqa: PLC0415 - an extra, which may be missing
    except ImportError as error:
        raise InputError(f"{error}; make data-parallel installs it") from error
    found = load_digits()
    return found.data / 16, found.target


def sums(xp: Any, parameters: list[Any], pixels: Any, labels: Any) -> list[Any]:
    """Gradients and loss, summed over the samples: those of weights and bias, and a number.

    Parameters
    ----------
    parameters
        Weights ``(64, 10)`` and bias ``(10,)``.
    pixels, labels
        Samples ``(n, 64)`` and their classes ``(n,)``; n may be 0.
    """
    scores = pixels @ parameters[0] + parameters[1]
    scores -= scores.max(axis=1, keepdims=True)  # so that nothing overflows
    log_sums = xp.log(xp.exp(scores).sum(axis=1))
    rows = xp.arange(len(labels))
    loss = (log_sums - scores[rows, labels]).sum()
    errors = xp.exp(scores - log_sums[:, xp.newaxis])
    errors[rows, labels] -= 1
    return [pixels.T @ errors, errors.sum(axis=0), loss]


def batches(samples: int, batch: int, rank: int, ranks: int, order: tuple) -> Iterator[tuple]:
    """A rank's samples of each batch of an epoch, and how many all ranks have.

    A batch holds the same samples for any number of ranks.

    Parameters
    ----------
    batch
        Samples of a batch, over all ranks.
    order
        Seed and number of the epoch.
    """
    own = shard_indices(samples, rank, ranks, *order)
    for low in range(0, samples, batch):
        high = min(low + batch, samples)
        first, last = (-(-(edge - rank) // ranks) for edge in (low, high))
        yield own[first:last], high - low


def train(comm: Any, xp: Any, options: Namespace) -> tuple[list[Any], list[tuple[float, float]]]:
    """The parameters, and the mean loss and the accuracy on held-out digits after each epoch."""
    pixels, labels = digits()
    held = np.arange(len(labels)) % HELD_OUT == 0
    seen, seen_labels = xp.asarray(pixels[~held]), xp.asarray(labels[~held])
    held_own = np.flatnonzero(held)[comm.rank :: comm.size]
    unseen, unseen_labels = xp.asarray(pixels[held_own]), xp.asarray(labels[held_own])
    # Each rank draws its own: they count as little as those of an untrained model can.
    random = np.random.default_rng([options.seed, comm.rank])
    weights = 0.01 * random.standard_normal((pixels.shape[1], CLASSES))
    parameters = [xp.asarray(weights), xp.zeros(CLASSES)]
    broadcast(comm, parameters)
    curve = []
    for epoch in range(options.epochs):
        loss, order = 0.0, (options.seed, epoch)
        for own, count in batches(len(seen), options.batch, comm.rank, comm.size, order):
            found = sums(xp, parameters, seen[own], seen_labels[own])
            *gradients, batch_loss = average(comm, found, count=len(own))
            for i, gradient in enumerate(gradients):
                parameters[i] -= options.rate * gradient
            loss += float(batch_loss) * count
        right = (unseen @ parameters[0] + parameters[1]).argmax(axis=1) == unseen_labels
        accuracy = int(total(comm, right.sum())) / int(held.sum())
        curve.append((loss / len(seen), accuracy))
        if comm.rank == 0:
            cli.log.info("epoch %d: loss %.6f, %.1f %% right", epoch, curve[-1][0], 100 * accuracy)
    return parameters, curve


def check_same(comm: Any, array: np.ndarray) -> None:
    """Compare an array of all ranks, bit by bit.

    Raises
    ------
    IntegrityError
        On every rank, where one has others.
    """
    own = np.frombuffer(xxhash.xxh3_128_digest(array), np.uint8)
    ranks = np.empty((comm.size, own.size), np.uint8)
    comm.Allgather(own, ranks)
    if (ranks != ranks[0]).any():
        raise IntegrityError("the ranks hold different parameters after training")


def write(folder: Path, parameters: np.ndarray, curve: list[tuple[float, float]]) -> None:
    """Commit ``parameters.npy`` and ``loss.tsv``."""
    with commit(folder / "parameters.npy") as file:
        StackWriter(file, parameters.shape, parameters.dtype).append(parameters)
    lines = [f"{epoch}\t{loss!r}\t{right!r}\n" for epoch, (loss, right) in enumerate(curve)]
    with commit(folder / "loss.tsv") as file:
        file.write("".join(["epoch\tloss\taccuracy\n", *lines]).encode())


def device(comm: Any, a_node: int, backend: str) -> Any:
    """The array module; the ranks of a node (so split by MPI) share its GPUs out."""
    xp = array_module(backend)
    if xp is not np:
        local = comm.Split_type(a_node)
        xp.cuda.Device(local.rank % xp.cuda.runtime.getDeviceCount()).use()
    return xp


def main(options: Namespace) -> None:
    """Train, compare the ranks, and write the results."""
    from mpi4py import MPI  # noqa: PLC0415 - only here: whoever imports it is a rank

    comm = launch.get_world(
        options.ranks, "train", "name a launcher that fits the MPI of mpi4py with --launcher"
    )
    xp = device(comm, MPI.COMM_TYPE_SHARED, options.backend)
    parameters, curve = train(comm, xp, options)
    weights, bias = parameters if xp is np else map(xp.asnumpy, parameters)
    both = np.vstack([weights, bias])
    check_same(comm, both)
    if comm.rank == 0:
        write(options.results, both, curve)
        cli.log.info("%s: loss.tsv and parameters.npy", options.results)


if __name__ == "__main__":
    arguments = cli.parser(__doc__)
    cli.add_ranks(arguments)
    arguments.add_argument(
        "--backend", choices=["auto", "cupy", "numpy"], default="auto", help="arrays"
    )
    arguments.add_argument("--epochs", type=cli.positive, default=20, help="times through all")
    arguments.add_argument("--batch", type=cli.positive, default=100, help="digits a step")
    arguments.add_argument("--rate", type=float, default=0.5, help="learning rate")
    arguments.add_argument("--seed", type=int, default=0, help="of parameters and order")
    arguments.add_argument(
        "--results", type=Path, default=Path("results/data_parallel"), help="output folder"
    )
    cli.run(main, arguments, mpi=launch.start_ranks)

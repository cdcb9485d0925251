"""Train a softmax regression on handwritten digits, data-parallel over MPI ranks.

It starts its ranks itself: python examples/data_parallel/train.py --ranks 4
Under a launcher of your own: srun -n 4 python -m mpi4py examples/data_parallel/train.py
"""

import logging
import os
import shutil
import sys
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from collectives import average, broadcast, odd_ranks, shard_indices

log = logging.getLogger(__name__)

CLASSES = 10
HELD_OUT = 6
"""Every sixth digit is left out of training, to test the model on it."""


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Pixels ``(1797, 64)`` between 0 and 1, and labels ``(1797,)``."""
    try:
        from sklearn.datasets import load_digits  # noqa: PLC0415 - an extra, which may be missing
    except ImportError as error:
        raise SystemExit(f"{error}; make data-parallel installs it") from error
    found = load_digits()
    return found.data / 16, found.target


def sums(xp: Any, parameters: list[Any], pixels: Any, labels: Any) -> list[Any]:
    """The gradients of weights and bias, and the loss, each summed over the samples.

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
    """For each batch of an epoch: this rank's samples, and the number of samples of all ranks.

    A batch holds the same samples for any number of ranks.

    Parameters
    ----------
    batch
        Number of samples in a batch, over all ranks.
    order
        The seed, and the number of the epoch.
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
    # Each rank draws small weights of its own; `broadcast` replaces them by those of rank 0.
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
        (accuracy,) = average(comm, [right.sum(dtype="float64")], count=len(right))
        curve.append((loss / len(seen), float(accuracy)))
        if comm.rank == 0:
            log.info("epoch %d: loss %.6f, %.1f %% right", epoch, curve[-1][0], 100 * curve[-1][1])
    return parameters, curve


def write(folder: Path, parameters: np.ndarray, curve: list[tuple[float, float]]) -> None:
    """Write ``parameters.npy`` and ``loss.tsv``."""
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "parameters.npy", parameters)
    lines = [f"{epoch}\t{loss!r}\t{right!r}\n" for epoch, (loss, right) in enumerate(curve)]
    (folder / "loss.tsv").write_text("".join(["epoch\tloss\taccuracy\n", *lines]))


def device(comm: Any, backend: str) -> Any:
    """The array module. With cupy, the ranks of a node take its GPUs in turn."""
    if backend == "numpy":
        return np
    import cupy  # noqa: PLC0415 - only some machines have it
    from mpi4py import MPI  # noqa: PLC0415 - as in main

    local = comm.Split_type(MPI.COMM_TYPE_SHARED)
    cupy.cuda.Device(local.rank % cupy.cuda.runtime.getDeviceCount()).use()
    return cupy


def start(ranks: int) -> None:
    """Replace this process by this command, run again on this number of ranks."""
    near = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    mpiexec = shutil.which("mpiexec", path=near)
    if mpiexec is None:
        raise SystemExit(
            "train: no mpiexec on PATH; leave --ranks out, and start the ranks by a launcher of "
            f"your own: srun -n {ranks} python -m mpi4py {sys.argv[0]}"
        )
    # mpi4py's runner ends all ranks if one ends with an error.
    rank = [sys.executable, "-m", "mpi4py", *sys.argv, "--ranks", "0"]
    os.execv(mpiexec, [mpiexec, "-n", str(ranks), *rank])


def main(options: Namespace) -> None:
    """Train, compare the ranks, and write the results."""
    from mpi4py import MPI  # noqa: PLC0415 - only here: a process that imports it is a rank

    comm = MPI.COMM_WORLD
    xp = device(comm, options.backend)
    parameters, curve = train(comm, xp, options)
    weights, bias = parameters if xp is np else map(xp.asnumpy, parameters)
    both = np.vstack([weights, bias])
    if odd := odd_ranks(comm, both):
        raise RuntimeError(f"after training, ranks {odd} hold other parameters than rank 0")
    if comm.rank == 0:
        write(options.results, both, curve)
        log.info("%s: loss.tsv and parameters.npy", options.results)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    arguments = ArgumentParser(description=__doc__, formatter_class=ArgumentDefaultsHelpFormatter)
    add = arguments.add_argument
    add("--ranks", type=int, default=0, help="MPI ranks to start; 0: this process is one")
    add("--backend", choices=["numpy", "cupy"], default="numpy", help="arrays")
    add("--epochs", type=int, default=20, help="times through all digits")
    add("--batch", type=int, default=100, help="digits a step")
    add("--rate", type=float, default=0.5, help="learning rate")
    add("--seed", type=int, default=0, help="of parameters and order")
    add("--results", type=Path, default=Path("results/data_parallel"), help="output folder")
    chosen = arguments.parse_args()
    if chosen.ranks:
        start(chosen.ranks)
    main(chosen)

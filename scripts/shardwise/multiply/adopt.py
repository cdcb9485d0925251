"""Adopts an earlier product of the same matrices under another key, as when an input has grown.

The key changes with the identity of the input files, even if their bytes stay. So before a shard is
computed, its bytes are compared with those of earlier products: a read, but no multiplication.
"""

import json
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from shardwise.errors import ShardwiseError, writing
from shardwise.files.commit import publish, remove_leftovers, temporary_for
from shardwise.files.extents import OpenFiles
from shardwise.multiply.copy import in_parts
from shardwise.multiply.factor import Factor
from shardwise.plan.identity import InputFiles
from shardwise.plan.plan import Plan, Shard, Source
from shardwise.plan.problem import Shape
from shardwise.plan.stack import StackReader
from shardwise.records import receipts
from shardwise.records.receipts import ProductReceipt

log = logging.getLogger(__name__)

_MOST_MISSES = 3


class Earlier:
    """The products that earlier plans left in a results folder, by shard.

    ``backend`` names the backend that would compute the shards now. Each folder is listed once. If
    none of the first few shards matches, presumably no other does, and no more are read.
    """

    def __init__(self, plan: Plan, backend: str) -> None:
        self._plan, self._backend = plan, backend
        self._names: dict[Path, dict[str, list[str]]] = {}
        self._matches, self._misses = 0, 0

    def adopt(self, shard: Shard, copied: str | None) -> bool:
        """Commit an earlier product of the same bytes, and its receipt, under the shard's name.

        ``copied`` is the checksum of the shard's copy; if None, the input itself is read.
        """
        known = [] if self._misses == _MOST_MISSES else list(self._known(shard))
        if not known:
            return False
        present = _checksums(self._plan, shard, copied)
        for receipt in known:
            product = self._plan.results.product(f"{shard.shard}-{receipt.key}")
            same = (receipt.input_checksum, receipt.right_checksum) == present
            if same and receipts.passes(receipts.check_elements, product, receipt.file):
                self._matches += 1
                return _commit(self._plan, shard, receipt, product)
        self._misses += not self._matches
        return False

    def _known(self, shard: Shard) -> Iterator[ProductReceipt]:
        """The receipts of products that may differ from the shard's only by the factors' bytes."""
        plan = self._plan
        folder = plan.results.receipt(shard.name).parent
        if folder not in self._names:
            self._names[folder] = names = {}
            with suppress(FileNotFoundError):
                for name in os.listdir(folder):
                    names.setdefault(name.partition("-")[0], []).append(name)
        for name in self._names[folder].get(shard.shard, ()):
            path = folder / name
            with suppress(ShardwiseError):
                if path.suffix == ".json" and path.stem != shard.name:
                    said = receipts.read(path, ProductReceipt)
                    of = path.stem, said.start, said.stop, said.recipe, said.backend
                    named = f"{shard.shard}-{said.key}"
                    own = named, shard.start, shard.stop, plan.facts.recipe, self._backend
                    weights = plan.per_matrix.digest(shard.run, plan.settings.keep)
                    # Without a checksum some of its matrices were not read.
                    if of == own and said.per_matrix == weights and said.input_checksum:
                        yield said


def _checksums(plan: Plan, shard: Shard, copied: str | None) -> tuple[str, str | None]:
    """The checksums of both factors that the receipt of a product made now would hold."""
    problem, inputs, right = plan.problem, InputFiles(), None

    def checksum(sources: Sequence[Source], shape: Shape, run: range) -> str:
        stack = StackReader(sources, shape, plan.dtype, inputs)
        factor = Factor(stack, run, OpenFiles(inputs.compare))
        in_parts(factor.hashed.total_bytes, factor.read)
        return factor.hashed.hexdigest()

    with inputs.unchanged():
        sources = plan.sources_of(shard.start, shard.stop)
        own = copied or checksum(sources, problem.left, shard.run)
        if problem.right:
            run = range(1) if problem.shared_right else shard.run
            right = checksum(plan.facts.right_sources, problem.right, run)
    return own, right


def _commit(plan: Plan, shard: Shard, receipt: ProductReceipt, product: Path) -> bool:
    """Link a product to the shard's name; False if the disk refuses, as one without hard links."""
    own = plan.results.product(shard.name)
    remove_leftovers(own.parent, own.name)
    temporary = temporary_for(own)
    try:
        os.link(product, temporary)
    except OSError as error:
        log.info("%s: cannot be linked to %s: %s", product, own, error.strerror)
        return False
    try:
        with writing(own), open(temporary, "rb") as file:
            publish(file, temporary, own, plan.results.receipt(shard.name))
            identity = os.fstat(file.fileno())
    finally:
        temporary.unlink(missing_ok=True)  # a rename onto a link to the same file is a no-op
    said = json.loads(product.with_suffix(".json").read_bytes())
    said |= {
        "key": shard.key,
        "file": msgspec.structs.replace(receipt.file, name=own.name),
        "adopted": product.stem,
    }
    del said["schema"], said["digest"]
    receipts.write_for(plan.results.receipt(shard.name), said, own, identity)
    log.info("its matrices have not changed: the product is taken from %s", product)
    return True

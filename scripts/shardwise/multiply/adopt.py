"""Adopts an earlier product of the same matrices under another key, as when an input has grown.

The key changes with the identity of the input files, even if their bytes stay. So before a shard is
computed, its bytes are compared with those of earlier products: a read, but no multiplication.
"""

import fnmatch
import json
import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import msgspec

from shardwise.errors import ShardwiseError, writing
from shardwise.files.commit import publish, remove_leftovers, temporary_for
from shardwise.multiply.copy import factors_of, in_parts
from shardwise.plan.plan import Plan, Shard
from shardwise.plan.stack import InputFiles
from shardwise.records import receipts
from shardwise.records.receipts import ProductReceipt
from shardwise.records.store import Store

log = logging.getLogger(__name__)

_MOST_MISSES = 3


class Earlier:
    """The products that earlier plans left in a results folder, by ``backend``, the present one.

    If none of the first few shards matches, presumably no other does, and no more are read.
    """

    def __init__(self, plan: Plan, backend: str) -> None:
        self._plan, self._backend = plan, backend
        self._listed = cache(lambda folder: os.listdir(folder) if folder.exists() else [])
        self._left = _MOST_MISSES  # how many more may be read; -1 once one has matched

    def adopt(self, shard: Shard, copied: str | None) -> bool:
        """Commit an earlier product of the same bytes; ``copied`` is the checksum of the copy."""
        known = [] if self._left == 0 else list(self._known(shard))
        if not known:
            return False
        inputs = InputFiles()
        factors = factors_of(self._plan, shard, inputs)
        with inputs.unchanged():
            for factor in factors[1:] if copied else factors:
                in_parts(factor.hashed.total_bytes, factor.read)
        own, *right = [factor.hashed for factor in factors]
        present = [copied or own.hexdigest(), *(each.hexdigest() for each in right)]
        for receipt in known:
            product = self._plan.results.product(f"{shard.shard}-{receipt.key}")
            same = [receipt.input_checksum, receipt.right_checksum][: len(present)] == present
            if same and receipts.passes(receipts.check_elements, product, receipt.file):
                self._left = -1
                return _commit(self._plan, shard, receipt, product)
        self._left -= self._left > 0
        return False

    def _known(self, shard: Shard) -> Iterator[ProductReceipt]:
        """The receipts of products that may differ from the shard's only by the factors' bytes."""
        plan = self._plan
        folder = plan.results.receipt(shard.name).parent
        weights = plan.per_matrix.digest(shard.run, plan.settings.keep)
        own = shard.start, shard.stop, plan.facts.recipe, self._backend, weights
        for name in fnmatch.filter(self._listed(folder), f"{shard.shard}-*.json"):
            with suppress(ShardwiseError):
                said = receipts.read(folder / name, ProductReceipt)
                of = said.start, said.stop, said.recipe, said.backend, said.per_matrix
                if of == own and name == f"{shard.shard}-{said.key}.json" != f"{shard.name}.json":
                    yield said


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
    del said["schema"], said["digest"]
    file_facts = msgspec.structs.replace(receipt.file, name=own.name)
    said |= {"key": shard.key, "file": file_facts, "adopted": product.stem}
    Store(plan).publish(shard.shard, said, identity)
    log.info("its matrices have not changed: the product is taken from %s", product)
    return True

"""Receipts as many threads read them."""

import os
import subprocess
import sys

from tests import factories

MANY_READ = """
import sys, threading, time
from pathlib import Path
import msgspec
from shardwise.records import receipts

sys.setswitchinterval(1e-6)
for turn in range(150):
    # A type that nobody has read yet, as each is when a process starts.
    file = msgspec.defstruct("File", [], bases=(receipts.ArrayFile,), frozen=True)
    kind = msgspec.defstruct("Kind", [("file", file)], bases=(receipts.ProductReceipt,),
                             frozen=True, kw_only=True)

    def look(wait):
        time.sleep(wait)
        receipts.read(Path(sys.argv[1]), kind)

    threads = [threading.Thread(target=look, args=(i * 1e-4,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_many_threads_may_be_the_first_to_read(tmp_path):
    """Ledger, reduce and verify begin so; msgspec itself would end the process at times."""
    made = factories.plan(tmp_path, factories.stack((2, 3, 3)), shards=1, materialize=False)
    path = factories.computed(made).results.receipt("00000")
    line = [sys.executable, "-c", MANY_READ, str(path)]
    env = os.environ | {"PYTHONPATH": str(factories.SCRIPTS)}
    done = subprocess.run(line, capture_output=True, text=True, check=False, env=env)
    assert (done.returncode, done.stderr) == (0, "")

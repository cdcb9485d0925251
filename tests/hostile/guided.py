"""Damaged files for one reader, which atheris leads by the code that they reach, until Ctrl-C.

python -m tests.hostile.guided header; atheris is the extra `fuzz`.
"""

import sys
import tempfile
from pathlib import Path

import atheris


def main() -> None:
    """Read the command line and run."""
    with atheris.instrument_imports(include=["shardwise"]):
        from tests.hostile import test_fuzz
    with tempfile.TemporaryDirectory() as folder:
        made = test_fuzz.reader(sys.argv[1], Path(folder) / "x")
        read = test_fuzz.cases(made, count=1, guided=True)
        atheris.Setup(sys.argv[:1], read.hypothesis.fuzz_one_input)
        atheris.Fuzz()  # it never returns


if __name__ == "__main__":
    main()

"""The names of what a reduce leaves in ``partial/``, and what it did not write."""

import re
from pathlib import Path

from shardwise.errors import InputError
from shardwise.files.paths import STATISTICS

_SUFFIX = ".part"
_OWN = rf"([0-9a-f]+-[0-9]+-([0-9]+|done){re.escape(_SUFFIX)}|({'|'.join(STATISTICS)})\.npy)"
# The names of what a reduce writes: records, unfinished results, and such files half written.
_WRITTEN = re.compile(rf"{_OWN}|\.{_OWN}\..+\.[0-9]+\.[0-9a-f]{{8}}\.tmp")
# What NFS makes of a file that was removed while somebody read it, and removes itself.
_LEFT_OPEN = re.compile(r"\.nfs[0-9a-f]+")


def refuse_foreign(folder: Path) -> None:
    """Refuse a ``partial/`` that holds anything that no reduce wrote."""
    strange = [path for path in _entries(folder) if not _written(path)]
    if strange:
        more = f", and {len(strange) - 1} more" if len(strange) > 1 else ""
        raise InputError(
            f"{strange[0]}{more}: no reduce of ours writes this; move it out of {folder}, which is "
            "removed once the sum is there"
        )


def _entries(folder: Path) -> list[Path]:
    """The content of a folder; nothing if there is no folder."""
    try:
        return sorted(path for path in folder.iterdir() if not _LEFT_OPEN.fullmatch(path.name))
    except FileNotFoundError:
        return []
    except NotADirectoryError:
        raise InputError(f"{folder} is not a folder; move it out of the results folder") from None


def _written(path: Path) -> bool:
    """Whether a reduce writes files of this name; it makes no links and no folders."""
    named = _WRITTEN.fullmatch(path.name)
    return bool(named) and path.is_file() and not path.is_symlink()

"""Nothing is written outside of the results folder by way of a link that lies in it.

The results folder itself may be a link, to a larger disk say. Standard library only: every stage
asks this first.
"""

import errno
import os
from pathlib import Path
from typing import IO

from shardwise.errors import InputError
from shardwise.paths import Results


def refuse_links(results: Results) -> None:
    """Refuse results whose folders, or files that are appended to, are links.

    Large files are written under a new name and renamed, which replaces a link and follows none.

    Raises
    ------
    InputError
        Naming the link.
    """
    logs = results.running.parent
    own = [results.shard("").parent, results.product("").parent, results.partial, logs]
    try:
        with os.scandir(logs) as entries:
            own += [Path(entry.path) for entry in entries]
    except OSError:
        pass  # not there yet
    for path in (*own, results.runs, results.arrays, results.quarantine):
        if path.is_symlink():
            raise _leads_out(path)


def open_own(path: Path, mode: str) -> IO[bytes]:
    """Open a file of the results folder that is appended to, unless it is a link.

    Raises
    ------
    InputError
        Where it is one.
    """
    try:
        return open(path, mode, opener=_no_link)
    except OSError as error:
        if error.errno == errno.ELOOP and path.is_symlink():
            raise _leads_out(path) from None
        raise


def _no_link(name: str, flags: int) -> int:
    return os.open(name, flags | os.O_NOFOLLOW, 0o666)


def _leads_out(path: Path) -> InputError:
    return InputError(
        f"{path} is a link: what a run writes there would land outside of the results folder. "
        "Remove the link; to keep results on another disk, name a folder there as `results`, or "
        "make the results folder itself a link"
    )

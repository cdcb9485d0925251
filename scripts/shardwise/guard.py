"""Where a run may write: in a results folder of ours, and never through a link out of it.

The results folder itself may be a link, to a larger disk say. Standard library only: every stage
asks this first.
"""

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import IO

from shardwise import planfile
from shardwise.errors import InputError, ShardwiseError, some
from shardwise.files.paths import Results, for_bash

_MARK = """\
A run of Shardwise made this folder. The run may replace and remove the files in it that carry the
names of results: products/, sum.npy and so on.
"""


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


def refuse_strangers(results: Results) -> None:
    """Refuse a folder that no run has made, where it holds names that a run would write.

    Raises
    ------
    InputError
        Naming what lies there.
    """
    with suppress(ShardwiseError):
        planfile.load_facts(results.plan)  # an earlier version left no marker
        return
    if results.marker.is_file():
        return
    taken = [name for name in results.names() if os.path.lexists(results.root / name)]
    if taken:
        raise InputError(
            f"results: {results.root} is not a results folder, but it holds {some(taken, 5)}, "
            "which a run would replace. Choose another folder, such as results/mine. If a run did "
            f"make this folder, say so: touch {for_bash(results.marker)}"
        )


def mark(results: Results) -> None:
    """Mark a folder as one that runs may write in; it is made where it is missing."""
    from shardwise.files.commit import commit  # here: jobs do not need it

    if not results.marker.exists():
        with commit(results.marker) as file:
            file.write(_MARK.encode())


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

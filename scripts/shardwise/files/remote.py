"""Objects of a store (``s3://``, ``gs://``, ``az://``) or a web server, read by ranges (obstore).

obstore takes credentials from the environment alone, so no address may hold one. No message repeats
the text of obstore: that may contain signed addresses.
"""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from shardwise.errors import InputError, TryAgain, changed
from shardwise.files.lookup import Status
from shardwise.files.pieces import PART_BYTES

_HERE = r"http(?=://(?:localhost|127\.0\.0\.1)[:/])"  # without encryption: this machine alone
_URL = re.compile(rf"(s3|gs|az|https|{_HERE})://([^/]*)/?(.*)", re.DOTALL)
_ADDRESS = re.compile(r"\s*[A-Za-z][A-Za-z0-9+-]*://")
_HOST = re.compile(r"[\w.-]+(:[0-9]+)?", re.ASCII)
# Globs, and what obstore takes in no name: empty parts, "." and "..", and control characters.
_ODD = re.compile(r"(^|/)\.{0,2}/|(^|/)\.{1,2}$|[\0-\x1f\x7f*[]")
_FINAL = re.compile("[34](?!08|29)")  # a status that another try would not change


def is_url(name: object) -> bool:
    """Whether a name is the address of an object, not the path of a file."""
    return bool(_URL.match(str(name)))


def masked(text: str) -> str:
    """An address without what may be a password or a signature."""
    return re.sub("(?s)(?<=[?#]).*", "…", re.sub("(?s)(?<=://).*@", "…@", text))


def problem(name: str) -> str | None:
    """Why an address is refused without asking a server; None for a good one, and for a path."""
    good = not _ADDRESS.match(name)
    if is_url(name):
        scheme, host, key = _URL.findall(name)[0]
        web = scheme.startswith("http")
        # A folder of a web server cannot be listed. Messages and files show addresses.
        odd = (web and not name.endswith(".npy")) or "?" in name or "#" in name
        odd = odd or bool(_ODD.search(unquote(key) if web else key))
        good = not odd and not name.endswith(f"://{host}") and bool(_HOST.fullmatch(host))
    if good:
        return None
    return (
        f"{masked(name)} is not the address of an object, such as s3://bucket/folder/a.npy (also "
        "gs://, az://), https://host/a.npy, or of all arrays in a folder, s3://bucket/folder/. It "
        "holds no user, password, ? or #. Name several in a sheet (.tsv), or copy them to a disk"
    )


def status(url: str) -> Status:
    """Size and ETag of an object; raises the errors of :meth:`Object.read_at`."""
    with _explained(url) as obstore:
        return _status(url, obstore.head(*_place(url)))


def listing(url: str) -> list[str]:
    """The names of the objects and folders directly in a folder; ``url`` ends with /."""
    with _explained(url) as obstore:
        found = obstore.list_with_delimiter(*_place(url))
    paths = [*(entry["path"] for entry in found["objects"]), *found["common_prefixes"]]
    return [path.rpartition("/")[2] for path in paths]


def below(url: str) -> dict[str, Status]:
    """All objects below a folder, by their names there."""
    with _explained(url) as obstore:
        store, root = _place(url)
        found = [entry for batch in obstore.list(store, root) for entry in batch]
    names = [entry["path"].removeprefix(root)[1:] for entry in found]
    return {name: _status(f"{url}/{name}", entry) for name, entry in zip(names, found, strict=True)}


class Object:
    """An object as it was when it was opened: a range of a later version is never returned."""

    def __init__(self, url: str, known: Status | None = None) -> None:
        self.status = known or status(url)

    def read_at(self, offset: int, view: Any) -> None:
        """Fill a buffer of bytes from byte ``offset`` on; IntegrityError if they have changed."""
        url, memory = self.status.place, memoryview(view)
        for at in range(0, len(memory), PART_BYTES):
            part, begin = memory[at : at + PART_BYTES], offset + at
            options = {"range": (begin, begin + len(part)), "if_match": f'"{self.status.version}"'}
            with _explained(url) as obstore:
                answer = obstore.get(*_place(url), options=options)
                raw = memoryview(answer.bytes())
            # Some servers ignore If-Match.
            if _status(url, answer.meta) != self.status or len(raw) != len(part):
                raise changed(url)
            part[:] = raw

    def take(self, begin: int, end: int) -> bytearray:
        """Bytes from ``begin`` to ``end``, or to where the object ends."""
        raw = bytearray(max(0, min(end, self.status.size) - begin))
        self.read_at(begin, raw)
        return raw


def _place(url: str) -> tuple[Any, str]:
    """The client for the bucket or server of an object, and the object's name there."""
    scheme, host, key = _URL.findall(url)[0]
    place = unquote(key) if scheme.startswith("http") else key
    return _opened(scheme, host, frozenset(os.environ.items())), place


@lru_cache
def _opened(scheme: str, host: str, settings: frozenset[tuple[str, str]]) -> Any:
    """The client for a bucket or server; a new one once the user has corrected the environment."""
    from obstore.store import from_url

    clear: Any = {"allow_http": scheme == "http" or ("AWS_ALLOW_HTTP", "true") in settings}
    retries: Any = {"max_retries": 15}  # with pauses that grow
    return from_url(f"{scheme}://{host}", retry_config=retries, client_options=clear)


def _status(url: str, meta: Any) -> Status:
    etag = meta["e_tag"] or ""
    if not etag or etag.startswith("W/"):
        words = "its server gives no strong ETag, so a change would go unnoticed; copy it to a disk"
        raise InputError(f"{url}: {words}")
    return Status(url, meta["size"], etag.strip('"'))


@contextmanager
def _explained(url: str) -> Iterator[Any]:
    """The obstore module; its errors are raised as ours, in plain words."""
    import obstore
    from obstore import exceptions as known

    try:
        yield obstore
    except known.PreconditionError:
        raise changed(url) from None
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, "the server has no such object", url) from None
    except known.BaseError as error:
        text, what = str(error), "bad settings, or it serves no byte ranges"
        if said := re.search(r"status code: ([0-9]{3}[\w ]*)", text):
            what = said[1].strip()
        elif "HttpError" in text and "NotPartial" not in text and "kind: Builder" not in text:
            what = "no answer"
        if what == "no answer" or (said and not _FINAL.match(what)):
            words = f"{url}: the server fails ({what}), after several tries; try again later"
            raise TryAgain(words) from None
        raise InputError(
            f"{url}: the server refuses to read it ({what}); correct the address or the "
            "credentials, or copy it to a disk. Credentials come from the environment alone, such "
            "as AWS_ACCESS_KEY_ID (docs/config.md); AWS_SKIP_SIGNATURE=true is for public objects"
        ) from None

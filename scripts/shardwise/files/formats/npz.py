"""Arrays of ``.npz`` files by ``numpy.savez``: each is a ``.npy`` file within a larger one."""

import os
import zipfile
from dataclasses import replace
from pathlib import Path

from shardwise.errors import InputError
from shardwise.files import npy
from shardwise.files.formats import names
from shardwise.files.npy import Header

_LOCAL_BYTES = 30  # of a member's own header, before its name and its extra fields


def header(path: Path, inside: str) -> Header:
    """Shape, type and place of an array; InputError if it cannot be read."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = {i.filename.removesuffix(".npy"): i for i in archive.infolist()}
    except (zipfile.BadZipFile, ValueError, NotImplementedError, UnicodeError) as error:
        raise InputError(f"{path} is not a .npz file: {error!s:.200}") from error
    member = members.get(inside)
    if member is None:
        raise names.choose_one(path, inside, list(members))
    where = Path(f"{path}:{inside}")
    if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
        raise InputError(
            f"{where}: is compressed as one stream, in which no matrix can be found without "
            "reading all before it; save it with numpy.savez or numpy.save"
        )
    if member.header_offset < 0:
        raise InputError(f"{where}: damaged directory of the archive; copy or write the file again")
    with open(path, "rb") as file:
        file.seek(member.header_offset)
        local = file.read(_LOCAL_BYTES)
        begin = member.header_offset + _LOCAL_BYTES
        begin += int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little")
        file.seek(begin)
        inner = npy.read_embedded(file, where, member.file_size)
        if begin + member.file_size > os.fstat(file.fileno()).st_size:
            raise InputError(f"{where}: is truncated; copy or write the file again")
    return replace(inner, offset=begin + inner.offset)

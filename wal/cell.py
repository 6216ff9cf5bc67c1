"""One small value that is replaced atomically: after a crash it is the old one or the new one."""

from __future__ import annotations

from pathlib import Path
from struct import Struct
from typing import Final
from zlib import crc32

from wal.errors import Corrupt, RecordTooLarge, UnsupportedVersion
from wal.files import REAL_FILES, FileSystem

_HEADER: Final = Struct("<8sIII")
_MAGIC: Final = b"PTXCELL\0"
_FORMAT: Final = 1
#: Largest value, bytes: a cell is rewritten whole.
CELL_BYTES_MAX: Final = 1 << 20


class Cell:
    """A checksummed value in one file. One thread at a time; `write` blocks for two syncs."""

    def __init__(self, path: Path, *, fs: FileSystem = REAL_FILES) -> None:
        self._path = path
        self._fs = fs

    def read(self) -> bytes | None:
        """The value, or None if none was ever written. Raises Corrupt, UnsupportedVersion."""
        try:
            raw = self._fs.read(self._path)
        except FileNotFoundError:
            return None
        if len(raw) < _HEADER.size or raw[:8] != _MAGIC:
            raise Corrupt("not a cell", path=self._path, offset=0)
        _, version, length, crc = _HEADER.unpack_from(raw)
        if version > _FORMAT:
            raise UnsupportedVersion(f"{self._path} has format {version}", path=self._path)
        value = raw[_HEADER.size :]
        if len(value) != length or crc32(value, crc32(raw[:16])) != crc:
            raise Corrupt("the value does not verify", path=self._path, offset=0)
        return value

    def write(self, value: bytes) -> None:
        """Replace the value; durable on return.

        Raises RecordTooLarge (nothing changed) and OSError (it may be the old or the new one).
        """
        if len(value) > CELL_BYTES_MAX:
            raise RecordTooLarge(f"{len(value)} bytes in a cell", path=self._path)
        head = _HEADER.pack(_MAGIC, _FORMAT, len(value), 0)[:16]
        crc = crc32(value, crc32(head))
        replace_file(self._path, head + crc.to_bytes(4, "little") + value, fs=self._fs)


def replace_file(path: Path, content: bytes, *, fs: FileSystem) -> None:
    """Write aside, sync, rename, sync the directory: the name never shows half a file."""
    aside = path.with_name(path.name + ".tmp")
    file = fs.create(aside)
    try:
        file.pwrite(content, 0)
        file.sync()
    finally:
        file.close()
    fs.rename(aside, path)
    fs.sync_directory(path.parent)

"""A file system in memory that remembers what was synced, and the states a power cut can leave.

`MemoryDisk` is what the code under test writes to. It records every change as an event. `Replayer`
walks such a trace and, at any event, yields images: what was durable, plus any subset of what was
not. The units of loss are 512-byte sectors of a write, single directory operations, and now and
then a sector of which only a part arrived.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

SECTOR_BYTES = 512

#: A directory's content by path, as bytes; directories are None.
Image = dict[Path, bytes | None]


class Event(NamedTuple):
    """One change. `node` numbers a file's contents; names come and go."""

    kind: str
    path: Path | None = None
    node: int = 0
    offset: int = 0
    data: bytes = b""
    target: Path | None = None
    note: object = None


class MemoryFile:
    def __init__(self, disk: MemoryDisk, node: int) -> None:
        self._disk = disk
        self._node = node

    def pwrite(self, data: bytes, offset: int) -> None:
        self._disk.write(self._node, data, offset)

    def pread(self, count: int, offset: int) -> bytes:
        return bytes(self._disk.nodes[self._node][offset : offset + count])

    def allocate(self, size: int) -> None:
        self._disk.allocate(self._node, size)

    def sync(self) -> None:
        self._disk.sync(self._node)

    def close(self) -> None:
        return None


class MemoryLock:
    def __init__(self, disk: MemoryDisk, path: Path) -> None:
        self._disk = disk
        self._path = path

    def release(self) -> None:
        self._disk.locked.discard(self._path)


class MemoryDisk:
    """The `FileSystem` of `wal.files`, in memory. Single-threaded unless the caller serialises."""

    def __init__(self, image: Image | None = None, *, seed: int = 0) -> None:
        self.tree: dict[Path, int | None] = {}
        self.nodes: dict[int, bytes | bytearray] = {}
        self.events: list[Event] = []
        self.locked: set[Path] = set()
        #: Bytes the disk has room for in all; None: no limit.
        self.capacity_bytes: int | None = None
        #: Called before each write, sync and name change with its kind; may raise OSError.
        self.fault: Callable[[str], None] | None = None
        #: A planted bug: pretends to do these ("sync", "syncdir").
        self.lies: frozenset[str] = frozenset()
        self._random = Random(seed)
        self._next_node = 1
        for path, content in (image or {}).items():
            self.tree[path] = None if content is None else self._add(content)

    def image(self) -> Image:
        """All that is visible now, as after a clean stop."""
        return {
            path: None if node is None else bytes(self.nodes[node])
            for path, node in self.tree.items()
        }

    def note(self, note: object) -> None:
        """Put a remark into the trace."""
        self.events.append(Event("note", note=note))

    # -- FileSystem -------------------------------------------------------------------------------

    def make_directory(self, path: Path) -> None:
        if path not in self.tree:
            self._change(Event("mkdir", path))
            self.tree[path] = None

    def names(self, path: Path) -> list[str]:
        return sorted(name.name for name in self.tree if name.parent == path)

    def exists(self, path: Path) -> bool:
        return path in self.tree

    def size(self, path: Path) -> int:
        return len(self.nodes[self._node(path)])

    def read(self, path: Path) -> bytes:
        return bytes(self.nodes[self._node(path)])

    def create(self, path: Path) -> MemoryFile:
        node = self._add(b"")
        self._change(Event("create", path, node))
        self.tree[path] = node
        return MemoryFile(self, node)

    def open(self, path: Path, *, writable: bool) -> MemoryFile:
        return MemoryFile(self, self._node(path))

    def rename(self, source: Path, target: Path) -> None:
        node = self._node(source)
        self._change(Event("rename", source, node, target=target))
        del self.tree[source]
        self.tree[target] = node

    def remove(self, path: Path) -> None:
        if path in self.tree:
            self._change(Event("remove", path))
            del self.tree[path]

    def sync_directory(self, path: Path) -> None:
        if "syncdir" not in self.lies:
            self._change(Event("syncdir", path))

    def lock(self, path: Path, *, note: str) -> MemoryLock:
        if path in self.locked:
            raise BlockingIOError(errno.EAGAIN, "locked")
        if path not in self.tree:
            self.create(path)
        self.locked.add(path)
        return MemoryLock(self, path)

    def free_bytes(self, path: Path) -> int:
        if self.capacity_bytes is None:
            return 1 << 40
        return max(0, self.capacity_bytes - self._used_bytes())

    def entropy(self, count: int) -> bytes:
        return self._random.randbytes(count)

    # -- used by files ----------------------------------------------------------------------------

    def write(self, node: int, data: bytes, offset: int) -> None:
        self._check_capacity(node, offset + len(data))
        self._change(Event("write", None, node, offset, data))
        content = self.nodes[node]
        if not isinstance(content, bytearray):
            content = self.nodes[node] = bytearray(content)
        if len(content) < offset + len(data):
            content.extend(bytes(offset + len(data) - len(content)))
        content[offset : offset + len(data)] = data

    def allocate(self, node: int, size: int) -> None:
        self._check_capacity(node, size)
        self._change(Event("size", None, node, size))
        content = self.nodes[node]
        self.nodes[node] = bytes(content).ljust(size, b"\0")

    def sync(self, node: int) -> None:
        if "sync" in self.lies:
            return
        if self.fault is not None:
            try:
                self.fault("sync")
            except OSError:
                # As Linux does it: the pages count as clean, stay readable, and are never written.
                self.events.append(Event("lost", None, node))
                raise
        self.events.append(Event("sync", None, node))

    # -- inside -----------------------------------------------------------------------------------

    def _change(self, event: Event) -> None:
        if self.fault is not None:
            self.fault(event.kind)
        self.events.append(event)

    def _node(self, path: Path) -> int:
        node = self.tree.get(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return node

    def _add(self, content: bytes) -> int:
        node = self._next_node
        self._next_node += 1
        self.nodes[node] = content
        return node

    def _used_bytes(self) -> int:
        return sum(len(self.nodes[node]) for node in self.tree.values() if node is not None)

    def _check_capacity(self, node: int, size: int) -> None:
        grows = size - len(self.nodes[node])
        is_limited = self.capacity_bytes is not None and grows > 0
        if is_limited and grows > self.free_bytes(Path()):
            raise OSError(errno.ENOSPC, "no space left on device")


class _Unit(NamedTuple):
    """Something not yet durable that a power cut may or may not spare."""

    #: Its directory operation, or None for a sector.
    event: Event | None
    node: int = 0
    offset: int = 0
    data: bytes = b""
    is_size: bool = False


class Replayer:
    """Walks a trace; `images` are what a power cut at this moment can leave."""

    def __init__(self, image: Image | None = None) -> None:
        self._durable: dict[int, bytes] = {}
        self._names: dict[Path, int | None] = {}
        self._writes: list[_Unit] = []
        self._changes: list[_Unit] = []
        # MemoryDisk numbers the files of an image in the same order.
        for path, content in (image or {}).items():
            if content is None:
                self._names[path] = None
            else:
                node = len(self._durable) + 1
                self._durable[node] = content
                self._names[path] = node

    def apply(self, event: Event) -> None:
        match event.kind:
            case "write":
                self._writes.extend(_sectors(event))
            case "size":
                self._writes.append(_Unit(None, event.node, event.offset, is_size=True))
            case "sync":
                chosen = [unit for unit in self._writes if unit.node == event.node]
                self._durable[event.node] = _written(self._durable.get(event.node, b""), chosen)
                self._forget(event.node)
            case "lost":
                self._forget(event.node)
            case "syncdir":
                ours, rest = [], []
                for unit in self._changes:
                    assert unit.event is not None
                    where = (unit.event.target or unit.event.path or Path()).parent
                    (ours if where == event.path else rest).append(unit)
                _renamed(self._names, ours)
                self._changes = rest
            case "note":
                pass
            case _:
                self._changes.append(_Unit(event))

    @property
    def pending_count(self) -> int:
        return len(self._writes) + len(self._changes)

    def images(self, random: Random, *, limit: int) -> Iterator[Image]:
        """At most `limit` images: every subset if they are that few, else a seeded choice."""
        units = self._changes + self._writes
        for subset in _subsets(len(units), random, limit=limit):
            chosen = [unit for unit, is_kept in zip(units, subset, strict=True) if is_kept]
            yield self._image(chosen, random)

    def _image(self, chosen: list[_Unit], random: Random) -> Image:
        names = dict(self._names)
        _renamed(names, [unit for unit in chosen if unit.event is not None])
        writes: dict[int, list[_Unit]] = {}
        for unit in chosen:
            if unit.event is None:
                writes.setdefault(unit.node, []).append(_torn(unit, random))
        image: Image = {}
        for path, node in names.items():
            if node is None:
                image[path] = None
                continue
            content = self._durable.get(node, b"")
            image[path] = _written(content, writes[node]) if node in writes else content
        # A directory that is not durable takes its files with it.
        return {
            path: content
            for path, content in image.items()
            if path.parent in image or path.parent not in self._all_directories()
        }

    def _all_directories(self) -> set[Path]:
        pending = {
            unit.event.path
            for unit in self._changes
            if unit.event is not None and unit.event.kind == "mkdir" and unit.event.path
        }
        return pending | {path for path, node in self._names.items() if node is None}

    def _forget(self, node: int) -> None:
        self._writes = [unit for unit in self._writes if unit.node != node]


def _sectors(event: Event) -> Iterator[_Unit]:
    start, end = event.offset, event.offset + len(event.data)
    while start < end:
        border = min(end, (start // SECTOR_BYTES + 1) * SECTOR_BYTES)
        data = event.data[start - event.offset : border - event.offset]
        yield _Unit(None, event.node, start, data)
        start = border


def _torn(unit: _Unit, random: Random) -> _Unit:
    """One sector in sixteen arrives in part."""
    if unit.is_size or len(unit.data) < 2 or random.random() > 1 / 16:
        return unit
    return unit._replace(data=unit.data[: random.randrange(1, len(unit.data))])


def _written(content: bytes, units: list[_Unit]) -> bytes:
    result = bytearray(content)
    for unit in units:
        end = unit.offset if unit.is_size else unit.offset + len(unit.data)
        if len(result) < end:
            result.extend(bytes(end - len(result)))
        if not unit.is_size:
            result[unit.offset : end] = unit.data
    return bytes(result)


def _renamed(names: dict[Path, int | None], units: list[_Unit]) -> None:
    for unit in units:
        event = unit.event
        assert event is not None
        assert event.path is not None
        match event.kind:
            case "mkdir":
                names[event.path] = None
            case "create":
                names[event.path] = event.node
            case "remove":
                names.pop(event.path, None)
            case "rename":
                assert event.target is not None
                names.pop(event.path, None)
                names[event.target] = event.node


def _subsets(count: int, random: Random, *, limit: int) -> Iterator[tuple[bool, ...]]:
    if 1 << count <= limit:
        for bits in range(1 << count):
            yield tuple(bool(bits >> place & 1) for place in range(count))
        return
    yield (False,) * count
    yield (True,) * count
    for _ in range(limit - 2):
        # Mostly kept, mostly lost, or even: single losses are the likely ones and the tricky ones.
        share = random.choice((0.1, 0.5, 0.9))
        yield tuple(random.random() < share for _ in range(count))

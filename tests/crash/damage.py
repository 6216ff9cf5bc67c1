"""Damaged images: what bad hardware and bad hands do to a directory, and what may come of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.crash.disk import SECTOR_BYTES, Image, MemoryDisk, Replayer
from tests.crash.workload import Allowed, Crash, Life, crashes

#: Names that hold nothing anybody relies on.
_IDLE = {"lock", "reserve"}


@dataclass(frozen=True)
class Specimen:
    """A whole directory whose last batch is marked, and the same with a batch in flight."""

    clean: Crash
    in_flight: tuple[Crash, ...]


def specimen(seed: int) -> Specimen:
    """A life of some length that ends with the idle mark, then one torn batch."""
    random = Random(seed)
    disk = MemoryDisk(seed=seed)
    life = Life(disk, seed)
    life.begin()
    life.steps(random.randrange(5, 80))
    life.sync()
    life.log.write_mark()
    if random.random() < 0.5:
        life.set_hard_state()
    allowed = disk.events[-1].note
    for event in reversed(disk.events):
        if event.kind == "note":
            allowed = event.note
            break
    assert isinstance(allowed, Allowed)
    image = disk.image()
    clean = Crash(image, allowed, len(disk.events))
    after = MemoryDisk(image, seed=seed)
    after.note(allowed)
    replayed = Life(after, seed + 1)
    replayed.resume()
    replayed.log.write_mark()
    while replayed.log.take_batch() is None:
        replayed.append()
    # Only the moments of one batch: between batches the mark has not caught up.
    start = len(after.events)
    batch = replayed.log._batch
    assert batch is not None
    replayed._taken = len(replayed._history) - 1
    replayed._note()
    replayed.log.write_batch(batch)
    found = list(crashes(after, random, limit=6, start=image))
    return Specimen(clean, tuple(crash for crash in found if crash.event_number > start))


def relevant(image: Image) -> list[Path]:
    """Files whose bytes matter, sorted."""
    return sorted(
        path
        for path, content in image.items()
        if content and path.name not in _IDLE and path.suffix != ".tmp"
    )


def flip(image: Image, random: Random) -> str:
    """Turn one bit around."""
    path, content = _pick(image, random)
    place = random.randrange(len(content))
    content[place] ^= 1 << random.randrange(8)
    image[path] = bytes(content)
    return f"bit flipped in {path} at {place}"


def flip_used(image: Image, random: Random) -> str:
    """Turn one bit around among the bytes in use."""
    path, content = _pick(image, random)
    used = len(bytes(content).rstrip(b"\0"))
    place = random.randrange(used)
    content[place] ^= 1 << random.randrange(8)
    image[path] = bytes(content)
    return f"bit flipped in {path} at {place}"


def zero_sector(image: Image, random: Random) -> str:
    path, content = _pick(image, random)
    start = random.randrange(0, len(content), SECTOR_BYTES)
    content[start : start + SECTOR_BYTES] = bytes(len(content[start : start + SECTOR_BYTES]))
    image[path] = bytes(content)
    return f"sector of {path} at {start} zeroed"


def copy_sector(image: Image, random: Random) -> str:
    """A write that went to the wrong place."""
    path, content = _pick(image, random)
    source, target = (random.randrange(0, len(content), SECTOR_BYTES) for _ in range(2))
    content[target : target + SECTOR_BYTES] = content[source : source + SECTOR_BYTES]
    image[path] = bytes(content)
    return f"sector of {path} at {source} copied to {target}"


def cut_file(image: Image, random: Random) -> str:
    path, content = _pick(image, random)
    size = random.randrange(len(content))
    image[path] = bytes(content[:size])
    return f"{path} cut to {size} bytes"


def remove_file(image: Image, random: Random) -> str:
    path, _ = _pick(image, random)
    del image[path]
    return f"{path} removed"


def scribble(image: Image, random: Random) -> str:
    """A few bytes of noise."""
    path, content = _pick(image, random)
    place = random.randrange(len(content))
    noise = random.randbytes(random.choice((1, 4, 16, 300)))
    content[place : place + len(noise)] = noise[: len(content) - place]
    image[path] = bytes(content)
    return f"noise in {path} at {place}"


DAMAGES: tuple[Callable[[Image, Random], str], ...] = (
    flip,
    flip_used,
    flip_used,
    zero_sector,
    copy_sector,
    cut_file,
    remove_file,
    scribble,
)


def _pick(image: Image, random: Random) -> tuple[Path, bytearray]:
    path = random.choice(relevant(image))
    return path, bytearray(image[path] or b"")


__all__ = ["DAMAGES", "Replayer", "Specimen", "relevant", "specimen"]

"""A captured stream on disk: head, gap, tail; and readers at any time."""

from __future__ import annotations

import errno
import hashlib
import os
import random
from pathlib import Path

import pytest

from agent.keeper.output import Capture
from agent.keeper.streams import (
    LIMIT_BYTES_MIN,
    StreamFile,
    extents,
    read_stream,
    stream_digest,
    stream_size,
)


def numbered(count: int) -> bytes:
    return b"".join(b"%07d\n" % number for number in range(count))


def read_all(directory: Path, start: int = 0) -> list[tuple[int, bytes]]:
    pieces = []
    at = start
    while True:
        begin, data = read_stream(directory, "stdout", at, 1_000)
        if not data:
            return pieces
        pieces.append((begin, data))
        at = begin + len(data)


def test_stream_within_its_half_is_one_file(tmp_path: Path) -> None:
    file = StreamFile(tmp_path / "a", "stdout", 1_000)
    file.append(b"abc")
    file.append(b"def")
    file.close()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["stdout"]
    assert read_stream(tmp_path / "a", "stdout", 2, 3) == (2, b"cde")
    assert (file.size, file.is_truncated) == (6, False)


def test_stream_up_to_its_limit_is_kept_whole(tmp_path: Path) -> None:
    whole = numbered(625)
    file = StreamFile(tmp_path, "stdout", 5_000)
    file.append(whole)
    assert not file.is_truncated
    assert b"".join(data for _, data in read_all(tmp_path)) == whole
    assert stream_digest(tmp_path, "stdout") == hashlib.sha256(whole).hexdigest()


@pytest.mark.parametrize("seed", range(20))
def test_what_is_read_is_what_was_written_there(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    limit = draw.choice([1, 5_000, 9_999])
    whole = numbered(draw.randrange(4_000))
    file = StreamFile(tmp_path, "stdout", limit)
    at = 0
    while at < len(whole):
        step = draw.randrange(1, 3_000)
        file.append(whole[at : at + step])
        at += step
        if draw.random() < 0.2:  # a keeper dies, its successor goes on
            file.close()
            file = StreamFile(tmp_path, "stdout", limit)
            file.resume()
    file.close()
    pieces = read_all(tmp_path)
    for begin, data in pieces:
        assert data == whole[begin : begin + len(data)]
    kept = sum(len(data) for _, data in pieces)
    assert kept <= max(limit, LIMIT_BYTES_MIN)
    assert stream_size(tmp_path, "stdout") == len(whole)
    assert file.size == len(whole)
    assert (kept < len(whole)) == file.is_truncated


def test_offset_in_the_gap_reads_on_behind_it(tmp_path: Path) -> None:
    file = StreamFile(tmp_path, "stdout", LIMIT_BYTES_MIN)
    file.append(numbered(1_000))
    gap_end = extents(tmp_path, "stdout")[1].start
    begin, data = read_stream(tmp_path, "stdout", 3_000, 8)
    assert (begin, data) == (gap_end, numbered(1_000)[gap_end : gap_end + 8])


def test_reading_at_or_past_the_end_gives_nothing(tmp_path: Path) -> None:
    assert read_stream(tmp_path / "none", "stdout", 5, 10) == (5, b"")
    file = StreamFile(tmp_path, "stdout", 100)
    file.append(b"abc")
    assert read_stream(tmp_path, "stdout", 3, 10) == (3, b"")
    assert stream_size(tmp_path, "stderr") == 0


def test_other_files_are_no_pieces(tmp_path: Path) -> None:
    for name in ("stdout.txt", "stdout.1", "stdout2"):
        (tmp_path / name).write_text("x")
    assert extents(tmp_path, "stdout") == []


def test_full_disk_loses_bytes_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "full")

    file = StreamFile(tmp_path, "stdout", 1_000)
    file.append(b"abc")
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        file.append(b"lost")
    assert (file.size, file.is_truncated) == (7, True)


def test_capture_counts_and_hashes_what_it_drops(tmp_path: Path) -> None:
    capture = Capture(tmp_path, "stdout", LIMIT_BYTES_MIN)
    writer = capture.open_pipe()
    os.write(writer, b"x" * 10_000)
    assert capture.pump()
    os.close(writer)
    assert not capture.pump()
    capture.finish()
    facts = capture.facts()
    assert facts["size_bytes"] == 10_000
    assert facts["sha256"] == hashlib.sha256(b"x" * 10_000).hexdigest()
    assert facts["is_truncated"]


def test_holder_of_the_pipe_does_not_delay_the_end(tmp_path: Path) -> None:
    capture = Capture(tmp_path, "stdout", 100)
    writer = capture.open_pipe()
    os.write(writer, b"last words")
    capture.finish()
    assert capture.facts()["size_bytes"] == 10
    os.close(writer)


def test_writer_without_a_reader_is_not_killed(tmp_path: Path) -> None:
    capture = Capture(tmp_path, "stdout", 100)
    writer = capture.open_pipe()
    capture.close()  # as when the keeper dies
    assert os.write(writer, b"waits") == 5
    successor = Capture(tmp_path, "stdout", 100)
    assert successor.resume([os.getpid()], capture.pipe_inode)
    successor.pump()
    os.close(writer)
    successor.finish()
    assert read_stream(tmp_path, "stdout", 0, 10) == (0, b"waits")
    assert successor.facts()["sha256"] == hashlib.sha256(b"waits").hexdigest()

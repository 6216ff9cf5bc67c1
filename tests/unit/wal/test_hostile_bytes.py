"""Any bytes decode, or raise the one error that says they do not."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.crash.disk import MemoryDisk
from wal import Cell, Corrupt, SnapshotStore, UnsupportedVersion, WalError
from wal.frame import FrameReader, declared_payload, find_frames
from wal.identity import read_identity
from wal.keyed_records import decode_keyed
from wal.segment import MAGIC, decode_header, decode_slots

ROOT = Path("/d")
#: Noise that now and then begins as something real does.
NOISE = st.one_of(
    st.binary(max_size=300),
    st.binary(max_size=100).map(lambda noise: MAGIC + noise),
    st.binary(max_size=60).map(lambda noise: noise[:4] + b"\xde\xc0\x01\x01" + noise[4:]),
    st.binary(max_size=60).map(lambda noise: b"PTXNSNAP\x01\0\0\0" + noise),
    st.binary(max_size=60).map(lambda noise: b"PTXCELL\0\x01\0\0\0" + noise),
)


@given(NOISE)
def test_records(noise: bytes) -> None:
    assert list(FrameReader(noise, seed=1, start=0)) == []
    assert list(find_frames(noise, seed=1, start=0)) == []
    assert len(declared_payload(noise, 0, limit_bytes=50)) <= 50
    assert decode_keyed(noise) is None


@given(NOISE)
def test_pages(noise: bytes) -> None:
    with pytest.raises((Corrupt, UnsupportedVersion)):
        decode_header(noise.ljust(4096, b"\0"), ROOT, use_copy=True)
    assert decode_slots(noise.ljust(4096, b"\0"), seed=7) == (None, None)


@given(NOISE)
def test_small_files(noise: bytes) -> None:
    disk = MemoryDisk({ROOT: None, ROOT / "identity": noise, ROOT / "cell": noise})
    with pytest.raises(WalError):
        read_identity(ROOT, fs=disk)
    with pytest.raises(WalError):
        Cell(ROOT / "cell", fs=disk).read()
    with pytest.raises(WalError):
        SnapshotStore(ROOT, fs=disk).install([noise])

"""Sizes and bounds of a store."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20

#: The header page; records follow it.
PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class WalSettings:
    """Sizes of a store's files; the defaults are a controller's. ValueError where they clash."""

    #: Size of a preallocated segment file.
    segment_bytes: int = 64 * MIB
    #: Size of the file given up when the disk is full, so that urgent records still fit.
    reserve_bytes: int = 16 * MIB
    #: Largest payload of one record.
    record_bytes_max: int = 8 * MIB
    #: Idle time after which the mark slot is written, ms.
    mark_idle_ms: int = 10
    #: Runs a thread that prepares the next segment and writes marks. Off: the owner calls
    #: `prepare_spare` and `write_mark` (deterministic tests).
    housekeeping: bool = True

    def __post_init__(self) -> None:
        if self.segment_bytes % PAGE_BYTES or self.reserve_bytes % PAGE_BYTES:
            raise ValueError(f"segment_bytes and reserve_bytes must be multiples of {PAGE_BYTES}")
        if not 0 < self.segment_bytes < 1 << 31:
            raise ValueError("segment_bytes must be below 2 GiB: offsets are 32 bits wide")
        room = min(self.segment_bytes, self.reserve_bytes) - PAGE_BYTES
        # 64 covers a record's header and padding.
        if not 0 < self.record_bytes_max <= room - 64:
            raise ValueError("record_bytes_max must fit a segment and the reserve")

    @classmethod
    def local(cls) -> WalSettings:
        """For a cluster on one machine: 16 MiB segments."""
        return cls(segment_bytes=16 * MIB, reserve_bytes=8 * MIB, record_bytes_max=4 * MIB)

    @classmethod
    def agent(cls) -> WalSettings:
        """For an agent's small stores: 4 MiB segments."""
        return cls(segment_bytes=4 * MIB, reserve_bytes=2 * MIB, record_bytes_max=MIB)

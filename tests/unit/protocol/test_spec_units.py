"""Durations, sizes and cpu shares: what is taken, what it means, and that it round-trips."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.protocol.units import (
    CPU_MILLIS_MAX,
    DURATION_MS_MAX,
    SIZE_BYTES_MAX,
    BadQuantity,
    cpu_number,
    format_duration,
    format_size,
    parse_cpu_millis,
    parse_duration_ms,
    parse_size_bytes,
)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("10s", 10_000),
        ("1h30m", 5_400_000),
        ("250ms", 250),
        ("1.5s", 1_500),
        ("7d", 604_800_000),
        ("2w", 1_209_600_000),
        ("1m0s", 60_000),
        ("0s", 0),
        (3, 3_000),
        (0.25, 250),
    ],
)
def test_durations(text: object, milliseconds: int) -> None:
    assert parse_duration_ms(text) == milliseconds


@pytest.mark.parametrize(
    "value",
    ["", "10", "s", "1m1h", "1s1s", "-1s", "1 s", "1x", "0.1ms", "٣s", True, None, [], -1,
     float("nan"), float("inf"), 1e300, "9" * 100 + "s"],
)  # fmt: skip
def test_no_durations(value: object) -> None:
    with pytest.raises(BadQuantity):
        parse_duration_ms(value)


def test_a_number_too_long_to_print_is_refused_like_any_other() -> None:
    for parse in (parse_duration_ms, parse_size_bytes, parse_cpu_millis):
        with pytest.raises(BadQuantity):
            parse(10**5000)


def test_a_bare_number_in_text_gets_the_likely_unit_suggested() -> None:
    with pytest.raises(BadQuantity, match="did you mean 10s"):
        parse_duration_ms("10")


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("100", 100),
        ("100B", 100),
        ("4GiB", 4 << 30),
        ("4G", 4 << 30),
        ("4g", 4 << 30),
        ("4GB", 4_000_000_000),
        ("1.5K", 1536),
        ("0", 0),
        (1024, 1024),
        (2.0, 2),
    ],
)
def test_sizes(text: object, size_bytes: int) -> None:
    assert parse_size_bytes(text) == size_bytes


@pytest.mark.parametrize("value", ["", "x", "4X", "-1", "1.5", 0.5, True, "1e3", "9" * 50, -1])
def test_no_sizes(value: object) -> None:
    with pytest.raises(BadQuantity):
        parse_size_bytes(value)


@pytest.mark.parametrize(
    ("value", "millis"), [(2, 2000), (0.1, 100), ("0.5", 500), ("500m", 500), (0, 0)]
)
def test_cpus(value: object, millis: int) -> None:
    assert parse_cpu_millis(value) == millis


@pytest.mark.parametrize("value", ["", "x", -1, 0.0001, True, "1e3", "1.5m", 1e12, None])
def test_no_cpus(value: object) -> None:
    with pytest.raises(BadQuantity):
        parse_cpu_millis(value)


@given(st.integers(0, DURATION_MS_MAX))
def test_a_formatted_duration_parses_back(milliseconds: int) -> None:
    assert parse_duration_ms(format_duration(milliseconds)) == milliseconds


@given(st.integers(0, SIZE_BYTES_MAX) | st.integers(0, 1 << 20).map(lambda n: n * 1024**3))
def test_a_formatted_size_parses_back(size_bytes: int) -> None:
    assert parse_size_bytes(format_size(size_bytes)) == size_bytes


@given(st.integers(0, CPU_MILLIS_MAX))
def test_a_cpu_number_parses_back(millis: int) -> None:
    assert parse_cpu_millis(cpu_number(millis)) == millis


@given(st.text(max_size=20) | st.integers() | st.floats() | st.none() | st.booleans())
def test_nothing_but_a_bad_quantity_is_raised(value: object) -> None:
    for parse in (parse_duration_ms, parse_size_bytes, parse_cpu_millis):
        try:
            assert parse(value) >= 0
        except BadQuantity:
            pass

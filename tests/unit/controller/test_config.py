"""The controller's configuration: what is taken, and every mistake at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduler.controller.config import ConfigMistakes, parse_config, parse_setting

GOOD = """
name = "c1"
data_dir = "data"
cluster_id = "abc"

[members.c1]
raft = "127.0.0.1:7001"
agents = "127.0.0.1:7002"
http = "https://127.0.0.1:7003/"

[tls]
ca = "tls/ca.pem"
cert = "/abs/c1.pem"
key = "tls/c1.key"

[auth]
admin_token_file = "token"

[replication]
election_timeout = "300ms-700ms"
segment_size = "16MiB"

[settings]
heartbeat_interval = "1s"
heartbeat_timeout = "4s"
on_disconnect = "unknown"
"""
PATH = Path("/etc/pertinax/c1.toml")


def test_a_full_configuration_is_read_with_paths_relative_to_its_file() -> None:
    config = parse_config(GOOD, PATH)
    assert config.data_dir == Path("/etc/pertinax/data")
    assert config.tls is not None
    assert config.tls.ca == Path("/etc/pertinax/tls/ca.pem")
    assert config.tls.cert == Path("/abs/c1.pem")
    assert (config.election_timeout_min_ms, config.election_timeout_max_ms) == (300, 700)
    assert config.segment_bytes == 16 * 1024 * 1024
    assert config.member.agents == ("127.0.0.1", 7002)
    assert config.member.http == "https://127.0.0.1:7003"
    assert config.member.http_address == ("127.0.0.1", 7003)
    assert config.settings == {
        "heartbeat_interval": 1000,
        "heartbeat_timeout": 4000,
        "on_disconnect": "unknown",
    }


def test_every_mistake_is_told_at_once_with_its_line_and_a_remedy() -> None:
    text = GOOD.replace('name = "c1"', 'nmae = "c1"')
    text = text.replace('raft = "127.0.0.1:7001"', 'raft = "nowhere"')
    text = text.replace('heartbeat_timeout = "4s"', 'hartbeat_timeout = "4s"')
    with pytest.raises(ConfigMistakes) as raised:
        parse_config(text, PATH)
    shown = str(raised.value)
    assert "/etc/pertinax/c1.toml:2: nmae: is no key of this file; did you mean 'name'?" in shown
    assert "name: is missing" in shown
    assert ":7: members.c1.raft: 'nowhere' is no address" in shown
    assert "did you mean 'heartbeat_timeout'" in shown


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("300ms-700ms", "700ms-300ms", "range"),
        ("300ms-700ms", "fast", "election_timeout"),
        ("16MiB", "16 bytes", "segment_size"),
        ("16MiB", "1KiB", "between"),
        ("[members.c1]", "[members.c2]", "is not among"),
        ('"unknown"', '"sometimes"', "one of"),
        ("[tls]", "[tls2]", "tls2"),
        ("https://127.0.0.1:7003/", "ftp://x", "http"),
        ("7001", "70010", "address"),
        ('"4s"', "4000", 'write the duration as text: "4s"'),
        ('"4s"', '"2s"', "three times"),
        ('"4s"', '"400s"', "must exceed"),
    ],
)
def test_values_out_of_range_are_refused(before: str, after: str, told: str) -> None:
    with pytest.raises(ConfigMistakes) as raised:
        parse_config(GOOD.replace(before, after), PATH)
    assert told in str(raised.value)


def test_two_members_are_no_cluster() -> None:
    second = GOOD + '\n[members.c2]\nraft="a:1"\nagents="a:2"\nhttp="https://a:3"\n'
    with pytest.raises(ConfigMistakes, match="has 2 members"):
        parse_config(second, PATH)


def test_tls_may_only_be_left_out_aloud() -> None:
    start, _, rest = GOOD.partition("[tls]")
    without = start + "[auth]" + rest.partition("[auth]")[2]
    with pytest.raises(ConfigMistakes, match=r"tls\.ca"):
        parse_config(without, PATH)
    assert parse_config("insecure = true\n" + without, PATH).tls is None
    with pytest.raises(ConfigMistakes, match="loopback"):
        parse_config("insecure = true\n" + without.replace("127.0.0.1", "10.0.0.1"), PATH)


def test_no_toml_is_told_as_such() -> None:
    with pytest.raises(ConfigMistakes, match="is no TOML"):
        parse_config("name = ", PATH)


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("start_timeout", "1m", 60_000),
        ("unknown_report_max", "7", 7),
        ("late_truth", "adopt", "adopt"),
    ],
)
def test_settings_are_kept_as_numbers_and_choices(name: str, value: str, kept: object) -> None:
    assert parse_setting(name, value) == kept


@pytest.mark.parametrize(
    ("name", "value"), [("unknown_report_max", -1), ("unknown_report_max", True), ("nothing", 1)]
)
def test_impossible_settings_are_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        parse_setting(name, value)

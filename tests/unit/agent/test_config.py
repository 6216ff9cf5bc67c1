"""The configuration: layers, defaults, and every mistake at once with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.config import AgentConfig, join_address, load_config, split_address
from agent.errors import ConfigError

GOOD = """\
name = "a1"
data_dir = "data"
cluster_id = "c-1"
controllers = [{ name = "c1", address = "127.0.0.1:7101" }]
"""


def load(directory: Path, text: str, *overrides: str, **environment: str) -> AgentConfig:
    path = directory / "agent.toml"
    path.write_text(text)
    return load_config(path, overrides=overrides, environment=environment)


def mistakes(directory: Path, text: str, *overrides: str, **environment: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(directory, text, *overrides, **environment)
    return [line.removeprefix(f"{directory}/") for line in caught.value.mistakes]


def test_the_least_that_is_needed(tmp_path: Path) -> None:
    config = load(tmp_path, GOOD)
    assert config.name == "a1"
    assert config.data_dir == tmp_path / "data"
    assert [c.text for c in config.controllers] == ["127.0.0.1:7101"]
    assert (config.on_sigterm, config.leave_timeout_ms) == ("restart", 60_000)


def test_capacity_and_labels(tmp_path: Path) -> None:
    text = GOOD + '[capacity]\ncpu = 8\nmemory = "4GiB"\ncustom = { licence = 2 }\n'
    config = load(tmp_path, text + '[labels]\nzone = "b"\nrack = 7\n')
    assert config.capacity.cpu_millis == 8_000
    assert config.capacity.memory_bytes == 4 << 30
    assert config.capacity.gpu_count is None
    assert config.capacity.custom == {"licence": 2}
    assert config.labels == {"zone": "b", "rack": "7"}


def test_environment_wins_over_the_file_and_set_over_both(tmp_path: Path) -> None:
    text = GOOD + 'leave_timeout = "1s"\n'
    config = load(tmp_path, text, PERTINAX_AGENT_LEAVE_TIMEOUT="2s")
    assert config.leave_timeout_ms == 2_000
    config = load(tmp_path, text, "leave_timeout=3s", PERTINAX_AGENT_LEAVE_TIMEOUT="2s")
    assert config.leave_timeout_ms == 3_000


def test_set_reaches_into_tables(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        GOOD,
        "capacity.cpu=0.5",
        "capacity.custom.licence=3",
        "labels.zone=x",
        'addresses=["10.0.0.1"]',
    )
    assert config.capacity.cpu_millis == 500
    assert config.capacity.custom == {"licence": 3}
    assert config.labels == {"zone": "x"}
    assert config.addresses == ("10.0.0.1",)


def test_an_agent_table_wins_over_the_keys_outside_it(tmp_path: Path) -> None:
    text = GOOD + '[capacity]\ncpu = 1\ngpu = 2\n[agent]\non_sigterm = "leave"\n'
    config = load(tmp_path, text + "[agent.capacity]\ncpu = 4\n")
    assert config.on_sigterm == "leave"
    assert (config.capacity.cpu_millis, config.capacity.gpu_count) == (4_000, 2)


def test_every_mistake_is_told_with_its_line_and_a_remedy(tmp_path: Path) -> None:
    text = (
        'name = "a 1"\nclusterid = "x"\ndata_dir = "d"\non_sigterm = "stop"\n'
        'controllers = [{ name = "c1", address = "nowhere" }]\n[capacity]\nmemory = "4 parsecs"\n'
    )
    found = mistakes(tmp_path, text)
    expected = [
        ("agent.toml:1: name", "no name"),
        ("agent.toml:2: clusterid", "did you mean cluster_id?"),
        ("agent.toml:4: on_sigterm", "restart, leave"),
        ("agent.toml:5: controllers", "no host:port"),
        ("agent.toml:7: capacity.memory", "no size"),
        ("agent.toml:1: cluster_id", "is missing"),
    ]
    assert len(found) == len(expected)
    for place, remedy in expected:
        assert any(line.startswith(place) and remedy in line for line in found), (place, found)


def test_a_mistaken_override_names_itself(tmp_path: Path) -> None:
    (line,) = mistakes(tmp_path, GOOD, "on_sigtrem=leave")
    assert line.startswith("--set on_sigtrem: ")
    assert "did you mean on_sigterm?" in line
    (line,) = mistakes(tmp_path, GOOD, PERTINAX_AGENT_ON_SIGTERM="stop")
    assert line.startswith("environment PERTINAX_AGENT_ON_SIGTERM: ")


def test_set_without_a_value_is_refused(tmp_path: Path) -> None:
    (line,) = mistakes(tmp_path, GOOD, "on_sigterm")
    assert "KEY=VALUE" in line


def test_controllers_elsewhere_need_tls(tmp_path: Path) -> None:
    (line,) = mistakes(tmp_path, GOOD.replace("127.0.0.1", "10.0.0.1"))
    assert "tls is needed" in line


def test_tls_files_must_be_there(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("x")
    text = GOOD + '[tls]\nca = "ca.pem"\ncert = "cert.pem"\n'
    found = mistakes(tmp_path, text)
    assert [line.partition(": ")[2].split()[0] for line in found] == ["tls.cert", "tls.key"]


def test_no_toml_says_where(tmp_path: Path) -> None:
    (line,) = mistakes(tmp_path, "name = \n")
    assert "line 1" in line


def test_a_missing_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path / "none.toml", environment={})


@pytest.mark.parametrize("text", ["127.0.0.1:80", "[::1]:80", "host.example:65535"])
def test_addresses_survive_a_round_trip(text: str) -> None:
    assert join_address(*split_address(text)) == text


@pytest.mark.parametrize("text", ["", "host", "host:", ":80", "host:0", "host:65536", "host:x"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no host:port"):
        split_address(text)

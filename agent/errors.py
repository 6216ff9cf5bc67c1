"""What can go wrong in the agent, by who must act."""

from __future__ import annotations

from typing import ClassVar


class AgentError(Exception):
    """Base. `code` is stable and shown in logs."""

    code: ClassVar[str] = "agent_error"


class ConfigError(AgentError):
    """The configuration cannot be used; carries every mistake found, each with its place."""

    code: ClassVar[str] = "bad_config"

    def __init__(self, mistakes: list[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = mistakes


class AlreadyRunning(AgentError):
    """Another agent holds this data directory."""

    code: ClassVar[str] = "already_running"


class BadFacts(AgentError):
    """The keeper told facts of an attempt that cannot be read: another version, or a bug."""

    code: ClassVar[str] = "bad_facts"


class KeeperFailed(AgentError):
    """The keeper does not start, does not answer, or refuses this agent."""

    code: ClassVar[str] = "keeper_failed"


class ConnectFailed(AgentError):
    """A controller cannot be reached or is not who it should be."""

    code: ClassVar[str] = "connect_failed"

"""Unit tests of the agent: no sockets, virtual time."""

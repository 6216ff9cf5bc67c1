"""The client: its decisions without sockets, and itself against real servers on the loopback."""

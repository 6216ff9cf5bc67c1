"""The controller's edge: clocks, sockets, disk and the leader's duties."""

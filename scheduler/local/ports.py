"""Ports for a local cluster: free now, and likely to be free whenever a member is restarted."""

from __future__ import annotations

import random
import socket
from pathlib import Path
from typing import Final

from scheduler.local.errors import LocalError

HOST: Final = "127.0.0.1"
PORT_MIN: Final = 10_000
PORT_MAX: Final = 65_535
#: Groups of ports tried before giving up.
TRIES_MAX: Final = 500
#: State of a listening socket in /proc/net/tcp.
LISTENING: Final = "0A"


def choose_ports(count: int, *, base: int | None, rng: random.Random | None = None) -> list[int]:
    """`count` consecutive ports, from `base` when given. Raises LocalError when they are taken.

    They lie below the range from which the kernel takes the near ends of outgoing connections: a
    member that is down for a moment would otherwise find its port taken by some client.
    """
    if base is not None:
        ports = list(range(base, base + count))
        if base <= 0 or ports[-1] > PORT_MAX:
            raise _no_ports(f"{base} to {ports[-1]} are not all ports", "usage")
        taken = [port for port in ports if not is_free(port)]
        if taken:
            raise _no_ports(f"in use: {', '.join(map(str, taken))}", "refused")
        return ports
    rng = rng or random.SystemRandom()
    top = max(PORT_MIN + count, min(_ephemeral_begin(), PORT_MAX) - count)
    for _ in range(TRIES_MAX):
        first = rng.randrange(PORT_MIN, top)
        ports = list(range(first, first + count))
        if all(is_free(port) for port in ports):
            return ports
    raise _no_ports(f"no {count} free ports in a row between {PORT_MIN} and {top}", "refused")


def is_free(port: int) -> bool:
    """True when a server could listen on the port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def is_listening(pid: int, port: int) -> bool:
    """True when the process `pid` itself accepts connections there, and not some other one."""
    wanted = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    if not wanted:
        return False
    for entry in Path(f"/proc/{pid}/fd").glob("*"):
        try:
            if str(entry.readlink()) in wanted:
                return True
        except OSError:
            continue  # closed meanwhile
    return False


def _listening_inodes(port: int) -> list[str]:
    found = []
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/net/{table}").read_text().splitlines()[1:]
        except OSError:
            continue  # no IPv6 here
        for line in lines:
            fields = line.split()
            if fields[3] == LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                found.append(fields[9])
    return found


def _ephemeral_begin() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 32_768


def _no_ports(why: str, kind: str) -> LocalError:
    return LocalError(
        "the ports of the cluster cannot be had",
        why=why,
        hint="choose others with `--port BASE`, or leave it away to have free ones picked",
        kind="usage" if kind == "usage" else "refused",
        code="ports_taken",
    )

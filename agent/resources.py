"""What the host has and uses, by psutil. Quick calls without waiting; any thread."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Final

import psutil

from agent.config import DeclaredCapacity
from agent.events import UsageSampled
from scheduler.protocol.messages import Capacity

_CGROUP: Final = Path("/sys/fs/cgroup")
#: Addresses told to the cluster, at most.
ADDRESSES_MAX: Final = 8


def find_capacity(declared: DeclaredCapacity, directory: Path) -> Capacity:
    """What the node offers: what was declared, else what host and container allow."""
    cpu, memory, gpu = declared.cpu_millis, declared.memory_bytes, declared.gpu_count
    disk = declared.disk_bytes
    return Capacity(
        cpu_millis=_cpu_millis() if cpu is None else cpu,
        memory_bytes=_memory_bytes() if memory is None else memory,
        gpu_count=_gpu_count() if gpu is None else gpu,
        disk_bytes=psutil.disk_usage(str(directory)).total if disk is None else disk,
        custom=declared.custom,
    )


def sample_usage(directory: Path, *, disk_low_bytes: int) -> UsageSampled:
    """What the host uses now; cpu since the previous call."""
    free = psutil.disk_usage(str(directory)).free
    return UsageSampled(
        cpu_used_millis=int(psutil.cpu_percent() * 10 * (psutil.cpu_count() or 1)),
        memory_used_bytes=psutil.virtual_memory().used,
        load_millis=int(os.getloadavg()[0] * 1000),
        disk_free_bytes=free,
        is_disk_low=free < disk_low_bytes,
    )


def find_addresses() -> tuple[str, ...]:
    """Addresses by which other hosts reach this one; loopback when there are none."""
    found = []
    for addresses in psutil.net_if_addrs().values():
        for address in addresses:
            try:
                ip = ipaddress.ip_address(address.address)
            except ValueError:
                continue
            if not (ip.is_loopback or ip.is_link_local):
                found.append(str(ip))
    return tuple(sorted(found)[:ADDRESSES_MAX]) or ("127.0.0.1",)


def _cpu_millis() -> int:
    millis = len(os.sched_getaffinity(0)) * 1000
    quota = _read_cgroup("cpu.max").split()
    if len(quota) == 2 and quota[0].isdecimal() and quota[1].isdecimal():
        millis = min(millis, int(quota[0]) * 1000 // int(quota[1]))
    return max(millis, 1)


def _memory_bytes() -> int:
    total = psutil.virtual_memory().total
    limit = _read_cgroup("memory.max").strip()
    return min(total, int(limit)) if limit.isdecimal() else total


def _read_cgroup(name: str) -> str:
    """A limit of the container that the agent runs in; empty without one."""
    try:
        return (_CGROUP / name).read_text()
    except OSError:
        return ""


def _gpu_count() -> int:
    """GPUs by NVML, when its optional package and the driver are there; otherwise declare them."""
    try:
        import pynvml
    except ImportError:
        return 0
    try:
        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError:
        return 0

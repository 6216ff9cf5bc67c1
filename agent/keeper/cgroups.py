"""Control groups, version 2 or 1, where there is one we may write.

Each attempt with something to limit gets its own group beneath the keeper's base group, which lies
beneath the group the keeper was started in: so the host's limits on the keeper's service hold for
its jobs, too. The attempt's first process joins between fork and exec, never later: a fork before
the join would escape.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from agent.keeper.trees import read_cgroup_pids

ROOT: Final = Path("/sys/fs/cgroup")
#: Most processes and threads of one attempt: a fork bomb ends in its own group.
PIDS_MAX: Final = 32_768
#: Weight of one core in cgroup v2 and v1: cpu is shared in proportion to what was asked for, and
#: what nobody uses is anybody's.
_WEIGHT_PER_CORE: Final = 100
_SHARES_PER_CORE: Final = 1024
_V1_CONTROLLERS: Final = ("memory", "pids")


@dataclass(slots=True)
class Group:
    """The group of one attempt: one directory in version 2, one per controller in version 1."""

    version: int
    paths: dict[str, Path]
    #: Open cgroup.procs files, for the child to join; closed after the launch.
    join_fds: list[int] = field(default_factory=list)

    def pids(self) -> Iterable[int]:
        return read_cgroup_pids(next(iter(self.paths.values())))

    def open_join(self) -> tuple[int, ...]:
        """Open the join files for a child to write to. Raises OSError."""
        for path in self.paths.values():
            self.join_fds.append(os.open(path / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC))
        return tuple(self.join_fds)

    def close_join(self) -> None:
        for fd in self.join_fds:
            os.close(fd)
        self.join_fds.clear()

    def kill(self) -> None:
        """KILL all members at once, where the kernel can; signals do the rest."""
        if self.version == 2:
            _write(self.paths["all"] / "cgroup.kill", "1")

    def freeze(self, *, is_frozen: bool) -> bool:
        """Freeze or thaw by the kernel; False where only signals can."""
        if self.version != 2:
            return False
        return _write(self.paths["all"] / "cgroup.freeze", "1" if is_frozen else "0")

    def oom_kills(self) -> int:
        """How many of its processes the kernel killed for memory."""
        if self.version == 2:
            return _count(self.paths["all"] / "memory.events", "oom_kill")
        return _count(self.paths["memory"] / "memory.oom_control", "oom_kill")

    def peak_bytes(self) -> int | None:
        """Most memory it used; None where the kernel does not say."""
        if self.version == 2:
            return _number(self.paths["all"] / "memory.peak")
        return _number(self.paths["memory"] / "memory.max_usage_in_bytes")

    def remove(self) -> bool:
        """Remove the empty group; False when something is left in it."""
        self.close_join()
        is_gone = True
        for path in self.paths.values():
            try:
                path.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                is_gone = False
            if self.version == 1:
                # The base group is made when needed, so the last one takes it away.
                with contextlib.suppress(OSError):
                    path.parent.rmdir()
        return is_gone

    def facts(self) -> dict[str, object]:
        """For the ledger: where a later keeper finds it."""
        return {"version": self.version, "paths": {k: str(v) for k, v in self.paths.items()}}

    @classmethod
    def from_facts(cls, facts: dict[str, object]) -> Group | None:
        """The group of an earlier keeper, if it is still there."""
        version, paths = facts.get("version"), facts.get("paths")
        if version not in {1, 2} or not isinstance(paths, dict) or not paths:
            return None
        found = {str(key): Path(str(value)) for key, value in paths.items()}
        if not all(path.is_dir() and ROOT in path.parents for path in found.values()):
            return None
        return cls(int(str(version)), found)


class Cgroups:
    """Makes groups, or says that there are none here. Loop thread only."""

    def __init__(self, kind: str, bases: dict[str, Path]) -> None:
        #: cgroup2 | cgroup1 | sampled
        self.kind = kind
        self._bases = bases

    @classmethod
    def open(cls, name: str) -> Cgroups:
        """Find out what may be used here; `name` is the base group's, unique to this keeper."""
        for kind, attempt in (("cgroup2", _open_v2), ("cgroup1", _open_v1)):
            bases = attempt(name)
            if bases is not None:
                return cls(kind, bases)
        return cls("sampled", {})

    @classmethod
    def kind_here(cls, name: str) -> str:
        """What `open` would find, without changing anything."""
        if _finds_v2():
            return "cgroup2"
        return "sampled" if _open_v1(name) is None else "cgroup1"

    def create(self, token: str, *, memory_bytes: int, cpu_millis: int) -> Group | None:
        """A group for an attempt; None where it would limit nothing.

        Version 1 is used for a memory limit only: joining its groups costs some 10 ms each.
        Raises OSError.
        """
        if self.kind == "sampled" or (self.kind == "cgroup1" and memory_bytes == 0):
            return None
        group = Group(2 if self.kind == "cgroup2" else 1, {})
        try:
            for controller, base in self._bases.items():
                path = base / token
                path.mkdir(mode=0o755, parents=True, exist_ok=True)
                group.paths[controller] = path
            _limit(group, memory_bytes=memory_bytes, cpu_millis=cpu_millis)
        except OSError:
            group.remove()
            raise
        return group

    def close(self) -> None:
        """Remove the base groups, if they are empty."""
        for base in self._bases.values():
            try:
                base.rmdir()
            except OSError:
                continue


def _limit(group: Group, *, memory_bytes: int, cpu_millis: int) -> None:
    if group.version == 1:
        if memory_bytes:
            (group.paths["memory"] / "memory.limit_in_bytes").write_text(str(memory_bytes))
            # Fails where swap is not accounted for; then memory alone is limited.
            _write(group.paths["memory"] / "memory.memsw.limit_in_bytes", str(memory_bytes))
        if "pids" in group.paths:
            _write(group.paths["pids"] / "pids.max", str(PIDS_MAX))
        return
    path = group.paths["all"]
    if memory_bytes:
        (path / "memory.max").write_text(str(memory_bytes))
        _write(path / "memory.swap.max", "0")
        _write(path / "memory.oom.group", "1")
    _write(path / "pids.max", str(PIDS_MAX))
    if cpu_millis:
        weight = min(10_000, max(1, _WEIGHT_PER_CORE * cpu_millis // 1000))
        _write(path / "cpu.weight", str(weight))


def _own_groups() -> dict[str, str]:
    """Controller -> path of our group; the key of version 2 is empty."""
    result = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            result[controller] = path
    return result


def _open_v2(name: str) -> dict[str, Path] | None:
    """A base group with memory and pids, or None.

    The kernel allows controllers only below a group without processes of its own. So the keeper and
    the agent that started it move into a leaf beside the attempts; where others live in their group
    (no delegation), version 2 is not used.
    """
    if not _finds_v2():
        return None
    root, leaf_name = _own_root(), f"{name}-keeper"
    if root.name == leaf_name:
        root = root.parent  # an earlier keeper moved the agent, so we were born in the leaf
    leaf, base = root / leaf_name, root / name
    ours = {os.getpid(), os.getppid()}
    try:
        if not ours.issuperset(read_cgroup_pids(root)):
            return None
        leaf.mkdir(exist_ok=True)
        for pid in read_cgroup_pids(root):
            (leaf / "cgroup.procs").write_text(str(pid))
        available = (root / "cgroup.controllers").read_text().split()
        enable = " ".join(f"+{c}" for c in ("memory", "pids", "cpu") if c in available)
        (root / "cgroup.subtree_control").write_text(enable)
        base.mkdir(exist_ok=True)
        (base / "cgroup.subtree_control").write_text(enable)
    except OSError:
        return None
    return {"all": base}


def _finds_v2() -> bool:
    """Whether the unified hierarchy is mounted with the controllers that limits need."""
    try:
        controllers = (_own_root() / "cgroup.controllers").read_text().split()
    except OSError:
        return False
    return {"memory", "pids"} <= set(controllers)


def _own_root() -> Path:
    """Our group in the unified hierarchy."""
    return ROOT / _own_groups().get("", "none").lstrip("/")


def _open_v1(name: str) -> dict[str, Path] | None:
    """Base groups of version 1, made when first needed; None where memory cannot be limited."""
    own = _own_groups()
    bases: dict[str, Path] = {}
    for controller in _V1_CONTROLLERS:
        parent = ROOT / controller / own.get(controller, "none").lstrip("/")
        if (parent / "cgroup.procs").exists() and os.access(parent, os.W_OK):
            bases[controller] = parent / name
    return bases if "memory" in bases else None


def _write(path: Path, text: str) -> bool:
    try:
        path.write_text(text)
    except OSError:
        return False
    return True


def _count(path: Path, name: str) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None

"""Dependencies point one way: `wal` <- `replication` <- `scheduler`; the agent sees two of them."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("wal", "replication", "scheduler", "agent")

#: Who may import what of ours; the longest matching prefix of the importing module decides.
ALLOWED: dict[str, tuple[str, ...]] = {
    "wal": ("wal",),
    "replication": ("replication", "wal"),
    "scheduler.protocol": ("scheduler.protocol",),
    "scheduler.core": ("scheduler.core", "scheduler.protocol"),
    "scheduler.controller": (
        "scheduler.controller",
        "scheduler.core",
        "scheduler.protocol",
        "replication",
        "wal",
    ),
    "scheduler.http": (
        "scheduler.http",
        "scheduler.controller.service",
        # What the service raises; importing it loads no more than that.
        "scheduler.controller.errors",
        "scheduler.core.queries",
        "scheduler.protocol",
    ),
    "scheduler.client": ("scheduler.client", "scheduler.protocol"),
    "scheduler.cli": (
        "scheduler.cli",
        "scheduler.client",
        "scheduler.protocol",
        # `up` and `down`: a whole cluster on this machine.
        "scheduler.local",
    ),
    "scheduler.local": (
        "scheduler.local",
        "scheduler.client",
        "scheduler.protocol",
        # It founds clusters: certificates and data directories are made by the same code.
        "scheduler.controller.certs",
        "scheduler.controller.config",
        "scheduler.controller.founding",
        "wal.errors",
    ),
    "scheduler.main": ("scheduler", "replication", "wal"),
    "scheduler.verify": ("scheduler", "replication", "wal"),
    "scheduler": (),
    "agent.keeper": ("agent.keeper", "wal"),
    "agent": ("agent", "scheduler.protocol", "wal"),
}

#: Standard modules that the pure core must never see.
IMPURE = {"time", "random", "secrets", "uuid", "os", "asyncio", "threading", "logging", "socket"}
IMPURE |= {"subprocess", "pathlib", "io", "pickle"}


def modules() -> list[tuple[str, Path]]:
    found = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found.append((name, path))
    return found


def imports(module: str, path: Path) -> list[str]:
    names: list[str] = []
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            names += [f"{base}.{alias.name}" for alias in node.names]
    return names


def has_prefix(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


def rule_for(module: str) -> tuple[str, ...]:
    prefix = max((p for p in ALLOWED if has_prefix(module, p)), key=len)
    return ALLOWED[prefix]


@pytest.mark.parametrize(
    ("module", "path"), modules(), ids=lambda v: v if isinstance(v, str) else ""
)
def test_imports_point_one_way(module: str, path: Path) -> None:
    allowed = rule_for(module)
    wrong = [
        name
        for name in imports(module, path)
        if name.split(".")[0] in PACKAGES
        and name not in PACKAGES
        and not any(has_prefix(name, prefix) or has_prefix(prefix, name) for prefix in allowed)
    ]
    assert wrong == [], f"{module} may import only {allowed} of ours"


@pytest.mark.parametrize(
    ("module", "path"),
    [(m, p) for m, p in modules() if has_prefix(m, "scheduler.core")],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_the_core_is_pure(module: str, path: Path) -> None:
    seen = {name.split(".")[0] for name in imports(module, path)}
    assert seen & IMPURE == set()


def test_only_replication_imports_pysyncobj() -> None:
    users = [
        module
        for module, path in modules()
        if any(name.split(".")[0] == "pysyncobj" for name in imports(module, path))
    ]
    assert all(has_prefix(module, "replication") for module in users), users


def test_nothing_unpickles() -> None:
    users = [
        module
        for module, path in modules()
        if {name.split(".")[0] for name in imports(module, path)} & {"pickle", "marshal", "shelve"}
    ]
    assert users == []


@pytest.mark.parametrize(
    ("package", "others"),
    [("agent.main", ("replication", "scheduler.core", "scheduler.controller", "scheduler.http"))],
)
def test_a_fresh_interpreter_loads_no_more(package: str, others: tuple[str, ...]) -> None:
    code = f"import sys, {package}; print('\\n'.join(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.split()
    assert [name for name in loaded if any(has_prefix(name, other) for other in others)] == []


def test_the_command_line_starts_light() -> None:
    """Spec 8, P13: what `pertinax jobs` imports decides how fast it starts."""
    code = "import sys, scheduler.cli.main; print('\\n'.join(sys.modules))"
    loaded = set(
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
        ).stdout.split()
    )
    heavy = {"starlette", "uvicorn", "pysyncobj", "rich", "msgspec", "cryptography", "asyncio"}
    assert loaded & heavy == set()

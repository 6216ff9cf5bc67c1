"""The tree says of itself what is true, and speaks of the project alone."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = {".py", ".md", ".toml", ".txt", ".yml", ".sh", ".html", ".js", ".css", ""}


def tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout
    paths = [ROOT / name for name in listed.split("\0") if name]
    if not paths:
        pytest.skip("not a git checkout")
    return [path for path in paths if path.is_file() and path.suffix in TEXT]


def test_no_path_of_one_machine_is_named() -> None:
    pattern = re.compile(r"/work/(?:main|shared)|/tmp/brief|\.\./shared|\.\./\.library")
    named = [str(p.relative_to(ROOT)) for p in tracked() if pattern.search(p.read_text("utf-8"))]
    assert [name for name in named if name != "tests/tidy/test_repository.py"] == []


def test_links_in_the_documents_lead_somewhere() -> None:
    broken = []
    for path in tracked():
        if path.suffix != ".md":
            continue
        for target in re.findall(r"\]\(([^)#\s]+)", path.read_text("utf-8")):
            if "://" not in target and not (path.parent / target).exists():
                broken.append(f"{path.relative_to(ROOT)}: {target}")
    assert broken == []


def test_every_document_is_reachable_from_the_readme() -> None:
    seen: set[Path] = set()
    todo = [ROOT / "README.md"]
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        seen.add(path)
        for target in re.findall(r"\]\(([^)#\s]+\.md)", path.read_text("utf-8")):
            if "://" not in target:
                todo.append((path.parent / target).resolve())
    documents = {p for p in tracked() if p.suffix == ".md" and "docs" in p.parts}
    assert sorted(str(p.relative_to(ROOT)) for p in documents - seen) == []


def test_no_file_ends_without_a_newline() -> None:
    assert [str(p) for p in tracked() if (t := p.read_bytes()) and not t.endswith(b"\n")] == []

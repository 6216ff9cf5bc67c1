"""Every transcript reads as it runs. To accept a change: `python -m tests.scenarios FILE…`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.runner import Transcript

FILES = sorted(Path(__file__).parent.glob("*.txt"))


def test_there_are_transcripts() -> None:
    assert len(FILES) >= 5


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_transcript_reads_as_it_runs(path: Path) -> None:
    assert Transcript().run(path.read_text()) == path.read_text()

"""Specification texts: the three languages mean the same, and no text raises anything else."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.protocol.errors import InvalidSpec
from scheduler.protocol.spectext import documents_from_text

WANTED = {"name": "x", "tasks": {"main": {"command": ["a", "b"], "timeout": "1h"}}}


def refusal(text: str, form: str) -> str:
    with pytest.raises(InvalidSpec) as caught:
        documents_from_text(text, form)
    return str(caught.value)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("json", json.dumps(WANTED)),
        ("toml", 'name = "x"\n[tasks.main]\ncommand = ["a", "b"]\ntimeout = "1h"\n'),
        ("yaml", "name: x\ntasks:\n  main: {command: [a, b], timeout: 1h}\n"),
        ("yaml", json.dumps(WANTED)),
    ],
)
def test_the_languages_mean_the_same(form: str, text: str) -> None:
    assert documents_from_text(text, form) == [WANTED]


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("json", '{"name": "a"}\n{"name": "b"}'),
        ("json", '[{"name": "a"}, {"name": "b"}]'),
        ("json", '{"jobs": [{"name": "a"}, {"name": "b"}]}'),
        ("yaml", "name: a\n---\nname: b\n"),
        ("yaml", "---\nname: a\n---\n---\nname: b\n"),
        ("toml", '[[jobs]]\nname = "a"\n[[jobs]]\nname = "b"\n'),
    ],
)
def test_several_documents(form: str, text: str) -> None:
    assert documents_from_text(text, form) == [{"name": "a"}, {"name": "b"}]


def test_yaml_words_that_old_rules_would_turn_into_something_else_stay_text() -> None:
    [document] = documents_from_text("on: yes\na: off\nb: 12:30\nc: 2026-01-01\nd: 0o7\n", "yaml")
    assert document == {"on": "yes", "a": "off", "b": "12:30", "c": "2026-01-01", "d": "0o7"}
    [numbers] = documents_from_text("{a: 3, b: -1.5, c: true, d: null, e: 022}", "yaml")
    assert numbers == {"a": 3, "b": -1.5, "c": True, "d": None, "e": "022"}


@pytest.mark.parametrize(
    ("form", "text", "part"),
    [
        ("json", "{", "line 1, column 2"),
        ("json", '{"a": 1, "a": 2}', "'a' is given twice"),
        ("json", '{"a": NaN}', "NaN"),
        ("json", "1" * 5000, "JSON"),
        ("json", "[" * 100_000, "nesting"),
        ("json", "[" * 40 + "]" * 40, "nesting"),
        ("json", "", "no document"),
        ("json", "[]", "no document"),
        ("toml", "x = ", "TOML"),
        ("toml", "a = 1\na = 2\n", "TOML"),
        ("yaml", "a: [1", "column"),
        ("yaml", "a: 1\na: 2\n", "'a' is given twice"),
        ("yaml", "? [a]\n: b\n", "YAML"),
        ("yaml", "!!python/object/apply:os.system [x]", "YAML"),
        ("yaml", "\0", "YAML"),
        ("yaml", "[" * 400 + "]" * 400, "nesting"),
        ("yaml", "# nothing\n", "no document"),
    ],
)
def test_texts_that_are_refused(form: str, text: str, part: str) -> None:
    assert part in refusal(text, form)


def test_aliases_cannot_multiply_a_small_file_into_a_large_one() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    for level in range(1, 9):
        aliases = ", ".join([f"*a{level - 1}"] * 10)
        lines.append(f"a{level}: &a{level} [{aliases}]")
    assert "values" in refusal("\n".join(lines), "yaml")


@given(
    st.text(st.sampled_from("{}[]:,-&*!|>'\"#%@ \nab01\t"), max_size=30),
    st.sampled_from(["json", "yaml", "toml"]),
)
def test_nothing_but_invalid_spec_is_raised(text: str, form: str) -> None:
    try:
        found = documents_from_text(text, form)
    except InvalidSpec:
        return
    assert found

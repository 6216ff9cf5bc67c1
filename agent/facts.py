"""Attempt facts between the keeper's plain maps and the protocol's structs.

The keeper knows no msgspec; its maps have the structs' field names as keys. What an older or newer
keeper leaves out gets the default, what it adds is dropped, and a wrong type raises BadFacts.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from agent.errors import BadFacts
from scheduler.protocol.messages import FinishFacts, StartFacts, StreamFacts, Work

#: Longest `detail` or progress text sent on, in characters: 500 reports must fit one frame.
TEXT_CHARS_MAX: Final = 1_000

_Facts = TypeVar("_Facts", bound=msgspec.Struct)


def start_from(facts: object) -> StartFacts:
    """StartFacts of the keeper's map. Raises BadFacts."""
    return _struct_from(StartFacts, _known_fields(StartFacts, facts))


def finish_from(facts: object) -> FinishFacts:
    """FinishFacts of the keeper's map, `start` and the streams included. Raises BadFacts."""
    fields = _known_fields(FinishFacts, facts)
    if fields.get("start") is not None:
        fields["start"] = start_from(fields["start"])
    for stream in ("stdout", "stderr"):
        if fields.get(stream) is not None:
            fields[stream] = _struct_from(StreamFacts, _known_fields(StreamFacts, fields[stream]))
        else:
            fields.pop(stream, None)
    if isinstance(fields.get("detail"), str):
        fields["detail"] = clip(fields["detail"])
    return _struct_from(FinishFacts, fields)


def facts_of(work: Work) -> dict[str, Any]:
    """The keeper's map for an order's Work."""
    return msgspec.structs.asdict(work)


def clip(text: str) -> str:
    """`text`, cut to TEXT_CHARS_MAX and safe to encode: lone surrogates become `?`."""
    return text[:TEXT_CHARS_MAX].encode(errors="replace").decode()


def _known_fields(kind: type[msgspec.Struct], facts: object) -> dict[str, Any]:
    if not isinstance(facts, dict):
        raise BadFacts(f"{kind.__name__} is no map: {facts!r:.200}")
    return {name: facts[name] for name in kind.__struct_fields__ if name in facts}


def _struct_from(kind: type[_Facts], fields: dict[str, Any]) -> _Facts:
    try:
        # The round trip checks the types, which the constructor does not.
        return msgspec.convert(msgspec.to_builtins(kind(**fields)), kind)
    except (TypeError, msgspec.MsgspecError) as error:
        raise BadFacts(f"{kind.__name__}: {error}") from None

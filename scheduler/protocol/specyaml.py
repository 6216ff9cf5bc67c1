"""A YAML loader that is safe and keeps to the 1.2 core rules for plain words."""

from __future__ import annotations

import re
from typing import Any

import yaml


class CoreLoader(yaml.SafeLoader):
    """Plain words are text unless they are null, true, false or a decimal number."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  not SafeLoader's own table

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002  PyYAML's signature
        """A dict; a name given twice is an error. Raises yaml.MarkedYAMLError."""
        seen = set()
        for key, _ in node.value:
            name = (key.tag, str(key.value))
            if name in seen and key.tag != "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(
                    None, None, f"the name {name[1]!r} is given twice", key.start_mark
                )
            seen.add(name)
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        return found


for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)", list("-+0123456789")),
    ("float", r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?", list("-+.0123456789")),
    ("merge", r"<<", ["<"]),
):
    CoreLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), _first
    )

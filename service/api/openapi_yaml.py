"""Writes the OpenAPI document as YAML that people read and compare: each declaration on one line where it fits."""

from __future__ import annotations

from typing import Any

import yaml

_WIDTH = 120
_INDENT = 1
_HEADING = "# Exported by `evenkeel openapi`; a test fails when it differs from the application.\n"


def as_yaml(document: dict[str, Any]) -> str:
    """Returns the document as YAML, without aliases, in the order of its members."""
    return _HEADING + yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=_WIDTH)


class _Dumper(yaml.SafeDumper):
    """Writes lists and objects that fit on their line in flow style, and texts of several lines as literal blocks."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.best_indent = _INDENT  # PyYAML ignores an `indent` of 1.

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the signature is PyYAML's
        """See PyYAML. Tools resolve `$ref` only."""
        return True

    def represent(self, data: Any) -> None:
        """See PyYAML."""
        node = self.represent_data(data)
        _set_style(node, 0, 0)
        self.serialize(node)
        self.represented_objects = {}
        self.object_keeper = []


def _set_style(node: yaml.Node, indent: int, before: int) -> int:
    """Sets the style of a node that is indented by `indent` in block style, after `before` characters in its line.

    Returns the length of the node's text on one line; more than any line if it has several.
    """
    inner = indent + _INDENT
    match node:
        case yaml.SequenceNode():
            length = sum(_set_style(item, inner, inner) + len(", ") for item in node.value)
            is_list_of_names = all(isinstance(item, yaml.ScalarNode) and item.style != "|" for item in node.value)
            node.flow_style = is_list_of_names or before + length <= _WIDTH
            return length
        case yaml.MappingNode():
            length = 0
            for key, value in node.value:
                length += len(f"{key.value}: , ") + _set_style(value, inner, indent + len(f"{key.value}: "))
                if key.value == "example" and not isinstance(value, yaml.ScalarNode):
                    _set_flow_style(value)
            node.flow_style = before + length <= _WIDTH
            return length
        case yaml.ScalarNode() if "\n" in node.value:
            node.style = "|"
            return _WIDTH
    return len(node.value)


def _set_flow_style(node: yaml.Node) -> None:
    """Sets the flow style of a node and of all nodes in it; their lines are filled."""
    match node:
        case yaml.SequenceNode():
            node.flow_style = True
            for item in node.value:
                _set_flow_style(item)
        case yaml.MappingNode():
            node.flow_style = True
            for _, value in node.value:
                _set_flow_style(value)
        case yaml.ScalarNode():
            node.style = None

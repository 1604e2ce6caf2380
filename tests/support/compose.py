"""docker-compose.yml as `docker compose` reads it: parsed, and with its variables filled in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
COMPOSE_FILE = ROOT / "docker-compose.yml"

_PLACEHOLDER = re.compile(
    r"\$(?:(?P<escaped>\$)|\{(?P<name>\w+)(?:(?P<operator>:[-?+])(?P<text>(?:[^{}]|\{\w+\})*))?\}|(?P<wrong>))"
)


class MissingVariableError(Exception):
    """`${NAME:?text}` without a value; the message is Compose's own."""


@dataclass(frozen=True)
class Placeholder:
    """`${name}`, `${name:-text}`, `${name:+text}` or `${name:?text}`; a `text` may hold others of the first kind."""

    name: str
    operator: str
    text: str

    def value(self, variables: Mapping[str, str]) -> str:
        """What Compose puts in its place. Raises MissingVariableError."""
        given = variables.get(self.name, "")
        if given and self.operator != ":+":
            return given
        if self.operator == ":?":
            raise MissingVariableError(f"required variable {self.name} is missing a value: {self.text}")
        if self.operator == ":+" and not given:
            return ""
        return _PLACEHOLDER.sub(lambda found: _value(found, variables), self.text)


def read_compose() -> dict[str, Any]:
    """The file as it is written."""
    document: dict[str, Any] = yaml.safe_load(COMPOSE_FILE.read_text(encoding="utf-8"))
    return document


def interpolated(variables: Mapping[str, str]) -> dict[str, Any]:
    """The file with its variables filled in. Raises MissingVariableError."""
    document: dict[str, Any] = _filled(read_compose(), variables)
    return document


def placeholders(node: object) -> Iterator[Placeholder]:
    """Every variable below `node`."""
    for text in _texts(node):
        for match in _PLACEHOLDER.finditer(text):
            if not match["escaped"]:
                yield _placeholder(match)


def _filled(node: object, variables: Mapping[str, str]) -> Any:
    match node:
        case dict():
            return {key: _filled(value, variables) for key, value in node.items()}
        case list():
            return [_filled(value, variables) for value in node]
        case str():
            return _PLACEHOLDER.sub(lambda found: _value(found, variables), node)
        case _:
            return node


def _value(match: re.Match[str], variables: Mapping[str, str]) -> str:
    return "$" if match["escaped"] else _placeholder(match).value(variables)


def _placeholder(match: re.Match[str]) -> Placeholder:
    assert match["name"] is not None, f"Compose takes no lone $: {match.string}"
    return Placeholder(match["name"], match["operator"] or "", match["text"] or "")


def _texts(node: object) -> Iterator[str]:
    match node:
        case dict():
            for value in node.values():
                yield from _texts(value)
        case list():
            for value in node:
                yield from _texts(value)
        case str():
            yield node

"""Reads docker-compose.yml as `docker compose` does: parses it and substitutes its variables."""

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
    """A missing value for `${NAME:?text}`, with the message of Compose."""


@dataclass(frozen=True)
class Placeholder:
    """`${name}`, `${name:-text}`, `${name:+text}` or `${name:?text}`; `text` may contain `${name}`."""

    name: str
    operator: str
    text: str

    def value(self, variables: Mapping[str, str]) -> str:
        """Returns the value that Compose substitutes. Raises MissingVariableError."""
        given = variables.get(self.name, "")
        if given and self.operator != ":+":
            return given
        if self.operator == ":?":
            raise MissingVariableError(f"required variable {self.name} is missing a value: {self.text}")
        if self.operator == ":+" and not given:
            return ""
        return _PLACEHOLDER.sub(lambda found: _value(found, variables), self.text)


def read_compose() -> dict[str, Any]:
    """Returns the parsed file without substitution."""
    document: dict[str, Any] = yaml.safe_load(COMPOSE_FILE.read_text(encoding="utf-8"))
    return document


def interpolated(variables: Mapping[str, str]) -> dict[str, Any]:
    """Returns the file with substituted variables. Raises MissingVariableError."""
    document: dict[str, Any] = _substituted(read_compose(), variables)
    return document


def placeholders(node: object) -> Iterator[Placeholder]:
    """Yields every placeholder below `node`."""
    for text in _texts(node):
        for match in _PLACEHOLDER.finditer(text):
            if not match["escaped"]:
                yield _placeholder(match)


def _substituted(node: object, variables: Mapping[str, str]) -> Any:
    match node:
        case dict():
            return {key: _substituted(value, variables) for key, value in node.items()}
        case list():
            return [_substituted(value, variables) for value in node]
        case str():
            return _PLACEHOLDER.sub(lambda found: _value(found, variables), node)
        case _:
            return node


def _value(match: re.Match[str], variables: Mapping[str, str]) -> str:
    return "$" if match["escaped"] else _placeholder(match).value(variables)


def _placeholder(match: re.Match[str]) -> Placeholder:
    assert match["name"] is not None, f"Compose does not accept a single $: {match.string}"
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

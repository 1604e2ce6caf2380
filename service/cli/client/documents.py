"""Files of jobs: JSON, or YAML as version 1.2 has it, where `on` is a word and 2013-01-31 a text; no name twice."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable
from typing import Any

import yaml

from service.cli.client.carets import pointed_out
from service.cli.client.safe_text import safe_line
from service.cli.errors import CliError, ExitCode

_WHOLE = r"-?(?:0|[1-9][0-9]*)"


class _Loader(yaml.SafeLoader):
    """Reads plain words as JSON would, as far as it has them."""

    # Those of the base class are YAML 1.1's: `on`, `yes` and `1:30` would be a truth and a number.
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """A mapping whose names differ."""
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"'{key.value}' stands here twice", key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


for _tag, _pattern, _first in (
    ("bool", "true|false|True|False|TRUE|FALSE", "tTfF"),
    ("int", _WHOLE, "-0123456789"),
    ("float", rf"{_WHOLE}(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?", "-0123456789"),
    ("null", "~|null|Null|NULL|", ["~", "n", "N", ""]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), list(_first))


def parsed_document(text: str, label: str) -> Any:
    """What a text of YAML or JSON says; `label` is what its user knows it as. Raises CliError with the place."""
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text, object_pairs_hook=_without_twins)
        except _TwinError as error:
            raise _refusal(text, label, str(error), None, None) from None
        except (ValueError, RecursionError) as error:
            if not isinstance(error, json.JSONDecodeError) or label.lower().endswith(".json"):
                line, column = getattr(error, "lineno", None), getattr(error, "colno", None)
                raise _refusal(text, label, getattr(error, "msg", str(error)), line, column) from None
            # YAML may begin so too.
    try:
        return _Loader(text).get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (None, None)
        raise _refusal(text, label, error.problem or str(error), line, column) from None
    except (yaml.YAMLError, AttributeError, RecursionError, TypeError, ValueError) as error:
        # A tag such as `!!timestamp` takes texts that its reader then fails on.
        raise _refusal(text, label, " ".join(str(error).split()), None, None) from None


class _TwinError(Exception):
    pass


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise _TwinError(f"'{name}' stands in one object twice")
        found[name] = value
    return found


def _refusal(text: str, label: str, told: str, line: int | None, column: int | None) -> CliError:
    place = [] if line is None else [f"{safe_line(label)}:{line}:{column}", *pointed_out(text, line, column)]
    return CliError(f"{safe_line(label)} cannot be read: {safe_line(told)}", "\n  ".join(place), code=ExitCode.USAGE)

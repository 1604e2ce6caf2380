"""Settings as they are given on the command line, and put together with those of a file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from service.cli.client.safe_text import safe_line
from service.cli.errors import CliError, ExitCode

_WHOLE = re.compile(r"-?\d{1,18}")
_FRACTION = re.compile(r"-?\d+\.\d+")


def plain_value(text: str) -> Any:
    """true, false and numbers as such; everything else as text.

    >>> [plain_value(text) for text in ("true", "16", "4.5", "2s", "AUTO")]
    [True, 16, 4.5, '2s', 'AUTO']
    """
    if text in {"true", "false"}:
        return text == "true"
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if _FRACTION.fullmatch(text) else text


def given_settings(pairs: Iterable[str]) -> dict[str, Any]:
    """The settings of `--set KEY=VALUE`, under the names that were given. Raises CliError."""
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise CliError(f"--set {safe_line(pair)!r} cannot be read", "Write --set KEY=VALUE.", code=ExitCode.USAGE)
        found[key.strip()] = plain_value(value.strip())
    return found


def merged_settings(base: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """`base`, nested or dotted, with `given` before it, whatever each calls a setting. Names that this version does not
    know are kept for the service to judge.

    >>> merged_settings({"skew": {"factor": 2, "threshold": "1MB"}}, {"skew.factor": 8})
    {'skew.threshold': '1MB', 'skew.factor': 8}
    >>> merged_settings({"table.optimizer.agg-phase-strategy": "AUTO"}, {"agg_phase": "TWO_PHASE"})
    {'agg_phase': 'TWO_PHASE'}
    """
    if not given:
        return dict(base)
    canonical = _canonical_names()
    changed = {canonical.get(key, key) for key in given}
    kept = {key: value for key, value in _dotted(base) if canonical.get(key, key) not in changed}
    return {**kept, **given}


def _dotted(settings: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from ((f"{key}.{name}", inner) for name, inner in value.items())
        else:
            yield str(key), value


def _canonical_names() -> dict[str, str]:
    from service.spec.options import declared_settings

    return {alias: setting.key for setting in declared_settings() for alias in setting.aliases}

"""The README's tables of settings, variables, commands, exit codes, limits, metrics and log events, made from their
declarations.

`python -m service.cli.readme_tables` fails when README.md differs from them; with `--write` it brings it up to date.
Each table stands between `<!-- table NAME -->` and `<!-- end of table -->`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from typer.core import TyperArgument, TyperGroup
from typer.main import get_command

from service.cli.main import LOCAL, OVER_API, app
from service.client.terminal import ExitCode
from service.config.settings import GROUPS
from service.contract.options import declared_settings
from service.contract.query import LIMITS
from service.monitoring.logs import LOG_EVENTS
from service.monitoring.metrics import API_METRICS, WORKER_METRICS

README = Path("README.md")
_END = "<!-- end of table -->"


def settings_table() -> str:
    """Settings of a job, as Markdown."""
    rows = [
        (
            f"`{one.key}`",
            one.bounds,
            f"`{one.default}`",
            one.description,
            "<br>".join(f"`{key}`" for key in one.aliases),
        )
        for one in declared_settings()
    ]
    return _markdown(("setting", "values", "default", "meaning", "accepted as well (Flink)"), rows)


def variables_table() -> str:
    """Environment variables, as Markdown."""
    rows = []
    for group in GROUPS:
        prefix = str(group.model_config.get("env_prefix", ""))
        for name, field in group.model_fields.items():
            rows.append((f"`{prefix}{name.upper()}`", _default(field), _bounds(field), field.description or ""))
    return _markdown(("variable", "default", "bounds", "meaning"), rows)


def commands_table() -> str:
    """Commands, those that ask a service first, as Markdown."""
    declared = get_command(app)
    assert isinstance(declared, TyperGroup)  # noqa: S101 - it has commands
    named = [*(command.__name__ for command in OVER_API), "keys", *(command.__name__ for command in LOCAL)]
    rows = []
    for name in named:
        command = declared.commands[name]
        if isinstance(command, TyperGroup):
            usage = "|".join(command.commands)
        else:
            arguments = [one for one in command.params if isinstance(one, TyperArgument)]
            usage = " ".join(str(one.metavar or one.name).upper() for one in arguments)
        told = (command.help or "").split("\n\n")[0]
        rows.append((f"`evenkeel {name}{usage and ' '}{usage}`", " ".join(told.split()).removesuffix(".")))
    return _markdown(("command", "what it does"), rows)


def exit_codes_table() -> str:
    """Exit codes, as Markdown."""
    return _markdown(("code", "when"), [(str(int(code)), code.meaning) for code in ExitCode])


def metrics_table() -> str:
    """What API and workers serve to Prometheus, as Markdown."""
    rows = [
        (
            f"`{metric.name}`",
            process,
            metric.type.value,
            ", ".join(f"`{label}`" for label in metric.labels),
            metric.meaning,
        )
        for process, metrics in (("API", API_METRICS), ("worker", WORKER_METRICS))
        for metric in metrics
    ]
    return _markdown(("metric", "served by", "type", "labels", "meaning"), rows)


def events_table() -> str:
    """The log events that an operator should know, as Markdown."""
    rows = [(f"`{event.name}`", event.level, event.process, event.meaning) for event in LOG_EVENTS]
    return _markdown(("event", "level", "written by", "meaning"), rows)


def limits_table() -> str:
    """The limits of a query, as Markdown."""
    rows = [(f"`{limit.name}`", f"{limit.most:,}", limit.counted, limit.remedy) for limit in LIMITS]
    return _markdown(("limit", "at most", "of", "beyond it"), rows)


TABLES: dict[str, Callable[[], str]] = {
    "settings": settings_table,
    "variables": variables_table,
    "commands": commands_table,
    "exit codes": exit_codes_table,
    "limits": limits_table,
    "metrics": metrics_table,
    "events": events_table,
}


def with_tables(text: str) -> str:
    """`text` with every table between its markers made anew. Raises ValueError where a table has no markers."""
    for name, make in TABLES.items():
        start = f"<!-- table {name} -->"
        before, found, rest = text.partition(start)
        _, ended, after = rest.partition(_END)
        if not found or not ended:
            raise ValueError(f"the README has no place for the table {name!r}: {start} … {_END}")
        text = f"{before}{start}\n{make()}\n{_END}{after}"
    return text


def main(arguments: list[str]) -> int:
    """Exit code 0 when README.md is up to date, or has been brought so."""
    text = README.read_text(encoding="utf-8")
    wanted = with_tables(text)
    if "--write" in arguments:
        README.write_text(wanted, encoding="utf-8")
        return 0
    if text != wanted:
        sys.stderr.write("README.md is out of date: python -m service.cli.readme_tables --write\n")
        return 1
    return 0


def _markdown(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def _default(field: FieldInfo) -> str:
    default = field.default
    if default is PydanticUndefined or default is None or default == "":
        return ""
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def _bounds(field: FieldInfo) -> str:
    return ", ".join(_limits(field))


def _limits(field: FieldInfo) -> Iterator[str]:
    choices = getattr(field.annotation, "__args__", ())
    if choices and all(isinstance(choice, str) for choice in choices):
        yield " or ".join(f"`{choice}`" for choice in choices)
    for item in field.metadata:
        for name, sign in (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<")):
            limit = getattr(item, name, None)
            if limit is not None:
                yield f"{sign} {limit}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

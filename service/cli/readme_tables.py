"""Generates the README's tables of settings, variables, commands, exit codes, limits, metrics and log events.

`python -m service.cli.readme_tables` fails if README.md differs from them; with `--write` it updates README.md. Each
table is between `<!-- table NAME -->` and `<!-- end of table -->`.
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
    """Returns the table of a job's settings in Markdown, as do the following functions for their tables."""
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
    """Returns the table of environment variables."""
    rows = []
    for group in GROUPS:
        prefix = str(group.model_config.get("env_prefix", ""))
        for name, field in group.model_fields.items():
            rows.append((f"`{prefix}{name.upper()}`", _default(field), _bounds(field), field.description or ""))
    return _markdown(("variable", "default", "bounds", "meaning"), rows)


def commands_table() -> str:
    """Returns the table of commands, first those that call the API."""
    declared = get_command(app)
    assert isinstance(declared, TyperGroup)  # noqa: S101 - the type of an app with several commands
    named = [*(command.__name__ for command in OVER_API), "keys", *(command.__name__ for command in LOCAL)]
    rows = []
    for name in named:
        command = declared.commands[name]
        if isinstance(command, TyperGroup):
            usage = "|".join(command.commands)
        else:
            arguments = [one for one in command.params if isinstance(one, TyperArgument)]
            usage = " ".join(str(one.metavar or one.name).upper() for one in arguments)
        summary = (command.help or "").split("\n\n")[0]
        rows.append((f"`evenkeel {name}{usage and ' '}{usage}`", " ".join(summary.split()).removesuffix(".")))
    return _markdown(("command", "what it does"), rows)


def exit_codes_table() -> str:
    """Returns the table of exit codes."""
    return _markdown(("code", "when"), [(str(int(code)), code.meaning) for code in ExitCode])


def metrics_table() -> str:
    """Returns the table of the Prometheus metrics of the API and the workers."""
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
    """Returns the table of the log events that operators should know."""
    rows = [(f"`{event.name}`", event.level, event.process, event.meaning) for event in LOG_EVENTS]
    return _markdown(("event", "level", "written by", "meaning"), rows)


def limits_table() -> str:
    """Returns the table of the limits of a query."""
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
    """Returns `text` with every table updated. Raises ValueError if the markers of a table are missing."""
    for name, make in TABLES.items():
        start = f"<!-- table {name} -->"
        before, found, rest = text.partition(start)
        _, ended, after = rest.partition(_END)
        if not found or not ended:
            raise ValueError(f"the README has no markers for the table {name!r}: {start} … {_END}")
        text = f"{before}{start}\n{make()}\n{_END}{after}"
    return text


def main(arguments: list[str]) -> int:
    """Checks or writes README.md and returns the exit code, which is 0 if README.md is up to date."""
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

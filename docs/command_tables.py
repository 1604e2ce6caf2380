"""Sections of the commands, with their arguments and options, and the table of exit codes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.main import get_command

from docs.markdown import code, codes, sentence, table
from service.cli.main import LOCAL, OVER_API, app
from service.cli.terminal import ExitCode

SHARED = ("--url", "--key-file", "--json")
"""Options of nearly every command that calls the API, which have a table of their own."""


def over_api() -> str:
    """Returns the sections of the commands that call the API."""
    return _sections([*(command.__name__ for command in OVER_API), "keys"])


def local() -> str:
    """Returns the sections of the commands that run or maintain a service on this machine."""
    return _sections([command.__name__ for command in LOCAL])


def summary(names: Callable[[], Iterable[str]]) -> str:
    """Returns a table of commands with one sentence each."""
    rows = []
    for name, command in _commands(names()):
        first, _, _ = (command.help or "").partition("\n\n")
        rows.append((f"[{code(f'evenkeel {name}')}](#evenkeel-{name.replace(' ', '-')})", sentence(first)))
    return table(("Command", "What it does"), rows)


def shared_options() -> str:
    """Returns the table of the options that the commands of the API share."""
    ((_, command),) = _commands(["jobs"])
    return table(
        ("Option", "Default", "Meaning"), [_option_row(one) for one in _options(command) if one.opts[0] in SHARED]
    )


def exit_codes() -> str:
    """Returns the table of exit codes."""
    return table(("Exit code", "When"), [(str(int(code)), sentence(code.meaning)) for code in ExitCode])


def _commands(names: Iterable[str]) -> Iterator[tuple[str, TyperCommand]]:
    """Yields each command by its full name, subcommands instead of their group."""
    declared = get_command(app)
    assert isinstance(declared, TyperGroup)  # noqa: S101 - the type of an app with several commands
    for name in names:
        command = declared.commands[name]
        if isinstance(command, TyperGroup):
            yield from ((f"{name} {inner}", one) for inner, one in command.commands.items())  # type: ignore[misc]
        else:
            yield name, command  # type: ignore[misc]


def _sections(names: Iterable[str]) -> str:
    return "\n\n".join("\n\n".join(_section(name, command)) for name, command in _commands(names))


def _section(name: str, command: TyperCommand) -> Iterator[str]:
    yield f"### evenkeel {name}"
    yield "\n\n".join(sentence(part) for part in (command.help or "").split("\n\n"))
    arguments = [one for one in command.params if isinstance(one, TyperArgument)]
    options = list(_options(command))
    own = [one for one in options if one.opts[0] not in SHARED]
    shared = [one.opts[0] for one in options if one.opts[0] in SHARED]
    usage = " ".join(["evenkeel", name, *(["[OPTIONS]"] if options else []), *map(_usage, arguments)])
    yield f"```text\n{usage}\n```"
    rows = [(code(_metavar(one)), "required" if one.required else _default(one), _meaning(one)) for one in arguments]
    rows += map(_option_row, own)
    if rows:
        yield table(("Argument or option", "Default", "Meaning"), rows)
    if shared:
        yield f"Also: {codes(shared)}."


def _options(command: TyperCommand) -> Iterator[TyperOption]:
    for one in command.params:
        if isinstance(one, TyperOption) and one.name != "help" and not one.hidden:
            yield one


def _option_row(one: TyperOption) -> tuple[str, str, str]:
    value = "" if one.is_flag else f" {_metavar(one)}"
    spellings = [*one.opts, *one.secondary_opts]
    repeated = " Repeatable." if one.multiple and "Repeatable" not in (one.help or "") else ""
    required = "required" if one.required else _default(one)
    return code(f"{', '.join(spellings)}{value}"), required, _meaning(one) + repeated


def _usage(one: TyperArgument) -> str:
    return _metavar(one) if one.required else f"[{_metavar(one)}]"


def _metavar(one: Any) -> str:
    if one.metavar:
        return str(one.metavar)
    choices = getattr(one.type, "choices", None)
    if choices and isinstance(one, TyperOption):
        return "|".join(str(getattr(choice, "value", choice)) for choice in choices)
    if isinstance(one, TyperArgument):
        return str(one.name).upper()
    return {"STR": "TEXT", "INT RANGE": "INT"}.get(kind := str(one.type.name).upper(), kind)


def _default(one: Any) -> str:
    shown = one.show_default
    if isinstance(shown, str):
        return shown
    if shown is False or one.default in (None, False, ()) or callable(one.default):
        return ""
    return code(getattr(one.default, "value", one.default))


def _meaning(one: Any) -> str:
    return sentence(str(one.help or ""))


TABLES: dict[str, Callable[[], str]] = {
    "commands of the API": partial(summary, lambda: [*(command.__name__ for command in OVER_API), "keys"]),
    "commands of this machine": partial(summary, lambda: [command.__name__ for command in LOCAL]),
    "shared options": shared_options,
    "options of commands of the API": over_api,
    "options of commands of this machine": local,
    "exit codes": exit_codes,
}
"""The tables of this module, by name."""

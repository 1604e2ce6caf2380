"""`evenkeel keys`: makes, lists and revokes API keys in the database, for whoever may read its password."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.errors import CliError, ExitCode, told_plainly

if TYPE_CHECKING:
    from service.keys.issue_key import KeyRequest
    from service.keys.views import ApiKey

app = typer.Typer(help="Make, list and revoke API keys.", no_args_is_help=True, add_completion=False)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_PAGE = 200


@app.command("create")
@told_plainly
def create(
    name: Annotated[str, typer.Argument(help="For people: who shows it, or what for.")],
    tenant: Annotated[str, typer.Option(help="Whose jobs and streams it opens.")] = "default",
    scope: Annotated[
        list[str] | None,
        typer.Option(
            help="What it is for: read, submit, metrics or admin. May be repeated.", show_default="read, submit"
        ),
    ] = None,
    expires_in: Annotated[str | None, typer.Option(help="How long it holds, such as 90d; for good by default.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make a key and print it, this once."""
    from service.cli.configuration import read_settings
    from service.cli.migrate import opened_database
    from service.keys.issue_key import issue_key
    from service.store.migrate import require_current

    asked = _request(name, tenant, scope, expires_in)
    with opened_database(read_settings()) as database:
        require_current(database)
        issued = issue_key(database, asked, None)
    typer.echo(issued.model_dump_json() if as_json else issued.key)


@app.command("list")
@told_plainly
def list_keys(
    tenant: Annotated[str | None, typer.Option(help="Only keys of this tenant.")] = None, as_json: AsJson = False
) -> None:
    """List keys, without their secrets, oldest first."""
    import json

    from rich.console import Console

    from service.cli.configuration import read_settings
    from service.cli.migrate import opened_database
    from service.keys.list_keys import list_keys as list_page
    from service.store.migrate import require_current

    found: list[ApiKey] = []
    with opened_database(read_settings()) as database:
        require_current(database)
        cursor = ""
        while True:
            page = list_page(database, tenant, cursor, _PAGE)
            found += page.keys
            cursor = page.next_cursor
            if not cursor:
                break
    if as_json:
        typer.echo(json.dumps([key.model_dump(mode="json") for key in found]))
    else:
        Console(soft_wrap=True, highlight=False, markup=False).print(_table(found))


@app.command("revoke")
@told_plainly
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the key, or the key itself.")],
    as_json: AsJson = False,
) -> None:
    """End a key for good. API processes take it for a few seconds more."""
    from service.access_errors import KeyNotFoundError
    from service.cli.configuration import read_settings
    from service.cli.migrate import opened_database
    from service.keys.revoke_key import revoke_key
    from service.keys.secrets import read_secret
    from service.store.migrate import require_current

    shown = read_secret(key_id)
    with opened_database(read_settings()) as database:
        require_current(database)
        try:
            revoked = revoke_key(database, shown.id if shown else key_id, even_the_last=True)
        except KeyNotFoundError as error:
            raise CliError(str(error), "`evenkeel keys list` shows them.", code=ExitCode.USAGE) from None
    typer.echo(revoked.model_dump_json() if as_json else f"Revoked {revoked.id} ({revoked.name}).")


def _request(name: str, tenant: str, scopes: list[str] | None, expires_in: str | None) -> KeyRequest:
    from pydantic import ValidationError

    from service.keys.issue_key import KeyRequest

    given = {"name": name, "tenant": tenant, "scopes": scopes, "expires_in": expires_in}
    try:
        return KeyRequest.model_validate({field: value for field, value in given.items() if value is not None})
    except ValidationError as error:
        told = "; ".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors())
        raise CliError(told, "See `evenkeel keys create --help`.", code=ExitCode.USAGE) from None


def _table(keys: list[ApiKey]) -> object:
    from rich.table import Table
    from rich.text import Text

    table = Table("id", "tenant", "name", "scopes", "holds", "last used", box=None, pad_edge=False)
    for key in keys:
        until = "for good" if key.expires_at is None else f"until {key.expires_at:%Y-%m-%d %H:%M}"
        holds = until if key.live else ("revoked" if key.revoked_at else "expired")
        used = "never" if key.used_at is None else f"{key.used_at:%Y-%m-%d %H:%M}"
        cells = (key.id, key.tenant, key.name, " ".join(key.scopes), holds, used)
        table.add_row(*(Text(cell) for cell in cells))
    return table

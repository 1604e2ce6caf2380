"""`evenkeel keys`: makes, lists and revokes API keys, in the database for whoever may read its password, or over the
API of a service that is named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.options import AsJson, KeyFile
from service.client.terminal import CliError, ExitCode, told_plainly

if TYPE_CHECKING:
    from service.keys.administration import KeyRequest

app = typer.Typer(help="Make, list and revoke API keys.", no_args_is_help=True, add_completion=False)

Url = Annotated[
    str | None,
    typer.Option(
        "--url", metavar="URL", help="Address of a service to ask.", show_default="EVENKEEL_URL, else the database"
    ),
]
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
    url: Url = None,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Make a key and print it, this once."""
    from service.client import display as over_api

    given = {"name": name, "tenant": tenant, "scopes": scope or None, "expires_in": expires_in}
    body = {field: value for field, value in given.items() if value is not None}
    if over_api.is_over_api(url, key_file):
        over_api.create_key(url, key_file, body, as_json=as_json)
        return
    from service.cli.maintenance import opened_database
    from service.cli.startup import read_settings
    from service.keys.administration import issue_key
    from service.store.migrate import require_current

    asked = _request(body)
    with opened_database(read_settings()) as database:
        require_current(database)
        issued = issue_key(database, asked, None)
    typer.echo(issued.model_dump_json() if as_json else issued.key)


@app.command("list")
@told_plainly
def list_keys(
    tenant: Annotated[str | None, typer.Option(help="Only keys of this tenant.")] = None,
    url: Url = None,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """List keys, without their secrets, oldest first."""
    from service.client import display as over_api

    if over_api.is_over_api(url, key_file):
        over_api.list_all_keys(url, key_file, tenant, as_json=as_json)
        return
    from service.cli.maintenance import opened_database
    from service.cli.startup import read_settings
    from service.client.responses import KeyPage, read
    from service.client.session import Output
    from service.keys.administration import list_keys as list_page
    from service.store.migrate import require_current

    found: list[dict[str, object]] = []
    with opened_database(read_settings()) as database:
        require_current(database)
        cursor = ""
        while True:
            page = list_page(database, tenant, cursor, _PAGE)
            found += [key.model_dump(mode="json") for key in page.keys]
            cursor = page.next_cursor
            if not cursor:
                break
    output = Output(as_json=as_json)
    if as_json:
        output.document(found)
    else:
        over_api.show_keys(output, read(KeyPage, {"keys": found}).keys)


@app.command("revoke")
@told_plainly
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the key, or the key itself.")],
    url: Url = None,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """End a key for good. API processes take it for a few seconds more."""
    from service.client import display as over_api
    from service.keys.verification import read_secret

    shown = read_secret(key_id)
    if over_api.is_over_api(url, key_file):
        over_api.revoke_key(url, key_file, shown.id if shown else key_id, as_json=as_json)
        return
    from service.cli.maintenance import opened_database
    from service.cli.startup import read_settings
    from service.contract.errors import KeyNotFoundError
    from service.keys.administration import revoke_key
    from service.store.migrate import require_current

    with opened_database(read_settings()) as database:
        require_current(database)
        try:
            revoked = revoke_key(database, shown.id if shown else key_id, even_the_last=True)
        except KeyNotFoundError as error:
            raise CliError(str(error), "`evenkeel keys list` shows them.", code=ExitCode.USAGE) from None
    typer.echo(revoked.model_dump_json() if as_json else f"Revoked {revoked.id} ({revoked.name}).")


def _request(body: Mapping[str, object]) -> KeyRequest:
    from pydantic import ValidationError

    from service.keys.administration import KeyRequest

    try:
        return KeyRequest.model_validate(body)
    except ValidationError as error:
        told = "; ".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors())
        raise CliError(told, "See `evenkeel keys create --help`.", code=ExitCode.USAGE) from None

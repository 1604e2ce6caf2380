"""`evenkeel keys`: creates, lists and revokes API keys, in the database, or over the API if a service is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.options import AsJson, KeyFile
from service.client.terminal import CliError, ExitCode, told_plainly

if TYPE_CHECKING:
    from service.keys.administration import KeyRequest

app = typer.Typer(help="Create, list and revoke API keys.", no_args_is_help=True, add_completion=False)

Url = Annotated[
    str | None,
    typer.Option(
        "--url", metavar="URL", help="Address of the service.", show_default="EVENKEEL_URL, else the database"
    ),
]
_PAGE = 200


@app.command("create")
@told_plainly
def create(
    name: Annotated[str, typer.Argument(help="A label: who uses the key, or what for.")],
    tenant: Annotated[str, typer.Option(help="Tenant whose jobs and streams the key gives access to.")] = "default",
    scope: Annotated[
        list[str] | None,
        typer.Option(help="Scope: read, submit, metrics or admin. Repeatable.", show_default="read, submit"),
    ] = None,
    expires_in: Annotated[str | None, typer.Option(help="Lifetime, such as 90d; never expires by default.")] = None,
    url: Url = None,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Create a key and print it. It cannot be shown again."""
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

    request = _request(body)
    with opened_database(read_settings()) as database:
        require_current(database)
        issued = issue_key(database, request, None)
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
    """Revoke a key permanently. API processes accept it for a few more seconds."""
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
            raise CliError(str(error), "`evenkeel keys list` shows all keys.", code=ExitCode.USAGE) from None
    typer.echo(revoked.model_dump_json() if as_json else f"Revoked {revoked.id} ({revoked.name}).")


def _request(body: Mapping[str, object]) -> KeyRequest:
    from pydantic import ValidationError

    from service.keys.administration import KeyRequest

    try:
        return KeyRequest.model_validate(body)
    except ValidationError as error:
        detail = "; ".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors())
        raise CliError(detail, "See `evenkeel keys create --help`.", code=ExitCode.USAGE) from None

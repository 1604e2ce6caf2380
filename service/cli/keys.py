"""`evenkeel keys`: creates, lists and revokes API keys, in the database, or over the API if an address is given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.options import AsJson, KeyFile, url_option
from service.cli.terminal import CliError, ExitCode, prints_errors

if TYPE_CHECKING:
    from service.cli.operations import Service
    from service.cli.session import Output
    from service.client.responses import Document
    from service.keys.administration import KeyRequest
    from service.store.session import Database

app = typer.Typer(help="Create, list and revoke API keys.", no_args_is_help=True, add_completion=False)

Url = Annotated[str | None, url_option("EVENKEEL_URL, else the database")]
_PAGE_SIZE = 200


class _StoredKeys:
    """Creates, lists and revokes keys in the database, with the same methods as `Service`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create_key(self, body: Mapping[str, object]) -> Document:
        from service.keys.administration import issue_key

        return issue_key(self._database, _request(body), None).model_dump(mode="json")

    def keys(self, tenant: str) -> Document:
        from service.keys.administration import list_keys as list_page

        found: list[Document] = []
        cursor = ""
        while True:
            page = list_page(self._database, tenant or None, cursor, _PAGE_SIZE)
            found += [key.model_dump(mode="json") for key in page.keys]
            cursor = page.next_cursor
            if not cursor:
                return {"keys": found}

    def revoke_key(self, key_id: str) -> Document:
        from service.contract.errors import KeyNotFoundError
        from service.keys.administration import revoke_key

        try:
            return revoke_key(self._database, key_id, allow_last_admin=True).model_dump(mode="json")
        except KeyNotFoundError as error:
            raise CliError(str(error), "`evenkeel keys list` shows all keys.", code=ExitCode.USAGE) from None


@contextmanager
def _opened(url: str | None, key_file: Path | None, as_json: bool) -> Iterator[tuple[Service | _StoredKeys, Output]]:
    """Opens the service if an option or variable sets its address or key, otherwise the database."""
    from service.cli.session import Output, client_settings, opened

    if url is not None or key_file is not None or "url" in client_settings().model_fields_set:
        with opened(url, key_file, as_json=as_json) as session:
            yield session.service, session.output
        return
    from service.cli.database import opened_database
    from service.cli.preparation import read_settings
    from service.store.migrate import require_current

    with opened_database(read_settings()) as database:
        require_current(database)
        yield _StoredKeys(database), Output(as_json=as_json)


@app.command("create")
@prints_errors
def create(
    name: Annotated[str, typer.Argument(help="A label, such as the user or the purpose of the key.")],
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
    given = {"name": name, "tenant": tenant, "scopes": scope or None, "expires_in": expires_in}
    with _opened(url, key_file, as_json) as (keys, output):
        document = keys.create_key({field: value for field, value in given.items() if value is not None})
        if as_json:
            output.document(document)
        else:
            output.plain(str(document["key"]))


@app.command("list")
@prints_errors
def list_keys(
    tenant: Annotated[str | None, typer.Option(help="Only keys of this tenant.")] = None,
    url: Url = None,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """List keys, without their secrets, oldest first."""
    from service.cli.connection import read
    from service.cli.display import show_keys
    from service.client.responses import KeyPage

    with _opened(url, key_file, as_json) as (keys, output):
        document = keys.keys(tenant or "")
        if as_json:
            output.document(document["keys"])
        else:
            show_keys(output, read(KeyPage, document))


@app.command("revoke")
@prints_errors
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the key, or the key itself.")],
    url: Url = None,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Revoke a key permanently. API processes accept it for a few more seconds."""
    from service.client.responses import Key
    from service.keys.verification import read_secret

    secret = read_secret(key_id)
    with _opened(url, key_file, as_json) as (keys, output):
        document = keys.revoke_key(secret.id if secret else key_id)
        output.show(document, Key, lambda out, key: out.plain(f"Revoked {key.id} ({key.name})."))


def _request(body: Mapping[str, object]) -> KeyRequest:
    from pydantic import ValidationError

    from service.contract.validation_texts import text_of
    from service.keys.administration import KeyRequest

    try:
        return KeyRequest.model_validate(body)
    except ValidationError as error:
        detail = "; ".join(f"{'.'.join(map(str, problem['loc']))}: {text_of(problem)}" for problem in error.errors())
        raise CliError(detail, "See `evenkeel keys create --help`.", code=ExitCode.USAGE) from None

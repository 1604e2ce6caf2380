"""API keys over the API, for `evenkeel keys` with the address of a service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from service.cli.client.answers import IssuedKey, Key, KeyPage, read
from service.cli.client.output import Output
from service.cli.client.session import client_settings, opened


def is_over_api(url: str | None, key_file: Path | None) -> bool:
    """Whether a service was named, in an option or a variable: else keys are those of the database."""
    if url is not None or key_file is not None:
        return True
    return "url" in client_settings().model_fields_set


def create(url: str | None, key_file: Path | None, body: dict[str, Any], *, as_json: bool) -> None:
    """Makes a key and prints it."""
    with opened(url, key_file, as_json=as_json) as session:
        document = session.service.create_key(body)
        if as_json:
            session.output.document(document)
        else:
            session.output.plain(read(IssuedKey, document).key)


def list_all(url: str | None, key_file: Path | None, tenant: str | None, *, as_json: bool) -> None:
    """Prints all keys; as JSON a list, as of the database."""
    with opened(url, key_file, as_json=as_json) as session:
        document = session.service.keys(tenant or "")
        if as_json:
            session.output.document(document["keys"])
        else:
            show_keys(session.output, read(KeyPage, document).keys)


def revoke(url: str | None, key_file: Path | None, key_id: str, *, as_json: bool) -> None:
    """Ends a key."""
    with opened(url, key_file, as_json=as_json) as session:
        document = session.service.revoke_key(key_id)
        if as_json:
            session.output.document(document)
        else:
            key = read(Key, document)
            session.output.plain(f"Revoked {key.id} ({key.name}).")


def show_keys(output: Output, keys: tuple[Key, ...]) -> None:
    """A line a key."""
    rows = []
    for key in keys:
        until = "for good" if key.expires_at is None else f"until {key.expires_at:%Y-%m-%d %H:%M}"
        holds = until if key.live else ("revoked" if key.revoked_at else "expired")
        used = "never" if key.used_at is None else f"{key.used_at:%Y-%m-%d %H:%M}"
        rows.append((key.id, key.tenant, key.name, " ".join(key.scopes), holds, used))
    output.table(("id", "tenant", "name", "scopes", "holds", "last used"), rows, whole=("id",))

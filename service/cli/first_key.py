"""The key with which whoever installed the service makes all others."""

from __future__ import annotations

from service.settings import Settings


def first_key_notice(settings: Settings) -> str:
    """What to show once, where callers are authenticated and no key was ever made: it is made now. Empty otherwise.

    Raises CliError where the database is away.
    """
    from service.cli.migrate import opened_database
    from service.keys.issue_key import issue_first_key

    if not settings.authenticates:
        return ""
    with opened_database(settings) as database:
        issued = issue_first_key(database)
    if issued is None:
        return ""
    return (
        f"The first API key, for tenant '{issued.tenant}' and with every scope:\n"
        f"  {issued.key}\n"
        "It is not shown again. Make others with it (POST /v1/keys) or with `evenkeel keys create`, then revoke it."
    )

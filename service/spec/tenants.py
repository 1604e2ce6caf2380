"""Names of tenants. They are parts of directories, so they have no sign that means something there."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

TENANT_PATTERN = r"^[a-z0-9][a-z0-9-]{0,62}$"

TenantName = Annotated[
    str,
    Field(
        pattern=TENANT_PATTERN,
        description="Whose jobs: small letters, digits and hyphens, at most 63.",
        examples=["analytics"],
    ),
]

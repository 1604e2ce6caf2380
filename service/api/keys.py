"""The routes of API keys: create, list, revoke; and the caller's own key."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from pydantic import Field

from service.api.authentication import Admin, Caller
from service.api.database_retries import RetryingRoute
from service.api.dependencies import Cursor, ServicesDep, page_size_query
from service.api.problems import BODY_ERRORS, problems
from service.contract.enums import TENANT_PATTERN, KeyScope
from service.contract.errors import InvalidCursorError, KeyNotFoundError, LastAdminKeyError
from service.contract.model import Frozen
from service.keys import administration
from service.keys.administration import MAX_PAGE_SIZE, ApiKey, IssuedKey, KeyPage, KeyRequest

router = APIRouter(prefix="/v1", tags=["keys"], route_class=RetryingRoute)

KeyId = Annotated[str, Path(description="Id of an API key.", pattern=r"^[a-z2-7]{16}$", examples=["mfrggzdfmztwq2lk"])]


class Me(Frozen):
    """The caller's tenant and permissions."""

    tenant: str = Field(description="The tenant whose jobs and streams the caller sees.", examples=["default"])
    scopes: tuple[str, ...] = Field(description="What the caller may do.", examples=[["read", "submit"]])
    key_id: str | None = Field(description="Id of the caller's API key; null if the service does not require keys.")


@router.get("/me", summary="Read the caller's identity", responses=problems())
async def get_me(caller: Caller) -> Me:
    """Returns the tenant and the scopes of the API key in the request."""
    scopes = tuple(scope.value for scope in KeyScope if scope in caller.scopes)
    return Me(tenant=caller.tenant, scopes=scopes, key_id=caller.key_id or None)


@router.post("/keys", status_code=201, summary="Create an API key", responses=problems(*BODY_ERRORS))
def create_key(body: KeyRequest, services: ServicesDep, caller: Admin, response: Response) -> IssuedKey:
    """Creates a key and returns its secret, which cannot be read again.

    To rotate a key, create a new one, then revoke the old one.
    """
    # No cache may store the secret.
    response.headers["Cache-Control"] = "no-store"
    return administration.issue_key(services.database, body, caller.key_id)


@router.get("/keys", summary="List API keys", responses=problems(InvalidCursorError))
def list_keys(
    services: ServicesDep,
    _caller: Admin,
    tenant: Annotated[
        str, Query(pattern=f"^$|{TENANT_PATTERN}", description="Only keys of this tenant; all tenants by default.")
    ] = "",
    cursor: Cursor = "",
    page_size: Annotated[int, page_size_query("Entries per page", MAX_PAGE_SIZE)] = 50,
) -> KeyPage:
    """Returns keys without their secrets, oldest first, including revoked keys."""
    return administration.list_keys(services.database, tenant or None, cursor, page_size)


@router.delete("/keys/{key_id}", summary="Revoke an API key", responses=problems(KeyNotFoundError, LastAdminKeyError))
def revoke_key(key_id: KeyId, services: ServicesDep, _caller: Admin) -> ApiKey:
    """Revokes the key permanently; every process rejects it within seconds. It stays in the list. Idempotent."""
    return administration.revoke_key(services.database, key_id)

"""API keys: make, list, revoke; and who is asking."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from pydantic import Field

from service.api.authentication import Admin, Caller
from service.api.dependencies import Cursor, ServicesDep
from service.api.middleware import SteadyRoute
from service.api.problems import BODY_ERRORS, problems
from service.contract.enums import TENANT_PATTERN, KeyScope
from service.contract.errors import InvalidCursorError, KeyNotFoundError, LastAdminKeyError
from service.contract.model import Frozen
from service.keys.administration import MAX_PAGE_SIZE, ApiKey, IssuedKey, KeyPage, KeyRequest
from service.keys.administration import issue_key as issue
from service.keys.administration import list_keys as list_page
from service.keys.administration import revoke_key as revoke

router = APIRouter(prefix="/v1", tags=["keys"], route_class=SteadyRoute)

KeyId = Annotated[str, Path(description="Id of an API key.", pattern=r"^[a-z2-7]{16}$", examples=["mfrggzdfmztwq2lk"])]


class Me(Frozen):
    """The caller, as the service knows it."""

    tenant: str = Field(description="Whose jobs and streams it sees.", examples=["default"])
    scopes: tuple[str, ...] = Field(description="What it may do.", examples=[["read", "submit"]])
    key_id: str | None = Field(description="Id of its API key; null where the service authenticates nobody.")


@router.get("/me", summary="Who am I", responses=problems())
async def get_me(caller: Caller) -> Me:
    """Tenant and scopes of the API key that you show."""
    scopes = tuple(scope.value for scope in KeyScope if scope in caller.scopes)
    return Me(tenant=caller.tenant, scopes=scopes, key_id=caller.key_id or None)


@router.post("/keys", status_code=201, summary="Make an API key", responses=problems(*BODY_ERRORS))
def create_key(body: KeyRequest, services: ServicesDep, caller: Admin, response: Response) -> IssuedKey:
    """A new key, shown this once. To rotate a key, make another, let its bearers take that, and revoke the old one."""
    # No cache on the way is to keep it.
    response.headers["Cache-Control"] = "no-store"
    return issue(services.database, body, caller.key_id)


@router.get("/keys", summary="List API keys", responses=problems(InvalidCursorError))
def list_keys(
    services: ServicesDep,
    _caller: Admin,
    tenant: Annotated[
        str, Query(pattern=f"^$|{TENANT_PATTERN}", description="Only keys of this tenant; of all by default.")
    ] = "",
    cursor: Cursor = "",
    page_size: Annotated[
        int, Query(ge=1, description=f"Keys on a page; more than {MAX_PAGE_SIZE} is read as {MAX_PAGE_SIZE}.")
    ] = 50,
) -> KeyPage:
    """Keys without their secrets, oldest first, also those that were revoked."""
    return list_page(services.database, tenant or None, cursor, page_size)


@router.delete("/keys/{key_id}", summary="Revoke an API key", responses=problems(KeyNotFoundError, LastAdminKeyError))
def revoke_key(key_id: KeyId, services: ServicesDep, _caller: Admin) -> ApiKey:
    """Ends the key for good, everywhere within seconds. It stays in the list; asking twice changes nothing."""
    return revoke(services.database, key_id)

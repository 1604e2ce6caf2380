"""API keys over HTTP: create, list, rotate, revoke."""

from __future__ import annotations

import pytest

from service.keys.administration import issue_first_key
from tests.support.api import Api, refused

pytestmark = pytest.mark.parametrize("authentication", ["on"])


@pytest.fixture
def admin(api: Api) -> dict[str, str]:
    first = issue_first_key(api.database)
    assert first is not None
    return {"Authorization": f"Bearer {first.key}"}


def test_the_secret_is_returned_once(api: Api, admin: dict[str, str]) -> None:
    answer = api.client.post("/v1/keys", json={"name": "loads", "tenant": "sales", "expires_in": "90d"}, headers=admin)
    assert answer.status_code == 201
    assert answer.headers["cache-control"] == "no-store"
    made = answer.json()
    assert (made["tenant"], made["scopes"], made["active"]) == ("sales", ["read", "submit"], True)
    me = api.client.get("/v1/me", headers={"Authorization": f"Bearer {made['key']}"}).json()
    assert me == {"tenant": "sales", "scopes": ["read", "submit"], "key_id": made["id"]}
    listed = api.client.get("/v1/keys", headers=admin)
    assert made["key"] not in listed.text
    assert [key["name"] for key in listed.json()["keys"]] == ["first", "loads"]
    assert listed.json()["keys"][1]["created_by"] == listed.json()["keys"][0]["id"]


def test_keys_rotate_without_downtime(api: Api, admin: dict[str, str]) -> None:
    def made() -> dict[str, str]:
        answer: dict[str, str] = api.client.post("/v1/keys", json={"name": "loads"}, headers=admin).json()
        return answer

    def works(key: dict[str, str]) -> bool:
        answer = api.client.get("/v1/jobs", headers={"Authorization": f"Bearer {key['key']}"})
        return bool(answer.status_code == 200)

    old = made()
    new = made()
    assert works(old)
    assert works(new)
    revoked = api.client.delete(f"/v1/keys/{old['id']}", headers=admin)
    assert revoked.status_code == 200
    assert not revoked.json()["active"]
    assert works(new)


def test_the_last_admin_key_cannot_be_revoked_over_http(api: Api, admin: dict[str, str]) -> None:
    key_id = api.client.get("/v1/me", headers=admin).json()["key_id"]
    answer = api.client.delete(f"/v1/keys/{key_id}", headers=admin)
    refused(answer, 409, "last_admin_key")
    assert api.client.get("/v1/keys", headers=admin).status_code == 200


def test_an_unknown_key_is_not_found(api: Api, admin: dict[str, str]) -> None:
    answer = api.client.delete(f"/v1/keys/{'a' * 16}", headers=admin)
    refused(answer, 404, "key_not_found")


def test_an_invalid_request_creates_no_key(api: Api, admin: dict[str, str], subtests: pytest.Subtests) -> None:
    cases: list[dict[str, object]] = [{}, {"name": "x", "tenant": "a/b"}, {"name": "x", "scopes": ["root"]}]
    for body in cases:
        with subtests.test(body=body):
            assert api.client.post("/v1/keys", json=body, headers=admin).status_code == 422
            assert len(api.client.get("/v1/keys", headers=admin).json()["keys"]) == 1


def test_keys_of_one_tenant(api: Api, admin: dict[str, str]) -> None:
    for tenant in ("sales", "sales", "marketing"):
        api.client.post("/v1/keys", json={"name": "x", "tenant": tenant}, headers=admin)
    page = api.client.get("/v1/keys", params={"tenant": "sales", "page_size": 1}, headers=admin).json()
    assert len(page["keys"]) == 1
    rest = api.client.get("/v1/keys", params={"tenant": "sales", "cursor": page["next_cursor"]}, headers=admin).json()
    assert [key["tenant"] for key in page["keys"] + rest["keys"]] == ["sales", "sales"]

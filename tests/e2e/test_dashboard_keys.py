"""The dashboard of a service that asks for keys: signing in, a key that ends, and one that may not do everything."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.browser import Watched
from tests.support.processes import wait_for
from tests.support.service import Service, running_service
from tests.support.tables import parquet, write_orders

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

JOB = {"name": "seen", "tables": {"o": parquet("orders")}, "sql": "SELECT COUNT(*) AS n FROM o"}


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that asks for keys; its first one is shown with each request."""
    with running_service(tmp_path_factory.mktemp("locked"), {"EVENKEEL_API_AUTHENTICATION": "on"}) as service:
        write_orders(service.data)
        found = re.search(r"ek_[\w-]+", service.output.read_text())
        assert found is not None
        service.http.headers["Authorization"] = f"Bearer {found[0]}"
        yield service


@pytest.fixture
def tab(browser: Browser, locked: Service) -> Iterator[Watched]:
    watched = Watched(browser, locked.address)
    watched.expect_refusals(401)
    yield watched
    watched.check()
    watched.close()


def first_key(locked: Service) -> str:
    return locked.http.headers["Authorization"].removeprefix("Bearer ")


def issue(locked: Service, *scopes: str, tenant: str = "default") -> dict[str, Any]:
    answer = locked.http.post("/v1/keys", json={"tenant": tenant, "name": "page", "scopes": scopes})
    assert answer.status_code == 201, answer.text
    issued: dict[str, Any] = answer.json()
    return issued


def sign_in(page: Page, key: str) -> None:
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Show it").click()


def test_a_key_opens_the_page_and_stays_in_its_tab(tab: Watched, locked: Service) -> None:
    key = first_key(locked)
    page = tab.open("#/workers")
    expect(page.get_by_role("heading", level=1)).to_have_text("Evenkeel")
    tab.check_accessibility()
    sign_in(page, "ek_…")
    expect(page.get_by_role("alert")).to_contain_text("This is no key")
    sign_in(page, "ek_nonsense")
    expect(page.get_by_text("unknown, expired or revoked")).to_be_visible()
    sign_in(page, key)
    expect(page.get_by_role("heading", level=1)).to_have_text("Workers")
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_have_text("Workers")
    assert page.evaluate("sessionStorage.getItem('evenkeel.key')") == key
    assert not page.evaluate("JSON.stringify(localStorage) + document.cookie").count(key)
    assert not [address for address in tab.addresses if key in address]
    page.evaluate("sessionStorage.setItem('evenkeel.draft', '{}')")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("API key")).to_be_visible()
    assert page.evaluate("sessionStorage.getItem('evenkeel.draft')") is None
    assert page.evaluate("sessionStorage.getItem('evenkeel.key')") is None


def test_a_key_that_is_revoked_meanwhile_is_asked_for_anew_and_no_draft_is_lost(tab: Watched, locked: Service) -> None:
    key = issue(locked, "read", "submit")
    page = tab.open("#/new")
    sign_in(page, key["key"])
    page.get_by_label("Name", exact=True).first.fill("half written")
    assert locked.http.delete(f"/v1/keys/{key['id']}").status_code == 200
    shown = {"Authorization": f"Bearer {key['key']}"}
    wait_for("the key's end", lambda: locked.http.get("/v1/me", headers=shown).status_code == 401, 30)
    page.get_by_role("button", name="Explain").click()
    expect(page.get_by_text("unknown, expired or revoked")).to_be_visible()
    sign_in(page, first_key(locked))
    expect(page.get_by_role("heading", level=1)).to_have_text("New job")
    expect(page.get_by_label("Name", exact=True).first).to_have_value("half written")


def test_a_list_that_is_looked_at_notices_that_its_key_is_revoked(tab: Watched, locked: Service) -> None:
    key = issue(locked, "read")
    page = tab.open("#/jobs")
    sign_in(page, key["key"])
    expect(page.get_by_role("heading", level=1)).to_have_text("Jobs")
    assert locked.http.delete(f"/v1/keys/{key['id']}").status_code == 200
    expect(page.get_by_text("unknown, expired or revoked")).to_be_visible(timeout=90_000)


def test_what_one_tenant_saw_is_not_shown_to_the_next(tab: Watched, locked: Service) -> None:
    locked.submit(JOB)
    page = tab.open("#/jobs")
    sign_in(page, first_key(locked))
    expect(page.get_by_role("link", name="seen").first).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    # Never answered.
    page.route("**/v1/jobs?*", lambda _: None)
    sign_in(page, issue(locked, "read", tenant="another")["key"])
    expect(page.get_by_role("heading", level=1)).to_have_text("Jobs")
    expect(page.get_by_text("Loading …")).to_be_visible()
    expect(page.get_by_role("link", name="seen")).to_have_count(0)


def test_who_may_only_read_is_offered_nothing_else(tab: Watched, locked: Service) -> None:
    job_id = locked.submit(JOB)
    assert locked.wait(job_id)["status"] == "SUCCEEDED"
    page = tab.open(f"#/jobs/{job_id}")
    sign_in(page, issue(locked, "read")["key"])
    expect(page.get_by_role("heading", level=1)).to_have_text("seen")
    expect(page.get_by_role("button", name="Delete")).to_have_count(0)
    expect(page.get_by_role("link", name="Edit as new")).to_have_count(0)
    page.get_by_role("link", name="Result").click()
    expect(page.get_by_role("columnheader", name="n")).to_be_visible()
    page.get_by_role("link", name="New job").click()
    expect(page.get_by_text("Your key may not submit jobs.")).to_be_visible()
    expect(page.get_by_role("button", name="Submit")).to_be_disabled()
    page.get_by_role("link", name="Workers").click()
    expect(page.get_by_text("Last sign of life")).to_be_visible()
    expect(page.get_by_role("button", name="Drain")).to_have_count(0)

"""Tests of the dashboard with API keys: signing in, a revoked key, and a key with few scopes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.browser import Tab
from tests.support.processes import wait_for
from tests.support.service import Service, running_service
from tests.support.tables import parquet, write_orders

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

JOB = {"name": "count", "tables": {"o": parquet("orders")}, "sql": "SELECT COUNT(*) AS n FROM o"}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that requires API keys. Its HTTP client sends the first key."""
    with running_service(tmp_path_factory.mktemp("secured"), {"EVENKEEL_API_AUTHENTICATION": "on"}) as service:
        write_orders(service.data)
        match = re.search(r"ek_[\w-]+", service.output.read_text())
        assert match is not None
        service.http.headers["Authorization"] = f"Bearer {match[0]}"
        yield service


@pytest.fixture
def tab(browser: Browser, secured: Service) -> Iterator[Tab]:
    opened = Tab(browser, secured.address)
    opened.expect_refusals(401)
    yield opened
    opened.check()
    opened.close()


def first_key(secured: Service) -> str:
    return secured.http.headers["Authorization"].removeprefix("Bearer ")


def issue(secured: Service, *scopes: str, tenant: str = "default") -> dict[str, Any]:
    answer = secured.http.post("/v1/keys", json={"tenant": tenant, "name": "page", "scopes": scopes})
    assert answer.status_code == 201, answer.text
    issued: dict[str, Any] = answer.json()
    return issued


def sign_in(page: Page, key: str) -> None:
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in").click()


def test_key_signs_in_and_stays_in_its_tab(tab: Tab, secured: Service) -> None:
    key = first_key(secured)
    page = tab.open("#/workers")
    expect(page.get_by_role("heading", level=1)).to_have_text("Evenkeel")
    tab.check_accessibility()
    sign_in(page, "ek_…")
    expect(page.get_by_role("alert")).to_contain_text("Invalid key")
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


def test_revoked_key_is_requested_again_and_the_draft_stays(tab: Tab, secured: Service) -> None:
    key = issue(secured, "read", "submit")
    page = tab.open("#/new")
    sign_in(page, key["key"])
    page.get_by_label("Name", exact=True).first.fill("unfinished")
    assert secured.http.delete(f"/v1/keys/{key['id']}").status_code == 200
    headers = {"Authorization": f"Bearer {key['key']}"}
    wait_for("the revocation", lambda: secured.http.get("/v1/me", headers=headers).status_code == 401, 30)
    page.get_by_role("button", name="Explain").click()
    expect(page.get_by_text("unknown, expired or revoked")).to_be_visible()
    sign_in(page, first_key(secured))
    expect(page.get_by_role("heading", level=1)).to_have_text("New job")
    expect(page.get_by_label("Name", exact=True).first).to_have_value("unfinished")


def test_open_list_notices_a_revoked_key(tab: Tab, secured: Service) -> None:
    key = issue(secured, "read")
    page = tab.open("#/jobs")
    sign_in(page, key["key"])
    expect(page.get_by_role("heading", level=1)).to_have_text("Jobs")
    assert secured.http.delete(f"/v1/keys/{key['id']}").status_code == 200
    expect(page.get_by_text("unknown, expired or revoked")).to_be_visible(timeout=90_000)


def test_list_of_one_tenant_is_not_shown_to_the_next(tab: Tab, secured: Service) -> None:
    secured.submit(JOB)
    page = tab.open("#/jobs")
    sign_in(page, first_key(secured))
    expect(page.get_by_role("link", name="count").first).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    # The request never gets a response.
    page.route("**/v1/jobs?*", lambda _: None)
    sign_in(page, issue(secured, "read", tenant="another")["key"])
    expect(page.get_by_role("heading", level=1)).to_have_text("Jobs")
    expect(page.get_by_text("Loading …")).to_be_visible()
    expect(page.get_by_role("link", name="count")).to_have_count(0)


def test_key_that_can_only_read_has_no_other_actions(tab: Tab, secured: Service) -> None:
    job_id = secured.submit(JOB)
    assert secured.wait(job_id)["status"] == "SUCCEEDED"
    page = tab.open(f"#/jobs/{job_id}")
    sign_in(page, issue(secured, "read")["key"])
    expect(page.get_by_role("heading", level=1)).to_have_text("count")
    expect(page.get_by_role("button", name="Delete")).to_have_count(0)
    expect(page.get_by_role("link", name="Edit as new")).to_have_count(0)
    page.get_by_role("link", name="Result").click()
    expect(page.get_by_role("columnheader", name="n", exact=True)).to_be_visible()
    page.get_by_role("link", name="New job").click()
    expect(page.get_by_text("Your API key cannot submit jobs.")).to_be_visible()
    expect(page.get_by_role("button", name="Submit")).to_be_disabled()
    page.get_by_role("link", name="Workers").click()
    expect(page.get_by_text("Last heartbeat")).to_be_visible()
    expect(page.get_by_role("button", name="Drain")).to_have_count(0)

"""Provokes problems that require a job that has run, with the generated Python client."""

from __future__ import annotations

from typing import Any

from evenkeel_openapi.api.jobs import cancel_job, change_job_settings
from evenkeel_openapi.api.results import get_result
from evenkeel_openapi.api.streams import declare_stream
from evenkeel_openapi.models import ChangeJobSettingsBody, StreamDeclaration

from tests.clients.python.journey import submit, wait_for
from tests.clients.python.situations import CLICKS, ORDERS, SCHEMA, Situation, provokes


def ran(situation: Situation, spec: dict[str, Any], status: str) -> str:
    """Runs a job until it has a status and returns its id."""
    job = submit(situation.admin, spec)
    assert wait_for(situation.admin, job.id, status).status == status
    return str(job.id)


@provokes("job_already_finished")
def _(situation: Situation) -> object:
    return cancel_job.sync(ran(situation, ORDERS, "SUCCEEDED"), client=situation.admin)


@provokes("result_missing")
def _(situation: Situation) -> object:
    job_id = ran(situation, ORDERS, "SUCCEEDED")
    situation.acts.lose(job_id)
    return get_result.sync(job_id, client=situation.admin)


@provokes("state_not_compatible")
def _(situation: Situation) -> object:
    declare_stream.sync("clicks", client=situation.admin, body=StreamDeclaration(schema=SCHEMA))
    job_id = ran(situation, CLICKS, "STOPPED")
    patch = ChangeJobSettingsBody.from_dict({"state": {"partitions": 7}})
    return change_job_settings.sync(job_id, client=situation.admin, body=patch)

"""`evenkeel explain` and `evenkeel plan`: how a job would run, and how one ran."""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli.client.options import (
    AsJson,
    JobFile,
    JobId,
    KeyFile,
    Name,
    ReadOptions,
    Schemas,
    Settings,
    Sql,
    Tables,
    Url,
)
from service.cli.errors import told_plainly

ShowSql = Annotated[bool, typer.Option("--show-sql", help="Show the SQL before and after the rules.")]
ShowPhysical = Annotated[bool, typer.Option("--show-physical", help="Show Spark's physical plan.")]


@told_plainly
def explain(
    file: JobFile = None,
    sql: Sql = None,
    table: Tables = None,
    schema: Schemas = None,
    read: ReadOptions = None,
    settings: Settings = None,
    name: Name = None,
    show_sql: ShowSql = False,
    show_physical: ShowPhysical = False,
    url: Url = None,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Plan a job without running it.

    Shows the rules with their reasons, what they weighed, and the plan that came of it.
    """
    from service.cli.client.answers import read as understood
    from service.cli.client.job_input import Given, read_job
    from service.cli.client.session import opened
    from service.cli.client.show_plan import show_plan
    from service.spec.reports import PlanReport

    job_input = read_job(Given(file, sql, settings or (), name, table or (), schema or (), read or ()))
    with opened(url, key_file, as_json=as_json) as session:
        document = session.service.explain(job_input.spec, job_input.source)
        if as_json:
            session.output.document(document)
        else:
            plan = understood(PlanReport, document)
            show_plan(session.output, plan, with_sql=show_sql, with_physical=show_physical)


@told_plainly
def plan(
    job_id: JobId,
    show_sql: ShowSql = False,
    show_physical: ShowPhysical = False,
    url: Url = None,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Show how a job was planned, as `explain` does before."""
    from service.cli.client.answers import read
    from service.cli.client.session import opened
    from service.cli.client.show_plan import show_plan
    from service.spec.reports import PlanReport

    with opened(url, key_file, as_json=as_json) as session:
        document = session.service.plan(job_id)
        if as_json:
            session.output.document(document)
        else:
            report = read(PlanReport, document)
            show_plan(session.output, report, with_sql=show_sql, with_physical=show_physical)

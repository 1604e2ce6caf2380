"""`evenkeel metrics` and `evenkeel skew`: what a run measured."""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli.client.options import AsJson, JobId, KeyFile, Url
from service.cli.errors import told_plainly

Slots = Annotated[
    int | None,
    typer.Option(min=1, help="Tell savings as of so many tasks at once.", show_default="those that it ran on"),
]


@told_plainly
def metrics(
    job_id: JobId, slots: Slots = None, url: Url = None, key_file: KeyFile = None, as_json: AsJson = False
) -> None:
    """Show what was measured while a job ran."""
    from service.cli.client.answers import RunMetrics, RunSavings, read
    from service.cli.client.session import opened
    from service.cli.client.show_metrics import show_metrics

    with opened(url, key_file, as_json=as_json) as session:
        document = session.service.metrics(job_id, slots)
        if as_json:
            session.output.document(document)
        else:
            show_metrics(session.output, read(RunMetrics, document), read(RunSavings, document))


@told_plainly
def skew(
    job_id: JobId, slots: Slots = None, url: Url = None, key_file: KeyFile = None, as_json: AsJson = False
) -> None:
    """Tell whether a job was skewed, and what to change.

    With the hot keys, the time lost and the setting.
    """
    from service.cli.client.answers import RunSavings, read
    from service.cli.client.session import opened
    from service.cli.client.show_metrics import show_skew
    from service.spec.reports import SkewReport

    with opened(url, key_file, as_json=as_json) as session:
        document = session.service.metrics(job_id, slots)
        report = document.get("skew")
        if as_json:
            session.output.document(report)
        else:
            show_skew(session.output, read(SkewReport, report), read(RunSavings, document))

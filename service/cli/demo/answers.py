"""What the demo reads of the service's answers, over the same client as the commands: the reports, and rows as pandas
has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import pyarrow as pa

from service.cli.client.answers import read
from service.cli.client.service import ARROW, Service
from service.spec.reports import MetricsReport, PlanReport

# pandas turns whole numbers with gaps into floats unless told not to.
_WHOLE_NUMBERS = {pa.int32(): pd.Int32Dtype(), pa.int64(): pd.Int64Dtype()}


def explained(service: Service, spec: Mapping[str, Any]) -> PlanReport:
    """The plan of a job that is not run. Raises CliError, as all of these do."""
    return read(PlanReport, service.explain(spec))


def plan_of(service: Service, job_id: str) -> PlanReport:
    """How a job was planned."""
    return read(PlanReport, service.plan(job_id))


def metrics_of(service: Service, job_id: str) -> MetricsReport:
    """What was measured while a job ran."""
    return read(MetricsReport, service.metrics(job_id))


def result_of(service: Service, job_id: str) -> pd.DataFrame:
    """All rows of a job's result, in its order."""
    with service.result(job_id, ARROW) as answer, pa.ipc.open_stream(answer.read()) as reader:
        frame: pd.DataFrame = reader.read_all().to_pandas(types_mapper=_WHOLE_NUMBERS.get)
    return frame

"""The public API as any client would use it: plain HTTP, nothing from inside."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import httpx
import pandas as pd
import pyarrow as pa

from service.cli.errors import CliError, ExitCode
from service.jobs.views import Job
from service.results.downloads import ARROW
from service.spec.model import Frozen
from service.spec.reports import MetricsReport, PlanReport

M = TypeVar("M", bound=Frozen)

_WAIT_SECONDS = 1
# pandas turns whole numbers with gaps into floats unless told not to.
_WHOLE_NUMBERS = {pa.int32(): pd.Int32Dtype(), pa.int64(): pd.Int64Dtype()}


class Client:
    """Talks to one service. Raises CliError for every answer that is not the wanted one."""

    def __init__(self, address: str) -> None:
        # Longer than the service takes to give up on an explanation.
        self._http = httpx.Client(base_url=address, timeout=180, trust_env=False)

    def submit(self, spec: Mapping[str, Any]) -> Job:
        """Posts a job."""
        return Job.model_validate(self._ask("POST", "/v1/jobs", json=spec).json())

    def follow(self, job_id: str, see: Callable[[Job], None]) -> Job:
        """Waits until the job has finished; `see` gets it each time it changed and at least about once a second."""
        headers = {"Prefer": f"wait={_WAIT_SECONDS}"}
        job: Job | None = None
        while job is None or not job.finished:
            answer = self._ask("GET", f"/v1/jobs/{job_id}", headers=headers)
            if answer.status_code == httpx.codes.OK:
                job = Job.model_validate(answer.json())
                headers["If-None-Match"] = answer.headers["ETag"]
            if job is not None:
                see(job)
        return job

    def explain(self, spec: Mapping[str, Any]) -> PlanReport:
        """Plans a job without running it."""
        return _parse(PlanReport, self._ask("POST", "/v1/explain", json=spec))

    def plan(self, job_id: str) -> PlanReport:
        """How a job was planned."""
        return _parse(PlanReport, self._ask("GET", f"/v1/jobs/{job_id}/plan"))

    def metrics(self, job_id: str) -> MetricsReport:
        """What was measured while a job ran."""
        return _parse(MetricsReport, self._ask("GET", f"/v1/jobs/{job_id}/metrics"))

    def result(self, job_id: str) -> pd.DataFrame:
        """All rows of a job's result, in its order."""
        answer = self._ask("GET", f"/v1/jobs/{job_id}/result", headers={"Accept": ARROW})
        with pa.ipc.open_stream(answer.content) as reader:
            frame: pd.DataFrame = reader.read_all().to_pandas(types_mapper=_WHOLE_NUMBERS.get)
        return frame

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def _ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            answer = self._http.request(method, path, **options)
        except httpx.TransportError as error:
            raise CliError(f"{method} {path} got no answer: {error}", code=ExitCode.CHILD) from None
        if answer.is_success or answer.status_code == httpx.codes.NOT_MODIFIED:
            return answer
        raise CliError(f"{method} {path} was answered with {answer.status_code}: {answer.text}")


def _parse(kind: type[M], answer: httpx.Response) -> M:
    return kind.model_validate(answer.json())

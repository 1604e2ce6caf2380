"""Plans the stream of an attempt, and plans it again whenever a lookup table has changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from service.contract.job import JobSpec
from service.contract.problems import SpecError
from service.sql.compile import compile_job
from service.store.streaming_state import Stream
from workers.engine.budget import no_check
from workers.engine.spark.sources import TableInput
from workers.engine.streaming.engine import PlannedStream, StreamEngine
from workers.engine.streaming.sources import BatchBound, StreamInput, bound_of
from workers.engine.streaming.state import StateOptions, differences
from workers.streams.inputs import Inputs


class StreamPlans:
    """The successive plans of one job. All of them use the same state."""

    def __init__(self, spec: JobSpec, engine: StreamEngine, inputs: Inputs, state: StateOptions) -> None:
        self._spec = spec
        self._engine = engine
        self._inputs = inputs
        self._state = state

    @property
    def inputs(self) -> Inputs:
        """The tables that the newest plan reads."""
        return self._inputs

    def plan(
        self,
        layout: Mapping[str, Any] | None,
        changed: Mapping[str, TableInput] | None = None,
        check: Callable[[], None] = no_check,
    ) -> PlannedStream:
        """Returns a plan for a state of this `layout` (None if there is no state yet), with other versions of the
        tables that have `changed`. The inputs of streams do not change. `check` is as in `StreamEngine.plan`. Raises
        SpecError, StreamPlanError, and what Spark raises when it analyses a plan.
        """
        if changed is not None:
            self._inputs = self._inputs.with_tables(changed)
        spec, inputs = self._spec, self._inputs
        return self._engine.plan(
            compile_job(spec, inputs.schemas, is_accepted=True),
            inputs.tables,
            self._state,
            _bounds(spec, inputs),
            output=spec.output_mode,
            settings=spec.settings,
            merges_parts=spec.sink.kind in {"managed", "postgres"},
            state_layout=layout,
            check=check,
        )


def state_of(spec: JobSpec, stream: Stream | None, slots: int) -> StateOptions:
    """Returns the state's options. By default it keeps its number of partitions, or gets one for each slot."""
    kept = (stream.layout or {}).get("partitions") if stream is not None else None
    return StateOptions(spec.settings.state.provider, spec.settings.state.partitions or kept or slots)


def check_layout(before: Mapping[str, Any] | None, planned: PlannedStream) -> None:
    """Raises SpecError `state_not_compatible` if the plan cannot use the existing state of layout `before`."""
    if before is None:
        return
    found = differences(dict(before), planned.layout)
    if found:
        raise SpecError.of(
            "state_not_compatible",
            f"{'; '.join(map(str, found))}. Restore the previous value and resume, or resume with "
            '{"from": "scratch"}: all input that still exists is read again, into a new generation of the result.',
        )


def _bounds(spec: JobSpec, inputs: Inputs) -> dict[str, BatchBound]:
    return {
        name: bound_of(spec.settings.mini_batch, table.source, table.files)
        for name, table in inputs.tables.items()
        if isinstance(table, StreamInput)
    }

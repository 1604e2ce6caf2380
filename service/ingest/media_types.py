"""What posted rows may be written in."""

from __future__ import annotations

NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
CSV = "text/csv"

ROWS = (NDJSON, ARROW, CSV)

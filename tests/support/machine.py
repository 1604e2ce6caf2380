"""What a measurement has to say beside its figures."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import psutil


def machine() -> str:
    """Processor, cores, memory, system, and the versions of Python and PySpark."""
    memory = psutil.virtual_memory().total / (1 << 30)
    return (
        f"{_processor()}, {os.cpu_count() or 1} cores, {memory:.0f} GiB, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}, PySpark {version('pyspark')}"
    )


def p90(times: Sequence[float]) -> float:
    """Of sorted times: nine of ten are not longer."""
    return times[min(len(times) - 1, round(0.9 * len(times)))]


def _processor() -> str:
    """The processor's name, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()

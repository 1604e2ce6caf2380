"""Describes the machine of a measurement, and computes percentiles."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import psutil


def machine() -> str:
    """Returns processor, cores, memory, system, and the versions of Python and PySpark."""
    memory = psutil.virtual_memory().total / (1 << 30)
    return (
        f"{_processor()}, {os.cpu_count() or 1} cores, {memory:.0f} GiB, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}, PySpark {version('pyspark')}"
    )


def p90(times: Sequence[float]) -> float:
    """Returns the 90th percentile of sorted times."""
    return times[min(len(times) - 1, round(0.9 * len(times)))]


def _processor() -> str:
    """Returns the processor's name, or its architecture if the name is unknown."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()

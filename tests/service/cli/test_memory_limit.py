"""The memory limits of containers, read from files in the form of the kernel's."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from service.cli.doctor_checks import Level, available_memory, check_memory
from service.config.settings import Settings

GIB = 1 << 30
MIB = 1 << 20


@pytest.fixture
def mount(tmp_path: Path) -> Path:
    return tmp_path / "cgroup"


def membership(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "membership"
    path.write_text(text)
    return path


def group(directory: Path, **files: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name.replace("__", ".")).write_text(f"{text}\n")


def test_limit_of_cgroup_version_2(tmp_path: Path, mount: Path) -> None:
    stat = f"anon {10 * MIB}\nactive_file 5\ninactive_file {6 * MIB}"
    group(mount, memory__max=str(50 * MIB), memory__current=str(16 * MIB), memory__stat=stat)
    found = available_memory(membership(tmp_path, "0::/\n"), mount)
    # What the cache of files takes counts as free.
    assert (found.total, found.available) == (50 * MIB, 40 * MIB)


def test_lowest_limit_of_nested_groups_applies(tmp_path: Path, mount: Path) -> None:
    group(mount / "user.slice", memory__max=str(30 * MIB), memory__current=str(10 * MIB))
    group(mount / "user.slice" / "evenkeel.service", memory__max="max", memory__current="7")
    found = available_memory(membership(tmp_path, "0::/user.slice/evenkeel.service\n"), mount)
    assert (found.total, found.available) == (30 * MIB, 20 * MIB)


def test_limit_of_cgroup_version_1(tmp_path: Path, mount: Path) -> None:
    # The membership is the host's: that path is not to be seen from inside.
    group(
        mount / "memory",
        memory__limit_in_bytes=str(25 * MIB),
        memory__usage_in_bytes=str(15 * MIB),
        memory__stat=f"inactive_file 1\ntotal_inactive_file {6 * MIB}",
    )
    names = "4:cpu,cpuacct:/docker/ab\n3:memory:/docker/ab\n1:name=systemd:/docker/ab\n0::/\n"
    found = available_memory(membership(tmp_path, names), mount)
    assert (found.total, found.available) == (25 * MIB, 16 * MIB)


@pytest.mark.parametrize("limit", ["max", str((1 << 63) - 4096), "nonsense"])
def test_memory_of_the_machine_without_a_limit(tmp_path: Path, mount: Path, limit: str) -> None:
    group(mount, memory__max=limit, memory__current="1")
    assert available_memory(membership(tmp_path, "0::/\n"), mount).total == psutil.virtual_memory().total


def test_memory_of_the_machine_without_control_groups(tmp_path: Path, mount: Path) -> None:
    assert available_memory(tmp_path / "none", mount).total == psutil.virtual_memory().total


def test_full_container_has_no_available_memory(tmp_path: Path, mount: Path) -> None:
    group(mount, memory__max="4096", memory__current="8192")
    assert available_memory(membership(tmp_path, "0::/\n"), mount).available == 0


def test_doctor_fails_if_the_limit_is_below_the_heap(tmp_path: Path, mount: Path) -> None:
    group(mount, memory__max=str(GIB), memory__current="0")
    finding = check_memory(Settings(), available_memory(membership(tmp_path, "0::/\n"), mount))
    assert finding.level is Level.FAIL
    assert "of 1.0 GiB; the worker's JVM takes up to 2.0 GiB" in finding.detail
    assert "jobs with isolation: driver up to 2.0 GiB more" in finding.detail

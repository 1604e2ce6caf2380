"""The wheel `evenkeel-client` in an environment with nothing else of this project, against a service with a worker."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support import documents
from tests.support.documents import ROOT, blocks
from tests.support.production import Production

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ADDRESS = "http://localhost:8080"
NOT_INSTALLED = ("service", "workers", "pyspark", "fastapi", "sqlalchemy", "sqlglot", "rich", "typer")
_INSTALL_SECONDS = 600
_PROGRAM_SECONDS = 300


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built as `make client` does."""
    return built("service/client", tmp_path_factory.mktemp("wheel"))


def built(project: str, directory: Path) -> Path:
    """Builds the wheel of a project into an empty directory, without what it needs."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(directory), project]
    subprocess.run(command, cwd=ROOT, timeout=_INSTALL_SECONDS, check=True)
    (wheel,) = directory.glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment with the wheel, polars and pandas."""
    venv = tmp_path_factory.mktemp("environment") / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True, timeout=120)
    install = [str(venv / "bin/pip"), "install", "--quiet", "-c", "constraints.txt", f"{wheel}[polars,pandas,arrow]"]
    subprocess.run(install, cwd=ROOT, check=True, timeout=_INSTALL_SECONDS)
    return venv / "bin/python"


def ran(python: Path, text: str, directory: Path, **environment: str) -> str:
    """Runs a program in `directory` and returns what it prints. Raises AssertionError if it fails."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("EVENKEEL_", "PYTHON"))}
    done = subprocess.run(
        [python, "-c", text],
        cwd=directory,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=_PROGRAM_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def program(text: str, production: Production) -> str:
    """Returns a documented program, adapted to the tests' service."""
    (api,) = production.apis
    assert ADDRESS in text
    return text.replace(ADDRESS, api.address)


def test_environment_has_neither_service_nor_spark(python: Path, tmp_path: Path) -> None:
    found = ran(
        python,
        "import importlib.util as u, importlib.metadata as m; "
        f"print([name for name in {NOT_INSTALLED} if u.find_spec(name)], m.version('evenkeel-client'))",
        tmp_path,
    )
    assert found.split()[0] == "[]"


def test_every_module_can_be_imported_and_loads_no_frames(python: Path, tmp_path: Path) -> None:
    printed = ran(
        python,
        "import sys, pkgutil, evenkeel\n"
        "for module in pkgutil.walk_packages(evenkeel.__path__, 'evenkeel.'):\n"
        "    __import__(module.name)\n"
        "assert all(hasattr(evenkeel, name) for name in evenkeel.__all__)\n"
        "print(sorted({'polars', 'pandas', 'pyarrow', 'numpy', 'IPython'} & set(sys.modules)))",
        tmp_path,
    )
    assert printed.strip() == "[]"


def test_distribution_of_the_service_has_the_files_of_the_client(wheel: Path, tmp_path: Path) -> None:
    service = built(".", tmp_path)

    def files(archive: Path) -> dict[str, bytes]:
        with zipfile.ZipFile(archive) as opened:
            return {name: opened.read(name) for name in opened.namelist() if name.startswith("evenkeel/")}

    of_service = files(service)
    assert {name: of_service.get(name) for name in files(wheel)} == files(wheel)
    assert {Path(name).parent.name for name in of_service.keys() - files(wheel).keys()} == {"config"}
    listed = subprocess.run(
        ["git", "ls-files", "service", "workers"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    modules = {name for name in listed.stdout.split() if name.endswith(".py") and "/client/wheel/" not in name}
    with zipfile.ZipFile(service) as opened:
        # hatchling moves a single file that is included a second time.
        assert modules - set(opened.namelist()) == set()
    assert "evenkeel/py.typed" in files(wheel)
    assert service.name.split("-")[1] == wheel.name.split("-")[1]


def test_program_of_the_readme(python: Path, production: Production, tmp_path: Path) -> None:
    text = documents.block("program: readme")
    assert sum(1 for line in text.splitlines() if line) == 10
    printed = ran(python, program(text, production), tmp_path, EVENKEEL_API_KEY=production.key())
    assert printed.count("shape: ") == 3
    assert printed.splitlines()[-1] == "unknown_column 1 23 Did you mean f.carrier?"


def test_programs_of_the_guide(python: Path, production: Production, tmp_path: Path) -> None:
    parts = [one for one in blocks("program") if one.name.startswith("client ")]
    text = program("\n".join(one.text for one in parts), production)
    printed = ran(python, text, tmp_path, EVENKEEL_API_KEY=production.key())
    assert "[27004, 24951, 28834, 28330, 28796, 28243]" in printed
    guide = (ROOT / "docs/how-to/python-client.md").read_text(encoding="utf-8")
    stated = guide.split("This prints:\n\n```text\n")[1].split("```")[0]
    assert stated in printed
    assert "[{'flights': 29425}]" in printed


def test_values_of_every_type(python: Path, production: Production, tmp_path: Path) -> None:
    """Values go through parameters and all kinds of results unchanged: hostile texts, NULLs, decimals, zones."""
    text = """
import datetime as dt
from decimal import Decimal
import evenkeel as ek
import polars as pl

hostile = "it's <b>; DROP TABLE o -- \\\\' :x ? `q`"
noon = dt.datetime(2024, 1, 31, 12, 30, 0, 500)
values = {
    "s": hostile, "i": -(1 << 62), "d": Decimal("-12345678901234567.89"), "day": dt.date(1999, 12, 31), "n": noon,
    "t": noon.replace(tzinfo=dt.timezone(dt.timedelta(hours=2))), "b": b"\\x00\\xff", "f": 0.1, "yes": True, "no": None,
}
columns = ", ".join(f":{name} AS {name}" for name in values)
sql = f"SELECT {columns}, COUNT(*) AS orders FROM a WHERE a.carrier = 'UA'"
client = ek.connect()
result = client.sql(sql, tables={"a": "airlines/"}, parameters=values)
(row,) = result.rows()
assert row == {**values, "orders": 1}, row
assert result.to_arrow().to_pylist() == [row]
assert result.to_polars().drop("no").to_dicts() == [{name: row[name] for name in row if name != "no"}]
assert result.to_pandas()["d"][0] == values["d"]
"""
    (api,) = production.apis
    ran(python, text, tmp_path, EVENKEEL_URL=api.address, EVENKEEL_API_KEY=production.key())


def test_large_result_in_bounded_memory(python: Path, production: Production, tmp_path: Path) -> None:
    text = """
import resource
import evenkeel as ek
import pyarrow

names = "year month day dep_time sched_dep_time arr_time sched_arr_time flight distance hour minute time_hour tailnum"
query = "SELECT " + ", ".join(f"f.{name} AS {name}" for name in names.split()) + " FROM f"
result = ek.connect().sql(" UNION ALL ".join([query] * 4), tables={"f": "flights/"})
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
rows = size = 0
for batch in result.batches():
    rows += batch.num_rows
    size += batch.nbytes
assert rows == len(result) == 4 * 336_776
grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
assert grown < size // 2, (grown, size)
print(grown, size)
"""
    (api,) = production.apis
    ran(python, text, tmp_path, EVENKEEL_URL=api.address, EVENKEEL_API_KEY=production.key())

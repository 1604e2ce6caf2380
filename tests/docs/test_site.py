"""The documentation site: it builds without a warning, and can be read and searched offline."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOADED = re.compile(r"""<(?:script|img|iframe|link rel="(?:stylesheet|preload)")[^>]*?(?:src|href)="(https?:[^"]+)""")
"""A script, picture or style sheet of another host."""

pytestmark = pytest.mark.not_quick


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(directory)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return directory


def test_pages_load_nothing_from_other_hosts(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    assert {str(page): LOADED.findall(page.read_text(encoding="utf-8")) for page in pages} == {
        str(page): [] for page in pages
    }


def test_search_needs_no_server(site: Path) -> None:
    assert (site / "search/search_index.js").read_text(encoding="utf-8").startswith("var __index = ")
    page = (site / "how-to/own-data.html").read_text(encoding="utf-8")
    assert 'src="../vendor/iframe-worker/shim.js"' in page
    assert (site / "vendor/iframe-worker/LICENSE").exists()

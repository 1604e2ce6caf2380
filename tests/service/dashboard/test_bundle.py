"""Tests of the dashboard's bundle of files."""

from __future__ import annotations

import gzip
import re
from importlib.resources import files

import pytest

from service.api.dashboard import INDEX, bundle

OTHER_HOST = re.compile(
    rb"""(?:src|href|url|import|from|fetch)\s*[=(]?\s*["'`]?\s*(?:https?:)?//[a-z0-9]""", re.IGNORECASE
)
INLINE = re.compile(rb"""<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=""", re.IGNORECASE)
OWN_FILES = sorted(path for path in bundle().assets if not path.startswith("vendor/"))


def test_bundle_has_files_of_every_directory() -> None:
    assert {"index.html", "js/main.js", "vendor/LICENSES.txt"} <= set(bundle().assets)


def test_page_links_files_with_the_current_version() -> None:
    page = bundle().assets[INDEX].content.decode()
    named = re.findall(r'(?:href|src)="dashboard/([0-9a-f]{16})/([^"]+)"', page)
    assert len(named) > 3
    assert {version for version, _ in named} == {bundle().version}
    assert {path for _, path in named} <= set(bundle().assets)


@pytest.mark.parametrize("path", OWN_FILES)
def test_own_file_loads_nothing_from_other_hosts_and_has_no_inline_code(path: str) -> None:
    content = bundle().assets[path].content
    assert not OTHER_HOST.search(content)
    if path.endswith(".html"):
        assert not INLINE.search(content)


@pytest.mark.parametrize("path", [path for path in OWN_FILES if path.endswith(".js")])
def test_imported_modules_exist(path: str) -> None:
    folder = path.rpartition("/")[0].split("/")
    for target in re.findall(r'(?:from|import\()\s*"(\.[^"]+)"', bundle().assets[path].content.decode()):
        parts = list(folder)
        for step in target.split("/"):
            if step == "..":
                parts.pop()
            elif step != ".":
                parts.append(step)
        assert "/".join(parts) in bundle().assets, target


def test_compressed_content_is_the_same() -> None:
    for path, asset in bundle().assets.items():
        assert asset.compressed is None or gzip.decompress(asset.compressed) == asset.content, path


def test_vendored_libraries_have_licences() -> None:
    licences = (files("service.dashboard") / "static" / "vendor" / "LICENSES.txt").read_text(encoding="utf-8")
    for library in ("preact", "htm", "uplot", "@dagrejs/dagre", "@codemirror/view", "@codemirror/lang-sql"):
        assert re.search(rf"^{re.escape(library)} [0-9.]+ \((MIT|Apache-2\.0)\)$", licences, re.MULTILINE), library

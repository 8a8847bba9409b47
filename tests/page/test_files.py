"""The page's files as they are served. No browser is needed for these."""

from __future__ import annotations

import hashlib
import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from gradwatch_server.page.routes import FOLDER, LINES, POLICY, make_routes, read_files

ROOT = Path(__file__).parents[2]
OURS = [path for path in FOLDER.rglob("*.js") if "vendor" not in path.parts]
SINKS = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|setHTML|document\.write|createContextualFragment"
    r"|DOMParser|\beval\b|new Function|srcdoc|style=|setAttribute\(\"style|http:|https:(?!//)"
)


@pytest.fixture(scope="module")
def client() -> TestClient:
    return TestClient(Starlette(routes=list(make_routes())))


@pytest.mark.slow
def test_the_page_and_its_files_are_strict(client: TestClient) -> None:
    index = client.get("/?run=x&anything=y")
    assert index.headers["content-security-policy"] == POLICY
    assert index.headers["cache-control"] == "no-cache"
    paths = re.findall(r'(?:href|src)="(/static/[^"]+)"', index.text)
    assert len(paths) > 20
    for path in paths:
        answer = client.get(path)
        assert answer.status_code == 200, path
        assert answer.headers["content-security-policy"] == POLICY
        assert "immutable" in answer.headers["cache-control"]


@pytest.mark.parametrize("name", ["", "main.js", "styles/base.css"])
def test_files_are_sent_compressed_to_who_can_read_that(client: TestClient, name: str) -> None:
    path = f"/static/{read_files().digest}/{name}" if name else "/"
    plain = client.get(path, headers={"accept-encoding": "identity"})
    compressed = client.get(path, headers={"accept-encoding": "gzip"})

    assert "content-encoding" not in plain.headers
    assert compressed.headers["content-encoding"] == "gzip"
    assert plain.headers["vary"] == compressed.headers["vary"] == "Accept-Encoding"
    assert compressed.content == plain.content
    assert int(compressed.headers["content-length"]) < 0.6 * len(plain.content)


def test_every_module_is_named_by_the_page(client: TestClient) -> None:
    index = client.get("/").text

    for path in OURS:
        assert f"/{path.relative_to(FOLDER)}" in index


@pytest.mark.parametrize(
    "path", ["../routes.py", "..%2froutes.py", "%2e%2e/files.py", "nothing.js", "index.html", ""]
)
def test_nothing_else_is_served(client: TestClient, path: str) -> None:
    digest = read_files().digest

    assert client.get(f"/static/{digest}/{path}").status_code == 404


def test_files_of_another_version_are_not_there(client: TestClient) -> None:
    assert client.get("/static/0123456789abcdef/main.js").status_code == 404


def test_the_version_changes_with_any_file(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("{static} {lines} <!-- links -->")
    (tmp_path / "a.js").write_text("1")
    (tmp_path / "secret.env").write_text("x")
    before = read_files(tmp_path)
    (tmp_path / "a.js").write_text("2")
    after = read_files(tmp_path)

    assert before.digest != after.digest
    assert set(after.files) == {"a.js"}
    assert after.digest.encode() in after.index


@pytest.mark.parametrize("path", OURS, ids=lambda path: str(path.relative_to(FOLDER)))
def test_no_text_becomes_markup_or_script(path: Path) -> None:
    code = re.sub(r"//.*|http://www\.w3\.org/2000/svg", "", path.read_text())

    assert not SINKS.search(code)


def test_what_draws_lines_is_the_file_that_it_was() -> None:
    spec = importlib.util.spec_from_file_location("vendor", ROOT / "vendored/vendor.py")
    assert spec is not None
    assert spec.loader is not None
    build: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    if not (FOLDER / LINES).is_file():
        pytest.skip("uPlot is not here: scripts/vendor gets it")
    for name, (_, digest) in build.FILES.items():
        content = (FOLDER / "vendor/uplot" / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == digest

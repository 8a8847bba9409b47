"""Length of a body, and the headers that every answer gets."""

from __future__ import annotations

import itertools

import pytest
from starlette.testclient import TestClient

from gradwatch_server.api.security.access import MAX_BODY_BYTES
from tests.support.problems import problem


def test_a_body_is_read_up_to_a_limit(client: TestClient) -> None:
    fits = b'{"k":"' + b"x" * (MAX_BODY_BYTES - 8) + b'"}'
    headers = {"Content-Type": "application/json"}
    assert len(fits) == MAX_BODY_BYTES
    assert client.post("/echo", content=fits, headers=headers).status_code == 200
    for body in (fits + b" ", iter([fits, b" "]), itertools.repeat(b"x" * 999, 70)):
        status, detail = problem(client.post("/echo", content=body, headers=headers))
        assert (status, str(MAX_BODY_BYTES) in detail) == (413, True)


@pytest.mark.parametrize("length", ["65537", "9" * 30, "-1", "x", "²", ""])
def test_a_length_that_cannot_be_is_refused(client: TestClient, length: str) -> None:
    headers = {b"Content-Length": length.encode("utf-8")}
    assert problem(client.get("/runs", headers=headers))[0] == 413


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/runs", "/metrics", "/nothing"])
def test_head_is_answered_as_get(client: TestClient, path: str) -> None:
    """S52: with the same status and headers; the server leaves out the body."""
    head, get = client.head(path), client.get(path)

    assert head.status_code == get.status_code
    assert head.headers["content-type"] == get.headers["content-type"]


@pytest.mark.parametrize("path", ["/alerts/stream", "/runs/none/alerts/stream"])
def test_the_head_of_a_stream_is_that_of_get(client: TestClient, path: str) -> None:
    """S52: and ends there, although the stream has no end."""
    head, get = client.head(path), client.get(path)

    assert (head.status_code, head.content) == (get.status_code, b"")
    assert head.headers["content-type"] == get.headers["content-type"]


def test_head_needs_the_token_that_get_needs(locked: TestClient, reader: dict[str, str]) -> None:
    assert locked.head("/runs").status_code == 401
    assert locked.head("/runs", headers=reader).status_code == 200


def test_every_answer_forbids_what_a_browser_might_do_with_it(
    locked: TestClient, reader: dict[str, str]
) -> None:
    responses = [
        locked.get("/healthz"),
        locked.get("/runs", headers=reader),
        locked.get("/alerts/stream", headers=reader),
        locked.get("/nothing", headers=reader),
        locked.get("/alerts?after=x", headers=reader),
        locked.get("/runs"),
        locked.get("/runs", headers={"Host": "evil.example"}),
        locked.post("/echo", content=b"x" * (MAX_BODY_BYTES + 1)),
    ]
    assert [response.status_code for response in responses] == [
        *(200, 200, 200, 404, 422, 401, 421, 413)
    ]
    for response in responses:
        headers = response.headers
        policy = headers["content-security-policy"]
        assert policy == "default-src 'none'; frame-ancestors 'none'"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert headers["cache-control"] in ("no-store", "no-cache")
        assert "access-control-allow-origin" not in headers
        assert "server" not in headers

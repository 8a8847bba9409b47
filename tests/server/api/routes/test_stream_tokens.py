"""Tokens for the URL of a stream: for a minute, for streams only, and not to be forged."""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from gradwatch_server.api.security.stream_tokens import STREAM_TOKEN_S, StreamTokens

STREAM = "/alerts/stream"


@pytest.fixture
def stream_token(locked: TestClient, reader: dict[str, str]) -> Callable[[], str]:
    """Ask for a token, as one who may read: `stream_token()`."""

    def ask() -> str:
        response = locked.post("/alerts/stream-token", headers=reader)
        assert response.status_code == 200
        document = response.json()
        assert document["expires_in_s"] == STREAM_TOKEN_S == 60
        return str(document["token"])

    return ask


def test_a_stream_token_opens_a_stream_for_a_minute(
    locked: TestClient, stream_token: Callable[[], str], clock: Any
) -> None:
    """The read token gets one; without it there is none."""
    assert locked.post("/alerts/stream-token").status_code == 401
    token = stream_token()
    assert locked.get(STREAM, params={"token": token}).status_code == 200
    assert locked.get("/runs/x/alerts/stream", params={"token": token}).status_code == 404

    clock.now_s += STREAM_TOKEN_S - 0.1
    assert locked.get(STREAM, params={"token": token}).status_code == 200
    clock.now_s += 0.2
    assert locked.get(STREAM, params={"token": token}).status_code == 401


def test_a_stream_token_opens_nothing_else(
    locked: TestClient, stream_token: Callable[[], str]
) -> None:
    token = stream_token()

    for path in ("/runs", "/alerts", "/alerts/stream-token", "/openapi.json"):
        assert locked.get(path, params={"token": token}).status_code == 401
    assert locked.post("/alerts/stream-token", params={"token": token}).status_code == 401
    assert locked.get(STREAM, headers={"Authorization": f"Bearer {token}"}).status_code == 401


def test_the_lasting_tokens_are_no_use_in_a_url(locked: TestClient) -> None:
    for token in ("r" * 43, "w" * 43):
        assert locked.get(STREAM, params={"token": token}).status_code == 401
        assert locked.get("/runs", params={"token": token}).status_code == 401


def test_a_stream_token_cannot_be_forged(
    locked: TestClient, stream_token: Callable[[], str]
) -> None:
    """Longer life, another signature, another process."""
    token = stream_token()
    expiry, signature = token.split("-")
    forged = [
        f"{float(expiry) + 1:.3f}-{signature}",
        f"{expiry}-{'0' * len(signature)}",
        f"{expiry}-",
        f"-{signature}",
        f"inf-{signature}",
        StreamTokens().issue(),
        "",
        "é\x00",
        token + "0",
    ]
    for one in forged:
        assert locked.get(STREAM, params={"token": one}).status_code == 401, one
    assert locked.get(f"{STREAM}?token={token}&token={token}").status_code == 401
    assert set(token) <= set(string.hexdigits + ".-")

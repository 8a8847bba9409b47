"""Problem documents: the errors that the API answers with."""

from __future__ import annotations

from typing import Any


def problem(response: Any) -> tuple[int, str]:
    """Return status and detail of a problem document, of an answer of any HTTP client."""
    assert response.headers["content-type"] == "application/problem+json"
    document = response.json()
    assert {"type", "title", "status", "detail"} <= set(document)
    assert document["status"] == response.status_code
    return response.status_code, document["detail"]

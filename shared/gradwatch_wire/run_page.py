"""Address at which the page shows a run: the one that links of all kinds lead to."""

from __future__ import annotations

from urllib.parse import quote, urlencode


def run_page(base: str, run: str, **more: object) -> str:
    """Return the address of a run's page.

    Args:
        base: Where the page is, such as `http://127.0.0.1:8420`; it may have a path.
        more: What of the run is to be shown, such as `alert="1df4ec1558be7681"` or `attempt=2`.
    """
    return f"{base.rstrip('/')}/?{urlencode({'run': run} | more, quote_via=quote, safe='')}"

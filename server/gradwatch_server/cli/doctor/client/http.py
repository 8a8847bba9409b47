"""Checks of the HTTP side as it is reached from here: who answers, which version, which time."""

from __future__ import annotations

import urllib.request
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Final

from gradwatch_server.cli.doctor.client.subject import ClientSide
from gradwatch_server.cli.doctor.finding import Finding, Level, error, ok, skipped, warning
from gradwatch_server.cli.doctor.packages import numbers
from gradwatch_server.errors import GradwatchError
from gradwatch_wire import __version__

MOST_SKEW_S: Final = 2.0
"""How far two clocks may differ before times of both are hard to compare."""

_WHERE: Final = "give its address with --url or GRADWATCH_URL"


def look_at_http(subject: ClientSide) -> Finding:
    """Ask whether an aggregator answers; training does not need that."""
    try:
        answer = subject.health
    except GradwatchError as fault:
        return _unreachable(subject, f"{subject.url}: {fault}")
    if answer.is_aggregator:
        return ok(f"an aggregator answers at {subject.url}, within {1e3 * answer.took_s:.3g} ms")
    detail = answer.fields.get("detail", f"HTTP {answer.status}")
    return _unreachable(subject, f"what answers at {subject.url} is no aggregator ({detail})")


def look_at_ready(subject: ClientSide) -> Finding:
    """Ask whether it takes records in."""
    answer = subject.ask("/readyz")
    if answer.status == HTTPStatus.OK:
        return ok("it takes records in")
    why = answer.fields.get("detail", f"HTTP {answer.status}")
    return error(f"it takes nothing in: {why}", "see the aggregator's log and docs/reliability.md")


def look_at_token(subject: ClientSide) -> Finding:
    """Ask for something that takes the token, where tokens are asked for."""
    answer = subject.ask("/runs?limit=1")
    if answer.status == HTTPStatus.OK:
        return ok("what it knows may be read from here")
    why = answer.fields.get("detail", f"HTTP {answer.status}")
    return warning(str(why), "set GRADWATCH_TOKEN to a token of the aggregator's tokens.toml")


def look_at_version(subject: ClientSide) -> Finding:
    """Compare the versions of both sides."""
    other = str(subject.health.fields["version"])
    if numbers(other)[:2] == numbers(__version__)[:2]:
        return ok(f"{other} there, {__version__} here")
    says = f"the aggregator is {other}, this is {__version__}: what one of them lacks is left out"
    return warning(says, "upgrade the older one; the aggregator first")


def look_at_clock(subject: ClientSide) -> Finding:
    """Compare the clocks of both machines."""
    ahead_s = _skew_s(subject)
    if ahead_s is None:
        return skipped("this aggregator does not tell its time")
    says = f"the aggregator's clock is {abs(ahead_s):.1f} s {'ahead' if ahead_s > 0 else 'behind'}"
    if abs(ahead_s) > MOST_SKEW_S:
        advice = "set both by NTP; until then its times are not those of this machine's logs"
        return warning(says, advice)
    return ok(says)


def look_at_proxies(subject: ClientSide) -> Finding:
    """Ask whether other programs would ask a proxy for the aggregator."""
    host = subject.url_host
    if not host:
        return skipped(f"{subject.url!r} names no host")
    proxies = urllib.request.getproxies_environment()
    used = proxies.get("https" if subject.url.startswith("https:") else "http") or proxies.get(
        "all"
    )
    if not used or urllib.request.proxy_bypass(host):
        return ok(f"no proxy in the environment stands before {host}")
    return warning(
        f"curl, Prometheus and browsers here ask the proxy in http_proxy for {host}; gradwatch "
        "itself asks nobody but the aggregator",
        f"add {host} to no_proxy",
    )


def _unreachable(subject: ClientSide, says: str) -> Finding:
    if subject.is_url_given:
        return error(says, _WHERE)
    return Finding(
        Level.WARNING, f"{says}; training goes on without it", _WHERE, blocks_others=True
    )


def _skew_s(subject: ClientSide) -> float | None:
    """Return by how much the other clock is ahead, s, give or take half of the time it took."""
    answer = subject.ask("/healthz")
    now = datetime.now(UTC)
    try:
        there = datetime.fromisoformat(answer.fields["now"])
        return (there - now).total_seconds() + answer.took_s / 2
    except (KeyError, TypeError, ValueError):
        return None

"""A message as people read it: plain text, the first alerts in full, the rest counted."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gradwatch_server.core.alerting.severities import is_worse
from gradwatch_server.core.alerting.wording import cut
from gradwatch_server.core.printable import printable
from gradwatch_server.notify.notification import AlertBody, Notification
from gradwatch_server.storage.deliveries import DeliveryState
from gradwatch_wire.health import Severity

MAX_NAMED: Final = 10
"""Alerts of a message that are told in full; the others are counted."""

MAX_TEXT: Final = 700
"""Characters of an alert's own message, so that ten of them fit what chats take."""

RESOLVED: Final = "resolved"

_CALLS: Final = re.compile(r"@(?=everyone|here|channel)|<(?=[!@#])")
"""Text that some chats take for a call to everybody: names of layers come from the wire."""


@dataclass(frozen=True, slots=True)
class Message:
    """Message to one target.

    Args:
        severity: The worst severity of what is news in it, None if all was told and is over.
    """

    title: str
    body: str
    severity: Severity | None


def compose(notice: Notification) -> Message:
    entries = notice.batch.entries
    worst: Severity | None = None
    for each in (Severity(entry.severity) for entry in entries if not entry.is_over):
        worst = each if worst is None or is_worse(each, worst) else worst
    named = sorted(entries, key=_importance)[:MAX_NAMED]
    blocks = ["\n".join(_lines(notice, entry)) for entry in named]
    if rest := len(entries) - len(named):
        blocks.append(f"and {rest:,} more: {_counts(entries)} in all")
    if notice.batch.is_again:
        blocks.append("This may have been sent before: the receipt is not known.")
    return Message(_title(notice, named[0], worst), "\n\n".join(blocks), worst)


def _importance(entry: DeliveryState) -> tuple[bool, int, int]:
    """Order news before what is over, the worse first, the older first."""
    rank = list(Severity).index(Severity(entry.severity))
    return entry.is_over, -rank, entry.cursor


def _title(notice: Notification, first: DeliveryState, worst: Severity | None) -> str:
    batch = notice.batch
    runs = {entry.run for entry in batch.entries}
    where = harmless(first.run) if len(runs) == 1 else f"{len(runs):,} runs"
    what = f"[{worst or RESOLVED}] {where}: "
    if len(batch.entries) > 1:
        return f"{what}{len(batch.entries):,} alerts ({_rules(batch.entries)})"
    facts = notice.read(first)
    if facts is None:
        return what + harmless(first.rule)
    end = "" if first.is_over else _end(facts)
    return what + harmless(first.rule) + _place(facts) + end


def _rules(entries: Sequence[DeliveryState]) -> str:
    counted = Counter(entry.rule for entry in entries).most_common()
    shown = [f"{count:,} {harmless(rule)}" for rule, count in counted[:3]]
    return ", ".join(shown) + (", …" if len(counted) > 3 else "")


def _counts(entries: Sequence[DeliveryState]) -> str:
    counted: Counter[str] = Counter()
    for entry in entries:
        counted[RESOLVED if entry.is_over else entry.severity] += 1
    order = [*(str(severity) for severity in reversed(Severity)), RESOLVED]
    return ", ".join(f"{counted[severity]:,} {severity}" for severity in order if counted[severity])


def _place(facts: AlertBody) -> str:
    origin = facts["origin"]
    layer = origin.get("layer")
    return f" at step {facts['first_step']}" + (f", {harmless(layer)}" if layer else "")


def _end(facts: AlertBody) -> str:
    """Return since when an alert is over, nothing while it fires."""
    step = facts.get("resolved_step")
    return "" if step is None else f", over since step {step}"


def _lines(notice: Notification, entry: DeliveryState) -> Iterator[str]:
    """Yield what is said of one alert."""
    facts = notice.read(entry)
    over = ", over" if entry.is_over else ""
    if facts is not None:
        over = _end(facts)
    yield f"{entry.severity} {harmless(entry.rule)}{over}"
    if facts is None:
        yield f"run {harmless(entry.run)}; the alert is not kept any more"
    else:
        yield from _facts(facts)
        hints = facts.get("hints", ())
        if hints and not entry.is_over:
            yield "often behind it:"
            yield from (f"- {hint}" for hint in hints)
    if (link := notice.link(entry)) is not None:
        yield link
    yield f"alert {entry.alert_id}, event {entry.cursor}"


def _facts(facts: AlertBody) -> Iterator[str]:
    origin = facts["origin"]
    where = [f"run {harmless(facts['run'])}", f"step {facts['first_step']}", _rank(origin)]
    if layer := origin.get("layer"):
        where.append(harmless(layer))
    value = f"value {_number(origin['value'])}"
    if origin.get("threshold") is not None:
        value += f", limit {_number(origin['threshold'])}"
    yield f"{', '.join(where)}, {value}"
    yield cut(harmless(facts["message"]), MAX_TEXT)


def _rank(origin: Any) -> str:
    if origin.get("rank") is not None:
        return f"rank {origin['rank']}"
    count = origin.get("num_ranks", 0)
    return f"{count} ranks" if count > 1 else "rank not known"


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else str(value)


def harmless(text: str) -> str:
    """Return a text that comes from the wire as one line that calls nobody."""
    return _CALLS.sub(lambda match: match[0] + "\u200b", printable(text))

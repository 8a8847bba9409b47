"""How an alert reads, in one line. What it says of its rule comes from the rule."""

from __future__ import annotations

from typing import Final

from gradwatch_server.core.alerting.alert import Alert, News, ResolvedBy, Update, Worst
from gradwatch_server.core.alerting.wording import cut_bytes, shown
from gradwatch_wire.limits import MAX_TEXT_BYTES

MAX_LISTED: Final = 3
"""Layers that a message lists where it cannot be known which of them was first."""

_OVER: Final = {
    ResolvedBy.CLEAR: "",
    ResolvedBy.FROZEN: ": its layers are frozen",
    ResolvedBy.GONE: ": its layers have no gradient any more",
    ResolvedBy.RULE_OFF: ": the rule is off",
}


def message(alert: Alert, what: str) -> str:
    """Return what an alert says; *what* is what its rule says of the origin.

    An event of an alert that fires already says at its end what is new. What joined while the
    alert was pending, and the worst that it was, are said in any other.
    """
    return cut_bytes(_message(alert, what), MAX_TEXT_BYTES)


def _message(alert: Alert, what: str) -> str:
    origin = alert.origin
    rank = f"rank {origin.rank}" if origin.rank is not None else _several(origin.ranks)
    text = f"{what} at step {origin.step} on {rank}{_layers(alert)}{_flaps(alert)}"
    text += f"; {origin.cause}" if origin.cause else ""
    if alert.resolved_step is not None:
        over = _OVER[alert.resolved_by or ResolvedBy.CLEAR]
        return f"{text}{_at_worst(alert.worst)}, over at step {alert.resolved_step}{over}"
    if alert.update is None:
        return text + _at_worst(alert.worst)
    if News.SILENCE_ENDED in alert.update.news:  # to those who are told it is all new
        text += _at_worst(alert.worst)
    return f"{text}; at step {alert.update.step}: {_news(alert, alert.update)}"


def _layers(alert: Alert) -> str:
    if alert.num_layers < 2:
        return ""
    has_grown = alert.update is not None and News.LAYERS in alert.update.news
    # Where layers joined, the news say how many there are by then: at the origin there were fewer.
    text = "" if has_grown else f", {alert.num_layers} layers"
    if alert.origin.layer is not None or alert.origin.first_gradient is not None:
        return text
    # Which of them was first cannot be known: then at least which they are.
    names = ", ".join(map(shown, alert.layers[:MAX_LISTED]))
    names += ", …" if alert.num_layers > MAX_LISTED else ""
    return f" in {names}" if has_grown else f"{text}: {names}"


def _flaps(alert: Alert) -> str:
    many = "" if alert.num_flaps == 1 else "s"
    return f", over and back {alert.num_flaps:,} time{many}" if alert.num_flaps else ""


def _at_worst(worst: Worst | None) -> str:
    return "" if worst is None else f", at worst {_worst(worst)}"


def _worst(worst: Worst) -> str:
    where = "" if worst.layer is None else f" in {shown(worst.layer)}"
    return f"{worst.value:.3g}{where}"


def _news(alert: Alert, update: Update) -> str:
    told = []
    for news in update.news:
        if news is News.SEVERITY:
            because = "" if update.part is None else f", as {update.part.what}"
            told.append(f"now {alert.severity}{because}")
        elif news is News.LAYERS:
            many = "s" if update.num_layers > 1 else ""
            told.append(f"{update.num_layers} more layer{many}, {alert.num_layers} in all")
        elif news is News.VALUE and alert.worst is not None:
            told.append(f"now {_worst(alert.worst)}")
        elif news is News.ACKNOWLEDGED and alert.acknowledged is not None:
            told.append(f"acknowledged by {shown(alert.acknowledged.by)}")
        elif news is News.SILENCE_ENDED:
            told.append("no longer silenced")
    return ", ".join(told)


def _several(ranks: tuple[int, ...]) -> str:
    if not ranks:
        return "a rank that cannot be known"
    return "ranks " + ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")

"""Sentences of alerts: a headline, the cause, the news of an update, from one table of templates.

A headline says in at most 100 characters, in this order: the fault, since when, on which rank, how
many layers, and the worst of them beside its usual value.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from gradwatch_server.core.alerting.alert import Alert, News, ResolvedBy, Update, WorstValue
from gradwatch_server.core.alerting.origin import Origin
from gradwatch_server.core.alerting.wording import cut, cut_bytes, shown
from gradwatch_wire.limits import MAX_TEXT_BYTES

MAX_HEADLINE: Final = 100
MIN_NAME: Final = 16
"""Characters that a name keeps at least where a headline is cut."""

MAX_LISTED: Final = 3
"""Names of layers, or ranks, in a headline; of more ranks two are named and the rest counted."""

HEADLINES: Final[Mapping[str, str]] = {
    "nonfinite": "{kind} gradient {since}{on}: {layers}",
    "nonfinite/forward": "{kind} in the forward pass {since}{on}: first from {module}",
    "nonfinite/loss": "Loss or forward pass not finite {since}{on}, then {layers}",
    "nonfinite/maybe": "{kind} gradient {since}{on}, maybe the loss before: {layers}",
    "exploding": "Exploding {since}{rank}: {layers} at {value} ({usual})",
    "vanishing": "Vanishing {since}{rank}: {layers} at {value} ({usual})",
    "dead_layer": "Zero gradient {since}{rank}: {layers} ({usual})",
    "layer_missing": "No gradient {since}: {layers}{detail} ({usual})",
    "loss": "Loss up {since}{rank}: {mean}{value} ({usual})",
    "loss/bad": "Loss {kind} {since}{on}, the gradients are finite",
    "loss_scaler/falls": "Loss scale falls {since}: {value} (was {before})",
    "loss_scaler/low": "Loss scale too low at step {step}: {value} ({usual})",
    "loss_scaler/skips": "GradScaler skips steps {since}: {value} {detail}",
    "rank_divergence": "Ranks disagree since step {step}: {layers}, off by {value}{detail}",
    "rank_divergence/bits": "Ranks disagree since step {step}: {layers}, in bits{detail}",
    "rank_divergence/rank": "{Ranks} differs since step {step}: {layers}, off by {value}",
    "rank_divergence/rank/bits": "{Ranks} differs since step {step}: {layers}, in bits",
    "rank_outlier": "{Ranks} apart {since}: {layers} at {value} (other ranks {other})",
    "liveness/lost": "{Ranks} lost after step {step}: no heartbeat, no clean exit",
    "liveness/failed and lost": (
        "{Ranks} failed after step {step}: exception in training; {detail} lost"
    ),
    "liveness/silent": "{Ranks} silent for {seconds} s ({limit_s} s allowed) after step {step}",
    "liveness/behind": "{Ranks} stuck at step {step} ({detail})",
    "liveness/failed": "{Ranks} failed after step {step}: exception in training",
    "liveness/stalled": "Hang: no step for {seconds} s (limit {limit_s} s) after step {step}",
    "liveness/stalled/all": (
        "Hang: no step for {seconds} s (limit {limit_s} s); all ranks stopped after step {step}"
    ),
    "liveness/stalled/some": (
        "Hang: no step for {seconds} s (limit {limit_s} s); {ranks} stopped after step {step}, "
        "{detail}"
    ),
    "records_lost": "{value} record{s} lost since step {step} on {ranks}",
    "gain": "Gain off since step {step}: {layer} at {value} ({usual})",
    "groups": "Gradient ratio {group} low {since}: {value} ({usual})",
    "not_learning": "Learning rate 0 {since}: the steps change no weight",
    "not_zeroed": "Gradients not zeroed {since}: each step adds to those before",
    "repeated_gradient": "Gradients repeat {since}: every norm is that of the step before",
    "same_batch": "Same batch on all ranks {since}: their local probes are equal",
    "weights_unchanged": "Weights unchanged {since}: {layers}, though with a gradient",
    "slow": "Slow {since}: {value} s a step ({usual})",
}
"""Rule, or rule and variant, to the template of a headline."""

OTHER_HEADLINE: Final = "{rule} since step {step}{on}: {value} ({usual})"
"""Template of a rule that has none of its own."""

SKIPS: Final = "skips"
"""Group of alerts about steps that a GradScaler skips."""


class Trouble(StrEnum):
    """Kinds of an alert about liveness."""

    FAILED = "failed"
    FAILED_AND_LOST = "failed and lost"
    LOST = "lost"
    SILENT = "silent"
    STALLED = "stalled"


ALL_STOPPED: Final = "all ranks are at the same step"
"""`Origin.detail` of a hang in which no rank is ahead of another."""

_OVER: Final = {
    ResolvedBy.CLEAR: "",
    ResolvedBy.FROZEN: ": its layers are frozen",
    ResolvedBy.GONE: ": its layers have no gradient any more",
    ResolvedBy.RULE_OFF: ": the rule is off",
}

_FORMATS: Final = {"records_lost": ".0f", "loss_scaler": "g"}
"""Formats of values that are no norms."""

_WORST: Final = ("exploding", "vanishing", "rank_divergence", "rank_outlier")
"""Rules that name the layer which was farthest off at the origin; others name the first."""


def headline(alert: Alert) -> str:
    """Return the fault in at most 100 characters: lists lose names, long names their middle."""
    template = HEADLINES.get(_variant(alert), OTHER_HEADLINE)
    text = template.format_map(_facts(alert, MAX_HEADLINE))
    if len(text) <= MAX_HEADLINE:  # nearly always
        return text
    lengths = range(MIN_NAME, MAX_HEADLINE + 1, 2)
    num_fitting = bisect_right(
        lengths, MAX_HEADLINE, key=lambda limit: len(template.format_map(_facts(alert, limit)))
    )
    limit = lengths[max(num_fitting - 1, 0)]
    return cut(template.format_map(_facts(alert, limit)), MAX_HEADLINE)


def message(alert: Alert) -> str:
    """Return all that an alert says: headline, cause, and what became of it."""
    return cut_bytes(_message(alert), MAX_TEXT_BYTES)


def _message(alert: Alert) -> str:
    text = headline(alert)
    text += f"; {alert.origin.cause}" if alert.origin.cause else ""
    text += f"; batch {shown(alert.origin.batch)}" if alert.origin.batch else ""
    text += f"; rank {alert.origin.rank} is {alert.origin.place}" if alert.origin.place else ""
    if alert.num_flaps:
        text += f"; over and back {alert.num_flaps:,} time{_s(alert.num_flaps)}"
    if alert.resolved_step is not None:
        over = _OVER[alert.resolved_by or ResolvedBy.CLEAR]
        return f"{text}{_at_worst(alert.worst)}; over at step {alert.resolved_step}{over}"
    if alert.update is None:
        return text + _at_worst(alert.worst)
    if News.SILENCE_ENDED in alert.update.news:  # to those who are told it is all new
        text += _at_worst(alert.worst)
    return f"{text}; at step {alert.update.step}: {_news(alert, alert.update)}"


def _variant(alert: Alert) -> str:
    origin, rule = alert.origin, alert.rule
    variant = ""
    match rule:
        case "nonfinite":
            is_before = origin.layer is None and origin.first_gradient is not None
            if origin.magnitude is not None:
                variant = "/forward"
            elif origin.bad_loss:
                variant = "/loss"
            elif is_before:
                variant = "/maybe"
        case "loss" if origin.kind is not None:
            variant = "/bad"
        case "loss_scaler":
            is_low = origin.threshold is not None
            variant = "/skips" if alert.group == SKIPS else "/low" if is_low else "/falls"
        case "rank_divergence":
            variant = "" if origin.rank is None else "/rank"
            variant += "" if origin.value else "/bits"
        case "liveness":
            variant = _trouble(origin)
    return rule + variant


def _trouble(origin: Origin) -> str:
    if origin.kind == Trouble.SILENT and not origin.value > (origin.threshold or 0.0):
        return "/behind"
    if origin.kind == Trouble.STALLED and origin.detail:
        return "/stalled/all" if origin.detail == ALL_STOPPED else "/stalled/some"
    return f"/{origin.kind}"


def _facts(alert: Alert, limit: int) -> dict[str, Any]:
    """Return what templates name; *limit* is the number of characters of a name."""
    origin = alert.origin
    bad = origin.magnitude
    is_nan = origin.kind == "nan" if bad is None else math.isnan(bad)
    limit_s = origin.threshold or 0.0
    # Told as soon as it is beyond the limit, both may be the same number of whole seconds.
    digits = 1 if round(origin.value if math.isfinite(origin.value) else 0) == round(limit_s) else 0
    return {
        "rule": alert.rule,
        "step": origin.step,
        "since": _since(origin),
        "on": _on(origin),
        "rank": "" if origin.rank is None else f" on rank {origin.rank}",
        "Ranks": _ranks(origin.ranks if origin.rank is None else (origin.rank,), "Rank"),
        "ranks": _ranks(origin.ranks, "rank"),
        "kind": "NaN" if is_nan else "Inf",
        "layers": _layers(alert, limit),
        "layer": _name(origin.layer, limit),
        "module": _name(origin.module, limit),
        "group": _name(alert.group, limit),
        "value": format(origin.value, _FORMATS.get(alert.rule, ".3g")),
        "s": _s(origin.value),
        "usual": _usual(origin),
        "other": f"{origin.usual or 0.0:.3g}",
        "before": f"{origin.usual or 0.0:g}",
        "mean": f"{origin.notes[0]} " if alert.rule == "loss" and origin.notes else "",
        "detail": _detail(alert),
        "seconds": f"{origin.value:.{digits}f}",
        "limit_s": f"{limit_s:.{digits}f}",
    }


def _since(origin: Origin) -> str:
    if origin.last_good_step in {None, origin.step - 1}:
        return f"since step {origin.step}"
    return f"between steps {origin.last_good_step} and {origin.step}"


def _detail(alert: Alert) -> str:
    origin = alert.origin
    match alert.rule:
        case "loss_scaler" if origin.notes:
            which, *more = origin.notes
            return f"{which} ({', '.join(more)})"
        case "rank_divergence":
            return " (odd one unknown)"
        case "layer_missing" if origin.detail:
            return f", {origin.detail}"
    return origin.detail


def _usual(origin: Origin) -> str:
    if origin.threshold is not None:
        return f"limit {origin.threshold:g}"
    return f"usual {origin.usual:.3g}" if origin.usual else "no history"


def _layers(alert: Alert, limit: int) -> str:
    """Return how many layers, and the one to look at, or the first few names."""
    origin = alert.origin
    what = ""
    if alert.rule == "rank_divergence":
        what = "weights of " if origin.kind is not None else "gradients of "
    name = origin.layer or origin.first_gradient
    if alert.num_layers < 2:
        return what + _name(name or (alert.layers[0] if alert.layers else None), limit)
    text = f"{what}{alert.num_layers} layers"
    # A layer that joined since may be farther off.
    has_grown = bool(alert.spread) and alert.spread[0].num_layers < alert.num_layers
    if name is not None and alert.rule not in _WORST:
        return f"{text}, first {_name(name, limit)}"
    if name is not None or origin.farthest is not None:
        which = "among them" if has_grown else "worst"
        return f"{text}, {which} {_name(name or origin.farthest, limit)}"
    num_listed = MAX_LISTED if limit > MIN_NAME else 1  # steps and ranks matter more than names
    names = ", ".join(_name(name, limit) for name in alert.layers[:num_listed])
    return f"{text} ({names}{', …' if alert.num_layers > num_listed else ''})"


def _name(name: str | None, limit: int) -> str:
    return "a layer not known" if name is None else cut(shown(name), limit)


def _on(origin: Origin) -> str:
    if origin.rank is not None:
        return f" on rank {origin.rank}"
    if not origin.ranks:
        return " on a rank not known"
    if len(origin.ranks) > MAX_LISTED:
        return f" on {len(origin.ranks)} ranks"
    return f" on ranks {', '.join(map(str, origin.ranks))}"


def _ranks(ranks: tuple[int, ...], word: str) -> str:
    """Return the ranks: a list that nobody takes for a count."""
    if len(ranks) < 2:
        return f"{word} {ranks[0]}" if ranks else f"{word} not known"
    if len(ranks) <= MAX_LISTED:
        return f"{word}s {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
    return f"{word}s {ranks[0]}, {ranks[1]} and {len(ranks) - 2} more"


def _s(number: float) -> str:
    return "" if number == 1 else "s"


def _at_worst(worst: WorstValue | None) -> str:
    return "" if worst is None else f"; at worst {_worst(worst)}"


def _worst(worst: WorstValue) -> str:
    where = "" if worst.layer is None else f" in {shown(worst.layer)}"
    return f"{worst.value:.3g}{where}"


def _news(alert: Alert, update: Update) -> str:
    told = []
    for news in update.news:
        if news is News.SEVERITY:
            because = "" if update.part is None else f" ({update.part.what})"
            told.append(f"now {alert.severity}{because}")
        elif news is News.KIND:
            told.append(f"now {alert.origin.kind}")
        elif news is News.LAYERS:
            told.append(f"{update.num_layers} more layer{_s(update.num_layers)}")
        elif news is News.VALUE and alert.worst is not None:
            told.append(f"now {_worst(alert.worst)}")
        elif news is News.ACKNOWLEDGED and alert.acknowledged is not None:
            told.append(f"acknowledged by {shown(alert.acknowledged.by)}")
        elif news is News.SILENCE_ENDED:
            told.append("no longer silenced")
    return ", ".join(told)

"""Alerts fit the wire and their budget, whatever names peers choose."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gradwatch_server.budgets import LoggedBudgets
from gradwatch_server.core.alerting.active_alert import with_layers
from gradwatch_server.core.alerting.alert import (
    Acknowledgement,
    Alert,
    News,
    RelatedAlert,
    ResolvedBy,
    Spread,
    Update,
    WorstValue,
)
from gradwatch_server.core.alerting.fitting import MAX_RANKS, NAMES_BYTES, first_names
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.alerting.sentences import message
from gradwatch_server.core.alerting.wording import MAX_SHOWN, cut_bytes
from gradwatch_wire import Alert as AlertRecord
from gradwatch_wire import Envelope, decode, encode
from gradwatch_wire.health import AlertState, Severity
from gradwatch_wire.jsonable import jsonable
from gradwatch_wire.limits import MAX_NAME_BYTES, MAX_TEXT_BYTES
from gradwatch_wire.limits import MAX_RANKS as WORLD
from tests.support.core import Cluster, alert

LEAST = 12_288
"""The smallest body that may be set."""

HOSTILE = {
    "four bytes, escaped as ten": "\U000e0001" * 128,
    "four bytes, printed as they are": "\U0001f600" * 128,
    "one byte, escaped as six": "\x01" * 512,
    "two bytes": "é" * 256,
    "a quote": '"' * 512,
    "plain": "layer." * 85,
}
NAMES = tuple(HOSTILE.values())
RULES = Rules().root


def told_of(alert: Alert) -> dict[str, Any]:
    """Return what a client gets."""
    frames = encode(Envelope(session=bytes(16), record=AlertRecord(alert=alert.to_dict())))
    record = decode(frames).record
    assert isinstance(record, AlertRecord)
    return dict(record.alert)


def widest(rule: str, name: str, **changes: Any) -> Alert:
    """Return an alert of a rule with all that can be in one, each as large as can be."""
    ranks = tuple(range(WORLD))
    step, tiny, huge = (1 << 53) - 1, 1.2345678901234567e-300, 1.7976931348623157e308
    made = alert(
        rule,
        group=name,
        ranks=ranks,
        step=step,
        layer=name,
        kind="nan",
        value=huge,
        threshold=huge,
        before=tuple((step, tiny) for step in range(5)),
        bad_loss=True,
        first_gradient=name,
        module=name,
        magnitude=math.nan,
        magnitudes_before=tuple((step, math.inf) for step in range(5)),
        usual=tiny,
        deviations=-tiny,
        notes=("3 of 31 modules", "loss 4.2, usually 1.9", "began about step 1180 (± 4)"),
        farthest=name,
    )
    part = RelatedAlert(rule, "Loss up since step 7: 3 (usual 1)")
    made = replace(
        made,
        run=name,
        attempt=1_000_000,
        severity=Severity.CRITICAL,
        raised_step=step,
        updated_ns=1_763_000_000_000_000_000,
        update=Update(1, 7, tuple(News), first_names([name] * 20, 20), 20_000, part),
        worst=WorstValue(7, name, math.nan, None, ranks),
        acknowledged=Acknowledgement(name[:200], (name * 20)[:2000], 1_763_000_000_000_000_000),
        spread=tuple(Spread(step - n, 20_000 - n, WORLD - n) for n in range(16)),
        part_of="f" * 16,
        num_flaps=1_000_000,
        **changes,
    )
    made = with_layers(made, np.ones(20_000, dtype=np.bool_), (name,) * 20_000)
    return replace(made, message=message(made))


@pytest.mark.slow
@pytest.mark.sampled(40)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", NAMES, ids=HOSTILE)
def test_the_widest_alert_of_each_rule_reaches_the_client(rule: str, name: str) -> None:
    """65,536 ranks, 20,000 layers, names of 512 bytes: it is decoded, and says what it said."""
    assert len(name.encode()) > MAX_NAME_BYTES - 6
    alert = widest(rule, name)
    for own in (alert, replace(alert, state=AlertState.RESOLVED, resolved_step=9)):
        plain = told_of(replace(own, message=message(own)))

        assert len(plain["message"].encode()) <= MAX_TEXT_BYTES
        assert plain["message"].isprintable()
        assert (plain["run"], plain["group"], plain["origin"]["layer"]) == (name, name, name)
        assert (plain["num_layers"], plain["num_ranks"]) == (20_000, WORLD)
        assert plain["origin"]["num_ranks"] == plain["worst"]["num_ranks"] == WORLD
        assert plain["ranks"] == list(range(MAX_RANKS))


@pytest.mark.slow
@pytest.mark.sampled(20)
@pytest.mark.parametrize("rule", ["nonfinite", "exploding", "liveness"])
@pytest.mark.parametrize("name", NAMES, ids=HOSTILE)
@pytest.mark.parametrize("most", [LEAST, 16_384, 65_536])
def test_a_body_is_as_large_as_is_set(rule: str, name: str, most: int) -> None:
    alert = widest(rule, name, body_bytes=most)
    plain: Any = alert.to_dict()

    assert len(json.dumps(jsonable(plain))) <= most
    assert told_of(alert)["id"] == alert.id
    assert (plain["run"], plain["group"], plain["rule"]) == (name, name, rule)
    assert (plain["num_layers"], plain["num_ranks"], plain["num_flaps"]) == (
        20_000,
        WORLD,
        1_000_000,
    )
    assert plain["update"]["num_layers"] == 20_000
    assert len(plain["spread"]) == 16
    assert plain["message"]


def test_what_fits_is_left_as_it_is() -> None:
    """An honest alert has all of its names."""
    names = [f"transformer.h.{n}.attention.weight" for n in range(40)]
    job = Cluster(names=names).start()
    job.budgets(alert_bytes=LEAST)
    (alert,) = job.step(0, math.nan)
    plain = alert.to_dict()

    assert (len(plain["layers"]), plain["num_layers"]) == (20, 40)
    assert replace(alert, body_bytes=1 << 50).to_dict() == plain
    assert len(json.dumps(jsonable(plain))) < LEAST


def test_hostile_names_in_a_log_are_told_within_bounds() -> None:
    names = ["\x01" * 500 + f"{n}" for n in range(300)]
    groups = {"\x02" * 400 + f"{n}": tuple(range(n * 5, n * 5 + 5)) for n in range(60)}
    job = Cluster(names=names, groups=groups).start()
    job.budgets(alert_bytes=16_384)
    alerts = job.step(0, math.nan)

    assert len(alerts) == 60
    for each in alerts:
        assert len(json.dumps(jsonable(each.to_dict()))) <= 16_384
        assert told_of(each)["group"] == each.group
        assert len(json.dumps(each.layers)) <= NAMES_BYTES + 2
        assert each.num_layers == 5
    assert max(len(alert.message) for alert in alerts) < 3 * MAX_SHOWN


def test_a_message_fits_whatever_its_cause_says() -> None:
    alert = replace(widest("exploding", NAMES[1]), resolved_step=9, resolved_by=ResolvedBy.FROZEN)
    text = message(replace(alert, origin=replace(alert.origin, cause="é" * 5_000)))

    assert MAX_TEXT_BYTES - 3 <= len(text.encode()) <= MAX_TEXT_BYTES
    assert text.startswith("Exploding since step")
    assert text.endswith("; over at step 9: its layers are frozen")


def test_a_list_of_names_keeps_its_bytes() -> None:
    assert first_names(["a"] * 30, 20) == ("a",) * 20
    found = first_names(["\x01" * 300] * 5, 20)
    assert len(found) == 2
    assert len(json.dumps(found)) <= NAMES_BYTES + 2


def test_a_text_is_cut_between_characters() -> None:
    """Bytes of UTF-8, never half of a character."""
    for text in ("é" * 50, "\U0001f600" * 40, "a" + "中" * 60):
        for most in range(16, 60):
            found = cut_bytes(text, most)
            assert most - 8 <= len(found.encode()) <= most
            assert "…" in found
    assert cut_bytes("short", 16) == "short"


def test_the_default_is_what_the_table_says() -> None:
    field = LoggedBudgets.model_fields["alert_bytes"]

    assert field.default == 16_384
    assert any(getattr(own, "ge", None) == LEAST for own in field.metadata)

"""Computations of the page by itself, run in the browser."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gradwatch_server.api import safetensors
from gradwatch_server.curves import codes
from tests.page.browsing import Tab
from tests.support.aggregator import Aggregator


@pytest.fixture(scope="module")
def shown(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    aggregator = Aggregator(tmp_path_factory.mktemp("page") / "data")
    aggregator.start()
    opened = Tab(browser, aggregator.url, "/")
    yield opened
    faults = opened.close()
    aggregator.close()
    assert not faults


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (None, "no record"),
        ("NaN", "NaN"),
        ("Infinity", "Inf"),
        ("-Infinity", "-Inf"),
        (0.118, "0.118"),
        (0.001, "0.00100"),
        (0.00099, "9.9e-4"),
        (1e-7, "1e-7"),
        (1.234e-7, "1.23e-7"),
        (12.345, "12.3"),
        (1234.5, "1,235"),
        (12345.0, "1.23e4"),
        (-2.5, "-2.50"),
    ],
)
def test_numbers_are_as_people_compare_them(shown: Any, value: object, text: str) -> None:
    assert shown.module("numbers", "return m.short(a)", value) == text


@pytest.mark.parametrize(
    ("change", "is_continued"),
    [
        ({"last_step": "60", "revision": "64"}, True),
        ({}, True),
        ({"revision": "64"}, False),  # a late record of a step that is drawn
        ({"last_step": "null", "revision": "63"}, False),  # deleted between two questions
        ({"last_step": "20", "revision": "23"}, False),  # deleted, and begun again
        ({"last_step": "60", "revision": "23"}, False),
        ({"last_step": "60", "revision": "64", "attempt": "2"}, False),
    ],
)
def test_curves_are_continued_by_what_adds_to_them_alone(
    shown: Any, change: dict[str, str], is_continued: bool
) -> None:
    before = {"boot": "b", "epoch": "0", "attempt": "1", "width": "1"}
    before |= {"last_step": "59", "revision": "63"}
    body = "return m.continues(a[0], a[1]);"
    assert shown.module("data/rundata", body, [before, before | change]) is is_continued


@pytest.mark.parametrize(("silent_ms", "is_gone"), [(1_000, False), (3_000, True)])
def test_an_aggregator_that_ended_is_gone_within_three_seconds(
    shown: Any, silent_ms: int, is_gone: bool
) -> None:
    body = """
      const freshness = new m.Freshness(() => {});
      freshness.heard();
      freshness.stream("gone");
      freshness.heard_at -= a;
      return freshness.isGone;
    """
    assert shown.module("freshness", body, silent_ms) is is_gone


def test_the_facts_of_a_hang_are_those_of_a_hang(shown: Any) -> None:
    """Its step is the last one, which was good; its value is a time."""
    origin = {
        "step": 79,
        "rank": 1,
        "ranks": [1],
        "layer": None,
        "kind": "stalled",
        "value": 1225.0,
        "threshold": 300.0,
        "usual": None,
        "last_good_step": 78,
        "detail": "",
        "cause": "rank 1 in __getitem__ at data.py:41",
        "notes": [],
    }
    alert = {
        "rule": "liveness",
        "state": "firing",
        "first_step": 79,
        "last_step": 79,
        "acknowledged": None,
        "origin": origin,
    }
    body = "return [m.facts(a).textContent, m.strip(a) === null];"
    facts, has_no_strip = shown.module("panels/alertfacts", body, alert)

    assert has_no_strip
    assert "last step79" in facts
    assert "limit300 s" in facts
    assert "rank 1 in __getitem__ at data.py:41" in facts
    for wrong in ("first bad", "checkpoint", "so far one step"):
        assert wrong not in facts
    lossy = {**alert, "rule": "loss", "origin": {**origin, "before": [{"step": 1, "value": 2.0}]}}
    text = shown.module("panels/alertfacts", "return m.strip(a).textContent;", lossy)
    assert text.startswith("Loss, the steps before")


def test_addresses_survive(shown: Any) -> None:
    """A state goes into the address and comes back, whatever the names are."""
    state = {
        "run": "a&b=c d",
        "attempt": 2,
        "open": ["h.1", "x,y"],
        "from": 3,
        "to": 90,
        "layer": "<b>é\u202e",
        "view": "size",
    }
    body = 'return m.parseAddress(m.formatAddress(a).replace(/^\\//, ""))'

    assert shown.module("address", body, state) == state


def test_addresses_that_are_wrong_are_read_as_far_as_they_go(shown: Any) -> None:
    found = shown.module("address", "return m.parseAddress(a)", "?run=x&from=-1&to=1e9&step=abc")

    assert found == {"run": "x"}


def test_parts_of_an_address_that_the_page_leaves_out_are_told(shown: Any) -> None:
    search = "?run=x&run=y&step=abc&open=a&open=b&besides=z"

    found = shown.module("address", "return m.unknownParts(a)", search)

    assert found == ["run=y", "step=abc", "besides=z"]


def test_names_of_several_lines_have_room(shown: Any) -> None:
    written = shown.module("charts/marks", "return m.roomForNames(a)", [{"label": "one"}] * 2)
    plain = shown.module("charts/marks", "return m.roomForNames(a)", [{"label": "one"}])

    assert written > plain


def test_what_cannot_be_seen_is_written_out(shown: Any) -> None:
    body = "return [m.printable(a), m.shorten(a + 'x'.repeat(500)).length]"

    assert shown.module("element", body, "a\u202eb\n\x00\u200b") == [
        "a\\u202eb\\u000a\\u0000\\u200b",
        120,
    ]


def test_codes_mean_what_the_aggregator_means(shown: Any) -> None:
    values = np.array([2.0**-149, 1e-38, 1e-7, 0.118, 1.0, 100.0, 65504.0, 3.4e38, 0.0])
    coded = codes.encode(values)

    found = shown.module("heatmap/codes", "return a.map(m.valueOf)", coded.tolist())

    np.testing.assert_allclose(found, codes.decode(coded), rtol=1e-9)
    named = {
        "no_record": "NO_RECORD",
        "absent": "NOT_IN_STEP",
        "zero": "ZERO",
        "nan": "NAN",
        "inf": "INF",
        "nan_and_inf": "NAN_AND_INF",
        "below": "TINY",
        "above": "HUGE",
        "skipped": "SKIPPED",
        "first": "FIRST",
    }
    assert set(named) == set(codes.NAMES)
    for name, code in codes.NAMES.items():
        assert shown.module("heatmap/codes", "return m[a]", named[name]) == code


def test_tensors_are_read_as_they_were_written(shown: Any) -> None:
    arrays = {
        "code": np.arange(6, dtype="<u2").reshape(2, 3),
        "step": np.array([5, 6, 7], dtype="<u4"),
        "0.min": np.array([1.5, math.nan, 2.0]),
        "coverage": np.array([1, 0.5], dtype="<f4"),
    }
    sent = safetensors.encode(arrays, {"width": 4, "layers": ["a", "b"], "boot": "x"})
    body = """
      const { arrays, metadata } = m.parseTensors(new Uint8Array(a).buffer);
      const plain = [...arrays].map(([k, v]) => [k, [...v.data].map(String), v.shape]);
      return [plain, metadata];
    """

    found, metadata = shown.module("data/api", body, list(sent))

    assert {name: (values, shape) for name, values, shape in found} == {
        "code": (["0", "1", "2", "3", "4", "5"], [2, 3]),
        "step": (["5", "6", "7"], [3]),
        "0.min": (["1.5", "NaN", "2"], [3]),
        "coverage": (["1", "0.5"], [2]),
    }
    assert metadata == {"width": "4", "layers": '["a","b"]', "boot": "x"}


def test_events_are_put_together_however_they_arrive(shown: Any) -> None:
    text = ': hi\n\ndata: {"a":1}\n\nid: 7\ndata: {"b":\ndata: 2}\n\n'
    body = """
      const parse = m.eventParser();
      return [...a].flatMap((character) => parse(character));
    """

    assert shown.module("data/stream", body, text) == [
        {"id": None, "data": '{"a":1}'},
        {"id": "7", "data": '{"b":\n2}'},
    ]


def test_one_bad_cell_of_millions_is_drawn(shown: Any) -> None:
    """1,000 layers x 512 steps on 100 x 100 places: the cell that is NaN has its place."""
    body = """
      const rows = 1000, columns = 512;
      const code = new Uint16Array(rows * columns).fill(30000);
      code[617 * columns + 311] = 3;
      const arrays = new Map([
        ["step", { data: Uint32Array.from({ length: columns }, (_, at) => at) }],
        ["usual", { data: new Uint16Array(rows * columns).fill(30000) }],
        ["spread", { data: new Float32Array(rows).fill(NaN) }],
        ["code", { data: code }],
      ]);
      return import(a).then(({ Cells }) => {
        const cells = new Cells(
          { arrays, metadata: {} },
          Array.from({ length: rows }, (_, at) => `h.${at}.w`),
        );
        const groups = cells.names.map((_, at) => [at]);
        const picture = m.pool(cells, groups, 100, 100);
        const shown = [...picture.cell].filter((index) => cells.code[index] === 3);
        const place = picture.cell.indexOf(311 * rows + 617);
        const where = [Math.floor(place / 100), place % 100];
        return [shown.length, ...where, cells.badColumns(), [...cells.badRows()]];
      });
    """
    base = shown.evaluate("() => document.querySelector('meta[name=gradwatch-static]').content")

    found = shown.module("heatmap/picture", body, f"{base}/heatmap/cells.js")

    assert found == [1, 61, 60, [311], [617]]


@pytest.mark.parametrize(
    ("spread", "is_quiet"), [(math.nan, False), (1.1, False), (1.5, False), (3.0, True)]
)
def test_a_cell_is_as_far_off_as_from_what_was_usual_at_its_step(
    shown: Any, spread: float, is_quiet: bool
) -> None:
    """The first is 4 times the usual norm: quiet of a layer that often leaves it threefold."""
    body = """
      const arrays = new Map([
        ["step", { data: Uint32Array.of(0, 1) }],
        ["usual", { data: Uint16Array.of(40471, 40471, 40000, 40471) }],
        ["code", { data: Uint16Array.of(40471, 40471, 40471, 40471) }],
        ["spread", { data: Float64Array.of(1.1, Number(a.spread)) }],
      ]);
      return Promise.all([import(a.cells), import(a.palette)]).then(([{ Cells }, { palette }]) => {
        const cells = new Cells({ arrays, metadata: {} }, ["calm", "w"]);
        const colours = palette("change", "light");
        const colour = m.colouring(cells, "change", colours, [0, 1]);
        const calm = colours.map[colours.map.length / 2 - 1];
        return [cells.urgency[1] > cells.urgency[3], colour(1) === calm, colour(3) === calm];
      });
    """
    base = shown.evaluate("() => document.querySelector('meta[name=gradwatch-static]').content")
    others = {name: f"{base}/heatmap/{name}.js" for name in ("cells", "palette")}

    found = shown.module("heatmap/picture", body, others | {"spread": str(spread)})
    assert found == [not is_quiet, is_quiet, True]


def test_steps_that_only_one_of_two_runs_has_stay(shown: Any) -> None:
    """Of two widths only one line is drawn, and the reason is said."""
    body = """
      const curvesOf = (x, width, last) => {
        const of = (name) => (name === "loss" ? { last, min: last, max: last } : undefined);
        return { x, width, of };
      };
      const own = curvesOf([0, 1, 2], 1, [5, 6, 7]);
      return [curvesOf([2, 3], 1, [1, 2]), curvesOf([0, 4], 4, [1, 2])].map((found) => {
        const other = Object.create(m.OtherRun.prototype);
        other.words = document.createElement("p");
        other.health = { status: "healthy", first_bad: null };
        other.source = { run: "b", found };
        const { x, curves: drawn } = other.joined(own, "loss");
        other.compare(own, { first_bad: { step: 1 } });
        const values = drawn.map(({ last }) => last.map((value) => value || null));
        return [Array.from(x), values, other.words.textContent];
      });
    """

    same, other = shown.module("panels/otherrun", body)

    assert same == [
        [0, 1, 2, 3],
        [[5, 6, 7, None], [None, None, 1, 2]],
        (
            "Beside b (healthy). At step 2: loss 7.00, there 1.00; "
            "first NaN or Inf at step 1, there at no step."
        ),
    ]
    assert other == [
        [0, 1, 2],
        [[5, 6, 7]],
        "No line of b: here its steps are kept by 4, those of this run by 1.",
    ]


def test_rows_fold_by_module(shown: Any) -> None:
    names = ["m.wte.weight", "m.h.0.a.w", "m.h.0.a.b", "m.h.1.a.w", "m.h.1.a.b"]
    body = """
      return m.rowsOf(a, { fold: true, open: new Set(["m.h.1"]) })
        .map((row) => [row.kind, row.label, row.layers]);
    """

    assert shown.module("heatmap/names", body, names) == [
        ["layer", "wte.weight", [0]],
        ["fold", "h.0", [1, 2]],
        ["head", "h.1", [3, 4]],
        ["layer", "a.w", [3]],
        ["layer", "a.b", [4]],
    ]


def test_runs_that_are_equally_well_keep_their_places(shown: Any) -> None:
    body = """
      const row = (run, seconds, status, phase = "running") => ({
        run, status, phase, step: 1, updated_at: new Date(Date.now() - 1000 * seconds).toJSON(),
      });
      return [
        [row("c", 1, "healthy"), row("b", 3, "healthy"), row("a", 2, "healthy")],
        [row("a", 300, "healthy"), row("b", 1, "healthy"), row("c", 400, "critical")],
        [row("a", 1, "critical", "failed"), row("b", 600, "healthy")],
      ].map((runs) => m.chooseRuns(runs, {}).map((each) => each.run));
    """

    assert shown.module("views/runs", body) == [["a", "b", "c"], ["c", "b", "a"], ["a", "b"]]


def test_an_alert_says_where_it_is_bad_and_by_which_limit(shown: Any) -> None:
    body = """
      const origin = {
        step: 7, value: 50, before: [{ step: 6, l2: 1 }],
        after: [{ step: 7, l2: 50 }, { step: 8, l2: 2 }, { step: 9, l2: "NaN" }],
        threshold: 10, usual: 1, rank: null, ranks: [1, 2], kind: "",
      };
      const alert = {
        rule: "exploding", origin, first_step: 7, last_step: 9, state: "firing",
        fired_at: null, acknowledged: null,
        spread: [{ num_layers: 1 }, { num_layers: 3, num_ranks: 2, step: 9 }],
      };
      const said = (own) => Object.fromEntries(
        [...m.facts(own).querySelectorAll("dt")].map((dt) => [
          dt.textContent, dt.nextSibling.textContent,
        ]),
      );
      const bad = [...m.strip(alert).querySelectorAll(".bad")].map(({ title }) => title);
      const hang = { ...alert, rule: "liveness", state: "resolved", resolved_step: 8 };
      return [bad, said(alert), said(hang)];
    """
    bad, alert, hang = shown.module("panels/alertfacts", body)

    assert bad == ["step 7", "step 9"]
    assert alert == {
        "first bad step": "7",
        "first on": "rank 1, 2",
        "limit": "10.0",
        "usual": "1.00",
        "goes on": "yes, last at step 9",
        "spread": "1 layer → 3 layers by step 9, 2 ranks",
    }
    assert hang["limit"] == "10.0 s"
    assert hang["goes on"] == "no, over at step 8"
    assert "last good step" not in hang

"""The answer to `/rules`."""

from __future__ import annotations

from typing import Any

from gradwatch_server.core.views.rules import describe_rules
from gradwatch_server.core.views.snapshot import view_run
from gradwatch_wire.jsonable import jsonable
from tests.support.core import Cluster


def test_each_rule_has_its_settings_in_the_order_of_evaluation() -> None:
    job = Cluster()
    job.rules(exploding={"limit": 7, "layers": ["head"]})
    described: Any = jsonable(describe_rules(job.state.rules)["rules"])

    assert [own["rule"] for own in described][:3] == ["nonfinite", "exploding", "dead_layer"]
    exploding = described[1]
    assert (exploding["settings"]["limit"], exploding["settings"]["layers"]) == (7.0, ["head"])
    assert exploding["summary"] != ""
    assert "watches" not in exploding


def test_each_rule_says_what_it_watches_of_a_run() -> None:
    job = Cluster(names=("a", "head"), groups={"top": (1,)})
    job.rules(
        exploding={"layers": ["h*"]}, vanishing={"groups": ["bottom"]}, nonfinite={"runs": ["x"]}
    )
    job.open()

    def watches() -> dict[str, Any]:
        view = view_run(job.state.runs["gpt"], job.state.rules)
        return {
            rule["rule"]: rule["watches"] for rule in describe_rules(job.state.rules, view)["rules"]
        }

    assert watches()["exploding"] == {"run": True, "layers": 0, "warning": None}
    job.declare(0)
    found = watches()
    assert {name: found[name] for name in ("nonfinite", "exploding", "vanishing", "gain")} == {
        "nonfinite": {"run": False, "layers": None, "warning": None},
        "exploding": {"run": True, "layers": 1, "warning": None},
        "vanishing": {
            "run": True,
            "layers": 0,
            "warning": "groups ['bottom'] match none of the 2 layers in 1 named groups",
        },
        "gain": {"run": True, "layers": None, "warning": None},
    }

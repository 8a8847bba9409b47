"""Links to a run's page."""

from __future__ import annotations

from gradwatch_wire.run_page import run_page


def test_a_run_is_shown_where_the_page_is() -> None:
    assert run_page("http://gw:8420", "gpt2") == "http://gw:8420/?run=gpt2"
    shown = run_page("https://corp.example/gw/", "gpt2", attempt=2)
    assert shown == "https://corp.example/gw/?run=gpt2&attempt=2"
    assert run_page("http://gw", "a&b c") == "http://gw/?run=a%26b%20c"

"""Links of a run to pages elsewhere: what ranks tell of them is kept, bounded and checked."""

from __future__ import annotations

from typing import Any

import pytest

from gradwatch_server.core.attempt import Attempt
from gradwatch_server.core.views.runs import describe_run
from gradwatch_server.core.views.snapshot import view_run
from gradwatch_wire.limits import MAX_LINK_NAME, MAX_LINK_URL, MAX_LINKS

HOST = "https://tracker.example"
LONGEST = "https://h/" + "x" * (MAX_LINK_URL - 10)


def links(job: Any) -> list[tuple[str, str]]:
    """Return what readers are told."""
    found = describe_run(view_run(job.state.runs[job.run]))["links"]
    assert all(own.keys() == {"name", "url"} for own in found)
    return [(own["name"], own["url"]) for own in found]


def test_of_a_name_the_newest_url_is_kept(cluster: Any) -> None:
    """Whichever rank tells it; the order is that in which the names came."""
    job = cluster(world=2).start()
    assert links(job) == []
    job.link(0, "W&B", f"{HOST}/1")
    job.link(1, "MLflow", f"{HOST}/2")
    job.link(1, "W&B", f"{HOST}/3")

    assert links(job) == [("W&B", f"{HOST}/3"), ("MLflow", f"{HOST}/2")]
    assert describe_run(view_run(job.state.runs["gpt"]))["events"] == {"link": 3}


def test_names_are_bounded(cluster: Any) -> None:
    """A further one is left out, a known one still changes."""
    job = cluster().start()
    for number in range(MAX_LINKS + 3):
        job.link(0, f"t{number}", HOST)
    job.link(0, "t0", f"{HOST}/new")

    assert [name for name, _ in links(job)] == [f"t{number}" for number in range(MAX_LINKS)]
    assert links(job)[0] == ("t0", f"{HOST}/new")


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("W&B", "javascript:alert(1)"),
        ("W&B", "data:text/html,<script>"),
        ("W&B", "//tracker.example/run"),
        ("W&B", "file:///etc/passwd"),
        ("W&B", "https://"),
        ("W&B", "https:///run"),
        ("W&B", "https://?run"),
        ("W&B", "https://user:secret@tracker.example"),
        ("W&B", "https://known.example\\@other.example"),
        ("W&B", "https://tracker.example/a b"),
        ("W&B", "https://tracker.example/\n"),
        ("W&B", "https://tr\u00e4cker.example"),
        ("W&B", f"{LONGEST}x"),
        ("W&B", ""),
        ("W&B", None),
        ("W&B", 7),
        ("", HOST),
        ("  ", HOST),
        ("a\nb", HOST),
        ("\u202ebaw", HOST),
        ("x" * (MAX_LINK_NAME + 1), HOST),
        (True, HOST),
    ],
)
def test_what_no_page_may_show_is_left_out(cluster: Any, name: Any, url: Any) -> None:
    """A sender need not be our own client."""
    job = cluster().start()
    job.link(0, name, url)
    job.event(0, "link")  # without any data

    assert links(job) == []


def test_the_longest_of_both_are_kept(cluster: Any) -> None:
    job = cluster().start()
    job.link(0, "\u540d" * MAX_LINK_NAME, LONGEST)

    assert links(job) == [("\u540d" * MAX_LINK_NAME, LONGEST)]


def test_each_attempt_has_its_own(cluster: Any) -> None:
    """What an earlier one linked to is another run of the tracker."""
    job = cluster().start()
    job.link(0, "W&B", f"{HOST}/1")
    job.start()

    assert links(job) == []


def test_a_state_saved_without_links_or_with_bad_ones_is_restored(cluster: Any) -> None:
    """Earlier versions saved none; an archive that somebody sent may have any."""
    job = cluster().start()
    job.link(0, "W&B", HOST)
    state = job.attempt.state_dict()
    bad = state | {"links": [["W&B", "javascript:alert(1)"], ["MLflow", f"{HOST}/2"]]}
    early = {key: value for key, value in state.items() if key != "links"}

    assert Attempt.from_state_dict("gpt", state, []).links.items() == (("W&B", HOST),)
    assert Attempt.from_state_dict("gpt", bad, []).links.items() == (("MLflow", f"{HOST}/2"),)
    assert Attempt.from_state_dict("gpt", early, []).links.items() == ()

"""`gradwatch top`: what it shows of real runs, how it follows them, its keys, what it refuses."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import httpx
import pytest
from textual.pilot import Pilot

from gradwatch_server.cli.top.app import TopApp
from gradwatch_server.cli.top.run_list import RunsTable
from gradwatch_server.keys import make_keys, read_keys
from gradwatch_wire import Bye
from gradwatch_wire.keyfile import read_client_key
from tests.page.feeding import LAYERS, POISONED, STEPS, feed, more
from tests.support.aggregator import Aggregator, Serve
from tests.support.command import Command, run_command
from tests.support.terminal import Terminal
from tests.support.waiting import PATIENCE_S

HOSTILE = ("[bold red]x[/]", "a\x1b[31mb", "up\u202edown", "<b>", "é" * 200, "\\[/]", "z")
LAST = STEPS - 1

pytestmark = pytest.mark.slow


def screen_of(pilot: Pilot[None]) -> str:
    strips = pilot.app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip) for strip in strips)


async def becomes(pilot: Pilot[None], ask: Callable[[], object], wanted: object) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + PATIENCE_S
    while ask() != wanted:
        assert time.monotonic() < deadline, f"{ask()!r} instead of {wanted!r}"
        await pilot.pause(0.05)


async def shows(pilot: Pilot[None], *texts: str, hides: str | None = None) -> str:
    """Wait until all texts stand on the screen, and one does not; return all of it."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        await pilot.pause(0.05)
        seen = screen_of(pilot)
        if all(text in seen for text in texts) and (hides is None or hides not in seen):
            return seen
        assert time.monotonic() < deadline, f"{texts} and not {hides!r}:\n{seen}"


def drive(
    url: str,
    follow: Callable[[Pilot[None]], Awaitable[None]],
    run: str | None = None,
    size: tuple[int, int] = (140, 40),
) -> None:
    """Open the view, press keys in it and look; it ends without a fault."""

    async def main() -> None:
        app = TopApp(url, run)
        async with app.run_test(size=size, notifications=True) as pilot:
            await follow(pilot)
        assert app.fault is None

    asyncio.run(main())


@pytest.fixture
def gradwatch(tmp_path: Path) -> Command:
    return partial(run_command, tmp_path)


def test_it_begins_empty_and_runs_come_by_themselves(serve: Serve) -> None:
    service = serve()

    async def follow(pilot: Pilot[None]) -> None:
        await shows(pilot, "No run yet", 'gradwatch.attach(model, optimizer, run="my-run")', "live")
        await asyncio.to_thread(feed, service, "sick", range(STEPS), LAST)
        await asyncio.to_thread(feed, service, "calm", poison_step=None)
        seen = await shows(
            pilot, "2 runs: 1 critical", "✖ critical · running", "calm", "1c", hides="No run yet"
        )
        assert seen.index("sick") < seen.index("calm")
        await pilot.press("enter")
        await shows(
            pilot,
            f"NaN gradient since step {LAST} on rank 0: {POISONED}",
            f"first NaN or Inf at step {LAST}, rank 0 in {POISONED}",
            "alert",
            "nobody yet",
            "often behind it (heuristic)",
        )
        await pilot.press("escape")
        await shows(pilot, "2 runs")

    drive(service.url, follow)


def test_a_run_is_shown_as_the_api_tells_it(service: Aggregator) -> None:
    """The worst layer first, its curve with the NaN in it; norm and loss."""
    feed(service, "shown", range(STEPS), LAST)
    report = service.health("shown")

    async def follow(pilot: Pilot[None]) -> None:
        # All names in full: until the table was laid out they are cut.
        seen = await shows(pilot, "✖ critical · running", *LAYERS, "nonfinite", "norm  ", "loss  ")
        rows = [line.split() for line in seen.splitlines()]
        (first,) = [at for at, row in enumerate(rows) if row[:2] == ["layer", "gone"]]
        worst, *others = rows[first + 1 : first + 1 + len(LAYERS)]
        assert worst[:3] == [POISONED, "nonfinite", "NaN"]
        assert worst[4][-1] == "▼"
        assert {row[0] for row in others} == set(LAYERS) - {POISONED}
        assert f"loss {report['loss']:.4g}" in seen
        assert f"step {LAST}" in seen

    drive(service.url, follow, "shown")


@pytest.mark.parametrize("size", [(60, 24), (50, 24)])
def test_a_narrow_terminal_has_step_and_norm_and_the_worst_layers(
    service: Aggregator, size: tuple[int, int]
) -> None:
    run = "llama-3.1-8b-instruct-lr3e-4-bs128"
    feed(service, run, range(STEPS), LAST)

    async def follow(pilot: Pilot[None]) -> None:
        seen = await shows(pilot, "run", "step", "norm", "alerts", "✖ llama", "bs128", "NaN")
        (row,) = [line for line in seen.splitlines() if "llama" in line]
        assert row.split()[-3:-1] == [str(LAST), "NaN"]
        await pilot.press("enter")
        seen = await shows(pilot, "norm now", "usual", f"step {LAST}")
        rows = [line.split() for line in seen.splitlines()]
        (first,) = [at for at, row in enumerate(rows) if row[:2] == ["layer", "norm"]]
        assert rows[first + 1][1] == "NaN"
        assert rows[first + 1][0][-3:] == POISONED[-3:]
        assert len([line for line in seen.splitlines() if line.rstrip().endswith("…")]) == 0

    drive(service.url, follow, size=size)


def test_steps_come_by_themselves(service: Aggregator) -> None:
    peer = feed(service, "moving", range(STEPS), None)

    async def follow(pilot: Pilot[None]) -> None:
        for step in range(STEPS, STEPS + 4):
            await asyncio.to_thread(more, peer, range(step, step + 1))
            await shows(pilot, f"step {step}")

    drive(service.url, follow, "moving")


def test_the_cursor_follows_its_run(service: Aggregator) -> None:
    """Enter opens the same one when the order changed."""
    peer = feed(service, "turn-a", poison_step=None)
    feed(service, "turn-b", poison_step=None)

    async def follow(pilot: Pilot[None]) -> None:
        table = pilot.app.query_one(RunsTable)
        await pilot.press("slash", *"turn-", "enter")
        await shows(pilot, "turn-a", "turn-b", "2 runs: ")
        await pilot.press("home")
        await becomes(pilot, lambda: table.chosen, "turn-b")
        await asyncio.to_thread(more, peer, range(STEPS, STEPS + 1), STEPS)
        seen = await shows(pilot, "✖ critical")
        assert seen.index("turn-a") < seen.index("turn-b")
        await becomes(pilot, lambda: table.chosen, "turn-b")
        await pilot.press("enter")
        await shows(pilot, "run turn-b", "attempt 1")

    drive(service.url, follow)


def test_a_reader_looks_with_the_read_token(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_keys(tmp_path / "keys")
    service = serve("--keys-dir", str(tmp_path / "keys"))
    key = read_client_key(tmp_path / "keys" / "client.key")
    more(service.peer(run="locked", key=key).attach(LAYERS), range(STEPS), LAST)

    async def refused(pilot: Pilot[None]) -> None:
        await shows(pilot, "stale: ", "token")

    drive(service.url, refused)
    monkeypatch.setenv("GRADWATCH_TOKEN", read_keys(tmp_path / "keys").tokens.read)

    async def follow(pilot: Pilot[None]) -> None:
        await shows(pilot, "✖ critical · running", "nobody yet")

    drive(service.url, follow, "locked")


def test_names_are_filtered(service: Aggregator) -> None:
    for run in ("one-a", "one-b"):
        feed(service, run, range(3), None)

    async def follow(pilot: Pilot[None]) -> None:
        await shows(pilot, "one-a", "one-b")
        await pilot.press("slash", *"ONE-B", "enter")
        await shows(pilot, "one-b", hides="one-a")
        await pilot.press("enter")
        await shows(pilot, *LAYERS)
        await pilot.press("slash", *"h.3")
        await shows(pilot, "transformer.h.3.attn.w", hides="lm_head")
        await pilot.press("escape")
        await shows(pilot, *LAYERS)
        await pilot.press("escape")
        await shows(pilot, "one-b", hides="lm_head")
        await pilot.press("slash", *"zzz")
        await shows(pilot, "no run has 'zzz' in its name; Esc shows all")
        await pilot.press("escape")
        await shows(pilot, "one-a", "one-b")

    drive(service.url, follow)


def test_it_outlives_a_restart_of_the_aggregator_and_says_so(serve: Serve) -> None:
    service = serve()
    feed(service, "kept", range(STEPS), LAST)

    async def follow(pilot: Pilot[None]) -> None:
        await shows(pilot, "live ·", "✖ critical")
        await asyncio.to_thread(service.stop)
        await shows(pilot, "stale since", "no aggregator answers at", "was critical · running")
        assert pilot.app.screen.has_class("old")
        await asyncio.to_thread(service.start)
        await shows(pilot, "live ·", "✖ critical", hides="stale since")
        assert not pilot.app.screen.has_class("old")

    drive(service.url, follow, "kept")


def test_a_run_that_is_deleted_while_it_is_watched(service: Aggregator) -> None:
    """A sentence in the head, what was there dimmed."""
    peer = feed(service, "brief", range(3), None)
    peer.send(Bye())
    peer.acked()
    service.health_of_ended("brief")

    async def follow(pilot: Pilot[None]) -> None:
        await shows(pilot, "· ended")
        url = f"{service.url}/runs/brief?confirm=brief"
        await asyncio.to_thread(_delete, url)
        await shows(pilot, "stale since", "no run 'brief'", "was ")

    drive(service.url, follow, "brief")


def _delete(url: str) -> None:
    httpx.delete(url, trust_env=False, timeout=PATIENCE_S).raise_for_status()


def test_hostile_names_are_text(service: Aggregator) -> None:
    feed(service, "hostile", range(3), None, HOSTILE)

    async def follow(pilot: Pilot[None]) -> None:
        seen = await shows(
            pilot, "[bold red]x[/]", r"a\x1b[31mb", r"up\u202edown", "<b>", r"\[/]", "…éé"
        )
        assert all(line.isprintable() for line in seen.splitlines())

    drive(service.url, follow, "hostile")


def test_it_fits_into_80_by_24(service: Aggregator) -> None:
    """Status, layer, norm, the newest step of its curve and keys are in sight."""
    feed(service, "small", range(STEPS), LAST)

    async def follow(pilot: Pilot[None]) -> None:
        seen = await shows(pilot, "✖ critical", POISONED, "NaN", "q quit", "/ filter", "▼ ")
        rows = [line.split() for line in seen.splitlines()]
        (curve,) = [row[-1] for row in rows if row[:1] == [POISONED]]
        assert curve[-1] == "▼"

    drive(service.url, follow, "small", (80, 24))


@pytest.mark.parametrize("arguments", [(), ("some",)])
def test_without_a_terminal_it_is_one_line(gradwatch: Command, arguments: tuple[str, ...]) -> None:
    """Exit code 1, and what to do; no aggregator is asked."""
    result = gradwatch("top", *arguments, "--url", "http://127.0.0.1:1")

    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == (
        "gradwatch: top draws in a terminal, and this is none; "
        "'gradwatch runs' and 'gradwatch health RUN' print once\n"
    )


def test_what_cannot_be_shown_is_one_line(tmp_path: Path, service: Aggregator) -> None:
    for arguments, says in (
        (("top", "nope", "--url", service.url), "gradwatch: no run 'nope'; "),
        (("top", "--url", "http://127.0.0.1:1"), "gradwatch: no aggregator answers at "),
    ):
        with Terminal(tmp_path, *arguments) as terminal:
            terminal.shows(says)
            assert terminal.ends() == 1
            assert "\x1b[?1049h" not in terminal.raw


@pytest.mark.parametrize("key", ["q", "\x03"], ids=["q", "Ctrl-C"])
def test_it_draws_in_a_terminal_and_a_key_ends_it(
    tmp_path: Path, service: Aggregator, key: str
) -> None:
    feed(service, "drawn", range(STEPS), LAST)
    with Terminal(tmp_path, "top", "drawn", "--url", service.url) as terminal:
        terminal.shows("critical · running")
        terminal.shows(POISONED)
        terminal.type(key)
        assert terminal.ends() == 0
        assert "\x1b[?1049l" in terminal.raw  # the screen before it is shown again


@pytest.mark.exhaustive
def test_only_top_loads_textual() -> None:
    code = "import sys, gradwatch_server.cli.app; print('textual' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "False\n"

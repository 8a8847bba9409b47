"""An incident as a section of docs/incidents.md."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import Final

from benchmarks.alerts.finding import Finding
from benchmarks.documents import Section
from gradwatch_wire.health import Severity
from incidents.incident import LOSS_DEVIATIONS, LOSS_STEPS, Incident

PAGE: Final = Section(
    "incidents.md", "<!-- From here on written by scripts/pictures incidents. -->"
)
WIDTH: Final = 115
RANKS: Final = list(Severity)
NUM_SHOWN: Final = 3
"""Alerts that are shown of one incident; further ones are counted."""


def page(incidents: Iterable[Incident]) -> str:
    """Return all sections."""
    return "\n\n".join(map(section, incidents))


def section(incident: Incident) -> str:
    """Return the section of one."""
    case = incident.case
    return "\n\n".join(
        (
            f"## {case.title}",
            _filled(f"{_training(incident)} {_done(incident)}"),
            "What gradwatch said:",
            "\n".join(_told(incident)),
            _filled(f"{_when(incident)} {_loss(incident)} {case.lesson}"),
            f"![The page of this run: {case.title}](pictures/incident-{case.name}.png)",
        )
    )


def _filled(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_on_hyphens=False, break_long_words=False)


def _training(incident: Incident) -> str:
    recipe = incident.case.recipe
    about = f"{recipe.family.replace('_', ' ')}, {recipe.about}"
    world = incident.recorded.world
    ranks = "one rank" if world == 1 else f"{world} ranks"
    return f"*{about}; {ranks}.*"


def _done(incident: Incident) -> str:
    rank = incident.fault.ranks[0] if incident.fault.ranks else "?"
    module = incident.fault.module or "?"
    return incident.case.done.format(step=incident.step, rank=rank, module=module)


def _told(incident: Incident) -> list[str]:
    """Return the gravest alerts, of these the first ones, in the order in which they were told."""
    ranked = sorted(incident.findings, key=lambda each: (-RANKS.index(each.severity), each.step))
    shown = sorted(ranked[:NUM_SHOWN], key=lambda each: each.step)
    lines = [f"* step {each.step}, {each.severity} `{each.rule}`: {each.message}" for each in shown]
    if further := len(incident.findings) - len(shown):
        severities = " and ".join(_severities(ranked[NUM_SHOWN:]))
        lines.append(f"* {further} more, as {severities}")
    return lines


def _severities(findings: Iterable[Finding]) -> list[str]:
    return sorted({f"`{each.severity}`" for each in findings})


def _when(incident: Incident) -> str:
    woke = incident.woke()
    if woke is None:
        return "No warning came."
    if woke.origin_step is not None and woke.origin_step < incident.step:
        when = "before that step did"
    else:
        when = _steps_after(woke.step - incident.step)
    text = f"The first warning came {when}"
    if incident.num_before:
        text += f"; in the {incident.step} healthy steps before there were {incident.num_before}"
        text += " alerts" if incident.num_before > 1 else " alert"
    return text + "."


def _loss(incident: Incident) -> str:
    stands_out = incident.loss_step()
    num = len(incident.recorded.rows) - incident.step
    rule = f"NaN, or more than {LOSS_DEVIATIONS:g} deviations above the mean of the {LOSS_STEPS} "
    text = f"In the loss alone ({rule}steps before) "
    if stands_out is None:
        return f"{text}nothing showed in the {num} steps that were recorded."
    return f"{text}it showed {_steps_after(stands_out - incident.step)}."


def _steps_after(steps: int) -> str:
    if steps == 0:
        return "with that very step"
    return "one step later" if steps == 1 else f"{steps} steps later"

"""The sections of docs/rules.md, and the tables of rules and hints, from the definitions."""

from __future__ import annotations

import inspect
from enum import Enum
from typing import Any, Final

from gradwatch_server.core.alerting.hints import HINTS
from gradwatch_server.core.alerting.rules.base import Rule
from gradwatch_server.core.alerting.rules.layer import LayerRule
from gradwatch_server.core.alerting.rules.registry import REGISTRY

BEGIN: Final = "<!-- From here on written by scripts/docs, from the definitions of the rules. -->\n"
RULES: Final = "<!-- The table of all rules, written by scripts/docs. -->\n"
HINTS_OF_RULES: Final = "<!-- The table of hints, written by scripts/docs. -->\n"
END: Final = "<!-- To here. -->\n"

_IN_SUMMARY: Final = ("for_steps", "severity")


def section(rule: type[Rule]) -> str:
    """Return the section of a rule as Markdown."""
    summary, _, rest = inspect.cleandoc(rule.__doc__ or "").partition("\n")
    settings = rule()
    first = (
        f"{summary} `for_steps` is `{settings.for_steps}`, "
        f"`severity` is `{_shown(settings.severity)}`."
    )
    paragraphs = (
        f"## {rule.name}",
        first,
        _labelled("Raised when", rule.formula),
        "\n".join(_own_settings(settings)),
        rest.strip(),
        _labelled("To tune it", rule.tuning),
        _labelled("From", rule.source),
    )
    return "\n\n".join(filter(None, paragraphs)) + "\n"


def rules_table() -> str:
    """Return the table of all registered rules as Markdown: what they see, and their defaults."""
    rows = ["| rule | what it sees | severity | default |", "|---|---|---|---|"]
    for rule in REGISTRY:
        settings, summary = rule(), inspect.cleandoc(rule.__doc__ or "").partition("\n")[0]
        state = "on" if settings.enabled else "off"
        link = f"[`{rule.name}`](rules.md#{rule.name})"
        rows.append(f"| {link} | {summary} | `{_shown(settings.severity)}` | {state} |")
    return "\n".join(rows) + "\n"


def hints_table() -> str:
    """Return the table of the hints of each rule as Markdown."""
    rows = ["| rule | hints |", "|---|---|"]
    rows += [
        f"| [`{rule.name}`](rules.md#{rule.name}) | {'; '.join(HINTS[rule.name])} |"
        for rule in REGISTRY
        if rule.name in HINTS
    ]
    return "\n".join(rows) + "\n"


def fill(page: str) -> str:
    """Return the page with what belongs between each of its marks and `END`.

    Raises:
        ValueError: If the page has no mark, or no `END` after one.
    """
    sections = "".join(f"\n{section(rule)}" for rule in REGISTRY)
    texts = {BEGIN: sections, RULES: "\n" + rules_table(), HINTS_OF_RULES: "\n" + hints_table()}
    marks = [mark for mark in texts if mark in page]
    if not marks or any(END not in page.partition(mark)[2] for mark in marks):
        msg = f"the page lacks {BEGIN.strip()!r}, or {END.strip()!r} after it"
        raise ValueError(msg)
    for mark in marks:
        page = between(page, mark, texts[mark])
    return page


def between(page: str, begin: str, text: str) -> str:
    """Return the page with a text between a mark and `END`, instead of what is there."""
    before, _, rest = page.partition(begin)
    return before + begin + text + "\n" + END + rest.partition(END)[2]


def _labelled(label: str, text: str) -> str:
    return f"**{label}:** {inspect.cleandoc(text)}" if text else ""


def _own_settings(settings: Rule) -> list[str]:
    """List the settings that not every rule has, or that mean something else here."""
    common = {
        key: (field.description, field.default) for key, field in LayerRule.model_fields.items()
    }
    for key in _IN_SUMMARY:  # its value is there, whatever it is
        common[key] = common[key][0], type(settings).model_fields[key].default
    return [
        f"* `{key}` (default `{_shown(getattr(settings, key))}`): {field.description}"
        for key, field in type(settings).model_fields.items()
        if common.get(key) != (field.description, field.default)
    ]


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return str(list(value))  # as TOML has it
    return str(value.value if isinstance(value, Enum) else value)

"""What docs/alerts.md says of each rule, made from its definition."""

from __future__ import annotations

import inspect
from enum import Enum
from typing import Any, Final

from gradwatch_server.core.alerting.rules.base import Rule
from gradwatch_server.core.alerting.rules.layer import LayerRule
from gradwatch_server.core.alerting.rules.registry import REGISTRY

BEGIN: Final = "<!-- From here on written by scripts/docs, from the definitions of the rules. -->\n"
END: Final = "<!-- To here. -->\n"


_IN_SUMMARY: Final = ("for_steps", "severity")


def section(rule: type[Rule]) -> str:
    """Return the section of a rule as Markdown.

    It says what the rule sees, when it raises, its settings, what else to know, how to tune it, and
    where it comes from.
    """
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


def fill(page: str) -> str:
    """Return the page with the sections of all registered rules between the two marks.

    Raises:
        ValueError: If the page lacks one of the marks.
    """
    if BEGIN not in page or END not in page.partition(BEGIN)[2]:
        msg = f"the page lacks {BEGIN.strip()!r}, or {END.strip()!r} after it"
        raise ValueError(msg)
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    return before + BEGIN + "".join(f"\n{section(rule)}" for rule in REGISTRY) + "\n" + END + after


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

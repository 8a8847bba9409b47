"""The `[notify]` tables of `gradwatch.toml`: whom to tell of which alerts."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    RootModel,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from gradwatch_server.core.alerting.rules.patterns import Patterns, matches
from gradwatch_server.errors import GradwatchError
from gradwatch_server.notify.notifiers import NOTIFIERS
from gradwatch_server.notify.notifiers.base import Notifier
from gradwatch_server.notify.policy import Policy
from gradwatch_server.notify.secrets import url_from_environment, url_from_file
from gradwatch_wire.health import Severity

MAX_TARGETS: Final = 64
"""Each has a thread of its own."""

URL: Final = "url"
"""The key whose value is shown nowhere."""

_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,63}")

_KNOWN_TYPES: Final = ", ".join(NOTIFIERS)


class Target(BaseModel):
    """One target: where to, what of, and when."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    type: str = Field("apprise", description=f"What it is: {_KNOWN_TYPES}.")
    url: SecretStr | None = Field(
        None, description="Where to: an apprise URL, or that of an Alertmanager. It is a secret."
    )
    url_env: str | None = Field(
        None, min_length=1, description="The environment variable that has the URL instead."
    )
    url_file: Path | None = Field(None, description="The file whose one line is the URL instead.")
    rules: Patterns = Field((), description="Patterns of names of rules; all without.")
    runs: Patterns = Field((), description="Patterns of names of runs; all without.")
    severities: tuple[Severity, ...] = Field(
        (Severity.WARNING, Severity.CRITICAL), min_length=1, description="Severities to tell of."
    )
    resolved: bool = Field(True, description="Tell when an alert is over that was told.")
    group_by: tuple[Literal["run", "attempt", "rule", "severity"], ...] = Field(
        ("run",), description="Alerts that have these in common go in one message."
    )
    group_wait_s: float = Field(
        10.0, ge=0.0, le=3_600.0, description="How long a message waits for more alerts."
    )
    group_interval_s: float = Field(
        60.0, ge=0.0, le=86_400.0, description="Time between two messages of a group."
    )

    @field_validator("type")
    @classmethod
    def _known_type(cls, value: str) -> str:
        if value not in NOTIFIERS:
            msg = f"Input should be one of {_KNOWN_TYPES}"
            raise ValueError(msg)
        return value

    @model_validator(mode="after")
    def _fits_its_type(self) -> Self:
        given = [key for key in (URL, "url_env", "url_file") if getattr(self, key) is not None]
        if len(given) != 1:
            what = " and ".join(given) or "none"
            raise _wrong((), f"should have one of url, url_env and url_file, and has {what}")
        for key in sorted(NOTIFIERS[self.type].unused & self.model_fields_set):
            text = f"is for no target of type {self.type}, which does that by itself; leave it out"
            raise _wrong((key,), text)
        return self

    def notifier(self, name: str) -> Notifier:
        """Return what sends to the target.

        Raises:
            GradwatchError: If its URL is missing or wrong, or a library is.
        """
        key = next(each for each in (URL, "url_env", "url_file") if getattr(self, each))
        try:
            return NOTIFIERS[self.type](self._url())
        except GradwatchError as error:
            msg = f"setting 'notify.{name}.{key}': {error}"
            raise GradwatchError(msg) from None

    def _url(self) -> str:
        if self.url is not None:
            return self.url.get_secret_value()
        if self.url_env is not None:
            return url_from_environment(self.url_env)
        assert self.url_file is not None  # noqa: S101 - one of the three is there
        return url_from_file(self.url_file)

    def policy(self) -> Policy:
        """Return what the target wants, as its type is told it."""
        wanted = Policy(
            rules=self.rules,
            runs=self.runs,
            severities=frozenset(map(str, self.severities)),
            resolved=self.resolved,
            group_by=self.group_by,
            group_wait_s=self.group_wait_s,
            group_interval_s=self.group_interval_s,
        )
        return NOTIFIERS[self.type].schedule(wanted)


class Targets(RootModel[dict[str, Target]]):
    """All targets by name."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    root: Annotated[dict[str, Target], Field(max_length=MAX_TARGETS)] = Field(default_factory=dict)

    @field_validator("root")
    @classmethod
    def _named(cls, value: dict[str, Target]) -> dict[str, Target]:
        for name in value:
            if not _NAME.fullmatch(name):
                text = "the name of a target is up to 64 of a-z, 0-9, _ and -, a letter first"
                raise _wrong((name,), text)
        return value

    def check_rules(self, known: Collection[str]) -> None:
        """Check that each pattern of rules fits one.

        Raises:
            ValidationError: If one does not.
        """
        for name, target in self.root.items():
            for pattern in target.rules:
                if not any(matches((pattern.removeprefix("!"),), rule) for rule in known):
                    text = f"{pattern!a} fits no rule; the rules are {', '.join(known)}"
                    raise _wrong((name, "rules"), text)


def shows_input(where: tuple[int | str, ...], given: Any) -> bool:
    """Tell whether an error may show what was given: not where a URL may be in it.

    Args:
        where: The keys below `notify`.
    """
    key = where[1] if len(where) > 1 else URL
    return key != URL and key in Target.model_fields and not isinstance(given, Mapping)


def _wrong(where: tuple[str, ...], message: str) -> ValidationError:
    text = message.replace("{", "{{").replace("}", "}}")
    details = InitErrorDetails(type=PydanticCustomError("notify", text), loc=where, input=None)
    return ValidationError.from_exception_data("Targets", [details], hide_input=True)

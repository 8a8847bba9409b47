"""Settings of the aggregator: command line, then `GRADWATCH_*`, then `gradwatch.toml`."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from gradwatch_server.addresses import database_name, endpoint_host, is_loopback, split_address
from gradwatch_server.budgets import BUDGETS, Budgets
from gradwatch_server.config_file import DEFAULT_CONFIG, find_config
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.frames.window import WINDOW_STEPS
from gradwatch_server.errors import GradwatchError
from gradwatch_server.notify.settings import Target, Targets, shows_input
from gradwatch_server.storage.retention import RetentionPolicy
from gradwatch_wire.names import DEFAULT_ENDPOINT, DEFAULT_HTTP


class Settings(BaseSettings):
    """Settings with their defaults."""

    model_config = SettingsConfigDict(
        env_prefix="GRADWATCH_", env_nested_delimiter="__", extra="forbid", frozen=True
    )

    http: str = Field(DEFAULT_HTTP, description="Address of the HTTP API, port 0 for any.")
    ingest: str = Field(
        DEFAULT_ENDPOINT, description="ZeroMQ endpoint that clients push to, port 0 for any."
    )
    data: Path = Field(Path("gradwatch-data"), description="Data directory, made if missing.")
    store: SecretStr | None = Field(
        None, description="PostgreSQL database in place of the data directory; nodes may share it."
    )
    keys_dir: Path | None = Field(
        None,
        description="Directory that `gradwatch keys` made; with it only who has a key or a token "
        "gets in.",
    )
    insecure: bool = Field(
        False, description="Allow addresses beyond loopback although nothing checks who calls."
    )
    http_hosts: tuple[str, ...] = Field(
        (), description="More host names under which the HTTP API may be called, without ports."
    )
    http_tls_cert: Path | None = Field(None, description="Certificate of the HTTP API, PEM.")
    http_tls_key: Path | None = Field(None, description="The key to it, PEM, not open to all.")
    public_url: str | None = Field(
        None,
        pattern=r"^https?://[^/?#@\s]+(/[^?#@\s]*)?$",
        description="Where people open the page, for links in notifications.",
    )
    window_steps: int = Field(
        WINDOW_STEPS, ge=8, le=65_536, description="Frames that a run's rolling window holds."
    )
    session_timeout_s: float = Field(
        30.0, ge=1.0, le=86_400.0, description="Silence after which a rank counts as lost."
    )
    allow_network_fs: bool = Field(
        False,
        description="Allow a data directory on a network file system, where it may be damaged.",
    )
    log_max_bytes: int = Field(
        8_589_934_592,
        ge=1 << 20,
        description="Size of the log above which the oldest records are deleted.",
    )
    log_max_age_s: float = Field(
        604_800.0,
        ge=60.0,
        allow_inf_nan=False,
        description="Age above which records are deleted; the window stays.",
    )
    alerts_max_age_s: float = Field(
        31_536_000.0,
        ge=60.0,
        allow_inf_nan=False,
        description="Age above which alert events are deleted, not below that of records.",
    )
    alerts_max_bytes: int = Field(
        1_073_741_824,
        ge=1 << 20,
        description="Size of the alert events above which the oldest are deleted.",
    )
    curves_max_bytes: int = Field(
        4_294_967_296,
        ge=1 << 20,
        description="Size of the curves above which the oldest single steps are deleted.",
    )
    runs_max_age_s: float = Field(
        2_592_000.0,
        ge=60.0,
        allow_inf_nan=False,
        description="Time after its end when a run leaves memory; its alert events stay.",
    )
    checkpoint_s: float = Field(
        300.0,
        ge=1.0,
        le=3_600.0,
        description="Seconds until a changed run is saved, at most; a restart computes the rest.",
    )
    budgets: Budgets = Field(
        default_factory=Budgets, description="Budgets of peers; see docs/operations.md."
    )
    rules: Rules = Field(default_factory=Rules, description="The rules; see docs/rules.md.")
    notify: Targets = Field(
        default_factory=Targets, description="Targets of notifications; see docs/notifications.md."
    )

    @field_validator("alerts_max_age_s")
    @classmethod
    def _not_below_the_log(cls, value: float, info: ValidationInfo) -> float:
        # A record whose alert is gone would raise it again if the log had to be read anew.
        least = info.data.get("log_max_age_s", 0.0)
        if value < least:
            msg = f"must not be below log_max_age_s ({least:g})"
            raise ValueError(msg)
        return value

    @field_validator("notify")
    @classmethod
    def _of_rules_there_are(cls, value: Targets, info: ValidationInfo) -> Targets:
        if "rules" in info.data:
            value.check_rules(info.data["rules"].root)
        return value

    @property
    def data_name(self) -> str:
        """The data directory, or the database without user and password, for people."""
        if self.store is None:
            return str(self.data.absolute())
        return database_name(self.store.get_secret_value())

    @field_validator("store")
    @classmethod
    def _of_postgres(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not value.get_secret_value().startswith(_SCHEMES):
            msg = "no URL of PostgreSQL"
            raise ValueError(msg)
        return value

    @field_validator("http")
    @classmethod
    def _host_and_port(cls, value: str) -> str:
        split_address(value)
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - pydantic passes it by name
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - likewise
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Rank the sources; a `.env` file is none of them."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)


def load_settings(config: Path | None, **given: Any) -> Settings:
    """Read the settings; *given* are those of the command line, None where not given.

    Without *config* `GRADWATCH_CONFIG` may name the file.

    Raises:
        GradwatchError: If a file is missing or malformed, or a value is not allowed.
    """
    file = find_config(config) or DEFAULT_CONFIG

    class _Settings(Settings):
        model_config = SettingsConfigDict(toml_file=file)

    try:
        settings = _Settings(**{key: value for key, value in given.items() if value is not None})
    except ValidationError as error:
        raise GradwatchError(_first(error)) from error
    except SettingsError as error:
        msg = f"an environment variable GRADWATCH_*: {error}"
        raise GradwatchError(msg) from error
    except (OSError, ValueError) as error:  # the file itself
        msg = f"config file {file}: {error}"
        raise GradwatchError(msg) from error
    _check_exposure(settings)
    return settings


_SCHEMES: Final = ("postgresql://", "postgres://")

_UNKNOWN: Final = ("unknown_rule", "unknown_key")

_ALLOWED: Final[Mapping[str, str]] = {
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "a table of settings"),
    **dict.fromkeys(("tuple_type", "list_type"), 'a list, such as ["one", "two"]'),
    **dict.fromkeys(("string_type", "path_type"), 'a text in quotes, such as "one"'),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
}
"""Pydantic's name of each type's error, and the type in words of a settings file."""


def _first(error: ValidationError) -> str:
    """Return the first of what is wrong: the key, what is allowed, and what was given."""
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    text = first["msg"].removeprefix("Value error, ")
    if first["type"] in _ALLOWED:
        text = f"should be {_ALLOWED[first['type']]}"
    elif first["type"] == "too_short":
        text = "should not be empty"
    if first["type"] == "extra_forbidden":
        known: Collection[str] = Settings.model_fields
        if first["loc"][0] == "budgets":
            known = [budget.name for budget in BUDGETS]
        elif first["loc"][0] == "notify":
            known = Target.model_fields
        return f"setting {key!r} is not known; there are {', '.join(known)}"
    if first["type"] in _UNKNOWN:
        return f"setting {key!r} is not known; {text}"
    is_secret = first["loc"][0] == "notify" and not shows_input(first["loc"][1:], first["input"])
    if first["loc"][0] == "store":
        return f"setting {key!r}: should be a URL such as postgresql://user@host/database"
    if is_secret or first["input"] is None:
        return f"setting {key!r}: {text}"
    return f"setting {key!r}: {text}, got {ascii(first['input'])[:80]}"


def _check_exposure(settings: Settings) -> None:
    """Refuse addresses that other machines reach while nothing checks who calls."""
    for name in _exposed(settings):
        if settings.keys_dir is None and not settings.insecure:
            msg = (
                f"{name} address {getattr(settings, name)} is reachable from other machines and "
                "nothing would check who calls; make keys with 'gradwatch keys' and give "
                "--keys-dir gradwatch-keys, bind 127.0.0.1, or accept it with --insecure"
            )
            raise GradwatchError(msg)


def retention_of(settings: Settings) -> RetentionPolicy:
    """Return what is kept, and for how long."""
    names = [field.name for field in dataclasses.fields(RetentionPolicy)]
    return RetentionPolicy(**{name: getattr(settings, name) for name in names})


def exposure_warnings(settings: Settings) -> list[str]:
    """Return what an operator should be warned of."""
    exposed = _exposed(settings)
    if settings.keys_dir is None:
        return [
            f"insecure: whoever reaches {name} at {getattr(settings, name)} gets in"
            for name in exposed
        ]
    if "http" in exposed and settings.http_tls_cert is None:
        return ["HTTP tokens travel in the clear; set http_tls_cert, or put a TLS proxy in front"]
    return []


def _exposed(settings: Settings) -> list[str]:
    """Return the settings whose addresses other machines reach."""
    hosts = {
        "http": split_address(settings.http)[0],
        "ingest": endpoint_host(settings.ingest) or "localhost",
    }
    return [name for name, host in hosts.items() if not is_loopback(host)]

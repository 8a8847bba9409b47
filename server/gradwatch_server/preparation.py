"""What an aggregator makes of its settings before it opens anything, or refuses to start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gradwatch_server.api.tls import check_tls
from gradwatch_server.keys import Keys, read_keys
from gradwatch_server.notify.notifications import make_notifiers
from gradwatch_server.notify.notifiers.base import Notifier
from gradwatch_server.settings import Settings


@dataclass(frozen=True, slots=True)
class Preparation:
    """What settings lead to; nothing of it has begun.

    Args:
        keys: Who gets in, None for everybody.
        notifiers: What sends to each target of notifications, by its name.
    """

    keys: Keys | None
    notifiers: Mapping[str, Notifier]


def prepare(settings: Settings) -> Preparation:
    """Read and check all that the settings name: `serve` begins with it.

    Raises:
        GradwatchError: If a file, a variable or a library is missing, or something is malformed.
    """
    keys = None if settings.keys_dir is None else read_keys(settings.keys_dir)
    check_tls(settings.http_tls_cert, settings.http_tls_key)
    return Preparation(keys=keys, notifiers=make_notifiers(settings.notify))

"""Where a node is reached, and who gets in."""

from __future__ import annotations

from gradwatch_server.addresses import is_wildcard, split_address
from gradwatch_server.api.security.access import AccessPolicy
from gradwatch_server.api.security.hosts import Hosts
from gradwatch_server.api.security.stream_tokens import StreamTokens
from gradwatch_server.errors import GradwatchError
from gradwatch_server.keys import Keys
from gradwatch_server.settings import Settings


def advertised_url(settings: Settings, http_url: str) -> str:
    """Return where other nodes reach the HTTP of this one.

    Args:
        settings: Those of the node.
        http_url: Where it listens.

    Raises:
        GradwatchError: If nobody said so and it cannot be known.
    """
    if settings.advertise is not None:
        return settings.advertise.rstrip("/")
    if is_wildcard(split_address(settings.http)[0]):
        msg = (
            f"other nodes cannot tell where {settings.http} is: say where they reach "
            "this node, such as --advertise http://10.0.0.5:8420"
        )
        raise GradwatchError(msg)
    return http_url


def access_policy(
    settings: Settings, advertised: str, keys: Keys | None, stream_tokens: StreamTokens
) -> AccessPolicy:
    """Return who gets in: as on a single process, and under the advertised name."""
    own = split_address(advertised.partition("//")[2].partition("/")[0])[0]
    hosts = Hosts(split_address(settings.http)[0], (*settings.http_hosts, own))
    return AccessPolicy(hosts, None if keys is None else keys.tokens, stream_tokens)

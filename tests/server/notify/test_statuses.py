"""What an HTTP status of a receiver means to every notifier: taken, tried again, or given up."""

from __future__ import annotations

import pytest

from gradwatch_server.notify.notifiers.alertmanager import AlertmanagerNotifier
from gradwatch_server.notify.notifiers.apprise import AppriseNotifier
from gradwatch_server.notify.notifiers.base import DeliveryError
from tests.support.receiver import SECRET, Receive

AGAIN = (408, 421, 423, 425, 429, 500, 502, 503, 504, 599)
GIVEN_UP = (400, 401, 403, 404, 405, 410, 413, 422, 424, 428, 430, 499)


@pytest.mark.parametrize("kind", [AppriseNotifier, AlertmanagerNotifier])
@pytest.mark.parametrize(
    ("status", "is_final"),
    [*((status, False) for status in AGAIN), *((status, True) for status in GIVEN_UP)],
)
def test_a_message_is_tried_again_or_given_up(
    kind: type[AppriseNotifier | AlertmanagerNotifier],
    status: int,
    is_final: bool,
    receive: Receive,
) -> None:
    receiver = receive()
    receiver.status = status
    url = receiver.url if kind is AppriseNotifier else f"http://127.0.0.1:{receiver.port}"
    with pytest.raises(DeliveryError, match=str(status)) as caught:
        kind(url).test(None)

    assert (caught.value.is_refused, caught.value.is_final) == (True, is_final)
    assert SECRET not in str(caught.value)

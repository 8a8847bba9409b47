"""The notifiers, a file for each. Each is listed in `NOTIFIERS` by its `type` in the settings."""

from gradwatch_server.notify.notifiers.alertmanager import AlertmanagerNotifier
from gradwatch_server.notify.notifiers.apprise import AppriseNotifier
from gradwatch_server.notify.notifiers.base import Notifier

NOTIFIERS: dict[str, type[Notifier]] = {
    notifier.name: notifier for notifier in (AppriseNotifier, AlertmanagerNotifier)
}

"""Checks of the system: its clock, and how many files may be open."""

from __future__ import annotations

import resource
import time
from typing import Final

from gradwatch_server.cli.doctor.finding import Finding, error, ok, warning
from gradwatch_server.cli.doctor.server.subject import ServerSide
from gradwatch_server.clock import FIRST_NS
from gradwatch_server.open_files import UNLIMITED

WATCHED_S: Final = 0.3
"""How long the clock is watched."""

MOST_DRIFT_S: Final = 0.05
"""How far the clock may move beside the steady one meanwhile: who is set gently moves by 0.1 %."""

MOST_AHEAD_S: Final = 60.0

OWN_FILES: Final = 64
"""Files that the aggregator has open besides connections."""


def look_at_clock(subject: ServerSide) -> Finding:
    """Compare the clock with the steady one, and with the data's last change."""
    wall_ns, steady_ns = time.time_ns(), time.monotonic_ns()
    if wall_ns < FIRST_NS:
        return error(f"it is {_stamp(wall_ns)} here: the clock was never set", "set it (NTP)")
    time.sleep(WATCHED_S)
    drift_s = ((time.time_ns() - wall_ns) - (time.monotonic_ns() - steady_ns)) / 1e9
    if abs(drift_s) > MOST_DRIFT_S:
        says = f"the clock moved by {drift_s:+.2f} s while it was watched for {WATCHED_S:g} s"
        return warning(says, "see what sets it: one NTP client is enough")
    written_ns = subject.store.written_ns
    if written_ns is not None and written_ns - wall_ns > MOST_AHEAD_S * 1e9:
        says = f"the data was last written at {_stamp(written_ns)}, now it is {_stamp(wall_ns)}"
        return warning(says, "set the clock (NTP); it was ahead then, or is behind now")
    return ok(f"{_stamp(wall_ns)}, and steady")


def look_at_open_files(subject: ServerSide) -> Finding:
    """Compare how many files may be open with the connections that the budgets allow."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)  # serve takes all of it
    most = UNLIMITED if hard == resource.RLIM_INFINITY else hard
    budgets = subject.settings.budgets
    wanted = max(2 * budgets.ingest_connections, 4 * budgets.http_connections) + OWN_FILES
    says = f"{most} files may be open"
    if most < wanted:
        says += (
            f": at most {most // 2} ranks and {most // 4} readers get in, not the "
            f"{budgets.ingest_connections} and {budgets.http_connections} of the budgets"
        )
        return warning(says, f"raise the limit (ulimit -Hn, LimitNOFILE=) to {wanted}")
    return ok(f"{says}, the budgets take {wanted}")


def _stamp(time_ns: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time_ns // 10**9))

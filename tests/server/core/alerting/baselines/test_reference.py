"""References: what was usual of each series when it left it."""

from __future__ import annotations

import math

from tests.support.core import Cluster


def test_a_loss_that_is_bad_in_the_first_frame_is_told() -> None:
    job = Cluster().start()
    (alert,) = job.step(0, loss=math.nan)

    assert (alert.rule, alert.severity, alert.origin.step) == ("loss", "critical", 0)

"""The targets of notifications over HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.aggregator import Aggregator, Serve

pytestmark = pytest.mark.slow


def test_without_targets_the_list_is_empty(service: Aggregator) -> None:
    assert service.json("/notifiers") == []


def test_a_target_is_listed_without_its_secret(serve: Serve, tmp_path: Path) -> None:
    config = tmp_path / "gradwatch.toml"
    config.write_text('[notify.oncall]\nurl = "json://ada:s3cret@127.0.0.1:9/t0ken"\n')
    service = serve("--config", str(config))
    (target,) = service.json("/notifiers")

    assert (target["name"], target["pending"]) == ("oncall", 0)
    assert "s3cret" not in str(target)
    assert "t0ken" not in str(target)

"""The certificate of the HTTP side is checked before anything is opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradwatch_server.api.tls import check_tls


@pytest.mark.parametrize("given", ["cert", "key"])
def test_half_of_a_certificate_is_refused(tmp_path: Path, given: str) -> None:
    file = tmp_path / given
    pair = (file, None) if given == "cert" else (None, file)
    with pytest.raises(Exception, match="http_tls_cert and http_tls_key belong together"):
        check_tls(*pair)


def test_files_that_are_no_certificate_are_refused(tmp_path: Path) -> None:
    """Missing, open to all, or something else."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def refusal() -> str:
        with pytest.raises(Exception, match="cannot use the certificate") as caught:
            check_tls(cert, key)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "No such file or directory" in refusal()
    cert.write_text("no certificate")
    key.write_text("no key")
    key.chmod(0o644)
    assert f"the key is open to all; run: chmod o= {key}" in refusal()
    key.chmod(0o640)
    assert str(cert) in refusal()
    check_tls(None, None)

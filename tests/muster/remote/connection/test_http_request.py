"""What one HTTP request is made with."""

from __future__ import annotations

from pathlib import Path

import certifi

from muster.remote.connection import http_request


def test_authorities_are_read_once_and_again_when_their_file_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "authorities.pem"
    file.write_bytes(Path(certifi.where()).read_bytes())
    first = http_request.trusting(str(file), trust_env=False)
    assert http_request.trusting(str(file), trust_env=False) is first
    file.write_bytes(file.read_bytes())
    assert http_request.trusting(str(file), trust_env=False) is not first

"""The lines of docs/automation.md that check a certificate without Muster."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from muster import store
from muster.rules.lifecycle import certificate
from tests.docs.quickstart import ROOT

SECTION = (ROOT / "docs" / "automation.md").read_text().partition("\n## Certificates\n")[2].partition("\n## ")[0]
(LINES,) = re.findall(r"^```python\n(.*?)^```", SECTION, re.M | re.S)


def test_they_accept_what_was_signed_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    key = Ed25519PrivateKey.generate()
    content = {"node": "a", "reason": "geprüft", "stages": [{"level": "long", "coverage": {"required": 2}}], "n": 0.5}
    document = certificate.sign(content, key)
    Path("certificate.json").write_text(document)
    Path("key.pub").write_text(store.signing.public_text(key))
    exec(LINES, {})
    Path("certificate.json").write_text(document.replace('"a"', '"b"'))
    with pytest.raises(InvalidSignature):
        exec(LINES, {})

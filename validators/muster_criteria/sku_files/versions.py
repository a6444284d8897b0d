"""Allowed versions of drivers and firmware: ``versions`` of a SKU file, or a fleet's own ``versions/SKU.yaml``."""

from __future__ import annotations

import datetime
import itertools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from muster_criteria.written import Written, one_or_more, read

FOLDER = "versions"
BYTES_MAX = 100_000
Part = Literal[
    "driver_version", "cuda_version", "kernel", "cpu_microcode", "bios_version", "bmc_firmware",
    "fabric_manager_version", "vbios", "inforom_version", "nvswitch_firmware", "ib_firmware", "nic_firmware",
]  # fmt: skip
"""The metrics of intake's inventory that are versions."""
KIND = {
    "vbios": "gpu", "inforom_version": "gpu", "nvswitch_firmware": "nvswitch", "ib_firmware": "nic",
    "nic_firmware": "nic",
}  # fmt: skip
"""The kind of device that reports a part's version; all other parts are the node's."""
_HEX = ("vbios", "nvswitch_firmware", "cpu_microcode")
"""Parts whose numbers are hexadecimal: VBIOS 96.00.A5.00.01."""


class BadVersions(Exception):
    """A file of allowed versions that cannot be used; the message is one sentence."""


def _texts(value: object) -> object:
    """YAML reads 580.10 as the number 580.1, which is another version: numbers are refused."""
    listed = one_or_more(value)
    given = listed if isinstance(listed, (tuple, list)) else (listed,)
    if any(isinstance(each, (int, float)) for each in given):
        raise ValueError("is a number: put each version in quotes")
    return listed


Texts = Annotated[tuple[str, ...], BeforeValidator(_texts)]


class Allowed(Written):
    """The allowed versions of one part; any of the given forms is sufficient.

    ``exactly``: these. ``at_least`` and ``below``: a range. ``as_the_fleet``: those on which at least eight other nodes
    of the SKU agree. ``labels``: only devices that carry them, such as {adapter: MT4129}.
    """

    part: Part
    labels: dict[str, str] = Field(default_factory=dict)
    exactly: Texts = ()
    at_least: str = ""
    below: str = ""
    as_the_fleet: bool = False
    source: Annotated[str, Field(min_length=8)]
    date: datetime.date

    @model_validator(mode="after")
    def _some_form(self) -> Allowed:
        if not (self.exactly or self.at_least or self.below or self.as_the_fleet):
            raise ValueError("allows nothing: it needs exactly, at_least, below or as_the_fleet")
        for bound in (self.at_least, self.below):
            if bound and not _split(self.part, bound)[1]:
                raise ValueError(f"{bound!r} has no number to compare with")
        if self.at_least and self.below and compared(self.part, self.at_least, self.below) != -1:
            raise ValueError(f"no version is at least {self.at_least} and below {self.below}")
        return self

    @property
    def expected(self) -> str:
        """The requirement as a text, without the fleet's versions."""
        bounds = [f"at least {self.at_least}"] * bool(self.at_least) + [f"below {self.below}"] * bool(self.below)
        return " or ".join([*self.exactly, *([" and ".join(bounds)] if bounds else [])])

    def allows(self, version: str, fleet: Iterable[str]) -> bool | None:
        """Whether ``version`` is allowed; None if it cannot be compared with the bounds.

        ``fleet``: the versions on which the fleet agrees.
        """
        if version in self.exactly or (self.as_the_fleet and version in fleet):
            return True
        if not (self.at_least or self.below):
            return False
        over = compared(self.part, version, self.at_least) if self.at_least else 0
        under = compared(self.part, version, self.below) if self.below else -1
        return None if over is None or under is None else over >= 0 and under < 0


class VersionsFile(Written):
    """A fleet's file for one SKU. Its entries replace the SKU file's own on the same part."""

    sku: str
    versions: tuple[Allowed, ...]


def compared(part: str, version: str, bound: str) -> int | None:
    """−1 if ``version`` is older than ``bound``, 0 if it is the same, 1 if newer; None if they cannot be compared.

    Only as many words of the version count as the bound has: "28.39.1002 (MT_0000000838)". Versions with different
    leading texts are numbered differently: "U54 v2.10" and "2.20".
    """
    words = len(bound.split())
    (before, own), (before_bound, other) = _split(part, " ".join(version.split()[:words])), _split(part, bound)
    if before != before_bound:
        return None
    pairs = itertools.zip_longest(own, other, fillvalue=(0, ""))
    return next((1 if one > of_bound else -1 for one, of_bound in pairs if one != of_bound), 0)


def _split(part: str, version: str) -> tuple[str, list[tuple[int, str]]]:
    """The text before the first number, and each number with the letters directly after it, in lower case."""
    text = " ".join(version.lower().split())
    base, number = (16, r"([0-9a-f]+)()") if part in _HEX else (10, r"(\d+)([a-z]*)")
    text = text.removeprefix("0x") if base == 16 else text
    found = [(int(digits, base), letters) for digits, letters in re.findall(number, text)]
    before = re.split(number, text, maxsplit=1)[0]
    return "" if before == "v" else before, found


def with_versions(raw: dict[str, Any], sku: str, search: Iterable[Path]) -> tuple[bytes, dict[str, Any]]:
    """Returns the bytes of the fleet's file (b"" if there is none) and the SKU with its entries. Raises BadVersions."""
    path = next((own for each in search if (own := Path(each) / FOLDER / f"{sku}.yaml").is_file()), None)
    if path is None:
        return b"", raw
    text, where = path.read_bytes(), f"{FOLDER}/{path.name}"
    file = read(VersionsFile, text, BYTES_MAX, where, BadVersions)
    if file.sku != sku:
        raise BadVersions(f"{where} is for {file.sku}: name it {FOLDER}/{file.sku}.yaml.")
    replaced = {each.part for each in file.versions}
    written = raw.get("versions") or []
    if not isinstance(written, list):
        raise BadVersions("versions of the SKU file is not a list.")
    kept = [each for each in written if not isinstance(each, dict) or each.get("part") not in replaced]
    return text, {**raw, "versions": [*kept, *(each.model_dump(exclude_defaults=True) for each in file.versions)]}

"""XID and SXID messages of the kernel log: a pure parser. The controller decides what they mean.

XIDs are the GPU driver's errors ("NVRM: Xid (PCI:0000:1b:00): 79, ..."; of a MIG instance
"NVRM: Xid (PCI:0000:1b:00 GPU-I:05 GPU-CI:01): 94, ..."), SXIDs those of an NVSwitch ("nvidia-nvswitch3:
SXid (PCI:0000:c1:00.0): 28006, Non-fatal, ..."). Lines of detail that follow an SXID under its code are not counted.
"""

from __future__ import annotations

import re

from muster_node.hardware.events import DeviceEvent, normal_pci, shape_of

XID = "xid"
SXID = "sxid"

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]+)((?:\s[^()]*)?)\): (\d{1,6})(?:,|$)\s*(.*)$")
_SXID = re.compile(r"(nvidia-nvswitch\d+): SXid \((?:PCI:)?([0-9A-Fa-f:.]+)\): (\d{1,6})(?:,|$)\s*(.*)$")
_SXID_DETAIL = re.compile(r"(Severity \d|Data \{|Engine instance)")
_UNKNOWN_PROCESS = re.compile(r"^pid='?<?unknown>?'?, name='?<?unknown>?'?,\s*")
_PROCESS = re.compile(r"^(pid=[^,]*, name=[^,]*),\s*")
_NVLINK5 = range(144, 151)
"""XIDs whose text begins with the name of a unit, padded to a column (NVIDIA XID catalogue, "XID 144-150 Decode")."""
_WORDS = re.compile(r"\bLink -?\d+ \(0x([0-9a-f]+) 0x([0-9a-f]+)", re.IGNORECASE)
"""Their first two words: policies decide by the sub-code, bits 25 to 20 of the first, and by the second, the status."""


def event_of(message: str, at: float | None) -> DeviceEvent | None:
    """An XID or SXID; None for any other message."""
    xid = _XID.match(message)
    if xid:
        address, instance, code, text = (part.strip() for part in xid.groups())
        text = _xid_text(int(code), text, instance)
        return DeviceEvent(XID, int(code), normal_pci(address), "", text, at, form=_form(int(code), text))
    sxid = _SXID.match(message)
    if sxid and not _SXID_DETAIL.match(sxid.group(4)):
        switch = sxid.group(1)[len("nvidia-") :]
        return DeviceEvent(SXID, int(sxid.group(3)), normal_pci(sxid.group(2)), switch, sxid.group(4).strip(), at)
    return None


def _xid_text(code: int, text: str, instance: str) -> str:
    """The driver's message first, since XID policies match its beginning; then MIG instance and process in brackets."""
    text = _UNKNOWN_PROCESS.sub("", text)
    process = ""
    if code in _NVLINK5:
        found = _PROCESS.match(text)
        process = found.group(1) if found else ""
        text = " ".join(_PROCESS.sub("", text).split())
    return " ".join(filter(None, (text, instance and f"({instance})", process and f"({process})")))


def _form(code: int, text: str) -> str:
    """Of NVLink 5, the text without its numbers, sub-code and status; "" for any other."""
    found = _WORDS.search(text) if code in _NVLINK5 else None
    if found is None:
        return ""
    info, status = (int(word, 16) for word in found.groups())
    return f"{shape_of(text)} {info >> 20 & 0x3F:#x} {status:#x}"

"""The logs of a BMC: the entries that are not OK, of every log service of its systems, managers and chassis.

Vendors keep their system event log in different places: under the system (HPE IML, OpenBMC, Supermicro), the manager
(Dell) or a chassis, so all are read. Pure: a BMC's documents are hostile input. Members are whole entries or only
links, in pages, with the newest first (Dell) or last (OpenBMC).
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Sequence
from urllib.parse import unquote

from muster.remote.bmc.redfish_documents import Document, Get, linked, pages, paths_of
from muster_criteria.health.bmc import Entry
from muster_criteria.text import one_line

HOLDERS = ("Systems", "Managers", "Chassis")
PAGES_MAX, ENTRIES_MAX, LINKS_MAX = 20, 2000, 100
"""The most pages read of one log; the most entries read of one page, and of a log that begins with its newest or has no
known order; the most entries of one page that are fetched one by one."""
_SEVERITIES = {"Warning": "warning", "Critical": "critical"}
TEXT_MAX = 300


@dataclasses.dataclass
class Logs:
    """What the logs show. ``refused``: why documents are missing, as ``get`` notes it; ``entries``: by log and key;
    ``read``: logs that were read whole, named as in ``Entry.log``: no document was missing, and they are not long;
    ``long``: paths of logs whose newest entries may lie beyond what is read: none of their entries is kept, since an
    old one might look new; ``services``: how many logs were read.
    """

    refused: list[str] = dataclasses.field(default_factory=list)
    entries: dict[tuple[str, str], Entry] = dataclasses.field(default_factory=dict)
    read: list[str] = dataclasses.field(default_factory=list)
    long: list[str] = dataclasses.field(default_factory=list)
    services: int = 0


def read(root: Document, get: Get, logs: Logs) -> None:
    """Adds to ``logs`` the warnings and critical entries of all logs, each log once, whatever links lead to it."""
    seen: set[str] = set()
    for holder in HOLDERS:
        for path in paths_of(linked(root, holder, get), get):
            for service in paths_of(linked(get(path) or {}, "LogServices", get), get):
                if service not in seen and not is_journal(service):
                    seen.add(service)
                    logs.services += 1
                    missing, name = len(logs.refused), f"{zlib.crc32(service.encode('utf-8', 'replace')):08x}"
                    newest = _read_one(linked(get(service) or {}, "Entries", get), name, logs, get)
                    if newest and len(logs.refused) == missing:
                        logs.read.append(name)


def is_journal(service: str) -> bool:
    """Whether a log service of OpenBMC records what programs say, not faults: the BMC's own (even a crash), the host's
    console, or its firmware at boot.
    """
    return service.rstrip("/").rpartition("/")[2] in ("Journal", "HostLogger", "PostCodes")


def _read_one(first: Document, log: str, logs: Logs, get: Get) -> bool:
    """Adds a log's entries; returns whether the newest are certainly among them, else the log is long."""
    found: list[Document] = []
    begin, falling, missed, most = "", False, False, 0
    for number, page in enumerate(pages(first, get)):
        kept, left_out, newest = newer_end(page, get)
        found += kept
        missed = missed or not newest
        if found:
            begin, end = (_text(fetched(each, get), "Created") for each in (found[0], found[-1]))
            falling = begin > end
        if left_out:
            most = len(kept)
        enough = bool(most) or len(found) >= ENTRIES_MAX
        if isinstance(page.get("Members@odata.nextLink"), str) and (
            missed or number + 1 >= PAGES_MAX or (enough and (falling or not begin))
        ):
            missed = missed or not falling
            break
    if missed:
        logs.long.append(str(first.get("@odata.id")))
        return False
    # Where the newest come last, those before what was left out are older than it; 0 is all.
    for each in found if falling else found[-most:]:
        member = fetched(each, get)
        severity = _SEVERITIES.get(_text(member, "Severity"))
        if severity is not None:
            entry = _entry(member, severity, log)
            logs.entries.setdefault((log, entry.key), entry)
    return True


def newer_end(page: Document, get: Get) -> tuple[Sequence[Document], int, bool]:
    """Returns (the entries of a page, those at its newer end if there are too many; how many are left out; whether the
    newest are certainly among them).

    ``fetched`` gives one whole. The older end is not read: its unread entries would appear as a full log drops others.
    """
    members = page.get("Members")
    listed = [each for each in members if isinstance(each, dict)] if isinstance(members, list) else []
    most = LINKS_MAX if any(map(_is_link, listed)) else ENTRIES_MAX
    if len(listed) <= most:
        return listed, 0, True
    begin, end = (_text(fetched(each, get), "Created") for each in (listed[0], listed[-1]))
    kept = listed[:most] if begin > end else listed[-most:]
    return kept, len(listed) - most, bool(begin and end) and begin != end


def _is_link(member: Document) -> bool:
    return set(member) == {"@odata.id"} and isinstance(member["@odata.id"], str)


def fetched(member: Document, get: Get) -> Document:
    """An entry whole, where it is a link alone."""
    return (get(member["@odata.id"]) or member) if _is_link(member) else member


def _entry(member: Document, severity: str, log: str) -> Entry:
    text = _text(member, "Message") or _text(member, "MessageId") or "without a message"
    id_, created = _text(member, "Id"), _text(member, "Created")
    resolved = member.get("Resolved") is True
    # Marking it as resolved changes the entry too, but is no event.
    repeated = "" if resolved else _repeated(member, created)
    return Entry(id_, created, severity, text, _origin(member), log, repeated, resolved)


def _repeated(member: Document, created: str) -> str:
    """When the entry was changed: HPE's logs count a repeated event up in the entry of its first."""
    oem = _map(member.get("Oem"))
    changed = _text(member, "Modified") or _text(_map(oem.get("Hpe") or oem.get("Hp")), "Updated")
    return "" if changed == created else changed


def _origin(member: Document) -> str:
    """What an entry is about: the end of the link to its origin, or the sensor that it names."""
    path = _map(_map(member.get("Links")).get("OriginOfCondition")).get("@odata.id")
    if isinstance(path, str) and path.strip("/"):
        return one_line(unquote(path.rstrip("/").rpartition("/")[2]))[:80]
    return _text(member, "SensorType")[:80] or "bmc"


def _map(value: object) -> Document:
    return value if isinstance(value, dict) else {}


def _text(member: Document, key: str) -> str:
    value = member.get(key)
    return one_line(value)[:TEXT_MAX] if isinstance(value, str) else ""

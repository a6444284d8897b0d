"""The logs of a BMC: the entries that are not OK, of every log service of its systems, managers and chassis.

Vendors keep their system event log in different places: under the system (HPE IML, OpenBMC, Supermicro), the manager
(Dell) or a chassis, so all are read. Pure: a BMC's documents are hostile input. Members are whole entries or links
alone, in pages that ``Members@odata.nextLink`` joins (DMTF DSP0266); newest come first (Dell) or last (OpenBMC).
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterator
from urllib.parse import unquote

from muster.remote.redfish_documents import Document, Get, linked, paths_of
from muster_criteria.health.bmc import Entry
from muster_criteria.text import one_line

HOLDERS = ("Systems", "Managers", "Chassis")
HOLDERS_MAX, SERVICES_MAX = 64, 16
"""Members of one collection, and log services of one member, that are looked at."""
PAGES_MAX, ENTRIES_MAX, LINKS_MAX = 20, 2000, 100
"""Pages of one log that are read; entries after which one whose newest come first is left, and of one page that are
read; entries of one page that are fetched one by one."""
_SEVERITIES = {"Warning": "warning", "Critical": "critical"}
TEXT_MAX = 300


@dataclasses.dataclass
class Logs:
    """What the logs show. ``refused``: why documents are missing, as ``get`` notes it; ``entries``: by log and key;
    ``read``: logs that were read whole, as ``Entry.log``: none of their documents was missing, and they are not long;
    ``long``: paths of logs whose newest entries may lie beyond what is read: they have no ``entries``, since old ones
    may come into what is read; ``services``: how many logs were read.
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
        for path in paths_of(linked(root, holder, get))[:HOLDERS_MAX]:
            services = linked(get(path) or {}, "LogServices", get)
            for service in paths_of(services)[:SERVICES_MAX]:
                if service not in seen and not is_journal(service):
                    seen.add(service)
                    logs.services += 1
                    missing, name = len(logs.refused), f"{zlib.crc32(service.encode('utf-8', 'replace')):08x}"
                    newest = _read_one(linked(get(service) or {}, "Entries", get), name, logs, get)
                    if newest and len(logs.refused) == missing:
                        logs.read.append(name)


def is_journal(service: str) -> bool:
    """Whether a log service is OpenBMC's journal: what the BMC's own programs say, as of one that crashed."""
    return service.rstrip("/").endswith("/Journal")


def _read_one(first: Document, log: str, logs: Logs, get: Get) -> bool:
    """Adds a log's entries; returns whether the newest are certainly among them, else the log is long."""
    times: list[str] = []
    missed = False
    for number, page in enumerate(pages(first, get)):
        members, newest = whole(page, get)
        missed = missed or not newest
        for member in members:
            times.append(_text(member, "Created"))
            severity = _SEVERITIES.get(_text(member, "Severity"))
            if severity is not None:
                entry = _entry(member, severity, log)
                logs.entries.setdefault((log, entry.key), entry)
        listed, more = page.get("Members"), isinstance(page.get("Members@odata.nextLink"), str)
        falling = bool(times) and times[0] > times[-1]
        cut = isinstance(listed, list) and len(members) < len(listed)
        if more and (cut or number + 1 >= PAGES_MAX or (falling and len(times) >= ENTRIES_MAX)):
            missed = missed or not falling
            break
    if missed:
        logs.long.append(str(first.get("@odata.id")))
        logs.entries = {place: entry for place, entry in logs.entries.items() if place[0] != log}
    return not missed


def pages(page: Document, get: Get) -> Iterator[Document]:
    """Yields a collection's pages, from the first on."""
    seen: set[str] = set()
    while page:
        yield page
        following = page.get("Members@odata.nextLink")
        if not isinstance(following, str) or following in seen:
            return
        seen.add(following)
        page = get(following) or {}


def whole(page: Document, get: Get) -> tuple[list[Document], bool]:
    """The entries of a page, of too many those at its newer end; and whether the newest are certainly among them.

    The older end is not read: as a full log drops its oldest, entries that were not read before would come into it.
    """
    members = page.get("Members")
    listed = [each for each in members if isinstance(each, dict)] if isinstance(members, list) else []
    most = LINKS_MAX if any(map(_is_link, listed)) else ENTRIES_MAX
    if len(listed) <= most:
        return [_fetched(each, get) for each in listed], True
    begin, end = (_text(_fetched(each, get), "Created") for each in (listed[0], listed[-1]))
    kept = listed[:most] if begin > end else listed[-most:]
    return [_fetched(each, get) for each in kept], bool(begin and end) and begin != end


def _is_link(member: Document) -> bool:
    return set(member) == {"@odata.id"} and isinstance(member["@odata.id"], str)


def _fetched(member: Document, get: Get) -> Document:
    return (get(member["@odata.id"]) or member) if _is_link(member) else member


def _entry(member: Document, severity: str, log: str) -> Entry:
    text = _text(member, "Message") or _text(member, "MessageId") or "without a message"
    id_, created = _text(member, "Id"), _text(member, "Created")
    resolved = member.get("Resolved") is True
    # That a person marked it as resolved is a change too, and no event.
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

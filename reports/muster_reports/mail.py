"""The report mail of one finished run: rendered first, made into a message second; sending is the controller's."""

from __future__ import annotations

import dataclasses
import datetime
import gzip
import hashlib
from collections.abc import Sequence
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime

from muster_criteria.model import Severity
from muster_criteria.words import number
from muster_reports import charts, document, fabric_map
from muster_reports.addresses import address
from muster_reports.model import RunReport
from muster_reports.text import clean, moment, shorten, wrap
from muster_reports.view import View, build, is_simulated

SUBJECT_MAX, SUBJECT_SEEN = 120, 70
USUAL = "node_qualification"
"""The DAG whose reports do not name it in their subject."""
PLAIN_BYTES_MAX = 1024 * 1024
"""A larger result is attached compressed."""
ENCODED_BYTES_MAX = 6_000_000
"""Pictures and attachments of a mail, as they are sent (base64). Common mail servers refuse messages over 10 MB, some
less."""


@dataclasses.dataclass(frozen=True)
class Rendered:
    """A report ready to be put into a message.

    ``images`` maps Content-IDs (without angle brackets) to PNGs; ``attachments`` holds (name, MIME type, content).
    ``report_id`` is the same whenever the same finished run is rendered; ``thread_id`` is the same for all reports of
    one DAG run (a cleared run finishes more than once). ``headers`` are for mail filters.
    """

    subject: str
    text: str
    html: str
    images: dict[str, bytes]
    attachments: tuple[tuple[str, str, bytes], ...]
    report_id: str
    thread_id: str
    headers: tuple[tuple[str, str], ...]


def render(report: RunReport, archived: str = "", drawn: Sequence[charts.Chart] | None = None) -> Rendered:
    """The mail of a finished run: its HTML is below HTML_BYTES_MAX, lists cut to fit, nothing loaded from outside.

    ``archived``: where the full report lies as a file; empty: nowhere. ``drawn``: of ``charts_of``, if they are drawn
    already.
    """
    thread_id = _digest(report.dag_id, report.run_id)
    report_id = report_id_of(report)
    drawn = charts_of(report) if drawn is None else drawn
    pictures = sum(_encoded(len(chart.png)) for chart in drawn)
    attachments, where = _attach(report.result_json, f"{report.dag_id}/{report.run_id}", ENCODED_BYTES_MAX - pictures)
    if archived:
        where += f" The full report: {clean(archived, 500)}."
    cids = {chart.series: f"{chart.series}.{report_id}@muster" for chart in drawn}
    rest = "in the attached result" if attachments else "in the exported result"
    frame = document.Frame({series: f"cid:{cid}" for series, cid in cids.items()}, rest, where)
    for limits in document.MAIL_LIMITS:
        view = build(report, limits)
        html = document.html(view, drawn, frame)
        if document.fits(html):
            break
    return Rendered(
        subject=subject(view),
        text=document.text(view, drawn, frame),
        html=html,
        images={cids[chart.series]: chart.png for chart in drawn},
        attachments=attachments,
        report_id=report_id,
        thread_id=thread_id,
        headers=(
            ("X-Muster-Node", clean(report.node, 100)),
            ("X-Muster-Run", clean(report.run_id, 200)),
            ("X-Muster-Verdict", report.verdict.value),
            ("X-Muster-Simulated", "yes" if is_simulated(report) else "no"),
        ),
    )


def charts_of(report: RunReport, drawn: Sequence[charts.Chart] | None = None) -> tuple[charts.Chart, ...]:
    """Every picture of a report: telemetry under load, and the map of its block's rails.

    ``drawn``: those of the same report with another block, if there are some: its telemetry is not drawn again.
    """
    rails = fabric_map.draw(report.fabric) if report.fabric else None
    load = charts.draw_charts(report) if drawn is None else [each for each in drawn if each.series != fabric_map.SERIES]
    return (*load, *([rails] if rails else ()))


def report_id_of(report: RunReport) -> str:
    """Returns an id that is the same for the same finished run and node: each node of a run has its own report."""
    return _digest(report.dag_id, report.run_id, report.node, report.verdict, moment(report.ended_at))


def subject(view: View) -> str:
    """One line of at most SUBJECT_MAX characters: "[Muster] FAIL node-07 → quarantine: gpu3 corrupts results".

    Verdict, the whole name of the node and the part that is suspected stand first, within SUBJECT_SEEN unless the name
    is long: lists of mails show that much. The part is behind the node unless it is there anyway. The subject of
    another kind of run has the kind.
    """
    occasion = "" if view.dag_id == USUAL else f" ({clean(view.dag_id.removeprefix('node_').replace('_', ' '), 30)})"
    mark = " [simulated]" if view.simulated else ""
    moved = " held" if view.held else f" → {view.state_after}" if view.state_after != view.state_before else ""
    head, rest = (
        f"[Muster] {view.verdict} {view.node}",
        f"{mark}{moved}{occasion}: {view.headline.rstrip('.')}",
    )
    gravest = next((each.devices for each in view.findings if each.severity is not Severity.INFO), "")
    part = gravest if gravest not in ("", "node") and gravest not in (head + rest)[:SUBJECT_SEEN] else ""
    named = f" {shorten(part, max(8, SUBJECT_SEEN - len(head) - 1))}" if part else ""
    return head + named + shorten(rest, SUBJECT_MAX - len(head) - len(named))


def build_message(
    rendered: Rendered, sender: str, recipients: Sequence[str], date: datetime.datetime | None = None
) -> EmailMessage:
    """The message: mixed(alternative(plain, related(html, images)), attachments).

    ``sender`` and ``recipients`` are addresses as people write them ("Muster <muster@example.org>"); ``date`` is now
    unless given. Raises ValueError, naming the address, if one is not a single usable address or there is no recipient.
    """
    message = _envelope(rendered.subject, f"report.{rendered.report_id}", sender, recipients, date)
    message["References"] = f"<run.{rendered.thread_id}@{address(sender).domain}>"
    for name, value in rendered.headers:
        message[name] = value
    # Quoted-printable throughout: 8bit would need a server that offers 8BITMIME.
    message.set_content(rendered.text, cte="quoted-printable")
    message.add_alternative(rendered.html, subtype="html", cte="quoted-printable")
    body = message.get_body(("html",))
    assert isinstance(body, EmailMessage)
    for cid, png in rendered.images.items():
        name = f"{cid.partition('.')[0]}.png"
        body.add_related(png, "image", "png", cid=f"<{cid}>", disposition="inline", filename=name)
    for name, mime, content in rendered.attachments:
        kind, _, subtype = mime.partition("/")
        message.add_attachment(content, kind, subtype, filename=name)
    return message


def build_notice(key: str, sentence: str, sender: str, recipients: Sequence[str], lines: Sequence[str]) -> EmailMessage:
    """The message of one sentence, and a list if there are ``lines``; ``key`` makes its Message-ID.

    Raises ValueError, as build_message.
    """
    message = _envelope(f"[Muster] {shorten(sentence, SUBJECT_MAX - 9)}", f"notice.{_digest(key)}", sender, recipients)
    listed = "".join(f"\n- {clean(line, 400)}" for line in lines)
    message.set_content(f"{wrap(clean(sentence, 2000), 78)}\n{listed}\n", cte="quoted-printable")
    return message


def _envelope(
    subject: str, name: str, sender: str, recipients: Sequence[str], date: datetime.datetime | None = None
) -> EmailMessage:
    if not recipients:
        raise ValueError("the report has no recipient: name at least one address")
    origin = address(sender)
    message = EmailMessage(policy=SMTP)
    message["Subject"] = subject
    message["From"] = origin
    message["To"] = tuple(address(recipient) for recipient in recipients)
    message["Date"] = format_datetime(date or datetime.datetime.now(datetime.UTC))
    message["Message-ID"] = f"<{name}@{origin.domain}>"
    message["Auto-Submitted"] = "auto-generated"  # RFC 3834: no vacation notices in return
    message["X-Auto-Response-Suppress"] = "All"  # the same for Exchange
    return message


def _attach(result_json: str, run: str, room: int) -> tuple[tuple[tuple[str, str, bytes], ...], str]:
    """Returns the attachment, if it fits into ``room`` bytes of mail, and a sentence with the place of the result."""
    # A lone surrogate would not encode; as a JSON escape it means the same.
    content = result_json.encode("utf-8", "backslashreplace")
    if len(content) <= PLAIN_BYTES_MAX:
        return (("result.json", "application/json", content),), "The whole result is attached as result.json."
    packed = gzip.compress(content, mtime=0)
    if _encoded(len(packed)) <= room:
        return (("result.json.gz", "application/gzip", packed),), "The whole result is attached as result.json.gz."
    size = number(round(len(content) / 1e6, 1))
    command = f"muster export {clean(run, 500)} --to FOLDER"
    return (), f"The result ({size} MB) is too large for a mail and not attached; get it with: {command}"


def _encoded(size: int) -> int:
    """The size of ``size`` bytes in a mail: base64 (RFC 2045) in lines of 76 characters."""
    return -(-size // 57) * 78


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "backslashreplace")).hexdigest()[:32]

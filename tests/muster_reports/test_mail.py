"""The mail, sent through a real SMTP server, taken apart again and read as a mail client would."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import email
import email.policy
import gzip
import io
import json
import random
import re
import smtplib
from email.message import EmailMessage
from html.parser import HTMLParser

import pytest
from aiosmtpd.controller import Controller
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from muster_criteria.model import Severity, Verdict
from muster_reports import charts, document, mail
from muster_reports.mail import Rendered, build_message, render
from muster_reports.model import RunReport
from muster_reports.text import clean, shorten
from muster_reports.view import build
from tests.muster_reports.largest import LARGEST

Samples = dict[str, RunReport]
NAMES = ("cpu_pass", "missing_gpu", "hot_gpu", "long_lists", "hostile", "empty")
SENDER, RECIPIENTS = "Muster <muster@example.org>", ["Fleet Operations <ops@example.org>", "oncall@example.org"]
# What an HTML mail of ours is made of; anything else got in from outside.
TAGS = {
    "html", "head", "meta", "title", "style", "body", "table", "tr", "td", "th", "div", "span", "strong", "h1", "h2",
    "img", "a", "br",
}  # fmt: skip


class Mailbox:
    """aiosmtpd handler that keeps what arrives, byte by byte."""

    def __init__(self) -> None:
        self.received: list[tuple[list[str], bytes]] = []

    async def handle_DATA(self, server: object, session: object, envelope: object) -> str:
        self.received.append((envelope.rcpt_tos, envelope.content))  # type: ignore[attr-defined]
        return "250 OK"


class Server(Controller):
    """An SMTP server on a port that the system picks."""

    def _trigger_server(self) -> None:
        self.port = self.server.sockets[0].getsockname()[1]
        super()._trigger_server()


class Page(HTMLParser):
    """Collects tags, attributes and visible words."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def rendered(samples: Samples) -> dict[str, Rendered]:
    return {name: render(report) for name, report in samples.items()}


@pytest.fixture(scope="module")
def delivered(rendered: dict[str, Rendered]) -> dict[str, EmailMessage]:
    """Each sample as it comes out of a mailbox behind a server that speaks 7-bit SMTP."""
    mailbox = Mailbox()
    server = Server(mailbox, hostname="127.0.0.1", port=0)
    server.start()
    try:
        with smtplib.SMTP("127.0.0.1", server.port, timeout=10) as client:
            for sample in rendered.values():
                client.send_message(build_message(sample, SENDER, RECIPIENTS))
    finally:
        server.stop()
    messages = {}
    for name, (recipients, content) in zip(rendered, mailbox.received, strict=True):
        assert recipients == ["ops@example.org", "oncall@example.org"]
        assert max(content) < 128
        assert max(map(len, content.split(b"\r\n"))) <= 998  # RFC 5322, 2.1.1
        message = email.message_from_bytes(content, policy=email.policy.default)
        assert isinstance(message, EmailMessage)
        assert not message.defects
        messages[name] = message
    return messages


def sent_bytes(sample: Rendered) -> int:
    """The size of the HTML part as a server gets it."""
    body = build_message(sample, SENDER, RECIPIENTS).get_body(("html",))
    assert body is not None
    return len(body.get_payload().encode())


@pytest.mark.parametrize("name", NAMES)
def test_structure(name: str, delivered: dict[str, EmailMessage], rendered: dict[str, Rendered]) -> None:
    message = delivered[name]
    body, attachment = message.iter_parts()
    assert message.get_content_type() == "multipart/mixed"
    assert body.get_content_type() == "multipart/alternative"
    plain, rich = body.iter_parts()
    assert plain.get_content_type() == "text/plain"
    assert plain.get_content().replace("\r\n", "\n") == rendered[name].text
    html = next(rich.iter_parts()) if rich.is_multipart() else rich
    assert html.get_content_type() == "text/html"
    assert html.get_content().replace("\r\n", "\n") == rendered[name].html
    assert attachment.get_filename() == "result.json"
    assert attachment.get_content_type() == "application/json"
    assert attachment.get_content_disposition() == "attachment"


@pytest.mark.parametrize("name", ["cpu_pass", "hot_gpu", "long_lists"])
def test_every_picture_the_html_shows_is_in_the_mail(name: str, delivered: dict[str, EmailMessage]) -> None:
    related = delivered[name].get_body(("related",))
    assert related is not None
    assert related.get_content_type() == "multipart/related"
    html, *images = related.iter_parts()
    shown = {value for tag, key, value in Page(html.get_content()).attributes if (tag, key) == ("img", "src")}
    assert shown == {f"cid:{image['Content-ID'].strip('<>')}" for image in images}
    assert shown
    for image in images:
        assert image.get_content_disposition() == "inline"
        assert Image.open(io.BytesIO(image.get_content())).format == "PNG"


@pytest.mark.parametrize("name", NAMES)
def test_html_loads_nothing_runs_nothing_and_fits(name: str, rendered: dict[str, Rendered]) -> None:
    html = rendered[name].html
    page = Page(html)
    assert sent_bytes(sample := rendered[name]) <= 90_000, sample.subject
    assert page.tags <= TAGS
    assert "url(" not in re.sub(r">[^<]*<", "><", html)
    assert "@import" not in html
    for tag, key, value in page.attributes:
        assert not key.startswith("on"), (tag, key)
        if key in ("src", "background", "data", "srcset", "poster"):
            assert value.startswith("cid:")
        if key in ("href", "action"):
            assert value.startswith("http://127.0.0.1:8080/dags/")


@pytest.mark.parametrize("name", NAMES)
def test_plain_text_fits_a_terminal_and_cannot_steer_it(name: str, rendered: dict[str, Rendered]) -> None:
    text = rendered[name].text
    assert max(len(line) for line in text.splitlines() if not line.startswith("http")) <= 78
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)


def test_hostile_words_stay_words(delivered: dict[str, EmailMessage], rendered: dict[str, Rendered]) -> None:
    message = delivered["hostile"]
    usual = set(delivered["cpu_pass"].keys())
    assert set(message.keys()) == usual
    assert "Bcc" not in message
    assert "49" not in message["Subject"]
    html = rendered["hostile"].html
    assert "<script" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", html)
    attachment = next(message.iter_attachments())
    assert "<script>" in json.loads(attachment.get_content())["x"]


@pytest.mark.parametrize("name", NAMES)
def test_subject_is_one_short_line_with_the_verdict(name: str, delivered: dict[str, EmailMessage]) -> None:
    subject = delivered[name]["Subject"]
    assert len(subject) <= 120
    assert "\n" not in subject
    assert subject.startswith("[Muster] ")


def test_what_is_no_qualification_says_what_it_is(samples: Samples, rendered: dict[str, Rendered]) -> None:
    again = render(dataclasses.replace(samples["empty"], dag_id="node_revalidation")).subject
    assert again.startswith("[Muster] INCONCLUSIVE ")
    assert " (revalidation): " in again
    assert "(" not in rendered["cpu_pass"].subject.partition(":")[0]


def test_simulated_is_marked_everywhere_or_nowhere(rendered: dict[str, Rendered]) -> None:
    for name, sample in rendered.items():
        simulated = name in ("missing_gpu", "hot_gpu")
        assert ("[simulated]" in sample.subject) == simulated
        assert ("SIMULATED HARDWARE" in sample.text) == simulated
        assert ("SIMULATED HARDWARE" in sample.html) == simulated
        assert dict(sample.headers)["X-Muster-Simulated"] == ("yes" if simulated else "no")


def test_both_faces_tell_the_same_in_the_same_order(rendered: dict[str, Rendered]) -> None:
    parts = ["FAIL", "gpu3 overheats under load", "SIMULATED HARDWARE", "Inspect gpu3", "rack 12 is drained",
            "nvbandwidth on this node", "8 of 24 measured figures not judged", "85.6 °C", "≤ 80 °C",
            "sample figure of the tests", "548 TFLOPS", "nvbandwidth: skipped (no such tool on the node)",
            "gpu3 overheats under load.", "≥ 620 TFLOPS", "S411823X", "580.65",
            "sim-h100-05__new-hardware"]  # fmt: skip
    sample = rendered["hot_gpu"]
    html = Page(sample.html[sample.html.index("<h1") :]).text
    for text in (" ".join(sample.text.split()), html):
        place = 0
        for part in parts:
            found = text.find(part, place)
            assert found >= 0, f"{part!r} does not follow in {text[place : place + 400]!r}"
            place = found
    assert "temperature: median" in sample.text.lower()


def test_cut_lists_say_how_much_is_missing_and_where_it_is(rendered: dict[str, Rendered]) -> None:
    for text in (rendered["long_lists"].text, Page(rendered["long_lists"].html).text):
        assert re.search(r"and [\d,]+ more in the attached result", text)
        assert "integrity: 600 of 1,600 required figures not measured" in text


def test_the_same_run_has_the_same_message_id_and_a_repeated_one_joins_its_thread(samples: Samples) -> None:
    report = samples["empty"]
    first, again = (build_message(render(report), SENDER, RECIPIENTS) for _ in range(2))
    later = dataclasses.replace(
        report, ended_at=report.ended_at + datetime.timedelta(hours=1), verdict=Verdict.PROVISIONAL
    )
    cleared = build_message(render(later), SENDER, RECIPIENTS)
    assert first["Message-ID"] == again["Message-ID"]
    assert re.fullmatch(r"<report\.[0-9a-f]{32}@example\.org>", first["Message-ID"])
    assert cleared["Message-ID"] != first["Message-ID"]
    assert cleared["References"] == first["References"]
    other = build_message(render(dataclasses.replace(report, run_id="another")), SENDER, RECIPIENTS)
    assert other["References"] != first["References"]


def test_headers_for_machines(delivered: dict[str, EmailMessage], rendered: dict[str, Rendered]) -> None:
    message = delivered["hot_gpu"]
    assert message["Auto-Submitted"] == "auto-generated"
    assert message["X-Muster-Verdict"] == "FAIL"
    assert message["X-Muster-Node"] == "sim-h100-05"
    assert message["From"] == "Muster <muster@example.org>"
    assert message["To"].addresses[0].display_name == "Fleet Operations"
    when = datetime.datetime(2026, 3, 2, 9, tzinfo=datetime.UTC)
    assert build_message(rendered["empty"], SENDER, RECIPIENTS, when)["Date"].datetime == when


@pytest.mark.parametrize(
    "address",
    ["", "nobody", "a@b.example\r\nBcc: x@y.example", "a@b.example, c@d.example", "@example.org", "a@", "ü@x.org"],
)
def test_an_address_that_is_none_is_refused_in_one_sentence(rendered: dict[str, Rendered], address: str) -> None:
    for sender, recipients in ((address, RECIPIENTS), (SENDER, [address])):
        with pytest.raises(ValueError, match="is not a mail address") as raised:
            build_message(rendered["empty"], sender, recipients)
        assert "\n" not in str(raised.value)


def test_a_mail_without_recipients_is_refused(rendered: dict[str, Rendered]) -> None:
    with pytest.raises(ValueError, match="no recipient"):
        build_message(rendered["empty"], SENDER, [])


def test_a_large_result_is_attached_compressed(samples: Samples) -> None:
    large = json.dumps({"x": "measurement " * 200_000})
    sample = render(dataclasses.replace(samples["empty"], result_json=large))
    ((name, mime, content),) = sample.attachments
    assert (name, mime) == ("result.json.gz", "application/gzip")
    assert gzip.decompress(content).decode() == large
    assert "attached as result.json.gz" in sample.text


@pytest.mark.parametrize(("megabytes", "attached"), [(4.0, 1), (4.6, 0)])
def test_a_mail_stays_below_what_servers_accept_and_names_what_it_leaves_out(
    samples: Samples, megabytes: float, attached: int
) -> None:
    """Text that does not compress, beside pictures: a result is attached as long as all of it, encoded, is small."""
    noise = base64.b64encode(random.Random(1).randbytes(int(megabytes * 1e6))).decode()
    sample = render(dataclasses.replace(samples["hot_gpu"], result_json=json.dumps({"x": noise})))
    assert sample.images
    assert len(sample.attachments) == attached
    assert len(build_message(sample, SENDER, RECIPIENTS).as_bytes()) <= mail.ENCODED_BYTES_MAX + 400_000
    assert (
        f"muster export {samples['hot_gpu'].dag_id}/{samples['hot_gpu'].run_id} --to" in " ".join(sample.text.split())
    ) is not bool(attached)


@pytest.mark.parametrize("name", ["block_of_64", "breaker"])
def test_the_largest_mails_are_not_clipped_and_keep_their_first_screen(name: str) -> None:
    """The breaker's is the report on eight GPUs with more text."""
    report = LARGEST[name]()
    sample = render(report, "/archive/2026-03/report.muster.html")
    html, text = Page(sample.html[sample.html.index("<h1") :]).text, " ".join(sample.text.split())
    assert sent_bytes(sample) <= 90_000
    assert len(build_message(sample, SENDER, RECIPIENTS).as_bytes()) <= 6_400_000
    for seen in (html, text):
        assert "/archive/2026-03/report.muster.html" in seen
    assert html.index("Next steps") < html.index("What failed")


def test_a_report_without_its_pictures_is_still_a_report(samples: Samples, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charts, "draw_charts", lambda report: ())
    sample = render(samples["hot_gpu"])
    assert sample.images == {}
    assert "under load" in sample.text
    assert "gpu3 overheats" in sample.html


def test_a_subject_says_node_verdict_and_part_in_what_lists_of_mails_show(samples: dict[str, RunReport]) -> None:
    for name in set(NAMES) - {"hostile"}:
        report = samples[name]
        long = dataclasses.replace(report, node="gpu-0001.cluster-07.example.org", dag_id="cluster_qualification")
        for each in (report, long):
            shown = render(each).subject[:70]
            assert each.verdict in shown, name
            assert each.node in shown, name
            gravest = next((finding.device for stage in each.stages for finding in stage.judgement.findings
                            if finding.severity is Severity.CRITICAL and finding.device != "node"), "")  # fmt: skip
            assert gravest in shown or len(each.node) > 40, name


def test_a_long_name_of_a_node_is_cut_in_no_subject_and_no_command(samples: dict[str, RunReport]) -> None:
    report = dataclasses.replace(samples["empty"], node="gke-training-a3-megagpu-8g-pool-europe-west4-b-1f0c8d72-x7kq")
    assert f"INCONCLUSIVE {report.node}: " in render(report).subject
    assert f"muster qualify {report.node} " in build(report, document.MAIL_LIMITS[-1]).next_steps[0]


@given(st.text(st.sampled_from("ab, "), max_size=80), st.integers(10, 40))
def test_a_cut_text_ends_with_a_whole_word_unless_that_word_fills_half_of_it(text: str, limit: int) -> None:
    cut, whole = shorten(text, limit), clean(text)
    assert len(cut) <= limit
    if not cut.endswith("…"):
        assert cut.strip() == whole
        return
    kept = cut[:-1].strip()
    assert whole.startswith(kept)
    assert whole[len(kept)] in " ,;:" or len(kept.rpartition(" ")[0]) <= limit // 2

"""Makes the pictures of the README: ``python -m tests.docs.images DEMO_FOLDER``. Needs Chromium.

DEMO_FOLDER is what ``make demo`` leaves behind (default: ``.demo``). Its newest mail of a FAIL with charts becomes
``mail.png``, the verdicts of all mails become the table ``demo.png``; the Fleet page and a failed node's page, over
the demo's records, ``fleet.png`` and ``node.png``. With ``--sample`` the mail is a report of the tests instead.
"""

from __future__ import annotations

import argparse
import base64
import email
import email.policy
import gzip
import io
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from email.message import EmailMessage
from pathlib import Path

from PIL import Image
from rich.console import Console

from muster_criteria.model import Verdict
from muster_demo.table import SERVICE, STAGES, Row, build_table
from muster_reports.mail import build_message, render
from tests.muster_reports.conftest import hot_gpu

IMAGES = Path(__file__).parents[2] / "docs" / "images"
COLOURS = 64


def messages(folder: Path) -> Iterator[EmailMessage]:
    """The mails of a demo, oldest first."""
    for path in sorted(folder.rglob("*.eml")):
        message = email.message_from_bytes(path.read_bytes(), policy=email.policy.default)
        assert isinstance(message, EmailMessage)
        yield message


def page_of(message: EmailMessage) -> str:
    """The mail's HTML with its pictures inside."""
    body = message.get_body(("html",))
    assert body is not None
    html = str(body.get_content())
    for part in message.walk():
        if part.get_content_type() == "image/png":
            data = base64.b64encode(part.get_payload(decode=True)).decode()  # type: ignore[arg-type]
            html = html.replace(f"cid:{part['Content-ID'].strip('<>')}", f"data:image/png;base64,{data}")
    return html


def result_of(message: EmailMessage) -> dict[str, object]:
    """The attached result."""
    (attached,) = message.iter_attachments()
    content = attached.get_payload(decode=True)
    assert isinstance(content, bytes)
    name = attached.get_filename() or ""
    return dict(json.loads(gzip.decompress(content) if name.endswith(".gz") else content))


def rows_of(mails: list[EmailMessage], states: Mapping[str, str]) -> list[Row]:
    """One row of the demo's table for each node, from the last mail about each stage; ``states``: theirs at the end."""
    rows: dict[str, Row] = {}
    for message in mails:
        node, result = str(message["X-Muster-Node"]), result_of(message)
        cells = dict(rows[node].cells) if node in rows else {}
        stages = result["stages"]
        assert isinstance(stages, list)
        together = str(result["dag_id"]) == "cluster_qualification"
        if "revalidation" in str(result["dag_id"]):
            cells["revalidation"] = str(message["X-Muster-Verdict"])
        elif together:
            cells["cluster"] = str(message["X-Muster-Verdict"])
        else:
            cells |= {stage["judgement"]["stage"]: stage["judgement"]["verdict"] for stage in stages}
        if "production" in (str(result["state_after"]), states[node]):
            cells.setdefault("production", "admitted")
        rows[node] = Row(node, message["X-Muster-Simulated"] == "yes", cells, states[node], True)
    return [rows[node] for node in sorted(rows)]


def states_of() -> dict[str, str]:
    """Each node's state in the records."""
    from muster import store

    return {node.name: str(node.state) for node in store.nodes.find()}


def fleet_pages() -> dict[str, str]:
    """The Fleet page and a failed node's page over the records, each with its style inside."""
    from fastapi.testclient import TestClient

    from muster import store
    from muster.web import access, approvals
    from muster.web import app as web

    app = web.create_app()
    for each in (access.read, access.may_decide, access.may_start):
        app.dependency_overrides[each] = lambda: True
    asked: list[approvals.Question] = []
    app.dependency_overrides |= {approvals.waiting: lambda: len(asked), approvals.about: lambda: asked}
    style = (Path(web.__file__).parent / "static" / "fleet.css").read_text()
    failed = next(row.node for row in store.overview.rows() if row.verdict is Verdict.FAIL)
    with TestClient(app) as client:
        pages = {name: client.get(path).text for name, path in (("fleet", "/"), ("node", f"/node/{failed}"))}
    return {name: re.sub(r"<link .*?>\s*<script .*?</script>", f"<style>{style}</style>", html, flags=re.DOTALL)
            for name, html in pages.items()}  # fmt: skip


def shoot(html: str, to: Path, width: int, height: int, crop: int) -> None:
    """Render an HTML document with Chromium into a small PNG of at most ``crop`` pixels height."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("Chromium is missing: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder:
        page, shot = Path(folder) / "page.html", Path(folder) / "shot.png"
        page.write_text(html, encoding="utf-8")
        options = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--window-size={width},{height}",
        ]
        subprocess.run([chromium, *options, f"--screenshot={shot}", page.as_uri()], check=True, capture_output=True)
        picture = Image.open(shot).convert("RGB").crop((0, 0, width, crop))
        to.parent.mkdir(exist_ok=True)
        picture.quantize(COLOURS).save(to, optimize=True)
    print(f"{to}: {to.stat().st_size // 1024} KiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(".demo"))
    parser.add_argument("--sample", action="store_true", help="the mail is a report of the tests")
    given = parser.parse_args()
    mails = list(messages(given.folder))
    failed = [mail for mail in mails if mail["X-Muster-Verdict"] == "FAIL" and "image/png" in mail.as_string()]
    if given.sample:
        failed = [build_message(render(hot_gpu()), "muster@example.org", ["fleet@example.org"])]
    if not failed:
        raise SystemExit(f"there is no mail of a FAIL with charts in {given.folder}: run `make demo` first")
    shoot(page_of(failed[-1]), IMAGES / "mail.png", 720, 1900, 1560)
    for database in list(given.folder.rglob("muster.db"))[-1:]:
        os.environ["MUSTER_DATABASE_URL"] = f"sqlite:///{database}"
        rows = rows_of(mails, states_of())
        console = Console(record=True, width=150, file=io.StringIO(), force_terminal=True)
        table = build_table(rows, 0, (*STAGES, *SERVICE[1:]))
        table.title = None
        console.print(table)
        html = console.export_html(inline_styles=True).replace("<body", '<body style="margin:8px;font-size:13px"')
        shoot(html, IMAGES / "demo.png", 910, 400, 30 + 15 * (len(rows) + 1))
        for name, page in fleet_pages().items():
            shoot(page, IMAGES / f"{name}.png", 1200, 1000, 900)


if __name__ == "__main__":
    main()

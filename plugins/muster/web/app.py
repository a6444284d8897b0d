"""The page's routes. Airflow's own login guards every one of them, static files included."""

from __future__ import annotations

import datetime
import functools
import hashlib
import importlib.resources
import threading
from pathlib import PurePosixPath
from typing import Annotated, Any
from urllib.parse import quote, urlencode

from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.core_api.security import requires_access_view
from fastapi import Depends, FastAPI, Form, Query, Request
from fastapi.exception_handlers import http_exception_handler, request_validation_exception_handler
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.exceptions import HTTPException

from muster import records
from muster.errors import MusterError, UnknownNode, UnknownRun
from muster.lifecycle.transitions import STAGES
from muster.web import PREFIX, access, actions, approvals, block, compare, fleet, plots, starts, timeline
from muster.web.shared import Shared
from muster_criteria.sku_files.programme import LEVELS
from muster_criteria.text import one_line
from muster_reports import advice, page, text
from muster_reports.model import RunReport

MEDIA = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
POLICY = "default-src 'self'; img-src 'self' data:; frame-ancestors 'self'; form-action 'self'; base-uri 'none'"
REPORT_POLICY = f"{POLICY}; style-src 'self' 'unsafe-inline'; script-src 'none'"
"""Reports carry their own style, since they are mails and files as well."""
SINCE = datetime.timedelta(days=1)
EVENTS_MAX, RUNS_MAX, MOVES_MAX = 200, 30, 12

GROUP_WORDS = {
    "out": "out of service", "test": "in a test", "ready": "ready", "serving": "in service", "gone": "retired",
}  # fmt: skip
"""How the filter names the groups of states."""
NOTICES_S = 10
"""Seconds for which the sentences about the whole fleet are shared between viewers."""
_shared_notices = Shared[list[str]](1)
_shared_parts = Shared[tuple[Markup, list[str]]](32)

read = requires_access_view(AccessView.PLUGINS)


def create_app() -> FastAPI:
    """The application that Airflow's API server mounts under ``PREFIX``."""
    app = FastAPI(title="Muster", docs_url=None, redoc_url=None, openapi_url=None, dependencies=[Depends(read)])
    app.get("/", response_class=HTMLResponse)(overview)
    app.get("/live", response_class=HTMLResponse)(live)
    app.get("/nodes.csv")(nodes_csv)
    app.get("/node/{name}", response_class=HTMLResponse)(node)
    guarded = [Depends(actions.decide), Depends(actions.from_this_page)]
    app.post("/node/{name}", response_class=HTMLResponse, dependencies=guarded)(change)
    guarded = [Depends(each) for each in (starts.start, actions.from_this_page, starts.audited)]
    app.post("/node/{name}/test", response_class=HTMLResponse, dependencies=guarded)(start_test)
    app.get("/approvals", response_class=HTMLResponse)(questions)
    guarded = [Depends(each) for each in (approvals.respond, actions.from_this_page, approvals.audited)]
    app.post("/approvals/{dag_id}/{dag_run_id}/{task_id}", response_class=HTMLResponse, dependencies=guarded)(answer)
    app.get("/run", response_class=HTMLResponse)(run)
    app.get("/compare", response_class=HTMLResponse)(comparison)
    app.get("/report", response_class=HTMLResponse)(report)
    app.get("/static/{name}")(static)
    # A preview's address may be opened again: the browser's reload and bookmarks ask for it without the form.
    app.get("/node/{name}/test")(node_again)
    app.get("/approvals/{dag_id}/{dag_run_id}/{task_id}")(questions_again)
    app.add_exception_handler(MusterError, _sentence)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(RequestValidationError, _not_understood)
    return app


def overview(
    request: Request,
    filters: Annotated[fleet.Filters, Depends(fleet.Filters)],
    questions: Annotated[int, Depends(approvals.waiting)],
) -> Response:
    """What needs a person, counts, the map, runs under way, and the nodes that the filters leave."""
    return _render(request, "overview.html.j2", **_live(request, filters, questions, _stamp(questions)))


def nodes_csv(filters: Annotated[fleet.Filters, Depends(fleet.Filters)]) -> Response:
    """All nodes that the filters leave, as CSV."""
    rows, _ = _fleet()
    found = records.nodes_with(filters.q) if filters.q else set()
    body = fleet.csv_of(fleet.chosen(rows, filters, found))
    headers = {"Content-Disposition": 'attachment; filename="nodes.csv"', "X-Content-Type-Options": "nosniff"}
    return Response(body, media_type="text/csv; charset=utf-8", headers=headers)


def live(
    request: Request,
    filters: Annotated[fleet.Filters, Depends(fleet.Filters)],
    questions: Annotated[int, Depends(approvals.waiting)],
    version: str = "",
) -> Response:
    """The overview's changing part; 204 while nothing has changed since ``version``."""
    stamp = _stamp(questions)
    if version == stamp:
        return Response(status_code=204)
    return _render(request, "live.html.j2", **_live(request, filters, questions, stamp))


def _stamp(questions: int) -> str:
    """A text that changes whenever the overview does: with the fleet, what needs a person, and the minute."""
    rows, version = _fleet()
    now = int(_now().timestamp())
    notices = _shared_notices.get((version, now // NOTICES_S), lambda: _notices(rows))
    digest = hashlib.sha256("\n".join(notices).encode()).hexdigest()[:8]
    return f"{version}-{now // 60}-{digest}-{questions}"


def _live(request: Request, filters: fleet.Filters, questions: int, stamp: str) -> dict[str, Any]:
    """The values of the overview's templates. What holds nothing of the viewer is rendered once for all viewers."""

    def made() -> tuple[Markup, list[str]]:
        values = _overview(filters)
        return Markup(_text(request, "_live.html.j2", **values)), values["skus"]

    part, skus = _shared_parts.get((stamp, filters, _base(request)), made)
    return {"filters": filters, "questions": questions, "version": stamp, "part": part, "skus": skus}


def node(
    request: Request,
    name: str,
    may_decide: Annotated[bool, Depends(actions.may_decide)],
    may_start: Annotated[bool, Depends(starts.may_start)],
    asked: Annotated[list[approvals.Question], Depends(approvals.about)],
    metric: str = "",
    curve: str = "",
) -> Response:
    """One node: its verdict, what to do, findings, figures, telemetry, history and parts."""
    try:
        found = records.get_node(name)
    except UnknownNode as error:
        raise HTTPException(404, str(error)) from error
    runs = records.list_runs(node=name, limit=RUNS_MAX)
    ended = next((each for each in runs if each.ended_at), None)
    last = records.run_report(ended.dag_id, ended.run_id, node=name) if ended else None
    certificate, parts = records.certificate_of(name), records.node_parts(name)
    observed = [each for stage in last.stages for each in stage.judgement.observations] if last else []
    curves = fleet.curves_of(last) if last else {}
    return _render(
        request, "node.html.j2",
        node=found, runs=runs, last=last, ended=ended, may_decide=may_decide, may_start=may_start,
        questions=[(each, approvals.reasons(each, found)) for each in asked],
        steps=advice.next_steps(last) if last else (),
        findings=records.open_findings(name),
        moves=actions.moves(found),
        until=_now() + datetime.timedelta(days=actions.WAIVER_DAYS),
        verdicts=records.latest_verdicts(name),
        lease=records.get_lease(name),
        history=timeline.timeline(
            records.node_events(name, limit=EVENTS_MAX), records.list_runs(node=name, limit=EVENTS_MAX), certificate,
            parts, EVENTS_MAX,
        ),
        parts=parts,
        certificate=certificate,
        strips=plots.strips(observed),
        metrics=sorted({each.metric for each in observed if each.value is not None}),
        metric=metric,
        curves=sorted(curves), curve=curve, drawn=plots.curves(curves.get(curve, ())),
        life=plots.life(records.metric_points(name, metric)) if metric else None,
    )  # fmt: skip


def change(
    request: Request,
    asked: Annotated[actions.Change, Depends(actions.Change)],
    confirmed: Annotated[str, Form()] = "",
) -> Response:
    """Show what a change would do; made once it is confirmed, and the node's page is shown again."""
    return _confirm(request, asked, confirmed)


def start_test(
    request: Request,
    asked: Annotated[starts.Start, Depends(starts.Start)],
    confirmed: Annotated[str, Form()] = "",
) -> Response:
    """Show what a test would run and risk; started once it is confirmed, and the node's page is shown again."""
    return _confirm(request, asked, confirmed)


def _confirm(request: Request, asked: actions.Change | starts.Start, confirmed: str) -> Response:
    try:
        if confirmed:
            asked.apply()
            return RedirectResponse(f"{_base(request)}{PREFIX}/node/{quote(asked.node)}", status_code=303)
        sentence, risks = asked.preview()
    except MusterError as error:
        body = _render(request, "change.html.j2", change=asked, error=str(error), sentence="", risks=())
        body.status_code = 400
        return body
    return _render(request, "change.html.j2", change=asked, error="", sentence=sentence, risks=risks)


def node_again(request: Request, name: str) -> Response:
    """The node's page, for who opens the address of a preview."""
    return RedirectResponse(f"{_base(request)}{PREFIX}/node/{quote(name)}", status_code=303)


def questions_again(request: Request) -> Response:
    """The open questions, for who opens the address of an answer."""
    return RedirectResponse(f"{_base(request)}{PREFIX}/approvals", status_code=303)


def questions(
    request: Request,
    pending: Annotated[list[approvals.Question], Depends(approvals.pending)],
    page: Annotated[int, Query(ge=1)] = 1,
) -> Response:
    """All that waits for a person, with the evidence beside each question."""
    asked = [(each, approvals.evidence(each)) for each in pending[: approvals.PAGE]]
    return _render(request, "approvals.html.j2", questions=asked, page=page, more=len(pending) > len(asked))


def answer(
    request: Request,
    done: Annotated[None, Depends(approvals.answer)],
    node: Annotated[str, Form(max_length=200)] = "",
) -> Response:
    """Show what still waits, or the page of ``node`` if the answer was given there, once it is recorded."""
    where = f"/node/{quote(node, safe='')}" if node else "/approvals"
    return RedirectResponse(f"{_base(request)}{PREFIX}{where}", status_code=303)


def run(request: Request, dag_id: str, run_id: str, about: Annotated[str, Depends(access.node_of)]) -> Response:
    """The page of the node that a DAG run tests or asks about, or of the block if it tests several."""
    members = records.list_runs(run=(dag_id, run_id))
    if node := _one_node([each.node for each in members], about):
        return RedirectResponse(f"{_base(request)}{PREFIX}/node/{quote(node, safe='')}", status_code=303)
    ended = [each.node for each in members if each.ended_at]
    found = block.of_reports([records.run_report(dag_id, run_id, node=node) for node in ended])
    at_work = [each.node for each in members if not each.ended_at]
    return _render(request, "block.html.j2", dag_id=dag_id, run_id=run_id, at_work=at_work, block=found)


def _one_node(members: list[str], about: str) -> str:
    """The node that a run or a task is about; "" if it is about a block, or about no node of the records."""
    if len(members) == 1:
        return members[0]
    if members:
        return about if about in members else ""
    try:
        return records.get_node(about).name
    except UnknownNode:
        return ""


def comparison(request: Request, left: str, right: str) -> Response:
    """Two runs side by side; each is a node, which means its last ended run, or NODE/DAG/RUN."""
    try:
        reports = [_report_of(each) for each in (left, right)]
    except (UnknownNode, UnknownRun) as error:
        raise HTTPException(404, str(error)) from error
    return _render(request, "compare.html.j2", reports=reports, found=compare.compare(*reports))


def _report_of(what: str) -> RunReport:
    node, _, run = what.strip().partition("/")
    dag_id, _, run_id = run.partition("/")
    if not run:
        records.get_node(node)
        ended = next((each for each in records.list_runs(node=node, limit=RUNS_MAX) if each.ended_at), None)
        if ended is None:
            raise UnknownRun(f"no run of {node} has ended yet")
        dag_id, run_id = ended.dag_id, ended.run_id
    return records.run_report(dag_id, run_id, node=node)


def report(
    request: Request, dag_id: str, run_id: str, about: Annotated[str, Depends(access.node_of)], node: str = ""
) -> Response:
    """The whole report of an ended run, as it is mailed; of a block, of the member that is asked for.

    A run that has none, since it tests no node or several, leads to its own page.
    """
    members = [each.node for each in records.list_runs(run=(dag_id, run_id))]
    if not node and (not members or not _one_node(members, about)):
        query = urlencode({"dag_id": dag_id, "run_id": run_id})
        return RedirectResponse(f"{_base(request)}{PREFIX}/run?{query}", status_code=303)
    node = node or _one_node(members, about)
    try:
        found = records.get_run(dag_id, run_id, node=node)
    except UnknownRun as error:
        raise HTTPException(404, str(error)) from error
    if found.ended_at is None:
        raise HTTPException(404, f"run {run_id} has not ended yet: it has no report")
    body = page.render_page(records.run_report(dag_id, run_id, node=node))
    return HTMLResponse(body, headers={"Content-Security-Policy": REPORT_POLICY, "X-Content-Type-Options": "nosniff"})


def static(name: str) -> Response:
    """One of the page's own files."""
    files = _static()
    if name not in files:
        raise HTTPException(404, f"there is no file {text.clean(name, 80)}")
    headers = {"Cache-Control": "private, max-age=3600", "X-Content-Type-Options": "nosniff"}
    return Response(files[name], media_type=MEDIA[PurePosixPath(name).suffix], headers=headers)


@functools.cache
def _static() -> dict[str, bytes]:
    folder = importlib.resources.files("muster.web") / "static"
    return {each.name: each.read_bytes() for each in folder.iterdir() if PurePosixPath(each.name).suffix in MEDIA}


def _overview(filters: fleet.Filters) -> dict[str, Any]:
    rows, version = _fleet()
    found = records.nodes_with(filters.q) if filters.q else set()
    chosen = fleet.chosen(rows, filters, found)
    begin = (max(1, filters.page) - 1) * fleet.PAGE
    runs = records.list_runs(unfinished=True, limit=RUNS_MAX)
    kinds = {(run.sku, run.level) for run in runs}
    typical = {kind: records.typical_duration_s(*kind) for kind in kinds}
    waiting = fleet.attention(chosen)
    return {
        "filters": filters, "version": version, "total": len(rows), "rows": chosen[begin : begin + fleet.PAGE],
        "shown": len(chosen), "begin": begin, "waiting": waiting[: fleet.ATTENTION_MAX],
        "waiting_more": max(0, len(waiting) - fleet.ATTENTION_MAX),
        "counts": fleet.counts(chosen), "verdicts": fleet.verdict_counts(chosen), "racks": fleet.rack_map(chosen),
        "running": fleet.progress(runs, {row.node: row.state for row in rows}, typical, _now()),
        "moves": records.moves_since(_now() - SINCE, MOVES_MAX),
        "skus": sorted({row.sku for row in rows}), "notices": _notices(rows),
    }  # fmt: skip


_cache: tuple[str, list[records.FleetRow]] = ("", [])
_cache_lock = threading.Lock()


def _fleet() -> tuple[list[records.FleetRow], str]:
    """All rows and their version; read once for all viewers until something changes."""
    global _cache
    version = records.fleet_version()
    with _cache_lock:
        if _cache[0] != version:
            _cache = (version, records.fleet_rows())
        return _cache[1], version


def _notices(rows: list[records.FleetRow]) -> list[str]:
    """One sentence for each thing of the fleet as a whole that needs a person."""
    found = []
    for simulated in sorted({row.simulated for row in rows}):
        breaker = records.breaker(simulated=simulated)
        if breaker.open:
            found.append(f"The circuit breaker{' of simulated nodes' if simulated else ''} is open: {breaker.sentence}")
    if parked := records.outbox_parked():
        found.append(f"{text.plural(len(parked), 'mail')} refused by the mail server: `muster status` shows why.")
    places = [place for place in records.scheduler_places() if place.difference or place.question]
    if places:
        found.append(
            f"{text.plural(len(places), 'node')} differ from what their scheduler says, first {places[0].node}: "
            f"{places[0].difference or places[0].question}"
        )
    found += [f"{lag.sentence}." for lag in records.audit_lags() if lag.last_error]
    return found


def _text(request: Request, template: str, **values: object) -> str:
    return _environment().get_template(template).render(base=_base(request), prefix=_base(request) + PREFIX, **values)


def _render(request: Request, template: str, **values: object) -> HTMLResponse:
    body = _text(request, template, **values)
    headers = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
    return HTMLResponse(body, headers=headers)


def _base(request: Request) -> str:
    """The path under which Airflow itself is served, without a slash at its end."""
    return str(request.scope.get("root_path", "")).removesuffix(PREFIX).rstrip("/")


@functools.cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("muster.web"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printable,
    )  # fmt: skip
    made.filters |= {"duration": text.duration, "clean": text.clean, "number": plots.number}
    made.globals |= {
        "GROUP_OF": fleet.GROUP_OF,
        "SYMBOL": fleet.SYMBOL,
        "GROUPS": fleet.GROUPS,
        "GROUP_WORDS": GROUP_WORDS,
        "PAGE": fleet.PAGE,
        "LEVELS": LEVELS,
        "STAGES": STAGES,
    }
    return made


def _printable(value: object) -> object:
    """Text without control, direction-changing and invisible characters; markup and other values as they are."""
    return one_line(value) if type(value) is str else value


def _sentence(request: Request, error: Exception) -> Response:
    if _wants_page(request):
        return _trouble(request, 503, str(error))
    return Response(f"{error}\n", status_code=503, media_type="text/plain")


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if _wants_page(request):
        sentence = "log in to Airflow, then open this page again" if error.status_code == 401 else str(error.detail)
        return _trouble(request, error.status_code, sentence)
    return await http_exception_handler(request, error)


async def _not_understood(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    if _wants_page(request):
        wrong = [f"{each['loc'][-1]}: {each['msg']}" for each in error.errors()]
        return _trouble(request, 422, "; ".join(wrong))
    return await request_validation_exception_handler(request, error)


def _wants_page(request: Request) -> bool:
    return "text/html" in request.headers.get("accept", "")


def _trouble(request: Request, status: int, sentence: str) -> Response:
    """A page with the sentence: inside Airflow's frame JSON would be all that a person sees."""
    body = _render(request, "trouble.html.j2", sentence=sentence)
    body.status_code = status
    return body


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)

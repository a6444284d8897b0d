"""The page's routes. Airflow's own login guards every one of them, static files included."""

from __future__ import annotations

import datetime
import functools
import importlib.resources
import threading
from pathlib import PurePosixPath
from typing import Annotated, Any
from urllib.parse import quote

from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.core_api.security import requires_access_view
from fastapi import Depends, FastAPI, Form, HTTPException, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined

from muster import records
from muster.errors import MusterError, UnknownNode, UnknownRun
from muster.web import PREFIX, actions, approvals, block, compare, fleet, plots, starts
from muster_criteria.model import Verdict
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
    app.add_exception_handler(MusterError, _sentence)
    return app


def overview(request: Request, filters: Annotated[fleet.Filters, Depends(fleet.Filters)]) -> Response:
    """What needs a person, counts, the map, runs under way, and the nodes that the filters leave."""
    return _render(request, "overview.html.j2", **_overview(filters))


def nodes_csv(filters: Annotated[fleet.Filters, Depends(fleet.Filters)]) -> Response:
    """All nodes that the filters leave, as CSV."""
    rows, _ = fleet_now()
    found = records.nodes_with(filters.q) if filters.q else set()
    body = fleet.csv_of(fleet.chosen(rows, filters, found))
    headers = {"Content-Disposition": 'attachment; filename="nodes.csv"', "X-Content-Type-Options": "nosniff"}
    return Response(body, media_type="text/csv; charset=utf-8", headers=headers)


def live(request: Request, filters: Annotated[fleet.Filters, Depends(fleet.Filters)], version: str = "") -> Response:
    """The overview's changing part; 204 while nothing has changed since ``version``."""
    if version == records.fleet_version():
        return Response(status_code=204)
    return _render(request, "_live.html.j2", **_overview(filters))


def node(
    request: Request,
    name: str,
    may_decide: Annotated[bool, Depends(actions.may_decide)],
    may_start: Annotated[bool, Depends(starts.may_start)],
    metric: str = "",
    curve: str = "",
) -> Response:
    """One node: its verdict, what to do, findings, figures, telemetry, history and parts."""
    try:
        found = records.get_node(name)
    except UnknownNode as error:
        raise HTTPException(404, str(error)) from error
    runs = records.list_runs(node=name, limit=RUNS_MAX)
    ended = records.last_run(name)
    newest = next((each for each in runs if each.ended_at), None)
    last = records.run_report(ended.dag_id, ended.run_id, node=name) if ended else None
    certificate = records.certificate_of(name)
    observed = [each for stage in last.stages for each in stage.judgement.observations] if last else []
    curves = fleet.curves_of(last) if last else {}
    return _render(
        request, "node.html.j2",
        node=found, runs=runs, last=last, ended=ended,
        skipped=newest if newest and newest.verdict is Verdict.SKIPPED else None,
        may_decide=may_decide, may_start=may_start,
        steps=advice.next_steps(last) if last else (),
        findings=records.open_findings(name),
        moves=actions.moves(found),
        until=_now() + datetime.timedelta(days=actions.WAIVER_DAYS),
        verdicts=records.latest_verdicts(name),
        lease=records.get_lease(name),
        events=records.node_events(name, limit=EVENTS_MAX)[::-1],
        parts=records.node_parts(name),
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


def questions(request: Request, pending: Annotated[list[approvals.Question], Depends(approvals.pending)]) -> Response:
    """All that waits for a person, with the evidence beside each question."""
    shown = pending[: approvals.QUESTIONS_MAX]
    asked = [(each, approvals.evidence(each)) for each in shown]
    return _render(request, "approvals.html.j2", questions=asked, more=len(pending) > len(shown))


def answer(request: Request, done: Annotated[None, Depends(approvals.answer)]) -> Response:
    """Show what still waits, once the answer is recorded."""
    return RedirectResponse(f"{_base(request)}{PREFIX}/approvals", status_code=303)


def run(request: Request, dag_id: str, run_id: str) -> Response:
    """The page of the node that a DAG run tests, or of the block if it tests several."""
    members = records.list_runs(run=(dag_id, run_id))
    if len(members) == 1:
        return RedirectResponse(f"{_base(request)}{PREFIX}/node/{members[0].node}", status_code=303)
    ended = [each.node for each in members if each.ended_at]
    found = block.of_reports([records.run_report(dag_id, run_id, node=node) for node in ended])
    at_work = [each.node for each in members if not each.ended_at]
    return _render(request, "block.html.j2", dag_id=dag_id, run_id=run_id, at_work=at_work, block=found)


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


def report(request: Request, dag_id: str, run_id: str, node: str = "") -> Response:
    """The whole report of an ended run, as it is mailed."""
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
    rows, version = fleet_now()
    found = records.nodes_with(filters.q) if filters.q else set()
    chosen = fleet.chosen(rows, filters, found)
    begin = (max(1, filters.page) - 1) * fleet.PAGE
    only = {row.node for row in chosen} if filters.narrowed else None
    runs, under_way = records.runs_under_way(RUNS_MAX, only)
    moves, moved = records.moves_since(_now() - SINCE, MOVES_MAX, only)
    waiting = fleet.attention(chosen)
    return {
        "filters": filters, "version": version, "total": len(rows), "rows": chosen[begin : begin + fleet.PAGE],
        "shown": len(chosen), "begin": begin, "waiting": waiting[: fleet.ATTENTION_MAX],
        "waiting_more": max(0, len(waiting) - fleet.ATTENTION_MAX),
        "counts": fleet.counts(chosen), "verdicts": fleet.verdict_counts(chosen), "racks": fleet.rack_map(chosen),
        "running": fleet.progress(runs, {row.node: row.state for row in rows}, _typical(runs), _now()),
        "running_more": under_way - len(runs), "moves": moves, "moves_more": moved - len(moves),
        "skus": sorted({row.sku for row in rows}), "notices": _notices(rows),
    }  # fmt: skip


def _typical(runs: list[records.RunRecord]) -> dict[fleet.Kind, float | None]:
    return {
        of: records.typical_duration_s(of.sku, of.level, of.dag_id, simulated=of.simulated, stages=of.stages)
        for of in {fleet.kind_of(run) for run in runs}
    }


_cache: tuple[str, list[records.FleetRow]] = ("", [])
_cache_lock = threading.Lock()


def fleet_now() -> tuple[list[records.FleetRow], str]:
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
    if places := records.scheduler_differences():
        found.append(
            f"{text.plural(len(places), 'node')} differ from what their scheduler says, first {places[0].node}: "
            f"{places[0].difference or places[0].question}"
        )
    return found


def _render(request: Request, template: str, **values: object) -> HTMLResponse:
    body = _environment().get_template(template).render(base=_base(request), prefix=_base(request) + PREFIX, **values)
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
        "PAGE": fleet.PAGE,
        "LEVELS": LEVELS,
    }
    return made


def _printable(value: object) -> object:
    """Text without control, direction-changing and invisible characters; markup and other values as they are."""
    return one_line(value) if type(value) is str else value


def _sentence(request: Request, error: Exception) -> Response:
    return Response(f"{error}\n", status_code=503, media_type="text/plain")


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)

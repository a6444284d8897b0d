"""The page's routes. Airflow's own login guards every one of them, static files included."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import importlib.resources
from pathlib import PurePosixPath
from typing import Annotated
from urllib.parse import quote, urlencode

from fastapi import Depends, FastAPI, Form, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.exceptions import HTTPException

from muster import store
from muster.errors import MusterError, UnknownNode, UnknownRun
from muster.integration import unstorable
from muster.model.nodes import Node
from muster.model.runs import RunKey
from muster.rules.lifecycle.transitions import person_moves
from muster.rules.preview import OUT_OF_SERVICE
from muster.web import (
    PREFIX,
    access,
    actions,
    approvals,
    block,
    compare,
    fleet,
    heat_map,
    keys,
    overview,
    peers,
    plots,
    rendering,
    starts,
    timeline,
)
from muster_criteria.model import Verdict
from muster_reports import advice, page, text, training_view
from muster_reports.digest import tables
from muster_reports.document import PAGE_LIMITS
from muster_reports.model import RunReport

MEDIA = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
REPORT_POLICY = f"{rendering.POLICY}; style-src 'self' 'unsafe-inline'; script-src 'none'"
"""Reports carry their own style, since they are also mails and files."""
EVENTS_MAX, RUNS_MAX = 200, 30


def create_app() -> FastAPI:
    """The application that Airflow's API server mounts under ``PREFIX``."""
    app = FastAPI(title="Muster", docs_url=None, redoc_url=None, openapi_url=None, dependencies=[Depends(access.read)])
    app.get("/", response_class=HTMLResponse)(whole_fleet)
    app.get("/live", response_class=HTMLResponse)(live)
    app.get("/nodes.csv")(nodes_csv)
    app.get("/numbers", response_class=HTMLResponse)(numbers)
    app.get("/node/{name}", response_class=HTMLResponse)(node)
    guarded = [Depends(access.decide), Depends(actions.from_this_page)]
    app.post("/node/{name}", response_class=HTMLResponse, dependencies=guarded)(change)
    guarded = [Depends(each) for each in (access.start, actions.from_this_page, starts.audited)]
    app.post("/node/{name}/test", response_class=HTMLResponse, dependencies=guarded)(start_test)
    app.get("/approvals", response_class=HTMLResponse)(questions)
    guarded = [Depends(each) for each in (access.respond, actions.from_this_page, approvals.audited)]
    app.post("/approvals/{dag_id}/{dag_run_id}/{task_id}", response_class=HTMLResponse, dependencies=guarded)(answer)
    app.get("/run", response_class=HTMLResponse)(run)
    app.get("/compare", response_class=HTMLResponse)(comparison)
    app.get("/report", response_class=HTMLResponse)(report)
    app.get("/static/{name}")(static)
    # A preview's address may be opened again, by a reload or a bookmark, without the form.
    app.get("/node/{name}/test")(node_again)
    app.get("/approvals/{dag_id}/{dag_run_id}/{task_id}")(questions_again)
    unstorable.refuse(app)
    app.add_exception_handler(MusterError, rendering.sentence)
    app.add_exception_handler(HTTPException, rendering.refused)
    app.add_exception_handler(RequestValidationError, rendering.not_understood)
    return app


def whole_fleet(
    request: Request,
    filters: Annotated[fleet.Filters, Depends(fleet.Filters)],
    questions: Annotated[int, Depends(approvals.waiting)],
) -> Response:
    """What needs a person, counts, the map, runs under way, and the nodes that the filters leave."""
    return rendering.render(
        request, "overview.html.j2", **overview.values(request, filters, questions, overview.stamp(questions))
    )


def nodes_csv(filters: Annotated[fleet.Filters, Depends(fleet.Filters)]) -> Response:
    """All nodes that the filters leave, as CSV."""
    rows, _ = overview.fleet_now()
    found = store.overview.nodes_with(filters.q) if filters.q else set()
    body = fleet.csv_of(fleet.chosen(rows, filters, found))
    headers = {"Content-Disposition": 'attachment; filename="nodes.csv"', "X-Content-Type-Options": "nosniff"}
    return Response(body, media_type="text/csv; charset=utf-8", headers=headers)


def numbers(request: Request) -> Response:
    """What managers ask for, as it was counted within the last hour."""
    kept = [(each, tables.tables(each)) for each in store.numbers.kept()]
    return rendering.render(request, "numbers.html.j2", kept=kept)


def live(
    request: Request,
    filters: Annotated[fleet.Filters, Depends(fleet.Filters)],
    questions: Annotated[int, Depends(approvals.waiting)],
    version: str = "",
) -> Response:
    """The overview's changing part; 204 while nothing has changed since ``version``."""
    stamp = overview.stamp(questions)
    if version == stamp:
        return Response(status_code=204)
    return rendering.render(request, "live.html.j2", **overview.values(request, filters, questions, stamp))


def node(
    request: Request,
    name: str,
    may_decide: Annotated[bool, Depends(access.may_decide)],
    may_start: Annotated[bool, Depends(access.may_start)],
    asked: Annotated[list[approvals.Question], Depends(approvals.about)],
    metric: str = "",
    curve: str = "",
    started: str = "",
) -> Response:
    """One node: its verdict, what to do, findings, figures, telemetry, history and parts."""
    found = store.nodes.get(name)
    runs = store.runs.find(node=name, limit=EVENTS_MAX + 1)
    ended, now = store.runs.last(name), store.clock.now()
    newest = next((each for each in runs if each.ended_at), None)
    last = store.reporting.run(ended.key, node=name, attached=False) if ended else None
    certificates, parts = store.certificates.of_node(name, EVENTS_MAX), store.parts.of_node(name, EVENTS_MAX)
    history = timeline.timeline(
        store.nodes.events(name, limit=EVENTS_MAX + 1), runs, certificates, parts,
        store.raw.bmc_readings(name, EVENTS_MAX), store.users_jobs.of_node(name), now, EVENTS_MAX + 1,
    )  # fmt: skip
    figures = plots.strips(plots.seen(last), peers.bands(last), judged_only=False) if last else []
    curves = fleet.curves_of(last) if last else {}
    rows, version = overview.fleet_now()
    waits = [each for each in overview.attention_now(rows, version) if each.node == name]
    decided = any(row.moved_for for row in rows if row.node == name)
    begins = RunKey.parse(started)
    begins = None if begins in [each.key for each in runs] else begins
    return rendering.render(
        request, "node.html.j2",
        node=found, started=begins, waits=waits, place=store.schedulers.place(name),
        runs=runs[:RUNS_MAX], more_runs=len(runs) > RUNS_MAX, last=last, ended=ended,
        skipped=newest if newest and newest.verdict is Verdict.SKIPPED else None,
        may_decide=may_decide, may_start=may_start and found.state not in OUT_OF_SERVICE,
        questions=[(each, approvals.reasons(each, found), approvals.effects(each, found)) for each in asked],
        steps=_steps(last, found) if last and not decided else (),
        findings=store.verdicts.open_findings(name),
        moves=person_moves(found.state), verdicts=store.verdicts.latest(name), lease=store.leases.get(name),
        until=now + datetime.timedelta(days=actions.WAIVER_DAYS), next_day=now + datetime.timedelta(days=1),
        history=history[:EVENTS_MAX], more_history=len(history) > EVENTS_MAX,
        parts=parts,
        certificate=store.certificates.newest(name),
        now=now,
        strips=[each for each in figures if each.limits or each.peers],
        unlimited=[each for each in figures if not each.limits and not each.peers],
        metrics=[(keys.address(each), keys.words(each)) for each in store.node_metrics.of_node(name, RUNS_MAX)],
        metric=metric, metric_words=keys.words(keys.read(metric)),
        curves=sorted(curves), curve=curve, drawn=plots.curves(curves.get(curve, ())),
        life=plots.life(store.node_metrics.life(name, keys.read(metric))) if metric else None,
    )  # fmt: skip


def _steps(last: RunReport, node: Node) -> tuple[str, ...]:
    """What to do about the node's last run, as the node stands now: a person may have decided since."""
    held = last.why_held if node.held_run else ""
    return advice.next_steps(dataclasses.replace(last, why_held=held, state_after=str(node.state), shadow=node.shadow))


def change(
    request: Request,
    asked: Annotated[actions.Change, Depends(actions.Change)],
    confirmed: Annotated[str, Form()] = "",
) -> Response:
    """Show what a change would do; made once it is confirmed, and the node's page is shown again."""
    return _confirm(request, asked, confirmed, f"/node/{quote(asked.node)}")


def start_test(
    request: Request,
    asked: Annotated[starts.Start, Depends(starts.Start)],
    confirmed: Annotated[str, Form()] = "",
) -> Response:
    """Show what a test would run and risk; started once it is confirmed, and the node's page is shown again."""
    return _confirm(request, asked, confirmed, f"/node/{quote(asked.node)}")


def _confirm(
    request: Request, asked: actions.Change | starts.Start | approvals.Answer, confirmed: str, back: str
) -> Response:
    try:
        if confirmed:
            asked.apply()
            started = f"?{urlencode({'started': asked.run})}" if isinstance(asked, starts.Start) else ""
            return _see(request, f"{back}{started}")
        sentence, risks = asked.preview()
    except MusterError as error:
        return rendering.render(request, "change.html.j2", 400, change=asked, back=back, error=str(error))
    return rendering.render(
        request, "change.html.j2", change=asked, back=back, error="", sentence=sentence, risks=risks
    )


def _see(request: Request, path: str) -> Response:
    return RedirectResponse(f"{rendering.base(request)}{PREFIX}{path}", status_code=303)


def node_again(request: Request, name: str) -> Response:
    """The node's page, when somebody opens the address of a preview."""
    return _see(request, f"/node/{quote(name)}")


def questions_again(request: Request) -> Response:
    """The open questions, when somebody opens the address of an answer."""
    return _see(request, "/approvals")


def questions(
    request: Request,
    pending: Annotated[list[approvals.Question], Depends(approvals.pending)],
    page: Annotated[int, Query(ge=1)] = 1,
) -> Response:
    """All that waits for a person, each question with its evidence."""
    asked = [(each, approvals.evidence(each)) for each in pending[: approvals.PAGE]]
    return rendering.render(request, "approvals.html.j2", questions=asked, page=page, more=len(pending) > len(asked))


def answer(
    request: Request,
    asked: Annotated[approvals.Answer, Depends(approvals.Answer)],
    confirmed: Annotated[str, Form()] = "",
) -> Response:
    """Show what an answer will do; given once it is confirmed, and the page on which it was chosen is shown again."""
    return _confirm(request, asked, confirmed, f"/node/{quote(asked.back, safe='')}" if asked.back else "/approvals")


def run(request: Request, dag_id: str, run_id: str, about: Annotated[str, Depends(access.node_of)]) -> Response:
    """The page of the node that a DAG run tests or asks about, or of the block if it tests several."""
    key = RunKey(dag_id, run_id)
    members = store.runs.find(run=key)
    if node := _one_node([each.node for each in members], about):
        return _see(request, f"/node/{quote(node, safe='')}")
    ended = [each.node for each in members if each.ended_at]
    found = block.of_reports([store.reporting.run(key, node=node, attached=False) for node in ended])
    at_work = [each.node for each in members if not each.ended_at]
    rounds, trained = store.rounds.fabric(key), store.trainings.training(key)
    return rendering.render(
        request, "block.html.j2", dag_id=dag_id, run_id=run_id, at_work=at_work, block=found,
        fabric=rounds, maps=heat_map.of(rounds) if rounds else (),
        training=training_view.of(trained, PAGE_LIMITS) if trained else None,
        differences=store.trainings.differences(key),
    )  # fmt: skip


def _one_node(members: list[str], about: str) -> str:
    """The node that a run or a task is about; "" if it is about a block, or about no node of the records."""
    if len(members) == 1:
        return members[0]
    if members:
        return about if about in members else ""
    try:
        return store.nodes.get(about).name
    except UnknownNode:
        return ""


def comparison(request: Request, left: str, right: str) -> Response:
    """Two runs side by side; each is a node, which means its last ended run, or NODE/DAG/RUN."""
    reports = [_report_of(each) for each in (left, right)]
    found = compare.compare(*reports)
    return rendering.render(request, "compare.html.j2", reports=reports, found=found, words=compare.words)


def _report_of(what: str) -> RunReport:
    node, _, run = what.strip().partition("/")
    dag_id, _, run_id = run.partition("/")
    if not run:
        store.nodes.get(node)
        ended = store.runs.last(node)
        if ended is None:
            raise UnknownRun(f"no run of {node} has ended yet")
        dag_id, run_id = ended.dag_id, ended.run_id
    return store.reporting.run(RunKey(dag_id, run_id), node=node, attached=False)


def report(
    request: Request, dag_id: str, run_id: str, about: Annotated[str, Depends(access.node_of)], node: str = ""
) -> Response:
    """The whole report of an ended run, as it is mailed; of a block, of the member that is asked for.

    A run that has none, since it tests no node or several, leads to its own page.
    """
    key = RunKey(dag_id, run_id)
    members = [each.node for each in store.runs.find(run=key)]
    if not node and (not members or not _one_node(members, about)):
        return _see(request, f"/run?{urlencode({'dag_id': dag_id, 'run_id': run_id})}")
    node = node or _one_node(members, about)
    if store.runs.get(key, node=node).ended_at is None:
        raise UnknownRun(f"run {run_id} has not ended yet: it has no report")
    rounds, trained = store.rounds.fabric(key), store.trainings.training(key)
    body = page.render_page(store.reporting.run(key, node=node, fabric=rounds, training=trained))
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

"""The FastAPI app for programs, which Airflow's API server mounts at ``/muster-api``."""

from __future__ import annotations

import dataclasses
import datetime
import secrets
from typing import Annotated

from fastapi import FastAPI, Header, HTTPException, Request, Response
from fastapi.responses import JSONResponse

from muster import store
from muster.admission import idle_fleet
from muster.api import metrics, read, repairs, reports
from muster.errors import DatabaseNotReady, MusterError
from muster.integration import last_runs, unstorable
from muster.judging import policies
from muster.model.states import SERVING
from muster.settings import Settings, settings

PREFIX = "/muster-api"


def create_app() -> FastAPI:
    """The app, without the pages of FastAPI that would describe it to anonymous callers."""
    app = FastAPI(title="Muster", docs_url=None, redoc_url=None, openapi_url=None)
    app.get("/metrics", response_class=Response)(show_metrics)
    app.post("/v1/reports")(reports.receive)
    app.post("/v1/repairs")(repairs.receive)
    app.include_router(read.router)
    unstorable.refuse(app)
    app.add_exception_handler(MusterError, _sentence)
    return app


def show_metrics(authorization: Annotated[str, Header()] = "") -> Response:
    """The metrics, to callers with the token: 503 if none is configured or the records are away, 401 without it."""
    try:
        current = settings()
        expected = _token(current)
    except MusterError:  # its text quotes the setting: not for anonymous callers
        raise HTTPException(503, "Metrics are closed: a setting cannot be used; see `muster settings`.") from None
    scheme, _, given = authorization.partition(" ")
    matches = secrets.compare_digest(given.strip().encode(), expected.encode())
    if scheme.lower() != "bearer" or not matches:
        raise HTTPException(401, "Metrics need the token: Authorization: Bearer …", {"WWW-Authenticate": "Bearer"})
    try:
        figures = store.figures.fleet(policies.health())
    except DatabaseNotReady as error:
        raise HTTPException(503, str(error)) from None
    due_after: dict[tuple[str, bool], datetime.timedelta] = {}
    for kind in (False, True):
        nodes = [node for node in figures.nodes if node.simulated is kind]
        due = idle_fleet.due_after({node.sku for node in nodes}, sum(node.state in SERVING for node in nodes))
        due_after |= {(sku, kind): after for sku, after in due.items()}
    figures = dataclasses.replace(
        figures, due_after=due_after,
        whole_after=datetime.timedelta(days=current.revalidation_whole_days), succeeded=last_runs.successes(),
    )  # fmt: skip
    return Response(metrics.render(figures), media_type=metrics.CONTENT_TYPE)


def _sentence(_request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, status_code=503)


def _token(current: Settings) -> str:
    """The configured token. Raises HTTPException, which does not name the file, without one: 503."""
    if current.metrics_token_file is None:
        raise HTTPException(503, "Metrics are closed: set MUSTER_METRICS_TOKEN_FILE.")
    try:
        token = current.metrics_token_file.read_text().strip()
        why = "is empty"
    except OSError as error:
        token, why = "", f"cannot be read: {error.strerror}"
    except UnicodeDecodeError:
        token, why = "", "is no text"
    if not token:
        raise HTTPException(503, f"Metrics are closed: the file of MUSTER_METRICS_TOKEN_FILE {why}; correct it.")
    return token

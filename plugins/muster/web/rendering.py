"""How the page's templates become answers, errors included."""

from __future__ import annotations

import functools

from fastapi import Request
from fastapi.exception_handlers import http_exception_handler, request_validation_exception_handler
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, Response
from jinja2 import Environment
from markupsafe import Markup, escape
from starlette.exceptions import HTTPException

from muster.errors import UnknownNode, UnknownRun
from muster.model.stages import STAGES
from muster.web import PREFIX, fleet, plots
from muster_criteria import words
from muster_criteria.stages import LEVELS
from muster_criteria.text import one_line, refusal
from muster_reports.environment import environment

POLICY = "default-src 'self'; img-src 'self' data:; frame-ancestors 'self'; form-action 'self'; base-uri 'none'"
GROUP_WORDS = {
    "out": "out of service", "test": "in a test", "ready": "ready", "serving": "in service", "gone": "retired",
}  # fmt: skip
"""How the filter names the groups of states."""


def markup(request: Request, template: str, **values: object) -> str:
    """The template's text for this request."""
    return _environment().get_template(template).render(base=base(request), prefix=base(request) + PREFIX, **values)


def render(request: Request, template: str, status: int = 200, **values: object) -> HTMLResponse:
    """The template as a page that loads nothing from outside and is not stored."""
    body = markup(request, template, status=status, **values)
    headers = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
    return HTMLResponse(body, status, headers=headers)


def base(request: Request) -> str:
    """The path under which Airflow itself is served, without a slash at its end."""
    return str(request.scope.get("root_path", "")).removesuffix(PREFIX).rstrip("/")


@functools.cache
def _environment() -> Environment:
    made = environment("muster.web")
    made.finalize = _printable
    made.filters |= {"duration": words.duration, "code": _code, "number": plots.number}
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


def _code(sentence: str) -> Markup:
    """A sentence with its commands, which stand between backticks, marked as code."""
    parts = one_line(sentence).split("`")
    if len(parts) % 2 == 0:  # a backtick without its other
        return escape(one_line(sentence))
    return Markup("").join(Markup("<code>{}</code>").format(each) if at % 2 else each for at, each in enumerate(parts))


def _printable(value: object) -> object:
    """Text without control, direction-changing and invisible characters; markup and other values as they are."""
    return one_line(value) if type(value) is str else value


async def sentence(request: Request, error: Exception) -> Response:
    """Answer an error of Muster's own."""
    if isinstance(error, (UnknownNode, UnknownRun)):
        return await refused(request, HTTPException(404, str(error)))
    if _wants_page(request):
        return _trouble(request, 503, str(error))
    return Response(f"{error}\n", status_code=503, media_type="text/plain")


async def refused(request: Request, error: Exception) -> Response:
    """Answer what was refused."""
    assert isinstance(error, HTTPException)
    if _wants_page(request):
        return _trouble(request, error.status_code, str(error.detail))
    return await http_exception_handler(request, error)


async def not_understood(request: Request, error: Exception) -> Response:
    """Answer a request whose parameters are not valid."""
    assert isinstance(error, RequestValidationError)
    if _wants_page(request):
        wrong = [f"{each['loc'][-1]}: {refusal(each['msg'])}" for each in error.errors()]
        return _trouble(request, 422, "; ".join(wrong))
    return await request_validation_exception_handler(request, error)


def _wants_page(request: Request) -> bool:
    return "text/html" in request.headers.get("accept", "")


def _trouble(request: Request, status: int, sentence: str) -> Response:
    """A page with the sentence: inside Airflow's frame JSON would be all that a person sees."""
    return render(request, "trouble.html.j2", status, sentence=sentence, log_in=status == 401)

"""Requests with a NUL character, which PostgreSQL stores in no text, are refused with a sentence, on SQLite too."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import unquote

from fastapi import FastAPI, Request, Response
from fastapi.responses import PlainTextResponse
from sqlalchemy.exc import DataError

_SENTENCE = "the request has a character that no text of the records can hold: leave it out\n"


def refuse(app: FastAPI) -> None:
    """Have the application answer 400: at once for a NUL in path or query, else when the database refuses a text."""
    app.middleware("http")(_checked)
    app.add_exception_handler(DataError, _refused)


async def _checked(request: Request, then: Callable[[Request], Awaitable[Response]]) -> Response:
    if "\0" in unquote(request.url.path) or "\0" in unquote(request.url.query):
        return PlainTextResponse(_SENTENCE, 400)
    return await then(request)


async def _refused(_request: Request, _error: Exception) -> Response:
    return PlainTextResponse(_SENTENCE, 400)

"""An HTTP client for one BMC, limited in time and size, that follows no link to another host.

A timeout for each read is not enough: a BMC that sends single bytes slowly would block its reader forever. The requests
run in an event loop under one deadline; the caller, who is not asynchronous, waits for each.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Self

import httpx

from muster.errors import MusterError
from muster.remote.bmc.bmc import Bmc, Login
from muster.remote.bmc.redfish_documents import ROOT, Document, Get, complaint_of, of_another
from muster.remote.connection import http_request
from muster_criteria.text import one_line

BYTES_MAX = 16 * 1024 * 1024
"""The limit for all answers of one reading, which stay in memory until its end, at up to 26 times their size. A log of
2,000 entries has less than two MiB, and a BMC several of them."""
SESSIONS = "/redfish/v1/SessionService/Sessions"
OF_ALL = (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN, httpx.codes.TOO_MANY_REQUESTS)
"""Statuses that hold for every document: further requests count as failed logins, which lock the account. In a session
no login fails: the first two then concern one document, for a privilege or a licence."""
BUSY_S = 1.0
"""A BMC that answers 502, 503 or 504 is asked once more after this time (s)."""

END_S = 5.0


class BmcSilent(MusterError):
    """The BMC could not be read; the message is one sentence with the reason."""


class Refused(BmcSilent):
    """The BMC has an error for one document, or does not send it in time: it may have the others."""


def without_refused(get: Get, refused: list[str]) -> Get:
    """Returns a ``get`` that gives None for a document in error and adds the reason to ``refused``."""

    def found(path: str) -> Document | None:
        try:
            return get(path)
        except Refused as error:
            refused.append(str(error))
            return None

    return found


def refuse_another(serial: str, get: Get) -> None:
    """Raises BmcSilent if the BMC belongs to another machine than the one with this serial.

    Systems in error (such as a board without power) or refused do not show their machine, and are accepted.
    """
    other = ""
    with contextlib.suppress(BmcSilent):
        other = of_another(serial, without_refused(get, []))
    if other:
        raise BmcSilent(other)


class Client:
    """Reads documents of a BMC: ``timeout_s`` seconds at most for each step of an answer, ``limit_s`` for all answers,
    which have ``bytes_max`` bytes at most.

    A context manager for code outside an event loop. Raises BmcSilent for a file of authorities that cannot be used.
    """

    def __init__(self, bmc: Bmc, who: Login, *, timeout_s: float, limit_s: float, bytes_max: int = BYTES_MAX) -> None:
        self._url, self._who, self._limit_s = httpx.URL(bmc.url), who, limit_s
        self._bytes_max = self._bytes_left = bytes_max
        self._session: httpx.URL | None = None
        self._again = False
        self._runner = asyncio.Runner()
        try:
            verify = http_request.trusting(bmc.verify, trust_env=False)
        except OSError as error:
            raise self._silent(f"the file {bmc.verify} of its authorities cannot be used: {error}") from None
        # The controller's proxy would see the login.
        self._http = httpx.AsyncClient(verify=verify, timeout=timeout_s, trust_env=False)
        # A small document may unpack to any size.
        self._http.headers["Accept-Encoding"] = "identity"

    def __enter__(self) -> Self:
        self._until = self._runner.get_loop().time() + self._limit_s
        return self

    def __exit__(self, *_: object) -> None:
        # BMCs allow few sessions at a time, so the end of one has time of its own.
        if self._session is not None:
            self._until = self._runner.get_loop().time() + END_S
            with contextlib.suppress(BmcSilent):
                self._answer("DELETE", self._session)
        self._runner.run(self._http.aclose())
        self._runner.close()

    def log_in(self) -> None:
        """Opens a session, since some BMCs log every request with a login; without one, each request has the login.

        Raises BmcSilent if the BMC does not answer, or refuses the login.
        """
        if not self._who.user:
            return
        answer = self._answer(
            "POST", self.within(SESSIONS), {"UserName": self._who.user, "Password": self._who.password}
        )
        token = answer.headers.get("X-Auth-Token")
        if answer.is_success and token:
            self._http.headers["X-Auth-Token"] = token
            self._session = self._of_session(answer)
        elif answer.status_code == httpx.codes.UNAUTHORIZED and self._has_sessions():
            # By Basic, the same password would count as a second failed login.
            raise self._silent(f"it answers 401 {answer.reason_phrase} to the login of {self._who.user}")
        else:
            self._http.auth = httpx.BasicAuth(self._who.user, self._who.password)

    def _begins_anew(self) -> bool:
        """Logs in once more if a session ended while it was used; returns whether there is a new one."""
        if self._again or self._http.headers.pop("X-Auth-Token", None) is None:
            return False
        ended, self._session, self._again = self._session, None, True
        self.log_in()
        if ended is not None:
            with contextlib.suppress(BmcSilent):
                self._answer("DELETE", ended)
        return True

    def _has_sessions(self) -> bool:
        """Whether the root, which needs no login, names sessions: a BMC without them has not checked the password."""
        root = self.get(ROOT) or {}
        links = root.get("Links")
        return "SessionService" in root or (isinstance(links, dict) and "Sessions" in links)

    def _of_session(self, answer: httpx.Response) -> httpx.URL | None:
        """Returns the URL of the session that was opened, by ``Location`` or by its document; None without both.

        Only the path is used: a BMC may call itself by another name than its record does.
        """
        for link in (answer.headers.get("Location"), _document(answer).get("@odata.id")):
            if isinstance(link, str) and link:
                with contextlib.suppress(httpx.InvalidURL, ValueError):
                    return self._url.copy_with(raw_path=self.within(SESSIONS).join(link).raw_path)
        return None

    def get(self, path: str) -> Document | None:
        """Returns the document at ``path``; None if there is none, as for empty bays and boards that a BMC lists.

        Follows one redirect, as to the same path with a slash. Raises Refused for a document in error, else BmcSilent.
        """
        url = self.within(path)
        answer = self._answer("GET", url)
        if answer.status_code == httpx.codes.UNAUTHORIZED and self._begins_anew():
            answer = self._answer("GET", url)
        if answer.has_redirect_location and (target := self._here(url, answer.headers["Location"])):
            answer = self._answer("GET", target)
        if answer.status_code == httpx.codes.NOT_FOUND:
            return None
        if not answer.is_success:
            why = f"it answers {answer.status_code} {answer.reason_phrase} to {path}"
            of_all = OF_ALL[-1:] if "X-Auth-Token" in self._http.headers else OF_ALL
            raise self._silent(why) if answer.status_code in of_all else Refused(self._why(why))
        try:
            document = json.loads(answer.content)
        except (ValueError, RecursionError):
            raise Refused(self._why(f"the document {path} is not JSON")) from None
        return document if isinstance(document, dict) else None

    def post(self, path: str, body: dict[str, str]) -> tuple[int, str]:
        """Send an action; returns the status of the answer and its error message.

        Raises BmcSilent: it may have been carried out.
        """
        answer = self._answer("POST", self.within(path), body)
        return answer.status_code, complaint_of(_document(answer))

    def within(self, link: str) -> httpx.URL:
        """Returns the link's URL. Raises BmcSilent for one that leads the controller to another address."""
        if url := self._here(self._url, link):
            return url
        raise self._silent(f"it leads to another address: {link}")

    def _here(self, base: httpx.URL, link: str) -> httpx.URL | None:
        with contextlib.suppress(httpx.InvalidURL, ValueError):
            url = base.join(link)
            if (url.scheme, url.host, url.port) == (self._url.scheme, self._url.host, self._url.port):
                return url
        return None

    def _answer(self, method: str, url: httpx.URL, body: dict[str, str] | None = None) -> httpx.Response:
        return self._runner.run(self._in_time(method, url, body))

    async def _in_time(self, method: str, url: httpx.URL, body: dict[str, str] | None) -> httpx.Response:
        try:
            async with asyncio.timeout_at(self._until):
                answer = await self._whole(method, url, body)
                if answer.status_code in (502, 503, 504) and method == "GET":  # an action is never sent twice
                    await asyncio.sleep(BUSY_S)
                    answer = await self._whole(method, url, body)
                return answer
        except TimeoutError:
            raise self._silent(f"it takes longer than {self._limit_s:.0f} s, at {url.path}") from None
        except httpx.ReadTimeout:
            raise Refused(self._why(f"it does not answer to {url.path} in time")) from None
        except (httpx.HTTPError, OSError) as error:
            raise self._silent(str(error) or type(error).__name__) from None

    async def _whole(self, method: str, url: httpx.URL, body: dict[str, str] | None) -> httpx.Response:
        """Sends the request and reads the answer as it is sent, not decompressed. Follows no redirect."""
        async with self._http.stream(method, url, json=body) as answer:
            content = b""
            async for piece in answer.aiter_raw():
                content += piece
                self._bytes_left -= len(piece)
                if self._bytes_left < 0:
                    raise self._silent(f"it sends more than {self._bytes_max} bytes")
        # With a Content-Encoding header, httpx would decompress the content here.
        headers = [pair for pair in answer.headers.raw if pair[0].lower() in (b"location", b"x-auth-token")]
        return httpx.Response(answer.status_code, headers=headers, content=content)

    def _silent(self, why: str) -> BmcSilent:
        return BmcSilent(self._why(why))

    def _why(self, why: str) -> str:
        return f"the BMC at {self._url} could not be read: {one_line(why)[:200].rstrip('.')}"


def _document(answer: httpx.Response) -> Document:
    """The document of an answer, empty where it has none."""
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(answer.content)
        return found if isinstance(found, dict) else {}
    return {}

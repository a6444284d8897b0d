"""A client of Airflow 3.3's REST API for the command line and the demo."""

from __future__ import annotations

import dataclasses
import datetime
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self

import httpx

from muster.errors import AirflowRefused, AirflowUnreachable, AlreadyTriggered
from muster.model.dags import ALL, ASKING
from muster.remote.connection import http_request
from muster.settings import settings

REASON = "decision_reason"
"""A question's field for the reason. Airflow fills a field named like a DAG parameter with that parameter's value."""
WAITS = ("awaiting_input", "deferred")
"""The states of a task whose question is open. After a timeout the task has failed without a response."""
RETRIES, RETRY_S = 2, 1.0
"""How often a request is repeated after a server error of Airflow, and the seconds between two attempts."""
AWAY = frozenset({502, 503, 504})
"""Statuses with which a proxy answers for an API server that it does not reach."""
LOST = (httpx.ReadTimeout, httpx.ReadError, httpx.RemoteProtocolError)
"""Exceptions for an answer that comes too late or breaks off."""
LOGIN, CLEAR = "/auth/token", "/clearTaskInstances"
PERHAPS = "; it may have done what was asked all the same"
AHEAD = datetime.timedelta(minutes=5)
"""A time in Airflow that lies further ahead than this comes from a wrong clock: clocks under NTP differ by less."""
RUN_OVER = frozenset({"success", "failed"})
"""The final states of a DAG run."""


@dataclasses.dataclass(frozen=True)
class Pool:
    """A pool: its slots (-1: unlimited), how many are waited for, and whether deferred tasks hold theirs."""

    slots: int
    waiting: int
    include_deferred: bool


@dataclasses.dataclass(frozen=True)
class Postponed:
    """A task that Airflow leaves waiting until ``until``, a time written by a clock that was ahead.

    It is when the last try or check ended (a scheduler or worker), or the last heartbeat of a triggerer, which keeps
    its tasks until then even if it was killed.
    """

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    until: datetime.datetime


class AirflowClient:
    """One session with an Airflow API server; usable as a context manager. Logs in when first needed.

    Every method raises AirflowUnreachable without a response, AirflowRefused with the reason for an error response.
    """

    def __init__(
        self,
        url: str,
        username: str = "",
        password: str = "",
        token: str = "",
        *,
        timeout_s: float = 30.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._url = url.rstrip("/")
        self._login = (username, password)
        self._token = token
        self._client = httpx.Client(base_url=self._url, timeout=timeout_s, transport=transport)
        self._repeated = False  # whether the last request was repeated: the server may have acted on the first

    @classmethod
    def from_settings(cls, timeout_s: float = 30.0) -> Self:
        """Returns a client for MUSTER_AIRFLOW_URL with the login of _USERNAME and _PASSWORD, or _TOKEN."""
        current = settings()
        return cls(
            current.airflow_url,
            current.airflow_username,
            current.airflow_password.get_secret_value(),
            current.airflow_token.get_secret_value().strip(),
            timeout_s=timeout_s,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def trigger(self, dag_id: str, run_id: str, conf: Mapping[str, Any], note: str = "") -> str:
        """Start a DAG run with this run id. Returns its state. Raises AlreadyTriggered."""
        body = {"logical_date": None, "dag_run_id": run_id, "conf": dict(conf), "note": note or None}
        response = self._request("POST", f"/dags/{dag_id}/dagRuns", json=body, expected=(200, 201, 409))
        if response.status_code == 409:
            repeated = self._repeated
            response = self._request("GET", f"/dags/{dag_id}/dagRuns/{run_id}", expected=(200, 404))
            found = response.json() if response.status_code == 200 else {}
            state, known = str(found.get("state") or "unknown"), found.get("conf") or {}
            sent = {name: value for name, value in conf.items() if value is not None}
            # A run that is over may be an earlier one; the node's pool is added to the conf when a run begins.
            if repeated and state in ("queued", "running") and known | sent == known:
                return state
            raise AlreadyTriggered(
                f"run {run_id} of {dag_id} exists already ({state}): give another reason for another run, "
                "or clear that run in Airflow to repeat it"
            )
        return str(response.json()["state"])

    def note(self, dag_id: str, run_id: str) -> str:
        """Returns the run's note, "" without one."""
        return self._request("GET", f"/dags/{dag_id}/dagRuns/{run_id}").json().get("note") or ""

    def conf(self, dag_id: str, run_id: str) -> dict[str, Any]:
        """Returns the parameters with which the run was started."""
        return self._request("GET", f"/dags/{dag_id}/dagRuns/{run_id}").json().get("conf") or {}

    def set_note(self, dag_id: str, run_id: str, note: str) -> None:
        """Replace the run's note."""
        mask = {"update_mask": "note"}
        self._request("PATCH", f"/dags/{dag_id}/dagRuns/{run_id}", json={"note": note}, params=mask)

    def run_state(self, dag_id: str, run_id: str) -> str | None:
        """Returns queued, running, success or failed; None if there is no such run."""
        response = self._request("GET", f"/dags/{dag_id}/dagRuns/{run_id}", expected=(200, 404))
        return None if response.status_code == 404 else str(response.json()["state"])

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        """Returns every run of the DAG in Airflow's format (``dag_run_id``, ``state``, ``conf``, …)."""
        return list(self._all(f"/dags/{dag_id}/dagRuns", "dag_runs"))

    def last_ended(self, dag_id: str) -> tuple[str, datetime.datetime] | None:
        """Returns (success or failed, when it ended) of the DAG's last run that has ended, None without one."""
        last = {"state": ["success", "failed"], "order_by": "-run_after", "limit": 1}
        runs = self._request("GET", f"/dags/{dag_id}/dagRuns", params=last).json()["dag_runs"]
        return next(((each["state"], datetime.datetime.fromisoformat(each["end_date"])) for each in runs), None)

    def task_states(self, dag_id: str, run_id: str) -> dict[str, str]:
        """Returns {task id: state} of a run ("none" if not scheduled yet); mapped tasks are "id[index]"."""
        states: dict[str, str] = {}
        for task in self._all(f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances", "task_instances"):
            index = task.get("map_index", -1)
            name = task["task_id"] if index < 0 else f"{task['task_id']}[{index}]"
            states[name] = task["state"] or "none"
        return states

    def postponed(self, now: datetime.datetime) -> list[Postponed]:
        """Returns the tasks of Muster's DAGs that a wrong clock has put off; Airflow may have other DAGs too."""
        path, late = "/dags/~/dagRuns/~/taskInstances", []
        for state in ("up_for_retry", "up_for_reschedule", "deferred"):
            for task in self._all(path, "task_instances", state=state):
                at = (task["triggerer_job"] or {}).get("latest_heartbeat") if state == "deferred" else task["end_date"]
                until = datetime.datetime.fromisoformat(at or now.isoformat())
                if task["dag_id"] in ALL and until > now + AHEAD:
                    late.append(
                        Postponed(task["dag_id"], task["dag_run_id"], task["task_id"], task["map_index"], until)
                    )
        return late

    def retry(self, task: Postponed) -> None:
        """Make a waiting task begin now. Like any task that a person cleared, it measures again."""
        which = task.task_id if task.map_index < 0 else [task.task_id, task.map_index]
        clear = {"dry_run": False, "dag_run_id": task.run_id, "task_ids": [which], "only_failed": False}
        self._request("POST", f"/dags/{task.dag_id}{CLEAR}", json=clear)

    def ensure_pool(self, name: str, slots: int) -> None:
        """Create the pool if there is none of this name; a deferred burn-in holds its slot."""
        pool = {"name": name, "slots": slots, "include_deferred": True, "description": ""}
        self._request("POST", "/pools", json=pool, expected=(200, 201, 409))

    def pools(self) -> dict[str, Pool]:
        """Returns the pools by name."""
        return {
            pool["name"]: Pool(pool["slots"], pool["scheduled_slots"], bool(pool["include_deferred"]))
            for pool in self._all("/pools", "pools")
        }

    def plugins(self) -> set[str]:
        """Returns the names of the plugins that the API server has loaded."""
        return {plugin["name"] for plugin in self._all("/plugins", "plugins")}

    def dags(self) -> dict[str, bool]:
        """Returns {DAG id: whether it is paused} of every loaded DAG."""
        return {dag["dag_id"]: bool(dag["is_paused"]) for dag in self._all("/dags", "dags")}

    def is_paused(self, dag_id: str) -> bool:
        """Whether the DAG is paused."""
        return bool(self._request("GET", f"/dags/{dag_id}").json()["is_paused"])

    def pause(self, dag_id: str) -> None:
        """Pause the DAG."""
        self._request("PATCH", f"/dags/{dag_id}", json={"is_paused": True})

    def unpause(self, dag_id: str) -> None:
        """Unpause the DAG."""
        self._request("PATCH", f"/dags/{dag_id}", json={"is_paused": False})

    def hitl_pending(self) -> list[dict[str, Any]]:
        """Returns the human-in-the-loop tasks of Muster's DAGs that wait for an answer, in Airflow's format."""
        path, of = "/dags/~/dagRuns/~/hitlDetails", {"response_received": "false", "state": WAITS}
        return [each for each in self._all(path, "hitl_details", **of) if each["task_instance"]["dag_id"] in ASKING]

    def hitl_answer(
        self, dag_id: str, run_id: str, task_id: str, options: list[str], params: Mapping[str, Any] | None = None
    ) -> None:
        """Answer a human-in-the-loop task."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/-1/hitlDetails"
        answer = {"chosen_options": options, "params_input": dict(params or {})}
        response = self._request("PATCH", path, json=answer, expected=(200, 409))
        if response.status_code == 409:
            found = self._request("GET", path).json() if self._repeated else {}
            if any(found.get(name) != value for name, value in answer.items()):
                raise AirflowRefused(self._message(response, f"PATCH {path}"))

    def health(self) -> dict[str, str]:
        """Returns {component: status} of Airflow's health page, without a login."""
        response = self._send("GET", "/api/v2/monitor/health")
        if not response.is_success:
            raise AirflowRefused(self._message(response, "GET /monitor/health"))
        return {name: str(part.get("status")) for name, part in response.json().items() if isinstance(part, dict)}

    def _all(self, path: str, key: str, **params: Any) -> Iterator[dict[str, Any]]:
        """Yields every entry of a list, page by page: Airflow returns at most 100 at a time."""
        seen = 0
        while True:
            page = self._request("GET", path, params={**params, "limit": 100, "offset": seen}).json()
            yield from page[key]
            seen += len(page[key])
            if not page[key] or seen >= page["total_entries"]:
                return

    def _request(
        self, method: str, path: str, *, expected: tuple[int, ...] = (200, 201, 204), **kwargs: Any
    ) -> httpx.Response:
        fresh = not self._token
        if fresh:
            self._token = self._log_in()
        if not http_request.fits_header(self._token):
            raise AirflowRefused(
                f"the token for Airflow at {self._url} fits no header: set MUSTER_AIRFLOW_TOKEN to the token "
                "alone, in one line"
            )
        headers = {"Authorization": f"Bearer {self._token}"}
        response = self._send(method, f"/api/v2{path}", headers=headers, **kwargs)
        if response.status_code == 401 and not fresh and self._login[0]:
            # The token has expired: retry once with a new one.
            self._token = ""
            return self._request(method, path, expected=expected, **kwargs)
        if response.status_code not in expected:
            raise AirflowRefused(self._message(response, f"{method} {path}"))
        return response

    def _log_in(self) -> str:
        username, password = self._login
        if not username:
            raise AirflowRefused(
                f"there is no login for Airflow at {self._url}: set MUSTER_AIRFLOW_USERNAME and "
                "MUSTER_AIRFLOW_PASSWORD, or MUSTER_AIRFLOW_TOKEN"
            )
        response = self._send("POST", LOGIN, json={"username": username, "password": password})
        if response.status_code not in (200, 201):
            raise AirflowRefused(
                f"Airflow at {self._url} refuses the login of {username}: check MUSTER_AIRFLOW_USERNAME and "
                "MUSTER_AIRFLOW_PASSWORD"
            )
        return str(response.json()["access_token"])

    def _send(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        response = self._send_once(method, path, **kwargs)
        lost = "lost" in response.extensions
        self._repeated = response.is_server_error
        for _ in range(RETRIES):
            # A request that is not safe to send twice is not repeated if the server may have acted on it.
            if not response.is_server_error or (lost and path.endswith(CLEAR)):
                break
            # Airflow on SQLite answers 500 to a request that meets another's write.
            time.sleep(RETRY_S)
            try:
                response = self._send_once(method, path, **kwargs)
            except AirflowUnreachable as error:
                raise AirflowUnreachable(f"{error}{PERHAPS if lost else ''}") from error
            lost = lost or "lost" in response.extensions
        if response.status_code in AWAY:
            said = response.extensions.get("lost", f"status {response.status_code}")
            raise AirflowUnreachable(f"{self._silent(said)}{PERHAPS if lost else ''}")
        if response.is_redirect or (response.is_success and response.content and not _is_object(response)):
            # A portal in front of Airflow, for one, answers each request with its own page.
            raise AirflowUnreachable(f"{self._url} does not answer as Airflow does: check MUSTER_AIRFLOW_URL")
        return response

    def _send_once(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        try:
            return self._client.request(method, path, **kwargs)
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:  # the last for a host like xn--a
            said = str(error) or type(error).__name__
            if method != "GET" and path != LOGIN and isinstance(error, LOST):
                # The server may have acted, as behind a proxy that gives up.
                return httpx.Response(504, extensions={"lost": said})
            raise AirflowUnreachable(self._silent(said)) from error

    def _silent(self, detail: str) -> str:
        return f"Airflow at {self._url} does not answer ({detail}): check MUSTER_AIRFLOW_URL and that it is running"

    def _message(self, response: httpx.Response, what: str) -> str:
        if response.status_code == 401:
            return f"Airflow at {self._url} does not accept the token: set a fresh MUSTER_AIRFLOW_TOKEN, or a login"
        if response.status_code == 403:
            return f"Airflow at {self._url} does not allow {what} to this user: ask for the permission"
        detail = _detail(response)
        if response.status_code == 404:
            return f"Airflow at {self._url} has no such resource ({what}: {detail}): check that its DAGs are loaded"
        return f"Airflow at {self._url} refuses {what} with status {response.status_code}: {detail}"


def _is_object(response: httpx.Response) -> bool:
    try:
        return isinstance(response.json(), dict)
    except ValueError:
        return False


def _detail(response: httpx.Response) -> str:
    try:
        detail = response.json().get("detail", "")
    except (ValueError, AttributeError):
        detail = response.text
    if isinstance(detail, list):
        detail = "; ".join(str(each.get("msg", each)) if isinstance(each, dict) else str(each) for each in detail)
    return " ".join(str(detail).split())[:500] or response.reason_phrase

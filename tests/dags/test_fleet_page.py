"""The Fleet page inside a real Airflow, in a real browser: an operator finds the sick node; others see nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from muster import store
from muster.api import app as api
from muster.model.dags import ADMISSION
from muster.model.runs import RunKey
from muster.model.states import State
from muster.web import PREFIX
from muster.web import app as web
from muster_criteria.model import Verdict
from muster_demo.stack import Stack, write_password
from muster_node.contract import Measurement
from tests.dags import conftest
from tests.muster import fleet
from tests.support.servers import browser, live_airflow

pytestmark = [pytest.mark.slow, pytest.mark.needs_chromium, pytest.mark.early(2)]
READY = "node_qualification"
PASSWORD = "for-this-test"
BLOCK = "cluster_qualification"
SICK = "gpu-0066"
HOSTILE = "<script>window.struck = 1</script><img src=x onerror='window.struck = 1'>"
SHOWN = {
    "fleet": "/",
    "node": "/node/gpu-0007?curve=intake%3A+temperature+%28%C2%B0C%29",
    "block": f"/run?dag_id={BLOCK}&run_id=block-1",
    "compare": "/compare?left=gpu-0001&right=gpu-0007",
}
"""Pages that are looked at in each size and theme."""
SHOTS = "FLEET_SHOTS"
"""A folder that keeps the pictures of each page, size and theme."""


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("page")
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        stack.enter_context(conftest.empty_records(folder, patch))
        for number in range(12):
            store.nodes.add(fleet.new_node(f"gpu-{number:04d}", rack=f"r{number % 3}"))
        fleet.qualify("gpu-0001")
        fails_among_peers("gpu-0007")
        store.nodes.add(fleet.new_node(SICK, rack="r9", serials={"gpu0": HOSTILE}, labels={HOSTILE: HOSTILE}))
        fleet.fail(SICK, "", fleet.finding(summary=HOSTILE, device=HOSTILE, source=HOSTILE))
        for name, verdict in (("gpu-0008", Verdict.PASS), ("gpu-0009", Verdict.FAIL)):
            in_a_block(name, verdict)
        users = {"AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "operator:admin,viewer:viewer"}
        (folder / "token").write_text(PASSWORD)
        metrics = {"MUSTER_METRICS_TOKEN_FILE": str(folder / "token")}
        (folder / "airflow").mkdir()
        write_password(folder / "airflow", "viewer", PASSWORD)
        made = stack.enter_context(live_airflow.running(folder, READY, {**users, **metrics}))
        yield made


@pytest.fixture(scope="module")
def page(airflow: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Browser]:
    """A browser in which the operator has logged in."""
    with browser.chromium(tmp_path_factory.mktemp("profile")) as made:
        login = airflow.login
        made.go(f"{login.url}/auth/login")
        made.wait("document.querySelector('input[name=username]')")
        fields = {"username": login.username, "password": login.password}
        for name, text in fields.items():
            made.script(
                f"(() => {{ const field = document.querySelector('input[name={name}]');"
                "Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set"
                f".call(field, {json.dumps(text)});"
                "field.dispatchEvent(new Event('input', {bubbles: true})); })()"
            )
        made.script("document.querySelector('button[type=submit]').click()")
        made.wait("!location.pathname.includes('/auth/')")
        yield made


def in_a_block(name: str, verdict: Verdict) -> None:
    fleet.qualify(name)
    stage = "cluster_validation"
    lease = store.leases.acquire(name, RunKey(BLOCK, "block-1"))
    store.runs.begin(RunKey(BLOCK, "block-1"), name, "short", "new rack", required_stages=[stage])
    fleet.do_stage(lease, stage, verdict, findings=(fleet.FINDING,) if verdict is Verdict.FAIL else ())
    store.runs.finish(RunKey(BLOCK, "block-1"), verdict, f"The block: {verdict}.", node=name)
    store.leases.release(RunKey(BLOCK, "block-1"), "over")


def fails_among_peers(name: str) -> None:
    """One of its eight GPUs fails; the fleet's statistics hold what such GPUs usually reach."""
    store.peers.keep(fleet.peers(range(590, 640)), "cpu-generic", "short", simulated=False)
    rates = (612.5, 618.0, 604.0, 480.0, 609.0, 621.5, 615.0, 611.0)
    seen = [Measurement("gemm_rate", "gemm_rate", f"gpu{gpu}", "TFLOPS", rate) for gpu, rate in enumerate(rates)]
    lease, (sent, raw) = fleet.begin(name), fleet.result(node=name, measurements=seen)
    found = dataclasses.replace(fleet.judged(seen, floor=600.0), verdict=Verdict.FAIL, findings=(fleet.FINDING,))
    store.runs.begin_stage(lease.key, "intake", node=name)
    warm = fleet.telemetry(100, [f"gpu{gpu}" for gpu in range(len(rates))])
    fleet.record(lease.key, sent, found, raw, warm, node=name)
    store.runs.finish(lease.key, Verdict.FAIL, "gpu3 is slow.")
    store.leases.release(lease.key, "over")


INSIDE = "document.querySelector('iframe').contentDocument"


def bearer(airflow: Stack, username: str = "viewer", password: str = PASSWORD) -> dict[str, str]:
    """The header of a request by this login."""
    login = {"username": username, "password": password}
    token = httpx.post(f"{airflow.login.url}/auth/token", json=login).json()["access_token"]
    return {"Authorization": f"Bearer {token}"}


def enter(airflow: Stack, page: browser.Browser, place: str) -> None:
    """From the Fleet page's table in Airflow's frame to a page that it links to."""
    page.go(f"{airflow.login.url}/plugin/fleet")
    page.wait(f"{INSIDE}.querySelector('caption')")
    page.script(f"{INSIDE}.querySelector('td a[href$=\"{place}\"]').click()")


def shoot(page: browser.Browser, url: str, name: str, size: str, theme: str, folder: Path) -> None:
    """The page is no wider than its window; a picture of it is kept."""
    page.go(url)
    page.script(f"localStorage.setItem('theme', '{theme}')")
    page.resize(*browser.SIZES[size])
    page.go(url)
    assert page.script("document.documentElement.dataset.theme") == theme
    assert page.script("document.documentElement.scrollWidth") <= browser.SIZES[size][0]
    folder = Path(os.environ.get(SHOTS, folder))
    folder.mkdir(parents=True, exist_ok=True)
    page.shoot(folder / f"{name}-{size}-{theme}.png", whole=True)


def test_without_a_login_nothing_is_served(airflow: Stack) -> None:
    routes = [
        (method, str(vars(route)["path"]).replace("{name}", "fleet.css"))
        for route in web.create_app().routes
        for method in vars(route)["methods"]
    ]
    closed = [("GET", path) for path in ("/docs", "/redoc", "/openapi.json", "/nothing")]
    assert len(routes) >= 10
    for expected, asked in ((401, [*routes, ("GET", "/static/fleet.js")]), (404, closed)):
        for method, path in asked:
            answer = httpx.request(method, f"{airflow.login.url}{PREFIX}{path}", params={"dag_id": "d", "run_id": "r"})
            assert answer.status_code == expected, (method, path)
            assert "gpu-" not in answer.text, path


def test_programs_read_by_airflows_tokens_and_metrics_by_their_own(airflow: Stack) -> None:
    login = airflow.login
    operator = bearer(airflow, login.username, login.password)
    token = operator["Authorization"].removeprefix("Bearer ")

    def status(path: str, given: str = "") -> int:
        headers = {"Authorization": f"Bearer {given}"} if given else {}
        answer = httpx.get(f"{login.url}{api.PREFIX}{path}", headers=headers)
        assert answer.status_code in (200, 404) or "gpu-" not in answer.text
        return answer.status_code

    described = httpx.get(f"{login.url}{api.PREFIX}/v1/openapi.json", headers=operator).json()
    assert described["servers"] == [{"url": api.PREFIX}]
    for path in ("/v1/openapi.json", *(path.replace("{name}", "gpu-0007") for path in described["paths"])):
        assert status(path, token) == (404 if path.endswith("certificate") else 200), path
        assert status(path) == 401, path
        assert status(path, PASSWORD) == 403, path
        assert status(path, f"{token}x") == 403, path
    assert (status("/metrics"), status("/metrics", token), status("/metrics", PASSWORD)) == (401, 401, 200)


def test_an_operator_finds_the_sick_node_and_reads_why(airflow: Stack, page: browser.Browser) -> None:
    page.go(f"{airflow.login.url}/plugin/fleet")
    assert "gpu3 is slow." in page.wait(f"{INSIDE}.querySelector('h2').nextElementSibling.innerText")
    page.script(f"{INSIDE}.querySelector('td a[href$=\"/node/gpu-0007\"]').click()")
    assert page.wait(f"{INSIDE}.querySelector('h1').innerText === 'gpu-0007' && {INSIDE}.body.innerText")
    text = page.script(f"{INSIDE}.body.innerText")
    assert fleet.FINDING.summary in text
    assert "Replace gpu3" in text


def test_filters_live_in_the_address_and_back_leads_back(airflow: Stack, page: browser.Browser) -> None:
    page.go(f"{airflow.login.url}/plugin/fleet")
    listed = f"{INSIDE}.querySelector('caption').innerText"
    page.wait(f"{listed} === '13 of 13 nodes'")
    page.script(f"{INSIDE}.querySelector('a[href*=\"state=qualified\"]').click()")
    page.wait(f"{listed} === '2 of 13 nodes'")
    assert "state=qualified" in page.script(f"{INSIDE}.location.search")
    page.wait("location.search.includes('state=qualified')")
    page.script("history.back()")
    page.wait(f"{listed} === '13 of 13 nodes'")
    page.script("history.forward()")
    page.wait(f"{listed} === '2 of 13 nodes'")
    kept = page.wait("location.search.includes('state=qualified') && location.href")
    page.go("about:blank")
    page.go(kept)
    page.wait(f"{listed} === '2 of 13 nodes'")
    assert page.script(f"{INSIDE}.querySelector('select[name=state]').value") == "qualified"


def test_a_table_is_copied_as_csv(airflow: Stack, page: browser.Browser) -> None:
    page.go(f"{airflow.login.url}{PREFIX}/node/gpu-0007")
    page.wait("document.querySelector('.csv button')")
    page.script("URL.createObjectURL = (blob) => { blob.text().then((text) => { window.saved = text; }); return '#'; }")
    page.script("document.querySelectorAll('.csv')[0].querySelectorAll('button')[1].click()")
    header, row = page.wait("window.saved").splitlines()
    assert header.startswith('"id","severity","device"')
    assert fleet.FINDING.summary in row


@pytest.mark.parametrize(("answer", "why"), [("Response.error()", "does not answer"), ("{status: 401}", "Log in")])
def test_a_page_that_is_no_longer_renewed_says_so(airflow: Stack, page: browser.Browser, answer: str, why: str) -> None:
    with page.hastened(20):
        page.go(f"{airflow.login.url}{PREFIX}/")
    page.wait("(document.querySelector('.csv button').focus(), true)")
    stale = "document.getElementById('stale')"
    assert page.script(f"{stale}.hidden")
    page.script(f"window.asked = window.fetch; window.fetch = async () => ({answer})")
    page.wait(f"!{stale}.hidden && {stale}.innerText.includes({why!r})", 60)
    page.script("window.fetch = window.asked")
    page.wait(f"{stale}.hidden", 60)


def test_a_link_to_a_run_opens_airflows_own_page(airflow: Stack, page: browser.Browser) -> None:
    enter(airflow, page, "/node/gpu-0007")
    # The page's script has to run first: until then the link would open inside the frame.
    page.wait(f"{INSIDE}.readyState === 'complete' && {INSIDE}.querySelector('h1').innerText === 'gpu-0007'")
    page.script(f"{INSIDE}.querySelector('a[data-airflow]').click()")
    page.wait(f"location.pathname.startsWith('/dags/{READY}/runs/')")


def test_a_viewer_reads_and_changes_nothing(airflow: Stack) -> None:
    url = f"{airflow.login.url}{PREFIX}/node/gpu-0003"
    form = {"what": "move", "state": "quarantine", "reason": "x", "confirmed": "yes"}
    origin = {"Origin": airflow.login.url}
    assert httpx.post(url, data=form, headers=origin).status_code == 401
    viewer = bearer(airflow)
    assert httpx.get(url, headers=viewer).status_code == 200
    assert httpx.post(url, data=form, headers=origin | viewer).status_code == 403
    assert store.nodes.get("gpu-0003").state is State.REGISTERED


def test_an_operator_starts_a_test_under_their_login_and_a_viewer_does_not(airflow: Stack) -> None:
    url = f"{airflow.login.url}{PREFIX}/node/gpu-0002/test"
    form = {"level": "short", "reason": "new fan", "confirmed": "yes"}
    statuses = []
    for username, password in (("viewer", PASSWORD), (airflow.login.username, airflow.login.password)):
        headers = {"Origin": airflow.login.url, **bearer(airflow, username, password)}
        statuses.append(httpx.post(url, data=form, headers=headers).status_code)
    assert statuses == [403, 303]
    for again in (form, {**form, "confirmed": ""}):  # queued: Airflow alone knows it
        assert httpx.post(url, data=again, headers=headers).status_code == 400
    started = httpx.get(f"{airflow.login.url}/api/v2/dags/{READY}/dagRuns/gpu-0002__new-fan", headers=headers).json()
    assert started["conf"] == {"node": "gpu-0002", "level": "short", "reason": "new fan"}
    assert started["triggering_user_name"] == airflow.login.username


def test_what_a_node_sends_stays_text(airflow: Stack, page: browser.Browser) -> None:
    report, beside = f"/report?dag_id={READY}&run_id={SICK}__new", f"/compare?left=gpu-0001&right={SICK}"
    for path in (f"/node/{SICK}", "/", report, beside):
        page.go(f"{airflow.login.url}{PREFIX}{path}")
        if path != "/":
            assert "window.struck" in page.script("document.body.innerText"), path
        assert not page.script("window.struck"), path
        assert not page.script("document.querySelectorAll('img[src=x], script:not([src])').length"), path


def test_an_operator_waives_a_finding_after_seeing_what_it_means(airflow: Stack, page: browser.Browser) -> None:
    (found,) = store.verdicts.open_findings(SICK)
    enter(airflow, page, f"/node/{SICK}")
    page.wait(f"{INSIDE}.querySelector('select[name=finding]')")
    page.script(f"{INSIDE}.querySelector('select[name=finding]').value = '{found.finding.id}'")
    form = f"{INSIDE}.querySelector('select[name=finding]').closest('form')"
    page.script(f"{form}.querySelector('input[name=reason]').value = 'the spare is ordered'")
    page.script(f"{form}.querySelector('button').click()")
    page.wait(f"{INSIDE}.body.innerText.includes('no longer fails a test until')")
    assert not store.waivers.find(node=SICK)
    page.script(f"{INSIDE}.querySelector('button[name=confirmed]').click()")
    page.wait(f"{INSIDE}.querySelector('h1').innerText.startsWith('{SICK}')")
    (waiver,) = store.waivers.find(node=SICK)
    assert (waiver.person, waiver.reason) == (airflow.login.username, "the spare is ordered")


def test_an_operator_quarantines_a_node_after_seeing_what_it_means(airflow: Stack, page: browser.Browser) -> None:
    enter(airflow, page, "/node/gpu-0005")
    page.wait(f"{INSIDE}.querySelector('input[name=reason]')")
    page.script(f"{INSIDE}.querySelector('select[name=state]').value = 'quarantine'")
    page.script(f"{INSIDE}.querySelector('input[name=reason]').value = 'smells of smoke'")
    page.script(f"{INSIDE}.querySelector('form[method=post] button').click()")
    page.wait(f"{INSIDE}.body.innerText.includes('it is not tested while it is in quarantine')")
    page.script(f"{INSIDE}.querySelector('button[name=confirmed]').click()")
    page.wait(f"{INSIDE}.querySelector('h1').innerText === 'gpu-0005'")
    event = store.nodes.events("gpu-0005")[-1]
    assert (event.to_state, event.login) == (State.QUARANTINE, f"airflow:{airflow.login.username}")


def test_a_question_is_answered_beside_its_evidence_and_by_no_viewer(
    airflow: Stack, page: browser.Browser, tmp_path: Path
) -> None:
    desk = live_airflow.Desk(airflow)
    airflow.wait_ready(ADMISSION)
    desk.client.trigger(ADMISSION, "asked", {"node": "gpu-0001"})
    desk.wait("the question", desk.client.hitl_pending)
    url = f"{airflow.login.url}{PREFIX}/approvals"
    viewer = {"Origin": airflow.login.url, **bearer(airflow)}
    seen = httpx.get(url, headers=viewer)
    assert "gpu-0001" in seen.text
    assert "<form" not in seen.text
    node = httpx.get(f"{airflow.login.url}{PREFIX}/node/gpu-0001", headers=viewer)
    assert "Open findings" in node.text
    assert 'method="post"' not in node.text
    assert "Your login may not answer" in node.text, "the question stands on the node's page too"
    assert "1 question waits" in httpx.get(f"{airflow.login.url}{PREFIX}/", headers=viewer).text
    for path in ("run", "report"):
        tab = f"{airflow.login.url}{PREFIX}/{path}?dag_id={ADMISSION}&run_id=asked"
        for task in ("", "&task_id=ask&map_index={MAP_INDEX}", "&task_id=ask&map_index=-1"):
            shown = httpx.get(tab + task, headers=viewer)
            assert shown.status_code == 303, tab + task
            assert shown.headers["location"].endswith("/node/gpu-0001" if path == "run" else "run_id=asked")
    form = {"option": "Admit", "reason": "x"}
    assert httpx.post(f"{url}/{ADMISSION}/asked/ask", data=form, headers=viewer).status_code == 403
    assert desk.client.hitl_pending(), "a viewer's answer counts for nothing"

    desk.settle()
    for size, theme in itertools.product(browser.SIZES, ("light", "dark")):
        shoot(page, url, "approvals", size, theme, tmp_path)
        browser.axe(page, url)
    page.go(f"{airflow.login.url}/plugin/fleet")
    page.wait(f"{INSIDE}.querySelector('caption')")
    page.script(f"{INSIDE}.querySelector('a[href$=\"/approvals\"]').click()")
    assert "All is well." in page.wait(f"{INSIDE}.querySelector('.question').innerText")
    page.script(f"{INSIDE}.querySelector('select[name=option]').value = 'Admit'")
    page.script(f"{INSIDE}.querySelector('input[name=reason]').value = 'seen it myself'")
    page.script(f"{INSIDE}.querySelector('form[method=post] button').click()")
    page.wait(f"{INSIDE}.querySelector('button[name=confirmed]')")
    assert "qualified → production" in page.script(f"{INSIDE}.body.innerText")
    assert desk.client.hitl_pending(), "a preview answers nothing"
    page.script(f"{INSIDE}.querySelector('button[name=confirmed]').click()")
    page.wait(f"{INSIDE}.body.innerText.includes('No question waits')")
    assert desk.wait_over(ADMISSION, "asked") == "success"
    assert store.nodes.get("gpu-0001").state is State.PRODUCTION
    (approval,) = store.verdicts.approvals("gpu-0001")
    assert (approval.person, approval.reason) == (airflow.login.username, "seen it myself")


def test_nothing_is_asked_of_another_host(airflow: Stack, page: browser.Browser) -> None:
    page.requested.clear()
    for path in SHOWN.values():
        page.go(f"{airflow.login.url}{PREFIX}{path}")
    assert len(page.requested) >= len(SHOWN)
    hosts = {urllib.parse.urlsplit(url).netloc for url in page.requested if url.startswith("http")}
    assert hosts == {urllib.parse.urlsplit(airflow.login.url).netloc}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("path", SHOWN.values(), ids=SHOWN)
def test_axe_finds_nothing_serious(airflow: Stack, page: browser.Browser, path: str, theme: str) -> None:
    page.go(f"{airflow.login.url}{PREFIX}{path}")
    page.script(f"localStorage.setItem('theme', '{theme}')")
    browser.axe(page, f"{airflow.login.url}{PREFIX}{path}")


@pytest.mark.parametrize("size", browser.SIZES)
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("path", SHOWN.values(), ids=SHOWN)
def test_no_page_is_wider_than_its_window(
    airflow: Stack, page: browser.Browser, path: str, theme: str, size: str, tmp_path: Path
) -> None:
    name = next(name for name, shown in SHOWN.items() if shown == path)
    shoot(page, f"{airflow.login.url}{PREFIX}{path}", name, size, theme, tmp_path)


@pytest.mark.parametrize("path", SHOWN.values(), ids=SHOWN)
def test_on_a_phone_no_table_scrolls_sideways_and_its_headings_stay(
    airflow: Stack, page: browser.Browser, path: str
) -> None:
    page.resize(*browser.SIZES["phone"])
    page.go(f"{airflow.login.url}{PREFIX}{path}")
    assert page.script("document.querySelectorAll('table').length")
    wide = "[...document.querySelectorAll('.scroll')].filter((each) => each.scrollWidth > each.clientWidth)"
    assert page.script(f"{wide}.map((each) => each.innerText)") == []
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    roles = {each["role"]["value"] for each in nodes if not each["ignored"]}
    assert {"table", "row", "columnheader", "cell"} <= roles
    browser.axe(page, f"{airflow.login.url}{PREFIX}{path}")


def test_a_figure_is_drawn_among_its_peers(airflow: Stack, page: browser.Browser) -> None:
    page.go(f"{airflow.login.url}{PREFIX}/node/gpu-0007")
    assert page.script("document.querySelectorAll('svg.plot rect.peers').length") == 1
    assert page.script("document.querySelectorAll('svg.plot circle.bad').length") == 1

"""The webhook backend against a receiver over real HTTP that drops, delays, refuses and lies."""

from __future__ import annotations

import base64
import datetime
import json
from typing import Any

import pytest

from muster import store
from muster.admission import service
from muster.admission.backend import AdmissionBackend, Mark
from muster.admission.backends.webhook import Webhook, WebhookSettings, signed
from muster.admission.clusters import backend_of, check
from muster.admission.entry import move
from muster.errors import BadScheduler, BadSettings, LeftAlone, MusterError, SchedulerDown
from muster.model.states import State
from muster.store.database import wanted
from tests.muster import copied, fleet
from tests.muster.admission.conftest import webhook_settings
from tests.support.servers.receiver import Receiver

MARK = Mark("PASS", datetime.date(2026, 11, 23), "c-1")
NODE = "gpu-0001"


@pytest.fixture
def beside(receiver: Receiver, fleet_db: str) -> AdmissionBackend:
    return backend_of("hook")


@pytest.fixture
def blind(receiver: Receiver, fleet_db: str, monkeypatch: pytest.MonkeyPatch) -> Receiver:
    """A receiver that offers no state, and gpu-0001 admitted there."""
    webhook_settings(monkeypatch, receiver, state_url="")
    check("hook", ["n0"])
    copied.records(_assigned)
    move(NODE, State.PRODUCTION, "Ada", "needed now")
    receiver.messages.clear()
    return receiver


def _assigned() -> None:
    store.nodes.add(fleet.new_node())
    store.schedulers.assign(NODE, "hook", "n0", "Ada", "rack 1")
    fleet.qualify()


def test_the_signature_is_the_one_of_standard_webhooks() -> None:
    """The example of its specification."""
    secret = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    headers = signed(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


class Shows(Webhook):
    """Its receiver's state is what ``nodes`` says."""

    nodes: list[Any]

    def _request(self, method: str, url: str, message: str, body: bytes) -> tuple[int, bytes]:
        return 200, json.dumps({"nodes": self.nodes}).encode()


@pytest.mark.parametrize("odd", [7, {"name": "n9"}, {"name": "n9", "open": "ajar"}, {"open": True}, None])
def test_an_odd_node_of_a_state_stops_no_other(odd: Any) -> None:
    shows = Shows(WebhookSettings(kind="webhook", url="https://r", connection="r", state_url="https://r/s"))
    shows.nodes = [odd, {"name": "n1", "open": True}]
    seen = shows.look(["n1", "n9"])
    assert seen["n1"].open
    assert "n9" not in seen or (seen["n9"].apart and not seen["n9"].open)


def test_a_node_that_a_state_shows_twice_is_in_neither_way() -> None:
    shows = Shows(WebhookSettings(kind="webhook", url="https://r", connection="r", state_url="https://r/s"))
    shows.nodes = [{"name": "n1", "open": False, "closed_by": "ada"}, {"name": "n1", "open": True}]
    assert not shows.look(["n1"])["n1"].open
    shows.nodes = [{"name": "n1", "open": True}] * 2
    assert shows.look(["n1"])["n1"].open


@pytest.mark.parametrize("mood", ["drop", "delay", "500", "429", "401", "redirect", "lie", "done, and no answer",
                                  "done, and drips"])  # fmt: skip
def test_a_change_that_goes_wrong_waits_and_is_carried_out_once(blind: Receiver, mood: str) -> None:
    """ "lie" is known by the state alone, which this receiver does not offer."""
    blind.mood = [mood]
    move(NODE, State.QUARANTINE, "Ada", "noise")
    place = store.schedulers.place(NODE)
    assert place
    assert place.waits is (mood != "lie")
    assert not service.idle([NODE])[NODE].idle
    service.reconcile()
    assert len({each["id"] for each in blind.messages}) == 1
    if mood != "lie":
        assert blind.nodes["n0"]["closed_by"] == "muster"
    assert blind.forged == 0


def test_later_changes_have_higher_sequences_even_if_the_clock_goes_back(
    blind: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    move(NODE, State.QUARANTINE, "Ada", "noise")
    with monkeypatch.context() as at:
        at.setattr(wanted.clock, "now", lambda: datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC))
        move(NODE, State.TRIAGE, "Ada", "looked at")
        store.schedulers.withdraw_for_test(NODE, "once more", again=True)
        service.carry_out(NODE)
    sequences = [each["data"]["sequence"] for each in blind.messages]
    assert len(sequences) == 2
    assert sequences == sorted(set(sequences))
    assert not blind.nodes["n0"]["open"]


def test_a_node_that_gets_its_place_again_takes_its_sequences_from_the_clock(blind: Receiver) -> None:
    move(NODE, State.QUARANTINE, "Ada", "noise")
    store.schedulers.assign(NODE, "", "", "Ada", "rack 1 is moved")
    store.schedulers.assign(NODE, "hook", "n0", "Ada", "rack 2")
    service.carry_out(NODE)
    sequences = [each["data"]["sequence"] for each in blind.messages]
    assert len(sequences) == 2
    assert sequences == sorted(set(sequences))


def test_a_change_that_is_repeated_is_a_message_of_its_own(blind: Receiver) -> None:
    for state in (State.QUARANTINE, State.TRIAGE, State.REPAIR, State.REGISTERED):
        move(NODE, state, "Ada", "noise")
    store.schedulers.renew_reason(NODE)
    service.carry_out(NODE)
    first, second = blind.messages
    assert second["id"] != first["id"]
    assert blind.nodes["n0"]["reason"] == second["data"]["reason"] != first["data"]["reason"]


@pytest.mark.parametrize("answer", ["202", "409"])
def test_an_answer_that_confirms_nothing_leaves_the_change_waiting(blind: Receiver, answer: str) -> None:
    blind.mood = [answer]
    move(NODE, State.QUARANTINE, "Ada", "noise")
    place = store.schedulers.place(NODE)
    assert place
    assert place.waits


def test_without_state_the_label_tells_whether_a_node_is_in_use(blind: Receiver) -> None:
    assert service.idle([NODE])[NODE].idle
    assert service.allocation(NODE)
    store.nodes.add_all([("", fleet.new_node(labels={"busy": "job 7"}))], actor="Ada")
    assert not service.idle([NODE])[NODE].idle


class TestWithState:
    @pytest.mark.parametrize("mood", [["drop"], ["500"], ["babble"], ["", "lie"], ["", "500"], ["", "", "babble"]])
    def test_what_the_state_does_not_confirm_is_not_done(
        self, beside: AdmissionBackend, receiver: Receiver, mood: list[str]
    ) -> None:
        receiver.mood = mood
        with pytest.raises(SchedulerDown):
            beside.withdraw("n0", "failed burn_in")
        beside.withdraw("n0", "failed burn_in")
        assert beside.look(["n0"])["n0"].ours

    def test_a_node_that_is_closed_already_gets_the_new_reason(
        self, beside: AdmissionBackend, receiver: Receiver
    ) -> None:
        for reason in ("registered, not admitted yet", "failed integrity"):
            beside.withdraw("n0", reason)
        assert "failed integrity" in str(receiver.nodes["n0"]["reason"])

    @pytest.mark.parametrize("apart", ["", "powered down"])
    def test_what_somebody_else_closed_stays(self, beside: AdmissionBackend, receiver: Receiver, apart: str) -> None:
        receiver.nodes["n0"].update(open=False, closed_by="alice", reason="fan", apart=apart)
        with pytest.raises(LeftAlone):
            beside.admit("n0", MARK)
        if not apart:
            beside.withdraw("n0", "failed burn_in")
        assert not receiver.messages

    def test_an_admission_waits_while_the_node_is_apart(self, beside: AdmissionBackend, receiver: Receiver) -> None:
        receiver.nodes["n0"].update(apart="powered down")
        with pytest.raises(LeftAlone):
            beside.admit("n0", MARK)
        assert not receiver.messages

    def test_a_requested_test_that_began_later_opens_the_node(
        self, beside: AdmissionBackend, receiver: Receiver
    ) -> None:
        since = datetime.datetime(2026, 11, 23, tzinfo=datetime.UTC)
        receiver.nodes["n0"].update(open=False, closed_by="alice", reason="muster:verify", closed_at=since.isoformat())
        assert beside.look(["n0"])["n0"].idle.idle
        with pytest.raises(LeftAlone):
            beside.admit("n0", Mark("PASS", MARK.date, "c-1", since - datetime.timedelta(seconds=1)))
        beside.admit("n0", Mark("PASS", MARK.date, "c-1", since + datetime.timedelta(seconds=1)))
        assert receiver.nodes["n0"]["open"]

    def test_a_node_that_it_does_not_know_is_one_error(self, beside: AdmissionBackend) -> None:
        with pytest.raises(SchedulerDown):
            beside.withdraw("n9", "x")
        with pytest.raises(BadScheduler):
            check("hook", ["n9"])


@pytest.mark.parametrize("mood", ["500", "drop", "delay"])
def test_no_error_shows_more_of_an_address_than_its_host(
    blind: Receiver, monkeypatch: pytest.MonkeyPatch, mood: str
) -> None:
    """Receivers such as chat webhooks have their secret in the path."""
    webhook_settings(monkeypatch, blind, url=f"{blind.url}/s3cret", state_url=f"{blind.url}/s3cret?key=s3cret")
    blind.mood = [mood]
    with pytest.raises(SchedulerDown) as error:
        backend_of("hook").withdraw("n0", "x")
    webhook_settings(monkeypatch, blind, url=f"{blind.url}/s3cret", state_url="")
    blind.mood = [mood]
    move(NODE, State.QUARANTINE, "Ada", "noise")
    place = store.schedulers.place(NODE)
    assert place
    assert place.last_error
    assert "s3cret" not in f"{error.value} {place.last_error}"


def test_what_a_backend_says_is_kept_and_logged_without_a_login(
    blind: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_given: object, **_how: object) -> None:
        raise SchedulerDown("https://ada:s3cret@scheduler.example/ refuses")

    monkeypatch.setattr(Webhook, "withdraw", refuse)
    move(NODE, State.QUARANTINE, "Ada", "noise")
    place = store.schedulers.place(NODE)
    assert place
    assert place.last_error
    assert "s3cret" not in f"{place.last_error} {caplog.text}"


@pytest.mark.parametrize("secret", ["", "hunter2", "whsec_", "whsec_c2hvcnQ="])
def test_a_secret_that_protects_nothing_sends_nothing(
    receiver: Receiver, fleet_db: str, monkeypatch: pytest.MonkeyPatch, secret: str
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_HOOK", f'{{"conn_type": "http", "password": "{secret}"}}')
    with pytest.raises(BadScheduler):
        backend_of("hook").withdraw("n0", "x")
    assert not receiver.messages


def test_an_address_without_encryption_is_refused(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    webhook_settings(monkeypatch, receiver, url="http://scheduler.example.org/muster")
    with pytest.raises(BadSettings):
        backend_of("hook")


def test_a_receiver_that_is_away_is_one_error(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    webhook_settings(monkeypatch, receiver, url="https://127.0.0.1:1/", state_url="")
    with pytest.raises(MusterError):
        backend_of("hook").withdraw("n0", "x")


@pytest.mark.parametrize(
    "url", ["https://host:port/", "https://ho\x00st/", "https://", "https://ada:s3cret@scheduler.example/"]
)
def test_an_address_that_is_none_is_refused(receiver: Receiver, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    webhook_settings(monkeypatch, receiver, url=url)
    with pytest.raises(BadSettings) as error:
        backend_of("hook")
    assert "s3cret" not in str(error.value)

"""A real Slurm: marks, drains of others, and what its commands return."""

from __future__ import annotations

import dataclasses
import datetime
import getpass
import json
import signal

import pytest

from muster.admission.backend import TEST_PREFIX, Mark, Seen
from muster.admission.backends.slurm.backend import FEATURE
from muster.admission.clusters import backend_of
from muster.errors import LeftAlone, SchedulerDown
from tests.muster.admission.test_backends import MARK
from tests.support.servers.slurm import Slurm
from tests.support.waiting import until


@pytest.mark.slow
@pytest.mark.needs_slurm
class TestSlurm:
    @pytest.fixture(autouse=True)
    def _cluster(self, alpha: Slurm, fleet_db: str) -> None:
        self.cluster, self.backend = alpha, backend_of("alpha")

    def seen(self, name: str = "n0") -> Seen:
        return self.backend.look([name])[name]

    def test_what_an_admission_leaves_beside_the_node(self) -> None:
        self.cluster.update("n0", "AvailableFeatures=h100")
        self.backend.withdraw("n0", "failed burn_in")
        assert "Reason=muster: failed burn_in" in self.cluster.show("n0")
        self.backend.withdraw("n0", "failed integrity")
        assert "Reason=muster: failed integrity" in self.cluster.show("n0")
        self.backend.admit("n0", MARK)
        shown = self.cluster.show("n0")
        assert f"AvailableFeatures=h100,{FEATURE}" in shown
        assert "Extra=muster: PASS 2026-11-23 certificate c-1" in shown
        self.cluster.call("scontrol", "reconfigure")
        assert not self.seen().marked
        until(lambda: self.seen().open)
        self.backend.admit("n0", MARK)
        assert self.seen().marked

    def test_extra_of_somebody_else_stays(self) -> None:
        self.cluster.update("n0", "Extra=asset 4711")
        self.backend.withdraw("n0", "x")
        self.backend.admit("n0", MARK)
        assert "Extra=asset 4711" in self.cluster.show("n0")

    @pytest.mark.parametrize("reason", ["bad fan", "muster - not quite", "fan muster: x"])
    def test_a_foreign_drain_stays_whatever_we_decide(self, reason: str) -> None:
        self.cluster.update("n0", "State=DRAIN", f"Reason={reason}")
        before = self.cluster.show("n0")
        self.backend.withdraw("n0", "failed burn_in")
        with pytest.raises(LeftAlone):
            self.backend.admit("n0", MARK)
        assert self.cluster.show("n0").split("Reason=")[1] == before.split("Reason=")[1]

    def test_our_words_under_another_user_are_foreign(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.backend.withdraw("n0", "failed burn_in")
        monkeypatch.setattr(self.backend, "_user", "muster")
        assert not self.seen().ours
        with pytest.raises(LeftAlone):
            self.backend.admit("n0", MARK)

    def test_a_note_on_an_open_node_does_not_stop_a_withdrawal(self) -> None:
        self.cluster.update("n0", "Reason=ticket 12")
        self.backend.withdraw("n0", "failed burn_in")
        assert self.seen().ours

    def test_a_node_that_somebody_calls_failing_is_left_alone(self) -> None:
        self.cluster.update("n0", "State=FAIL", "Reason=psu")
        self.backend.withdraw("n0", "x")
        with pytest.raises(LeftAlone):
            self.backend.admit("n0", MARK)
        shown = self.seen()
        assert (bool(shown.apart), "psu" in shown.foreign) == (True, True)
        assert "Reason=psu" in self.cluster.show("n0")
        assert self.seen().allocation

    def test_a_node_that_somebody_took_down_is_not_opened_and_drained_for_when_it_returns(self) -> None:
        self.cluster.update("n0", "State=DOWN", "Reason=psu")
        assert "psu" in self.seen().in_hand
        for reason in ("failed burn_in", "failed integrity"):
            for _ in range(2):
                self.backend.withdraw("n0", reason)
        shown = self.seen()
        assert (shown.ours, bool(shown.apart), "psu" in shown.in_hand) == (True, True, True)
        assert "Reason=muster: failed integrity (was: psu, set by root)" in self.cluster.show("n0")
        with pytest.raises(LeftAlone):
            self.backend.admit("n0", MARK)
        assert "DOWN" in self.cluster.show("n0"), "what somebody else decided stays"
        assert not self.seen().allocation

    def test_a_long_reason_is_cut_and_the_one_before_it_stays(self) -> None:
        self.cluster.update("n0", "State=DOWN", f"Reason={'psu ' * 60}")
        for _ in range(2):
            self.backend.withdraw("n0", "failed " * 60)
        reason = self.cluster.show("n0").split("Reason=")[1]
        assert (reason.count("(was: psu psu"), reason.count("muster: failed")) == (1, 1)

    def test_a_reserved_node_is_not_tested_and_is_drained_and_opened_like_any_other(self) -> None:
        self.cluster.call("scontrol", "create", "reservation", "ReservationName=r", "StartTime=now", "Duration=60",
                          "Nodes=n0", "Users=root", "Flags=ignore_jobs")  # fmt: skip
        try:
            until(lambda: "reservation" in self.seen().used_by)
            assert not self.seen().idle.idle
            self.backend.withdraw("n0", "x")
            assert self.seen().ours
            assert not self.seen().allocation
            self.backend.admit("n0", MARK)
            until(lambda: self.seen().open)
        finally:
            self.cluster.call("scontrol", "delete", "ReservationName=r")
        until(lambda: self.seen().idle.idle)

    @pytest.mark.slow
    def test_a_node_that_was_away_for_longer_than_slurmd_timeout_is_opened_by_a_test_since_its_start(self) -> None:
        self.backend.withdraw("n3", "registered : panne = ventilateur")
        self.cluster.stop("n3")
        try:
            until(lambda: "State=DOWN" in self.cluster.show("n3"), limit_s=120)
        finally:
            self.cluster.start_node("n3")
        until(lambda: self.seen("n3").booted is not None)
        with pytest.raises(LeftAlone):
            self.backend.admit("n3", MARK)
        tested = dataclasses.replace(MARK, tested_since=datetime.datetime.now(datetime.UTC))
        self.backend.admit("n3", tested)
        self.cluster.await_nodes(["n3"])

    def test_a_node_that_does_not_respond_is_closed_when_it_returns(self) -> None:
        self.cluster.stop("n3")
        try:
            until(lambda: self.cluster.call("scontrol", "update", "NodeName=n3", "State=RESUME", check=False) == ""
                  and bool(self.seen("n3").apart))  # fmt: skip
            self.backend.withdraw("n3", "failed burn_in")
        finally:
            self.cluster.start_node("n3")
        until(lambda: not self.seen("n3").apart)
        assert self.seen("n3").ours
        self.backend.admit("n3", MARK)
        self.cluster.await_nodes(["n3"])

    def test_a_job_is_named_and_survives_the_withdrawal(self) -> None:
        job = self.cluster.call("sbatch", "--parsable", "-w", "n1", "-o", "/dev/null", "--wrap", "sleep 60").strip()
        until(lambda: bool(self.seen("n1").used_by))
        self.backend.withdraw("n1", "revalidation")
        assert job in self.seen("n1").allocation
        assert not self.seen("n1").idle.idle
        assert "R" in self.cluster.call("squeue", "-h", "-j", job, "-o", "%t")
        self.backend.admit("n1", MARK)
        until(lambda: self.seen("n1").open)

    def test_a_line_in_a_jobs_name_is_no_job(self, monkeypatch: pytest.MonkeyPatch) -> None:
        chosen = {"kind": "slurm", "slurm_conf": str(self.cluster.conf), "end_corrupted_jobs": True}
        monkeypatch.setenv("MUSTER_SCHEDULERS", json.dumps({"alpha": chosen}))
        submit = ("sbatch", "--parsable", "-o", "/dev/null", "--chdir=/", "--wrap", "sleep 60")
        other = self.cluster.call(*submit, "-w", "n2").strip()
        job = self.cluster.call(*submit, "-w", "n1", f"--job-name=a\n{other}|root|x").strip()
        until(lambda: bool(self.seen("n1").used_by) and bool(self.seen("n2").used_by))
        user = getpass.getuser()
        assert self.seen("n1").used_by == f"Slurm job {job} of {user}"
        end_jobs = backend_of("alpha").end_jobs
        assert end_jobs
        assert list(end_jobs("n1")) == [f"{job} (a {other}|root|x) of {user}"]
        assert self.cluster.call("squeue", "-h", "-j", other, "-o", "%t").strip() == "R"

    def test_only_the_task_of_an_array_that_is_on_the_node_ends(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The task that began last has the number of the whole array."""
        chosen = {"kind": "slurm", "slurm_conf": str(self.cluster.conf), "end_corrupted_jobs": True}
        monkeypatch.setenv("MUSTER_SCHEDULERS", json.dumps({"alpha": chosen}))
        submit = ("sbatch", "--parsable", "--exclusive", "-o", "/dev/null", "--chdir=/", "--wrap", "sleep 60")
        array = self.cluster.call(*submit, "--array=1-2", "--job-name=train").strip()

        def listed() -> list[list[str]]:
            lines = self.cluster.call("squeue", "-h", "-t", "R", "-j", array, "-o", "%A %i %N").splitlines()
            return [line.split(" ") for line in lines]

        until(lambda: len(listed()) == 2)
        ((_, last, node),) = [each for each in listed() if each[0] == array]
        end_jobs = backend_of("alpha").end_jobs
        assert end_jobs
        assert list(end_jobs(node)) == [f"{last} (train) of {getpass.getuser()}"]
        until(lambda: len(listed()) == 1)
        assert last not in listed()[0]
        self.cluster.call("scancel", array)

    def test_a_test_begins_before_a_reservation_that_leaves_its_stages_time(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        chosen = {"kind": "slurm", "slurm_conf": str(self.cluster.conf), "test_partition": "muster"}
        monkeypatch.setenv("MUSTER_SCHEDULERS", json.dumps({"alpha": chosen}))
        tests = backend_of("alpha").tests
        assert tests
        reservation = ("ReservationName=later", "Users=root", "StartTime=now+2hours", "Duration=60", "Nodes=n1")
        self.cluster.call("scontrol", "create", "reservation", *reservation)
        try:
            tests.begin("n1", f"{TEST_PREFIX}1", 60)
        finally:
            tests.end(f"{TEST_PREFIX}1")
            self.cluster.call("scontrol", "delete", "ReservationName=later")

    def test_a_node_whose_job_is_suspended_is_not_idle(self) -> None:
        job = self.cluster.call("sbatch", "--parsable", "-w", "n1", "-o", "/dev/null", "--wrap", "sleep 60").strip()
        until(lambda: bool(self.seen("n1").used_by))
        self.cluster.call("scontrol", "suspend", job)
        until(lambda: "idle" in self.cluster.call("sinfo", "-h", "-n", "n1", "-o", "%T"))
        assert f"job {job} of " in self.seen("n1").used_by
        self.cluster.call("scancel", job)

    @pytest.mark.parametrize("moment", ["the user is looked up", "the certificate is shown"])
    def test_a_drain_between_our_look_and_our_change_stays(self, moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Over SSH each command is a login of its own, so seconds may lie between them."""
        self.backend.withdraw("n0", "failed burn_in")
        method = "_our_user" if moment == "the user is looked up" else "_update"
        ordinary, calls = getattr(self.backend, method), []

        def slow(*args: str) -> object:
            found = ordinary(*args)
            if not calls:
                self.cluster.update("n0", "State=DRAIN", "Reason=bad fan")
            calls.append(args)
            return found

        monkeypatch.setattr(self.backend, method, slow)
        with pytest.raises(LeftAlone):
            self.backend.admit("n0", MARK)
        assert "Reason=bad fan" in self.cluster.show("n0")
        assert "DRAIN" in self.cluster.show("n0")

    @pytest.mark.parametrize("tested", ["before", "after"])
    def test_a_person_who_asks_for_a_test_gets_the_node_opened_by_a_later_pass_alone(self, tested: str) -> None:
        self.cluster.update("n0", "State=DRAIN", "Reason=ECC? muster:verify please")
        seen = self.seen()
        assert (seen.verify, seen.idle.idle, seen.ours) == (True, True, False)
        assert seen.foreign_since
        shift = datetime.timedelta(seconds=5 if tested == "after" else -5)
        mark = Mark("PASS", MARK.date, "c-1", seen.foreign_since + shift)
        if tested == "after":
            self.backend.admit("n0", mark)
        else:
            with pytest.raises(LeftAlone):
                self.backend.admit("n0", mark)
        until(lambda: self.seen().open is (tested == "after"))

    def test_a_controller_that_is_away_or_hangs_is_one_error_and_no_empty_cluster(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MUSTER_SCHEDULER_TIMEOUT_S", "2")
        hasty = backend_of("alpha")
        self.cluster.process("slurmctld").send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(SchedulerDown):
                hasty.look(["n0"])
        finally:
            self.cluster.process("slurmctld").send_signal(signal.SIGCONT)
        self.cluster.stop("slurmctld")
        try:
            for act in (lambda: self.backend.look(["n0"]), lambda: self.backend.withdraw("n0", "x")):
                with pytest.raises(SchedulerDown):
                    act()
        finally:
            self.cluster.start_controller()
            self.cluster.await_nodes(self.cluster.names)

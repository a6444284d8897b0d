"""The demo's examiner: what turns it red, and what must not."""

from __future__ import annotations

import dataclasses
import datetime

import pytest

from muster.model.events import Approval
from muster_criteria.model import Action, Coverage, FaultClass, Finding, Judgement, Severity, Verdict
from muster_demo.draw import FAULT_KINDS, GPUS_PER_NODE, Planted, draw_faults, load_answers, node_names, save_answers
from muster_demo.scoring import NAMED_BY, Aftermath, InSlurm, Mail, Score, Service, score
from muster_reports.model import RunReport, StageReport

HOST = "host-here"
NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
TELLING = {
    "missing_gpu": ("gpu_model", "expected_devices"),
    "sdc": ("gemm_mismatches", "exact"),
    "throttle": ("throttle_time", "ceiling"),
    "slow_gemm": ("gemm_rate", "floor"),
}


def finding(metric: str, device: str, rule: str = "floor", severity: Severity = Severity.CRITICAL) -> Finding:
    return Finding(rule, metric, device, severity, FaultClass.GPU, Action.RMA, "1", "2", "test", f"{metric} {device}")


def report(node: str, verdict: Verdict, findings: tuple[Finding, ...] = (), simulated: bool = True) -> RunReport:
    judgement = Judgement(
        "performance", "demo", verdict, "", Coverage(1, 1, 1), findings, (), simulated, "h100-sxm-8", "1"
    )
    return RunReport(
        node=node,
        sku="h100-sxm-8",
        run_id=f"{node}__demo",
        dag_id="node_qualification",
        reason="demo",
        simulated=simulated,
        verdict=verdict,
        headline="it is slow" if verdict is Verdict.FAIL else "",
        state_before="registered",
        state_after="quarantine" if verdict is Verdict.FAIL else "qualified",
        started_at=NOW,
        ended_at=NOW,
        identity=(),
        environment=(),
        stages=(StageReport(judgement, NOW, 1.0, ()),),
    )


def mail(node: str, simulated: bool = True) -> Mail:
    if simulated:
        return Mail(f"[simulated] {node}: verdict", "all figures are SIMULATED")
    return Mail(f"{node}: verdict", "measured; forced, since simulated nodes run here too")


def serving(node: str) -> Service:
    """Validated with others, let in by the gate, tested again."""
    validated = dataclasses.replace(
        report(node, Verdict.PASS), dag_id="cluster_qualification", state_before="qualified", state_after="production"
    )
    again = dataclasses.replace(
        report(node, Verdict.PASS), dag_id="node_revalidation", state_before="production", state_after="production"
    )
    return Service(node, "production", "muster", True, (), (validated,), (again,))


def repaired(node: str) -> Service:
    """As ``serving``; then it failed between tests, was repaired and qualified again."""
    return dataclasses.replace(serving(node), state="qualified", proofs=(report(node, Verdict.PASS),))


def failed_in_block(node: str, *named: tuple[str, str]) -> Service:
    """Failed by its block, with findings of these rules on these devices."""
    rows = tuple(finding("step", device, rule) for rule, device in named)
    block = dataclasses.replace(report(node, Verdict.FAIL, rows), dag_id="cluster_qualification")
    return Service(node, "quarantine", validations=(block,))


def approval(node: str, person: str, reason: str) -> Approval:
    return Approval(node, NOW, person, "Admit", reason, "http://airflow/hitl", "admission/run")


class Fleet:
    """A demo that went right, to be broken in one way at a time."""

    def __init__(self, seed: int = 7) -> None:
        self.planted = draw_faults(seed)
        faulty = {fault.node: fault for fault in self.planted}
        self.reports = {HOST: report(HOST, Verdict.PROVISIONAL, simulated=False)}
        self.mails = [mail(HOST, simulated=False)]
        self.services = {HOST: Service(HOST, "qualified")}
        self.slurm: InSlurm | None = None
        spare, in_block, failed = (node for node in node_names() if node not in faulty)
        self.in_block = tuple(Planted(in_block, gpu, kind) for gpu, kind in enumerate(NAMED_BY))
        self.aftermath: Aftermath | None = Aftermath(
            Planted(failed, 5, "row_remap_pending"), "row_remap_pending on gpu5", "/archive/bundle", True,
            ("reset_gpu: succeeded",), True, spare,
        )  # fmt: skip
        for node in node_names():
            fault = faulty.get(node)
            if fault:
                metric, rule = TELLING[fault.kind]
                self.reports[node] = report(node, Verdict.FAIL, (finding(metric, fault.device, rule),))
                self.services[node] = Service(node, "quarantine")
            else:
                self.reports[node] = report(node, Verdict.PASS)
                self.services[node] = repaired(node) if node == failed else serving(node)
                if node == in_block:
                    named = [(NAMED_BY[each.kind], each.device) for each in self.in_block]
                    self.services[node] = failed_in_block(node, *named)
            self.mails += [mail(node)] * (1 + len(self.services[node].reports))

    def of_kind(self, kind: str) -> RunReport:
        return self.reports[next(fault.node for fault in self.planted if fault.kind == kind)]

    def healthy(self) -> RunReport:
        faulty = {fault.node for fault in self.planted}
        return next(self.reports[node] for node in node_names() if node not in faulty)

    def put(self, changed: RunReport) -> None:
        self.reports[changed.node] = changed

    def change(self, node: str, **fields: object) -> None:
        """Break how a node came into service, or what became of it there; its mails stay one a run."""
        old = self.services[node]
        new = self.services[node] = dataclasses.replace(old, **fields)
        more = len(new.reports) - len(old.reports)
        if more < 0:
            self.mails = [each for each in self.mails if node not in each.subject]
            self.mails += [mail(node)] * (1 + len(new.reports))
        else:
            self.mails += [mail(node)] * more

    def score(self) -> Score:
        return score(
            list(self.reports.values()), self.services, self.planted, self.mails, host=HOST, simulated=node_names(),
            slurm=self.slurm, in_block=self.in_block, aftermath=self.aftermath,
        )  # fmt: skip

    def in_slurm(self, **changed: object) -> None:
        """Have a Slurm in the demo; right, but for what is ``changed``."""
        serving = [node for node, served in self.services.items() if served.entered_by]
        closed = {HOST: "muster: registered, not admitted yet"}
        closed |= {node: "muster: it failed" for node in serving if self.services[node].state != "production"}
        failed = [*self.planted, *self.in_block]
        closed |= {fault.node: "muster: the run found a critical fault: it is slow" for fault in failed}
        right = InSlurm(ran=tuple(serving), gave_way={serving[0]: 1.5}, closed=closed)
        self.slurm = dataclasses.replace(right, **changed)  # type: ignore[arg-type]

    def wrong(self) -> list[str]:
        return [check.code for check in self.score().checks if not check.ok]


def with_findings(old: RunReport, *findings: Finding) -> RunReport:
    return report(old.node, old.verdict, findings, old.simulated)


def test_a_right_demo_is_green() -> None:
    result = Fleet().score()
    assert result.ok, [check for check in result.checks if not check.ok]


@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_a_disabled_detector_turns_it_red(kind: str) -> None:
    fleet = Fleet()
    fleet.put(report(fleet.of_kind(kind).node, Verdict.PASS))
    assert not fleet.score().ok


@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_a_fault_found_on_the_wrong_gpu_turns_it_red(kind: str) -> None:
    fleet = Fleet()
    found = fleet.of_kind(kind)
    metric, rule = TELLING[kind]
    right = next(fault.gpu for fault in fleet.planted if fault.kind == kind)
    fleet.put(with_findings(found, finding(metric, f"gpu{(right + 1) % GPUS_PER_NODE}", rule)))
    assert not fleet.score().ok


@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_another_gpu_accused_as_well_turns_it_red(kind: str) -> None:
    fleet = Fleet()
    found = fleet.of_kind(kind)
    right = next(fault.gpu for fault in fleet.planted if fault.kind == kind)
    innocent = finding("gemm_rate", f"gpu{(right + 3) % GPUS_PER_NODE}")
    fleet.put(with_findings(found, *found.stages[0].judgement.findings, innocent))
    assert not fleet.score().ok


def test_a_mere_warning_is_not_a_detection() -> None:
    fleet = Fleet()
    found = fleet.of_kind("slow_gemm")
    (only,) = found.stages[0].judgement.findings
    fleet.put(with_findings(found, dataclasses.replace(only, severity=Severity.WARNING)))
    assert not fleet.score().ok


@pytest.mark.parametrize("verdict", [Verdict.FAIL, Verdict.INCONCLUSIVE])
def test_a_healthy_node_that_did_not_qualify_turns_it_red(verdict: Verdict) -> None:
    fleet = Fleet()
    fleet.put(report(fleet.healthy().node, verdict))
    assert not fleet.score().ok


def test_the_host_failed_turns_it_red() -> None:
    fleet = Fleet()
    fleet.put(report(HOST, Verdict.FAIL, (finding("gemm_peak_share", "cpu0"),), simulated=False))
    assert not fleet.score().ok


NOT_SERVED: list[dict[str, object]] = [
    {"state": "qualified", "entered_by": "", "on_full_pass": False},
    {"state": "quarantine"},
    {"validations": ()},
    {"on_full_pass": False},
    {"entered_by": "Petra"},
]


@pytest.mark.parametrize("fields", NOT_SERVED)
def test_a_healthy_node_that_did_not_rightly_enter_production_turns_it_red(fields: dict[str, object]) -> None:
    fleet = Fleet()
    fleet.change(fleet.healthy().node, **fields)
    assert set(fleet.wrong()) >= {"served"}
    assert set(fleet.wrong()) <= {"served", "replaced"}


def test_with_admission_disabled_no_node_serves_and_it_is_red() -> None:
    fleet = Fleet()
    for node, served in list(fleet.services.items()):
        if served.entered_by:
            fleet.change(node, state="qualified", entered_by="", on_full_pass=False, revalidations=())
    assert set(fleet.wrong()) == {"served", "revalidated", "replaced"}


def test_a_member_that_its_block_did_not_pass_turns_it_red() -> None:
    fleet = Fleet()
    node = fleet.healthy().node
    failed = dataclasses.replace(fleet.services[node].validations[0], verdict=Verdict.FAIL)
    fleet.change(node, validations=(failed,))
    assert not fleet.score().ok


def test_a_recorded_person_may_admit_a_node() -> None:
    fleet = Fleet()
    node = fleet.healthy().node
    fleet.change(
        node, entered_by="demo-operator", on_full_pass=False, approvals=(approval(node, "demo-operator", "it may"),)
    )
    assert fleet.score().ok, fleet.wrong()
    fleet.change(node, approvals=(approval(node, "somebody else", "it may"),))
    assert not fleet.score().ok


def test_without_a_test_in_production_it_is_red() -> None:
    fleet = Fleet()
    for node, served in list(fleet.services.items()):
        if served.entered_by:
            fleet.change(node, revalidations=())
    assert fleet.wrong() == ["revalidated"]


SPOILT: list[tuple[str, dict[str, object]]] = [
    ("between_tests", {"left_for": ""}),
    ("between_tests", {"left_for": "row_remap_pending on gpu4"}),
    ("between_tests", {"left_for": "xid/79 on gpu5"}),
    ("evidence", {"whole": False}),
    ("replaced", {"replaced_by": ""}),
    ("replaced", {"replaced_by": HOST}),
    ("repaired", {"repairs": ()}),
    ("repaired", {"repairs": ("reset_gpu: permanent",)}),
    ("repaired", {"repairs": ("reset_gpu: succeeded", "reboot: succeeded")}),
    ("repaired", {"proved": False}),
]


@pytest.mark.parametrize(("code", "changed"), SPOILT)
def test_a_repair_story_that_went_another_way_turns_it_red(code: str, changed: dict[str, object]) -> None:
    fleet = Fleet()
    assert fleet.aftermath is not None
    fleet.aftermath = dataclasses.replace(fleet.aftermath, **changed)  # type: ignore[arg-type]
    assert fleet.wrong() == [code]


def test_a_repair_that_its_tests_did_not_prove_turns_it_red() -> None:
    fleet = Fleet()
    assert fleet.aftermath is not None
    fleet.change(fleet.aftermath.fault.node, proofs=(report(fleet.aftermath.fault.node, Verdict.FAIL),))
    assert fleet.wrong() == ["repaired"]


def test_a_demo_in_which_nothing_failed_between_tests_is_red() -> None:
    fleet = Fleet()
    assert fleet.aftermath is not None
    fleet.change(fleet.aftermath.fault.node, state="production", proofs=())
    fleet.aftermath = None
    assert fleet.wrong() == ["between_tests"]


def test_one_of_them_tested_again_is_enough_and_a_warning_is_not() -> None:
    fleet = Fleet()
    first, second = (node for node, served in fleet.services.items() if served.entered_by)
    fleet.change(first, revalidations=())
    assert fleet.score().ok, fleet.wrong()
    (again,) = fleet.services[second].revalidations
    fleet.change(second, revalidations=(dataclasses.replace(again, verdict=Verdict.WARN),))
    assert not fleet.score().ok


def test_a_faulty_node_or_the_host_in_production_turns_it_red() -> None:
    for node in (Fleet().of_kind("sdc").node, HOST):
        fleet = Fleet()
        fleet.change(node, state="production", entered_by="muster", on_full_pass=True)
        assert "kept_out" in fleet.wrong()


def test_a_missing_run_turns_it_red() -> None:
    fleet = Fleet()
    del fleet.reports[fleet.healthy().node]
    assert not fleet.score().ok


def test_a_simulated_stage_passed_off_as_real_turns_it_red() -> None:
    fleet = Fleet()
    healthy = fleet.healthy()
    stage = healthy.stages[0]
    real = dataclasses.replace(stage, judgement=dataclasses.replace(stage.judgement, simulated=False))
    fleet.put(dataclasses.replace(healthy, stages=(real,)))
    assert not fleet.score().ok


def test_a_verdict_that_peers_changed_has_a_mail_of_its_own() -> None:
    fleet = Fleet()
    node = fleet.healthy().node
    fleet.services[node] = dataclasses.replace(fleet.services[node], judged_again=1)
    assert not fleet.score().ok
    fleet.mails.append(mail(node))
    assert fleet.score().ok


def test_a_lost_or_doubled_or_unmarked_mail_turns_it_red() -> None:
    for spoil in (
        lambda mails: mails.pop(),
        lambda mails: mails.append(mails[-1]),
        lambda mails: mails.append(dataclasses.replace(mails.pop(), text="measured")),
        lambda mails: mails.append(dataclasses.replace(mails.pop(), subject=f"{node_names()[-1]}: verdict")),
        lambda mails: mails.insert(0, dataclasses.replace(mails.pop(0), subject=f"[simulated] {HOST}")),
    ):
        fleet = Fleet()
        spoil(fleet.mails)
        assert not fleet.score().ok


def spoilt_slurms() -> list[tuple[str, dict[str, object]]]:
    fleet = Fleet()
    fleet.in_slurm()
    assert fleet.slurm is not None
    closed, (healthy, other), faulty = fleet.slurm.closed, fleet.slurm.ran, fleet.of_kind("sdc").node
    opened = {node: reason for node, reason in closed.items() if node != faulty}
    return [
        ("slurm", {"ran": (other,)}),
        ("slurm", {"closed": {**closed, healthy: "muster: it was tested"}}),
        ("slurm", {"closed": opened}),
        ("slurm", {"closed": {**closed, faulty: "bad fan"}}),
        ("slurm", {"closed": {**closed, faulty: "muster: registered, not admitted yet"}}),
        ("gave_way", {"gave_way": {}}),
        ("gave_way", {"gave_way": {faulty: 1.0}}),
    ]


@pytest.mark.parametrize(("code", "changed"), spoilt_slurms())
def test_a_slurm_that_does_not_obey_turns_it_red(code: str, changed: dict[str, object]) -> None:
    fleet = Fleet()
    fleet.in_slurm()
    assert fleet.score().ok
    fleet.in_slurm(**changed)
    assert fleet.wrong() == [code]


def test_nothing_checked_is_not_a_success() -> None:
    assert not Score(()).ok


def test_a_seed_draws_the_same_faults_and_another_moves_them() -> None:
    assert draw_faults(1) == draw_faults(1)
    draws = {tuple((fault.node, fault.gpu) for fault in draw_faults(seed)) for seed in range(50)}
    assert len(draws) > 45
    for seed in range(50):
        faults = draw_faults(seed)
        assert {fault.kind for fault in faults} == set(FAULT_KINDS)
        assert len({fault.node for fault in faults}) == len(FAULT_KINDS)


def test_answers_survive_the_file(tmp_path) -> None:
    save_answers(tmp_path / "answers.json", 3, draw_faults(3))
    assert load_answers(tmp_path / "answers.json") == draw_faults(3)
    assert (tmp_path / "answers.json").stat().st_mode & 0o077 == 0

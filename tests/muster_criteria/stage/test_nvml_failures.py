"""Any NVML call whose answer is required fails in any way, at any moment: no PASS, and no other GPU is charged with it.

From the stand-in of NVML through inventory and watch to the judge; what other probes report is healthy.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from muster_criteria.model import Judgement, Severity, Verdict
from muster_node.hardware.nvidia import nvml as nvml_module
from muster_node.hardware.nvidia.gpus import NvidiaGpus
from muster_node.probe import Metric
from muster_node.probes.inventory import Inventory
from muster_node.workloads.under_load.gpus import METRICS, Reading, under_load
from tests.muster_criteria.nodes import Case, MakeCase, measurement
from tests.muster_node.hardware.nvml_standin import FakeNvml, Hangs, run_or_hang

INDEX, GPU = 2, "gpu4"
GPUS = [f"gpu{slot}" for slot in range(8)]
READINGS = 6
MOMENTS = {"inventory": (), "from the middle": (3, 4, 5), "at the end": (5,)}
Fail = Callable[[Any], Any]


def _refused(code: int) -> Fail:
    def fail(answer: Any) -> Any:
        raise pynvml.NVMLError(code)

    return fail


def _hangs(answer: Any) -> Any:
    raise Hangs


def _garbage(answer: Any) -> Any:
    """A number that nothing is, wherever there is one."""
    ones = 2**63 - 1
    if isinstance(answer, int):
        return ones
    if isinstance(answer, list) and answer and isinstance(answer[0], pynvml.c_nvmlFieldValue_t):
        answer[0].value.ullVal = ones
        answer[0].valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
        return answer
    if isinstance(answer, (list, tuple)):
        return [ones for _ in answer]
    return SimpleNamespace(**dict.fromkeys(vars(answer), ones)) if isinstance(answer, SimpleNamespace) else ones


FAILURES: dict[str, Fail] = {
    "not supported": _refused(pynvml.NVML_ERROR_NOT_SUPPORTED),
    "no permission": _refused(pynvml.NVML_ERROR_NO_PERMISSION),
    "lost": _refused(pynvml.NVML_ERROR_GPU_IS_LOST),
    "reset required": _refused(pynvml.NVML_ERROR_RESET_REQUIRED),
    "time-out": _refused(pynvml.NVML_ERROR_TIMEOUT),
    "unknown": _refused(pynvml.NVML_ERROR_UNKNOWN),
    "hangs": _hangs,
    "garbage": _garbage,
}
STATIC = (
    "nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMaxPcieLinkGeneration",
    "nvmlDeviceGetMaxPcieLinkWidth", "nvmlDeviceGetRowRemapperHistogram", "nvmlDeviceGetPersistenceMode",
    "nvmlDeviceGetCurrentClocksEventReasons",
)  # fmt: skip
"""Required of the inventory only; of the others, the watch requires them too."""
REPAIRS = ("nvmlDeviceGetRepairStatus", "nvmlDeviceGetUnrepairableMemoryFlag_v1")
LASTING = (
    "nvmlDeviceGetEccMode", "nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetRemappedRows", "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetRetiredPagesPendingStatus", "nvmlDeviceGetCurrPcieLinkGeneration", "nvmlDeviceGetUUID",
    "nvmlDeviceGetCurrPcieLinkWidth", pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, *REPAIRS,
)  # fmt: skip
WATCHED = (
    "nvmlDeviceGetPcieReplayCounter", "nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetComputeMode",
    "nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses",
    pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY, pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY,
)  # fmt: skip
"""Required of the watch only."""
NO_NUMBER = ("nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetComputeRunningProcesses",
             "nvmlDeviceGetGraphicsRunningProcesses")  # fmt: skip
"""Their answers are texts and lists, which any may be."""
SCENARIOS = [
    (call, failure, moment)
    for call, failure, moment in itertools.product((*STATIC, *LASTING, *WATCHED), FAILURES, MOMENTS)
    if not ((call in STATIC and moment != "inventory") or (call in WATCHED and moment == "inventory"))
    and not (call in NO_NUMBER and failure == "garbage")
    and not (call == "nvmlDeviceGetCurrPcieLinkGeneration" and moment == "at the end")  # a link may rest then
]


class Failing(FakeNvml):
    """A healthy eight-GPU board, of which one call about one GPU fails."""

    def __init__(self, call: str | int, fail: Fail) -> None:
        super().__init__(
            links=18, nvmlDeviceGetTotalEccErrors=0, nvmlDeviceGetRemappedRows=(0, 0, 0, 0),
            nvmlDeviceGetCurrPcieLinkWidth=16, nvmlDeviceGetCurrentClocksEventReasons=0,
            nvmlDeviceGetClockInfo=1980,            nvmlDeviceGetUtilizationRates=SimpleNamespace(gpu=100, memory=40),
        )  # fmt: skip
        self._call, self._fail, self.fails = call, fail, False

    def _answer(self, name: str, *arguments: Any) -> Any:
        field = arguments[1][0] if name == "nvmlDeviceGetFieldValues" else None
        called = name if field is None else field[0] if isinstance(field, tuple) else field
        if name == "nvmlDeviceGetNvLinkState" and arguments[1] < self.links:
            answer: Any = 1
        else:
            answer = super()._answer(name, *arguments)
        return self._fail(answer) if self.fails and called == self._call and arguments[:1] == (INDEX,) else answer


def _rows(probe: str, metrics: dict[str, Metric], found: list[Any]) -> list[dict[str, Any]]:
    return [
        measurement(
            probe, name, each.device, each.text if each.value is None else each.value,
            metrics[name].unit_on(each.device), labels=dict(each.labels), note=each.note,
        )
        for each in found
        if (name := getattr(each, "metric", "") or each.name) in metrics
    ]  # fmt: skip


def _judged(made: Case, board: Failing, moment: str) -> Judgement:
    board.fails = moment == "inventory"
    gpus = NvidiaGpus(board)
    rows = _rows("inventory", dict(Inventory.metrics), list(gpus.inventory()))
    if moment != "inventory":
        readings: list[Reading] = []
        for place in range(READINGS):
            board.fails = place in MOMENTS[moment]
            # A healthy board answers each time what it answered first; reading all its links takes most of a test.
            facts = readings[0].facts if readings and not board.fails else tuple(gpus.states())
            readings.append(Reading(100.0 * place, facts))
        sampled = {gpu: {"none": 100.0 * (READINGS - 1)} for gpu in GPUS}
        rows += _rows("gpu_watch", METRICS, list(under_load(readings, GPUS, sampled)))
    places = {(row["probe"], row["metric"], row["device"]) for row in rows}
    kept = [row for row in made.raw["measurements"] if (row["probe"], row["metric"], row["device"]) not in places]
    made.raw["measurements"] = kept + rows
    return made.judge()


def _holds(case: MakeCase, call: str | int, failure: str, moment: str) -> None:
    stage = "intake" if moment == "inventory" else "burn_in"
    judgement = _judged(case(stage), Failing(call, FAILURES[failure]), moment)
    said = {gap.device for gap in judgement.coverage.missing} | {finding.device for finding in judgement.findings}
    where = (call, failure, moment, judgement.reason)
    assert GPU in said, where
    assert said <= {GPU, "node"}, where


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml_module._Worker, "run", run_or_hang)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_board_of_which_nothing_fails_has_nothing(case: MakeCase, moment: str) -> None:
    stage = "intake" if moment == "inventory" else "burn_in"
    judgement = _judged(case(stage), Failing("", _hangs), moment)
    assert not judgement.findings
    assert not judgement.coverage.missing


@pytest.mark.parametrize(
    ("status", "bad", "found"),
    [
        ([1, 0], 1, {("channel_repair_pending", "hbm", "reset"), ("unrepairable_memory", "hbm", "rma")}),
        ([0, 1], 0, {("tpc_repair_pending", "gpu", "reset")}),
    ],
)
def test_a_gpu_that_says_that_it_is_bad_fails_intake(
    case: MakeCase, status: list[int], bad: int, found: set[tuple[str, str, str]]
) -> None:
    board = Failing("", _hangs)
    board.answers["nvmlDeviceGetRepairStatus"] = lambda handle: status if handle == INDEX else [0, 0]
    board.answers["nvmlDeviceGetUnrepairableMemoryFlag_v1"] = lambda handle: bad * (handle == INDEX)
    judgement = _judged(case("intake"), board, "inventory")
    assert judgement.verdict is Verdict.FAIL
    assert {(each.metric, each.fault_class, each.action) for each in judgement.findings} == found
    assert {each.device for each in judgement.findings} == {GPU}


@pytest.mark.parametrize(
    ("code", "verdict", "found"),
    [
        (pynvml.NVML_ERROR_RESET_REQUIRED, Verdict.FAIL, {("gpu_lost", "inspect"), ("recovery_action", "reset")}),
        (pynvml.NVML_ERROR_UNKNOWN, Verdict.INCONCLUSIVE, set()),
    ],
)
def test_a_gpu_that_answers_who_it_is_and_refuses_the_rest_does_not_pass_intake(
    case: MakeCase, code: int, verdict: Verdict, found: set[tuple[str, str]]
) -> None:
    board = Failing("", _hangs)
    board.only_identity[INDEX] = code
    judgement = _judged(case("intake"), board, "inventory")
    assert judgement.verdict is verdict
    assert {(each.metric, each.action) for each in judgement.findings if each.device == GPU} == found
    named = {each.device for each in judgement.findings} | {each.device for each in judgement.coverage.missing}
    assert named <= {GPU, "node"}


def test_links_that_came_back_under_load_warn_of_their_gpu(case: MakeCase) -> None:
    made = case("burn_in").add(
        "gpu_watch", "nvlink_errors_delta", GPU, 3.0, "count", labels={"kind": "recovered"}, note="link 4: 3"
    )
    found = [(each.device, each.fault_class, each.severity) for each in made.judge().findings]
    assert found == [(GPU, "nvlink", Severity.WARNING)]


@pytest.mark.parametrize("moment", MOMENTS)
def test_what_an_older_driver_does_not_know_is_not_missed(case: MakeCase, moment: str) -> None:
    board = Failing("", _hangs)
    board.refuse = dict.fromkeys(REPAIRS, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    judgement = _judged(case("intake" if moment == "inventory" else "burn_in"), board, moment)
    assert not judgement.findings
    assert not judgement.coverage.missing


@pytest.mark.parametrize("scenario", SCENARIOS[::31], ids=str)
def test_no_failure_passes_or_is_charged_to_another_gpu(case: MakeCase, scenario: tuple[str | int, str, str]) -> None:
    """Some of them; all are in the slow suite."""
    _holds(case, *scenario)


@pytest.mark.slow
@pytest.mark.parametrize("failure", FAILURES)
def test_no_failure_of_any_call_does(case: MakeCase, failure: str) -> None:
    for scenario in SCENARIOS:
        if scenario[1] == failure:
            _holds(case, *scenario)

"""Drivers' errors under a code, by the XID policy: what it says, how it is read, what becomes of a node's errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from muster_criteria import policy_file
from muster_criteria.device_events.judge import event_of, returned
from muster_criteria.device_events.policy import DeviceEvent, EventPolicy, EventSeverity, response_to, returning
from muster_criteria.model import COMMON_CAUSE, DEVICE_EVENT, Action, Gap, Lack, Severity, Verdict
from muster_criteria.policy_file import BadPolicy
from muster_criteria.sku_files.model import SkuError
from muster_criteria.sku_files.skus import SHIPPED, load_sku
from muster_node.hardware.events import folded, labels_of
from muster_node.hardware.host.kernel_events import device_events
from tests.muster_criteria.nodes import Case, MakeCase, measurement

SHIPPED_POLICY = SHIPPED / "policies" / "nvidia-xid.yaml"
IGNORE, MONITOR, RESET, REBOOT, ISOLATE = (
    EventSeverity.IGNORE,
    EventSeverity.MONITOR,
    EventSeverity.RESET,
    EventSeverity.REBOOT,
    EventSeverity.ISOLATE,
)


@pytest.fixture(scope="module")
def policy() -> EventPolicy:
    return policy_file.parse(EventPolicy, SHIPPED_POLICY.read_bytes(), SHIPPED_POLICY.name)


def event(code: int, text: str = "", **more: Any) -> DeviceEvent:
    return DeviceEvent(**({"kind": "xid", "code": code, "device": "gpu3", "pci": "0000:1b:00", "text": text} | more))


def nvlink(unit: str, fatal: str, info: int, status: int) -> str:
    return f"{unit} {fatal} XC0 i0 Link 08 ({info:#010x} {status:#010x} 0x00000000 0x00000000)"


@pytest.mark.parametrize(
    ("code", "severity", "action"),
    [
        (13, MONITOR, Action.RETEST),
        (48, RESET, Action.RESET),
        (54, ISOLATE, Action.RESEAT),
        (63, IGNORE, Action.NONE),
        (74, RESET, Action.RESET),
        (79, REBOOT, Action.REBOOT),
        (92, MONITOR, Action.INSPECT),
        (94, MONITOR, Action.INSPECT),
        (95, RESET, Action.RESET),
        (109, RESET, Action.RESET),
        (121, MONITOR, Action.INSPECT),
        (160, REBOOT, Action.REBOOT),
        (161, ISOLATE, Action.RMA),
        (4711, MONITOR, Action.INSPECT),
    ],
)
def test_the_shipped_table_says(policy: EventPolicy, code: int, severity: EventSeverity, action: Action) -> None:
    response = response_to(event(code), policy)
    assert (response.severity, response.action) == (severity, action)
    assert response.source.startswith("policy nvidia-xid 2026.1: ")


def test_where_others_disagree_the_table_says_whose_side_it_takes(policy: EventPolicy) -> None:
    disputed = {code: entry for entry in policy.entries for code in entry.codes if entry.others}
    assert {63, 92, 94, 109, 121} <= set(disputed)
    assert all("'s: " in entry.why and len(entry.others) >= 3 for entry in disputed.values())


@pytest.mark.parametrize(
    ("text", "severity", "action"),
    [
        ("GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", RESET, Action.RESET),
        ("GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", REBOOT, Action.REBOOT),
        ("GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)", REBOOT, Action.REBOOT),
        ("GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)", RESET, Action.RESET),
        ("GPU recovery action changed from 0x0 (None) to 0x3 (Drain P2P)", MONITOR, Action.INSPECT),
        ("GPU recovery action changed from 0x0 (None) to 0x5 (Recover IMEX Domain)", MONITOR, Action.FIX_SOFTWARE),
        ("GPU recovery action changed from 0x0 (None) to 0x6 (Bus Reset)", RESET, Action.RESET),
        ("GPU recovery action changed from 0x0 (None) to 0x7 (System Reboot)", REBOOT, Action.REBOOT),
        ("GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", IGNORE, Action.NONE),
        ("something new", MONITOR, Action.INSPECT),
    ],
)
def test_xid_154_carries_its_own_verdict(
    policy: EventPolicy, text: str, severity: EventSeverity, action: Action
) -> None:
    response = response_to(event(154, text), policy)
    assert (response.severity, response.action) == (severity, action)


@pytest.mark.parametrize(
    ("code", "text", "severity"),
    [
        (144, nvlink("SAW_MVB", "Nonfatal", 0x1, 0x4), IGNORE),
        (144, nvlink("SAW_MVB", "Fatal", 0x1, 0x2), RESET),
        (145, nvlink("RLW_REMAP", "Nonfatal", 0x4, 0x10), MONITOR),
        (145, nvlink("RLW_REMAP", "Nonfatal", 0x4, 0x100), IGNORE),
        (145, nvlink("RLW_TAGSTATE", "Fatal", 0x8, 0x20000), RESET),
        (146, nvlink("TLW_RX/TLW_RX_PIPE0", "Fatal", 0xA, 0x4), RESET),
        (147, nvlink("TREX", "Nonfatal", 0xE, 0x1), MONITOR),
        (149, nvlink("NETIR_BER_EVENT", "Nonfatal", 0x13, 0x1), MONITOR),
        (149, nvlink("NETIR_LINK_EVT", "Fatal", 0x02500011, 0x0), RESET),
        (149, nvlink("NETIR_LINK_EVT/NETIR_LINK_DOWN", "Fatal", 0x26 << 20 | 0x11, 0x0), MONITOR),
        (149, nvlink("NETIR_MFDE_EVENT", "Nonfatal", 0x14, 0x3), IGNORE),
        (150, nvlink("MSE_WATCHDOG", "Fatal", 0x0, 0x0), RESET),
        (145, nvlink("RLW_NEW_UNIT", "Fatal", 0x4, 0x7), RESET),
        (145, nvlink("RLW_NEW_UNIT", "Nonfatal", 0x4, 0x7), MONITOR),
        (149, "not written like the others", MONITOR),
    ],
)
def test_nvlink_5_errors_go_by_unit_status_and_sub_code(
    policy: EventPolicy, code: int, text: str, severity: EventSeverity
) -> None:
    assert response_to(event(code, text), policy).severity is severity


def test_nvlink_5_texts_are_read_as_the_policys_fields_say(policy: EventPolicy) -> None:
    text = nvlink("NETIR_LINK_EVT/NETIR_LINK_DOWN", "Fatal", 0xFC4505C6, 0x40)
    assert {name: set(field.read(text)) for name, field in policy.fields.items()} == {
        "unit": {"netir_link_evt", "netir_link_down"}, "subcode": {4}, "status": {0x40}, "grade": {"fatal"}
    }  # fmt: skip
    assert not any(field.read("Link 8 is down") for field in policy.fields.values())


@pytest.mark.parametrize(
    ("text", "severity"), [("Fatal, Link 30 LTSSM Fault Up", RESET), ("Non-fatal, Link 46", MONITOR), ("?", MONITOR)]
)
def test_sxids_go_by_the_drivers_own_word(policy: EventPolicy, text: str, severity: EventSeverity) -> None:
    assert response_to(event(28006, text, kind="sxid", device="nvswitch3"), policy).severity is severity


def test_a_fatal_error_after_many_that_are_none_is_judged_as_what_it_is(case: MakeCase) -> None:
    texts = [nvlink("NETIR_BER_EVENT", "Nonfatal", 0x00400000 + number, 0x0) for number in range(20)]
    texts.append(nvlink("NETIR_LINK_EVT", "Fatal  ", 0x004505C6, 0x0))
    log = [f"[{200 + at}.0] NVRM: Xid (PCI:0000:1b:00): 149, {text}" for at, text in enumerate(texts)]
    made = case("thermal").add("inventory", "kernel_log_time", "node", 100.0, "s").set("xid_total", value=21.0)
    for number, each in enumerate(folded(device_events(log))):
        made.add("device_events", "xid", "gpu3", each.text, "text", labels=labels_of(each, number), samples=each.count)
    judgement = made.judge()
    assert [(each.severity, each.action) for each in judgement.findings] == [
        (Severity.CRITICAL, Action.RESET), (Severity.WARNING, Action.INSPECT)
    ]  # fmt: skip
    assert not judgement.coverage.missing


BAD: list[tuple[str, Any]] = [
    ("no severity", lambda raw: raw["entries"][0].pop("severity")),
    ("no source", lambda raw: raw["entries"][0].pop("source")),
    ("an unknown source", lambda raw: raw["entries"][0].update(source="hearsay")),
    ("a source without date", lambda raw: raw["sources"]["aws"].pop("date")),
    ("an unknown severity", lambda raw: raw["entries"][0].update(severity="PANIC")),
    ("a code twice", lambda raw: raw["entries"][0].update(codes=[79])),
    ("no codes", lambda raw: raw["entries"][0].update(codes=[])),
    ("a key that is none", lambda raw: raw["entries"][0].update(sevrity="RESET")),
    (
        "a dispute without a side",
        lambda raw: next(e for e in raw["entries"] if 63 in e["codes"]).pop("why"),
    ),
    (
        "a pattern that is none",
        lambda raw: next(e for e in raw["entries"] if 154 in e["codes"])["cases"][0].update(matches="("),
    ),
    ("no word on unknown codes", lambda raw: raw["unknown"].pop()),
    ("an entry of another kind", lambda raw: raw["entries"][0].update(kind="mce")),
    ("a field that is none", lambda raw: raw["fields"].pop("unit")),
    ("codes and a pattern", lambda raw: raw["entries"][0].update(matches=["anything"])),
    ("an escalation of an unknown source", lambda raw: raw["escalation"].update(source="hearsay")),
]


def refused_policy(spoil: Any) -> str:
    """The sentence that refuses the shipped policy with one thing wrong."""
    raw = yaml.safe_load(SHIPPED_POLICY.read_text())
    spoil(raw)
    with pytest.raises(BadPolicy) as refused:
        policy_file.parse(EventPolicy, yaml.safe_dump(raw).encode(), "mine.yaml")
    return str(refused.value)


@pytest.mark.parametrize("spoil", [bad[1] for bad in BAD], ids=[bad[0] for bad in BAD])
def test_a_bad_table_is_refused(spoil: Any) -> None:
    assert "\n" not in refused_policy(spoil)


@pytest.mark.parametrize("text", [b"", b"- a", b"a: [", b"\xff\xfe", b"x" * 300_000])
def test_what_is_no_table_is_refused_too(text: bytes) -> None:
    with pytest.raises(BadPolicy):
        policy_file.parse(EventPolicy, text, "mine.yaml")


def test_a_policy_that_is_not_there_is_named_by_the_sku(tmp_path: Path) -> None:
    raw = yaml.safe_load((SHIPPED / "h100-sxm-8.yaml").read_text()) | {"sku": "mine", "policies": "nvidia-xyd"}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(raw))
    with pytest.raises(SkuError):
        load_sku("mine", [tmp_path])


def logged(case: Case, code: int, text: str = "", *, at: float = 200.0, began: float = 100.0, count: int = 1) -> Case:
    """A stage whose kernel log had come to ``began`` when it began, and which has one XID of ``at``."""
    labels = {"kind": "xid", "code": str(code), "pci": "0000:1b:00", "at": f"{at:.6f}", "n": "0"}
    case.add("inventory", "kernel_log_time", "node", began, "s")
    case.add("device_events", "xid", "gpu3", text or "what the driver wrote", "text", labels=labels, samples=count)
    return case.set("xid_total", value=float(count))


@pytest.mark.parametrize(
    ("code", "at", "verdict", "severity"),
    [
        (79, 200.0, Verdict.FAIL, Severity.CRITICAL),
        (79, 50.0, Verdict.FAIL, Severity.CRITICAL),
        (119, 200.0, Verdict.FAIL, Severity.CRITICAL),
        (119, 50.0, Verdict.WARN, Severity.WARNING),
        (31, 200.0, Verdict.WARN, Severity.WARNING),
        (31, 50.0, Verdict.PASS, Severity.INFO),
        (63, 200.0, Verdict.PASS, None),
    ],
)
def test_when_it_happened_matters(
    case: MakeCase, code: int, at: float, verdict: Verdict, severity: Severity | None
) -> None:
    judgement = logged(case("thermal"), code, at=at).judge()
    assert judgement.verdict is verdict, judgement.reason
    assert [finding.severity for finding in judgement.findings] == ([] if severity is None else [severity])


def test_an_error_that_came_back_during_the_stage_is_the_stages_own(case: MakeCase) -> None:
    """Messages of one text are one event: its first time alone would put it before the stage."""
    again = logged(case("thermal"), 119, at=50.0, count=2)
    for row in again.rows("xid"):
        row["labels"]["last"] = "200.000000"
    assert again.judge().verdict is Verdict.FAIL


def test_a_finding_names_code_device_address_text_and_what_to_do(case: MakeCase) -> None:
    finding = logged(case("thermal"), 79, "GPU has fallen off the bus.", count=2).judge().findings[0]
    assert (finding.rule, finding.device, finding.action, finding.fault_class) == (
        DEVICE_EVENT,
        "gpu3",
        "reboot",
        "pcie",
    )
    assert "0000:1b:00" in finding.observed
    assert dict(finding.labels) == {"code": "79", "kind": "xid", "when": "during"}


@pytest.mark.parametrize(("known", "device"), [("00000000:1B:00.0", "gpu3"), ("00000000:5D:00.0", "node")])
def test_a_gpu_that_was_lost_is_named_by_where_it_was_before_the_load(case: MakeCase, known: str, device: str) -> None:
    lost = logged(case("thermal"), 79)
    for row in lost.rows("xid"):
        row["device"] = "node"
    lost.add("inventory", "pci_address", "gpu3", known, "text")
    assert lost.judge().findings[0].device == device


def test_without_a_time_an_error_counts_as_the_stages_own(case: MakeCase) -> None:
    ill = logged(case("thermal"), 31, at=50.0)
    ill.drop("kernel_log_time")
    assert ill.judge().verdict is Verdict.WARN


def test_messages_that_are_counted_but_not_listed_are_missing(case: MakeCase) -> None:
    judgement = logged(case("thermal"), 63).set("xid_total", value=3.0).judge()
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert Gap(Lack.NOT_REPORTED, "3 messages are counted, but only 1 are reported", "device events", "node") in (
        judgement.coverage.missing
    )


def test_an_event_that_no_policy_of_the_sku_judges_is_missed_and_never_passed_over(case: MakeCase) -> None:
    ill = logged(case("thermal"), 79)
    ill.sku = ill.sku.model_copy(update={"event_policies": ill.sku.event_policies[1:]})
    judged = ill.judge()
    assert judged.verdict is Verdict.INCONCLUSIVE
    assert [(gap.code, gap.device) for gap in judged.coverage.missing] == [(Lack.UNJUDGED, "gpu3")]
    strange = {"kind": "gossip", "code": "1", "at": "200.0"}
    both = logged(case("thermal"), 79)
    both.raw["measurements"].insert(0, measurement("device_events", "xid", "gpu1", "what", "text", labels=strange))
    assert {each.device for each in both.set("xid_total", value=2.0).judge().findings} == {"gpu3"}


def test_the_policy_is_part_of_what_a_verdict_cites(tmp_path: Path) -> None:
    (tmp_path / "policies").mkdir()
    text = SHIPPED_POLICY.read_text().replace('version: "2026.1"', 'version: "ours"')
    (tmp_path / "policies" / "nvidia-xid.yaml").write_text(text)
    ours = load_sku("h100-sxm-8", [tmp_path])
    assert [each.version for each in ours.event_policies] == ["ours", "2026.6"]
    assert ours.revision != load_sku("h100-sxm-8").revision


@pytest.mark.parametrize(("boots", "returns"), [(2, False), (3, True), (4, True)])
def test_an_error_that_survives_two_reboots_is_isolated(policy: EventPolicy, boots: int, returns: bool) -> None:
    history = [[event(119)]] * boots
    evidence = returned(history, [event(119)], policy)
    assert bool(evidence) is returns
    if returns:
        assert evidence[0].kind == "event_returns"
        assert dict(evidence[0].labels) == {"kind": "xid", "code": "119"}
        assert "119" in evidence[0].sentence


def test_what_is_gone_now_or_no_hardware_error_does_not_escalate(policy: EventPolicy) -> None:
    assert returned([[event(119)]] * 3, [], policy) == ()
    assert returning([[event(31)]] * 9, policy) == {}
    assert returning([[event(119)], [event(119, pci="0000:5e:00")], [event(119)]], policy) == {}


@pytest.mark.parametrize(("gpus", "together"), [(5, False), (6, True)])
def test_a_message_about_most_of_the_gpus_is_first_of_all_no_gpus_fault(
    case: MakeCase, gpus: int, together: bool
) -> None:
    ill = case("thermal")
    for number in range(gpus):
        labels = {"kind": "xid", "code": "119", "pci": f"0000:1{number}:00", "at": "2000.0", "n": str(number)}
        ill.add("device_events", "xid", f"gpu{number}", "GSP timeout", "text", labels=labels)
    judged = ill.set("xid_total", value=float(gpus)).judge()
    causes = [each for each in judged.findings if each.rule == COMMON_CAUSE]
    devices = [each for each in judged.findings if each.rule == DEVICE_EVENT]

    assert judged.verdict is Verdict.FAIL
    assert [each.metric for each in causes] == (["xid 119"] if together else [])
    assert [each.measurements for each in devices] == [
        (f"device_events:xid[at=2000.0,code=119,kind=xid,n={number},pci=0000:1{number}:00]@gpu{number}",)
        for number in range(gpus)
    ]
    assert all((each.confidence < 0.5) is together for each in devices)


def test_messages_of_different_codes_have_no_common_cause(case: MakeCase) -> None:
    ill = case("thermal")
    for number, code in enumerate((48, 63, 74, 79, 95, 119, 120, 140)):
        labels = {"kind": "xid", "code": str(code), "pci": f"0000:1{number}:00", "at": "2000.0", "n": str(number)}
        ill.add("device_events", "xid", f"gpu{number}", "a message", "text", labels=labels)
    judged = ill.set("xid_total", value=8.0).judge()

    assert not [each for each in judged.findings if each.rule == COMMON_CAUSE]


@pytest.mark.parametrize(("code", "number"), [("79", 79), ("9" * 5000, 0), ("-1", 0), ("\u0663", 0), ("", 0)])
def test_a_code_that_is_none_is_zero(code: str, number: int) -> None:
    assert event_of("gpu0", {"kind": "xid", "code": code}, "", 1).code == number


@pytest.mark.parametrize("at", ["nan", "inf", "-inf", "", "soon"])
def test_a_message_whose_time_is_none_counts_as_of_the_stage(at: str) -> None:
    event = event_of("gpu0", {"kind": "xid", "code": "79", "at": at}, "fallen off the bus", 1)
    assert event.at is None
    assert event.after(100.0)

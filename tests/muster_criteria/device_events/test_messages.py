"""The kernel's messages: what the shipped policy says, how it is read, and what becomes of a node's log under it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from muster_criteria import policy_file
from muster_criteria.device_events.judge import judge_events
from muster_criteria.device_events.policy import DeviceEvent, EventPolicy, EventSeverity, response_to
from muster_criteria.model import DEVICE_EVENT, Action, Lack, Severity, Verdict
from muster_criteria.policy_file import BadPolicy
from muster_criteria.sku_files.model import Sku
from muster_criteria.sku_files.programme import stage_probes
from muster_criteria.sku_files.skus import SHIPPED, list_skus, load_sku
from muster_node.hardware.host.kernel_events import folded, labels_of, parse_events
from tests.muster_criteria.nodes import Case, MakeCase

SHIPPED_POLICY = SHIPPED / "policies" / "kernel.yaml"
BEGAN = 100.0

# Forms of messages as kernels print them (each source: the driver named in the policy); numbers of our own.
OFF_BUS = [
    "<3>[  843.300001] NVRM: The NVIDIA GPU 0000:4e:00.0",
    "               NVRM: (PCI ID: 10de:2330) installed in this system has",
    "               NVRM: fallen off the bus and is not responding to commands.",
]
ACA = [
    "[ 8390.7] amdgpu 0000:29:00.0: {1}uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!",
    "[ 8390.8] amdgpu 0000:9a:00.0: {1}[Hardware Error]: Accelerator Check Architecture events logged",
    "[ 8390.80001] amdgpu 0000:9a:00.0: {1}[Hardware Error]: aca entry[00].STATUS=0x98000800003e0000",
]
ARM64_OOPS = [
    "[  165.05] nvidia-nvlink: Nvlink Core is being initialized, major device number 242",
    "[  165.06] Internal error: Oops - BTI: 0000000036000002 [#1] SMP",
    "[  165.07] Modules linked in: nvidia(O+) ib_core",
]
X86_OOPS = [
    "<1>[  165.06] BUG: kernel NULL pointer dereference, address: 0000000000000008",
    "<1>[  165.06] #PF: supervisor read access in kernel mode",
    "<0>[  165.07] Oops: 0000 [#1] PREEMPT SMP NOPTI",
]
STALL = ["[  121.0] rcu: INFO: rcu_sched detected expedited stalls on CPUs/tasks: { 2-.... } 21 jiffies s: 9"]
SATA = [
    "[ 5021.1] ata1.00: exception Emask 0x0 SAct 0x1 SErr 0x0 action 0x6 frozen",
    "[ 5021.2] ata1.00: failed command: READ FPDMA QUEUED",
    "[ 5021.3] ata1: hard resetting link",
    "[ 5021.4] ata1: SATA link up 6.0 Gbps (SStatus 133 SControl 300)",
    "[ 5021.5] ata1: EH complete",
]
CORRECTED = [
    f"<4>[  300.10000{number}] {{1}}[Hardware Error]: {text}"
    for number, text in enumerate(
        (
            "Hardware error from APEI Generic Hardware Error Source: 512",
            "It has been corrected by h/w and requires no further action",
            "event severity: corrected",
            " Error 0, type: corrected",
            " fru_text: B1",
            "  section_type: memory error",
            "  error_type: 2, single-bit ECC",
        )
    )
]
XEON = [  # a corrected error, as Documentation/firmware-guide/acpi/apei/einj.rst has it injected
    "<7>[  300.100000] EDAC sbridge MC3: HANDLING MCE MEMORY ERROR",
    "<7>[  300.100100] EDAC sbridge MC3: CPU 0: Machine Check Event: 0 Bank 7: 8c00004000010090",
    "<7>[  300.100200] EDAC sbridge MC3: TSC 0",
    "<7>[  300.100300] EDAC sbridge MC3: ADDR 12345000 EDAC sbridge MC3: MISC 144780c86",
    "<7>[  300.100400] EDAC sbridge MC3: PROCESSOR 0:306e7 TIME 1422553404 SOCKET 0 APIC 0",
    "<4>[  300.900000] EDAC MC3: 1 CE memory read error on CPU_SrcID#0_Channel#0_DIMM#0 (channel:0 slot:0)",
]
WATCHDOG = ["<2>[ 300.1] mlx5_core 0000:41:00.0 ens1: NETDEV WATCHDOG: CPU: 5: transmit queue 0 timed out 5120 ms"]
OOM = ["<3>[  300.1] Memory cgroup out of memory: Killed process 4711 (python3) total-vm:9000kB, anon-rss:8000kB"]
UNHEARD = ["<3>[  300.1] newdriver 0000:41:00.0: flux capacitor misaligned"]


@pytest.fixture(scope="module")
def policy() -> EventPolicy:
    return policy_file.parse(EventPolicy, SHIPPED_POLICY.read_bytes(), SHIPPED_POLICY.name)


def logged(case: Case, log: Sequence[str], began: float = BEGAN) -> Case:
    """A stage at whose begin the kernel log had come to ``began``, and whose log is this at the end."""
    from muster_node.hardware.host.kernel_log import parse_dmesg

    case.add("inventory", "kernel_log_time", "node", began, "s")
    events = parse_events(parse_dmesg("\n".join(log)))
    for number, event in enumerate(folded(events)):
        case.add("device_events", "kernel_event", "node", event.text, "text",
                 labels=labels_of(event, number), samples=event.count)  # fmt: skip
    return case.set("kernel_event_total", value=float(len(events)))


@pytest.mark.parametrize("sku", ["h100-sxm-8", "cpu-generic"])
@pytest.mark.parametrize(
    ("log", "code", "action", "places"),
    [
        (OFF_BUS, "gpu-off-bus", Action.INSPECT, ["0000:4e:00"]),
        (ACA, "amdgpu-uncorrectable", Action.INSPECT, ["0000:29:00", "0000:9a:00"]),
        (ARM64_OOPS, "oops", Action.REBOOT, [""]),
        (X86_OOPS, "oops", Action.REBOOT, [""]),
        (STALL, "lockup", Action.INSPECT, [""]),
        (SATA, "disk-timeout", Action.INSPECT, [""]),
        (WATCHDOG, "network", Action.INSPECT, ["0000:41:00"]),
        ([line.replace("1 CE", "1 UE") for line in XEON], "memory-uncorrected", Action.RMA, [""]),
    ],
)
def test_a_fault_fails_any_node_and_names_its_origin_first(
    case: MakeCase, sku: str, log: list[str], code: str, action: Action, places: list[str]
) -> None:
    judgement = logged(case("integrity", sku), log).judge()
    assert judgement.verdict is Verdict.FAIL, judgement.reason
    assert [dict(each.labels).get("pci", "") for each in judgement.findings] == places
    first = judgement.findings[0]
    assert (first.rule, dict(first.labels)["code"], first.action) == ("device_event", code, action)


@pytest.mark.parametrize(
    ("log", "code", "when"),
    [
        (CORRECTED, "firmware-corrected", "during"),
        (XEON, "memory-corrected", "during"),
        (OOM, "out-of-memory", "during"),
        (UNHEARD, "unknown", "during"),
    ],
)
def test_what_lost_nothing_or_is_unknown_warns(case: MakeCase, log: list[str], code: str, when: str) -> None:
    judgement = logged(case("thermal"), log).judge()
    assert judgement.verdict is Verdict.WARN, judgement.reason
    assert [dict(each.labels)["code"] for each in judgement.findings] == [code]
    assert dict(judgement.findings[0].labels)["when"] == when


def test_a_corrected_record_of_seven_lines_is_one_error(case: MakeCase) -> None:
    finding = logged(case("thermal"), CORRECTED).judge().findings[0]
    assert len(finding.measurements) == 1
    assert "times" not in finding.observed
    again = [line.replace("[  300.", "[  400.").replace("{1}", "{2}") for line in CORRECTED]
    assert "2 times" in logged(case("thermal"), [*CORRECTED, *again]).judge().findings[0].observed


@pytest.mark.parametrize(
    ("log", "verdict", "severities"),
    [
        (OFF_BUS, Verdict.FAIL, [Severity.CRITICAL]),  # a reboot would have emptied the log
        (STALL, Verdict.WARN, [Severity.WARNING]),
        (CORRECTED, Verdict.PASS, [Severity.INFO]),
        (OOM, Verdict.PASS, []),  # some user's job
        (UNHEARD, Verdict.PASS, []),  # sound machines print errors at boot
    ],
)
def test_before_the_stage_it_counts_less(
    case: MakeCase, log: list[str], verdict: Verdict, severities: list[Severity]
) -> None:
    judgement = logged(case("thermal"), log, began=9_000.0).judge()
    assert judgement.verdict is verdict, judgement.reason
    assert [each.severity for each in judgement.findings] == severities


SWAPPED = ["<6>[ 86400.1] pcieport 0000:64:02.0: pciehp: Slot(5): Link Down"]
BERT = ["<2>[ 5.1] [Hardware Error]: event severity: fatal"]


@pytest.mark.parametrize("log", [SWAPPED, BERT])
@pytest.mark.parametrize(
    ("began", "repaired_for", "severity"),
    [
        (90_000.0, 300.0, Severity.INFO),
        (90_000.0, 90_060.0, Severity.CRITICAL),
        (90_000.0, None, Severity.CRITICAL),
        (1.0, 300.0, Severity.CRITICAL),
    ],
)
def test_what_was_logged_before_a_person_repaired_the_node_informs(
    case: MakeCase, log: list[str], began: float, repaired_for: float | None, severity: Severity
) -> None:
    """A part that is swapped while the kernel runs is lost from PCIe until the next boot."""
    made = logged(case("thermal"), log, began=began).add("device_events", "kernel_log_clock", "node", 90_060.0, "s")
    found = judge_events(made.result(), made.sku.event_policies, repaired_for).findings
    assert [each.severity for each in found] == [severity]


@pytest.mark.parametrize(("log", "severity"), [(X86_OOPS, Severity.CRITICAL), (STALL, Severity.WARNING)])
def test_a_repair_without_a_reboot_or_reset_resolves_nothing_that_needs_one(
    case: MakeCase, log: list[str], severity: Severity
) -> None:
    made = logged(case("thermal"), log, began=90_000.0).add("device_events", "kernel_log_clock", "node", 90_060.0, "s")
    found = judge_events(made.result(), made.sku.event_policies, 300.0).findings
    assert [each.severity for each in found] == [severity]


def test_a_repeat_an_hour_later_leaves_the_repair_where_it_was_in_the_log_of_the_result(case: MakeCase) -> None:
    made, again = (
        logged(case("thermal"), SWAPPED, began=clock - 60.0).add(
            "device_events", "kernel_log_clock", "node", clock, "s"
        )
        for clock in (86_800.0, 90_400.0)
    )
    again.raw["repeat"], again.raw["ended_at"] = True, made.raw["ended_at"] + 3600.0
    found = made.judge(others=(again.result(),), repaired_for=3900.0).findings
    assert {each.severity for each in found if each.rule == DEVICE_EVENT} == {Severity.INFO}


def test_a_node_that_does_not_say_what_its_logs_clock_is_shows_nothing_from_before_its_repair(case: MakeCase) -> None:
    made = logged(case("thermal"), SWAPPED, began=90_000.0)
    found = judge_events(made.result(), made.sku.event_policies, 300.0).findings
    assert [each.severity for each in found] == [Severity.CRITICAL]


HEALTHY = yaml.safe_load((Path(__file__).parent / "data" / "healthy_boots.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_boot_gives_no_finding(case: MakeCase, name: str) -> None:
    judgement = logged(case("thermal"), HEALTHY[name]["log"].splitlines(), began=9_000.0).judge()
    assert judgement.findings == ()
    assert judgement.verdict is Verdict.PASS, judgement.reason


@pytest.mark.parametrize(
    "line",
    [
        "<3>[ 300.1] blk_update_request: I/O error, dev sr0, sector 0 op 0x0:(READ)",
        "<3>[ 300.1] Buffer I/O error on dev loop7, logical block 0, async page read",
        "<3>[ 300.1] critical medium error, dev sr0, sector 1032 op 0x0:(READ)",
        "<3>[ 300.1] sr 11:0:0:0: rejecting I/O to offline device",
        "<6>[ 300.1] pcieport 0000:64:02.0: pciehp: Slot(5): Link Down/Up ignored",
        "<6>[ 300.1] NETDEV WATCHDOG: usb0 (rndis_host): transmit queue 0 timed out",
        "<2>[ 300.1] cdc_ncm 1-14.1:2.0 usb0: NETDEV WATCHDOG: CPU: 5: transmit queue 0 timed out 5120 ms",
    ],
)
def test_a_virtual_drive_a_bmcs_network_and_a_link_that_was_kept_fail_no_node(case: MakeCase, line: str) -> None:
    assert logged(case("thermal"), [line]).judge().findings == ()


@pytest.mark.parametrize(("operation", "codes"), [
    ("0x3:(DISCARD)", []), ("0x9:(WRITE_ZEROES)", []), ("0x1:(WRITE)", ["disk-error"]),
])  # fmt: skip
def test_a_disk_that_discards_nothing_is_no_fault(case: MakeCase, operation: str, codes: list[str]) -> None:
    log = [
        "<6>[ 300.1] sd 2:0:0:0: [sda] tag#162 FAILED Result: hostbyte=DID_OK driverbyte=DRIVER_OK cmd_age=0s",
        "<6>[ 300.1] sd 2:0:0:0: [sda] tag#162 Sense Key : Illegal Request [current]",
        f"<3>[ 300.1] critical target error, dev sda, sector 13616 op {operation} flags 0x800 phys_seg 1 prio class 0",
    ]
    judgement = logged(case("thermal"), log).judge()
    assert [dict(each.labels)["code"] for each in judgement.findings] == codes


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("<2>[ 300.1] EXT4-fs error (device loop0): ext4_find_entry:1455: inode #2: reading directory", "filesystem"),
        ("<3>[ 300.1] Aborting journal on device loop0-8.", "filesystem"),
        (
            "<2>[ 300.1] EXT4-fs error (device nbd0): ext4_journal_check_start:83: Detected aborted journal",
            "filesystem",
        ),
        ("<3>[ 300.1] blk_update_request: I/O error, dev nbd0, sector 2048 op 0x1:(WRITE)", "disk-error"),
    ],
)
def test_a_root_file_system_on_an_image_or_the_network_is_the_nodes(case: MakeCase, line: str, code: str) -> None:
    judgement = logged(case("thermal"), [line]).judge()
    assert judgement.verdict is Verdict.FAIL, judgement.reason
    assert [dict(each.labels)["code"] for each in judgement.findings] == [code]


def test_the_same_message_before_and_during_the_stage_is_the_stages_own(case: MakeCase) -> None:
    before = STALL[0].replace("121.0", " 50.0")
    assert logged(case("thermal"), [before, STALL[0]]).judge().verdict is Verdict.FAIL


def test_a_warning_that_no_entry_knows_is_nothing(case: MakeCase) -> None:
    assert logged(case("thermal"), ["<4>[ 300.1] newdriver: error 7 while idle"]).judge().verdict is Verdict.PASS


def test_a_gpu_that_was_lost_is_named_by_where_it_was_before_the_load(case: MakeCase) -> None:
    lost = logged(case("thermal"), OFF_BUS)
    lost.add("inventory", "pci_address", "gpu5", "00000000:4E:00.0", "text")
    assert lost.judge().findings[0].device == "gpu5"


def test_messages_that_are_counted_but_not_listed_are_missing(case: MakeCase) -> None:
    storm = logged(case("thermal"), STALL).set("kernel_event_total", value=9.0).judge()
    assert [(gap.code, gap.device) for gap in storm.coverage.missing] == [(Lack.NOT_REPORTED, "node")]


@pytest.mark.parametrize(("oldest", "verdict"), [(BEGAN - 1.0, Verdict.PASS), (BEGAN + 1.0, Verdict.INCONCLUSIVE)])
def test_a_log_that_was_overwritten_during_the_stage_is_missing(
    case: MakeCase, oldest: float, verdict: Verdict
) -> None:
    flooded = logged(case("thermal"), []).add("device_events", "kernel_log_begin", "node", oldest, "s").judge()
    assert flooded.verdict is verdict, flooded.reason


@pytest.mark.parametrize("metric", ["xid_total", "kernel_event_total"])
def test_a_log_that_became_unreadable_during_the_stage_is_missing(case: MakeCase, metric: str) -> None:
    never = case("thermal").set(metric, value=None)
    for row in never.rows(metric):
        row["note"] = "the kernel log cannot be read"
    assert never.judge().verdict is Verdict.PASS
    later = never.add("inventory", "kernel_log_time", "node", BEGAN, "s").judge()
    assert [(gap.code, gap.what) for gap in later.coverage.missing] == [(Lack.UNREADABLE, metric)]


@pytest.mark.parametrize(
    ("stage", "oldest", "said"),
    [("intake", 3_400_000.0, True), ("intake", 0.0, False), ("thermal", 3_400_000.0, False)],
)
def test_intake_says_where_the_log_does_not_reach_back_to_the_boot(
    case: MakeCase, stage: str, oldest: float, said: bool
) -> None:
    wrapped = logged(case(stage), [], began=3_400_049.0).add("device_events", "kernel_log_begin", "node", oldest, "s")
    judgement = wrapped.judge()
    assert any("39.4 days" in note for note in judgement.notes) is said
    assert judgement.verdict is Verdict.PASS, judgement.reason


@pytest.mark.parametrize("name", list_skus())
def test_every_stage_of_every_sku_reads_the_kernel_log(name: str) -> None:
    sku: Sku = load_sku(name)
    stages = {(stage, level) for stage in sku.programme.stages for level in ("demo", "short", "standard", "long")}
    assert all("device_events" in stage_probes(sku, stage, level) for stage, level in stages)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"matches": ["(off"]}, "not a regular expression"),
        ({"examples": ["<3>[ 1.0] something else"]}, "is read as unknown"),
        ({"source": "hearsay"}, "there is no source"),
        ({"name": "unknown"}, "not allowed"),
        ({"name": ""}, "needs a name"),
        ({"examples": []}, "an example"),
    ],
)
def test_a_policy_that_cannot_work_is_refused_with_the_place(change: dict[str, object], where: str) -> None:
    raw = yaml.safe_load(SHIPPED_POLICY.read_text(encoding="utf-8"))
    raw["entries"] = [{**raw["entries"][0], **change}]
    with pytest.raises(BadPolicy) as caught:
        policy_file.parse(EventPolicy, yaml.safe_dump(raw).encode(), "kernel.yaml")
    assert str(caught.value).startswith("kernel.yaml: ")
    assert where in str(caught.value)


@pytest.mark.parametrize(
    ("priority", "severity"), [(None, EventSeverity.IGNORE), (3, EventSeverity.MONITOR), (4, EventSeverity.IGNORE)]
)
def test_what_no_entry_knows_counts_only_as_an_error(
    policy: EventPolicy, priority: int | None, severity: EventSeverity
) -> None:
    said = DeviceEvent("kernel", "node", "", "something that no entry knows", priority=priority)
    assert response_to(said, policy).severity is severity


def test_a_new_kind_of_message_is_one_entry(case: MakeCase, policy: EventPolicy) -> None:
    raw = yaml.safe_load(SHIPPED_POLICY.read_text(encoding="utf-8"))
    raw["entries"].insert(0, {"name": "flux", "matches": ["flux capacitor"], "meaning": "the flux is off",
                              "severity": "ISOLATE", "fault": "node", "action": "rma", "source": "here",
                              "examples": UNHEARD})  # fmt: skip
    unheard = logged(case("thermal"), UNHEARD)
    mine = policy_file.parse(EventPolicy, yaml.safe_dump(raw).encode(), "mine")
    unheard.sku = unheard.sku.model_copy(update={"event_policies": (mine,)})
    judgement = unheard.judge()
    assert judgement.verdict is Verdict.FAIL
    assert [dict(each.labels)["code"] for each in judgement.findings] == ["flux"]

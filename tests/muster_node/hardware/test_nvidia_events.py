"""XIDs and SXIDs of a kernel log, in every form that drivers print."""

from __future__ import annotations

import pytest

from muster_node.hardware.events import FORMS_MAX, TEXTS_MAX, DeviceEvent, folded, last_time, normal_pci
from muster_node.hardware.host.kernel_events import device_events
from muster_node.hardware.host.kernel_log import parse_kmsg

LOST = "[ 9107.481251] NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
FAULT = (
    "[   12.500000] NVRM: Xid (PCI:0000:0D:00): 31, pid=36872, name=python3, Ch 00000009, MMU Fault: ENGINE GRAPHICS"
)
NVLINK = (
    "[  500.000001] NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT Fatal   XC0 i0 Link 08 "
    "(0x004505c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)"
)
NVLINK_TEXT = "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)"
PADDED = NVLINK.replace("NETIR_LINK_EVT Fatal", "NETIR_LINK_EVT  Fatal")
"""As drivers print it: the unit's name is padded to a column."""
SWITCH = "[ 77.25] nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore MCTO (First)"


@pytest.mark.parametrize(
    ("line", "event"),
    [
        (LOST, DeviceEvent("xid", 79, "0000:1b:00", "", "GPU has fallen off the bus.", 9107.481251)),
        (
            FAULT,
            DeviceEvent(
                "xid", 31, "0000:0d:00", "", "pid=36872, name=python3, Ch 00000009, MMU Fault: ENGINE GRAPHICS", 12.5
            ),
        ),
        (NVLINK, DeviceEvent("xid", 149, "0018:01:00", "", NVLINK_TEXT, 500.000001)),
        (PADDED, DeviceEvent("xid", 149, "0018:01:00", "", NVLINK_TEXT, 500.000001)),
        (
            NVLINK.replace("149, ", "149, pid=4021, name=nccl-test, "),
            DeviceEvent("xid", 149, "0018:01:00", "", f"{NVLINK_TEXT} (pid=4021, name=nccl-test)", 500.000001),
        ),
        (
            SWITCH,
            DeviceEvent(
                "sxid", 28006, "0000:c1:00", "nvswitch3", "Non-fatal, Link 46 MC TS crumbstore MCTO (First)", 77.25
            ),
        ),
        (
            "NVRM: Xid (0000:03:00): 14, Channel 00000001",
            DeviceEvent("xid", 14, "0000:03:00", "", "Channel 00000001", None),
        ),
        (
            "Nov 21 10:00:00 n1 kernel: NVRM: Xid (PCI:0000:03:00): 62, ",
            DeviceEvent("xid", 62, "0000:03:00", "", "", None),
        ),
        (  # journalctl -o short-monotonic
            "[  123.456789] node-1 kernel: NVRM: Xid (PCI:0000:03:00): 79, GPU has fallen off the bus.",
            DeviceEvent("xid", 79, "0000:03:00", "", "GPU has fallen off the bus.", 123.456789),
        ),
        (
            "[5.5] NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, name=python3, Contained",
            DeviceEvent("xid", 94, "0000:01:00", "", "pid=7194, name=python3, Contained (GPU-I:05)", 5.5),
        ),
        (
            "[5.5] NVRM: Xid (PCI:0000:01:00 GPU-I:05 GPU-CI:01): 31, pid=<unknown>, name=<unknown>, ",
            DeviceEvent("xid", 31, "0000:01:00", "", "(GPU-I:05 GPU-CI:01)", 5.5),
        ),
    ],
)
def test_a_message_is_read(line: str, event: DeviceEvent) -> None:
    assert device_events([line]) == [event]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "NVRM: Xid (PCI:0000:66:00): abc, pid=2280636",
        "NVRM: GPU at PCI:0000:1b:00: GPU-5d1f",
        "NVRM: Xid (PCI:): 79, no address",
        "NVRM: Xid (PCI: GPU-I:05): 94, no address",
        "NVRM: Xid (PCI:0000:01:00GPU-I:05): 94, run together",
        "NVRM: Xid (PCI:0000:1b:00): 99999999, no such code",
        "[1.0] nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Severity 0 Engine instance 46 Sub-engine instance 00",
        "[1.0] nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Data {0x00140004, 0x00100000}",
        "a user writes NVRM Xid 79 into the log",
        "<12>[ 9.5] NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.",  # of user space, by its facility
        # What users choose, as the kernel repeats it: options of a mount, the name of a file that crashed.
        "<3>[ 9.5] tmpfs: Unknown parameter 'NVRM: Xid (PCI:0000:1b:00): 79,1 GPU has fallen off the bus.'",
        "<3>[ 9.5] tmpfs: Unknown parameter 'n1 kernel: NVRM: Xid (PCI:0000:1b:00): 79,1 GPU has fallen off the bus.'",
        "tmpfs: Unknown parameter '[ 9.5] NVRM: Xid (PCI:0000:1b:00): 79,1 GPU has fallen off the bus.'",
        "<6>[ 9.5] a.out[77]: segfault at 0 ip 0 sp 7ffc error 14 in NVRM: Xid (PCI:0000:1b:00): 79, lost[400000+1000]",
        "<3>[ 9.5] tmpfs: Unknown parameter 'nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Fatal, Link 46'",
    ],
)
def test_other_lines_are_ignored(line: str) -> None:
    assert device_events([line]) == []


def test_a_line_break_within_a_record_begins_no_message() -> None:
    record = "3,9,9500000,-;tmpfs: Unknown parameter '\\x0aNVRM: Xid (PCI:0000:1b:00): 79, lost'\n"
    assert device_events(parse_kmsg(record)) == []


def test_records_of_dev_kmsg_are_read_with_their_time() -> None:
    record = "3,1523,9107481251,-;NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.\n SUBSYSTEM=pci\n"
    assert device_events(parse_kmsg(record)) == [
        DeviceEvent("xid", 79, "0000:1b:00", "", "GPU has fallen off the bus.", 9107.481251)
    ]


@pytest.mark.parametrize("address", ["00000000:1B:00.0", "0000:1b:00", "1b:00", "0000:1b:00.0"])
def test_addresses_are_the_same_however_they_are_written(address: str) -> None:
    assert normal_pci(address) == "0000:1b:00"


def test_last_time_is_that_of_the_newest_line() -> None:
    assert last_time([FAULT, LOST, "no time here"]) == 9107.481251
    assert last_time(["no time here"]) is None


def test_a_storm_is_folded_and_its_count_is_kept() -> None:
    storm = device_events(
        [LOST] * 3 + [f"[{n}.0] NVRM: Xid (PCI:0000:0d:00): 31, MMU fault at {n:#x}" for n in range(500)]
    )
    events = folded(storm)
    assert sum(event.count for event in events) == len(storm) == 503
    assert [event.count for event in events if event.code == 79] == [3]
    assert len([event for event in events if event.code == 31]) == TEXTS_MAX


def test_alike_messages_keep_the_time_of_the_first_and_of_the_last() -> None:
    (one,) = folded(device_events([LOST, LOST.replace("9107.4", "9200.4")]))
    assert (one.count, one.at, one.last) == (2, 9107.481251, 9200.481251)


@pytest.mark.parametrize(
    "last",
    [
        NVLINK,
        NVLINK.replace("NETIR_LINK_EVT Fatal  ", "NETIR_BER_EVENT Fatal"),
        NVLINK.replace("NETIR_LINK_EVT Fatal  ", "NETIR_BER_EVENT Nonfatal").replace("0x004505c6", "0x02600000"),
        NVLINK.replace("NETIR_LINK_EVT Fatal  ", "NETIR_BER_EVENT Nonfatal").replace(" 0x00000000 ", " 0x00000003 ", 1),
    ],
)
def test_a_message_of_another_form_is_kept_in_the_longest_storm(last: str) -> None:
    """Another unit, grade, sub-code or status, after many of one form."""
    storm = [NVLINK.replace("NETIR_LINK_EVT Fatal  ", "NETIR_BER_EVENT Nonfatal").replace("0x004505c6", f"0x{n:08x}")
             for n in range(0x00400000, 0x00400000 + 3 * TEXTS_MAX)]  # fmt: skip
    events = device_events([*storm, last])
    for texts in (TEXTS_MAX, 1):
        kept = folded(events, texts)
        assert (kept[-1].text, kept[-1].count) == (events[-1].text, 1)
        assert sum(event.count for event in kept) == len(events)
        assert len(kept) == texts + 1


def test_messages_of_too_many_forms_are_left_out_and_not_counted_as_others() -> None:
    words = ("".join(chr(ord("g") + int(digit)) for digit in str(number)) for number in range(3 * FORMS_MAX))
    kept = folded(device_events(f"[1.0] NVRM: Xid (PCI:0000:0d:00): 31, {word}" for word in words))
    assert [event.count for event in kept] == [1] * FORMS_MAX

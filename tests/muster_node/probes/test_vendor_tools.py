"""Vendors' tools: output read as they write it, broken output refused in one sentence, tools that hang ended."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from muster_node.probe import Skip
from muster_node.probes.dcgm_diag import DcgmDiag, Outcome, parse_dcgm_diag
from muster_node.probes.ib_write_bw import IbWriteBw, parse_ib_write_bw
from muster_node.probes.nccl_tests import NcclTests
from muster_node.probes.nvbandwidth import Nvbandwidth, parse_nvbandwidth
from muster_node.tools import run
from muster_node.tools.run import BadOutput
from tests.muster_node.probes.cooling_machine import Machine

NVBANDWIDTH = """nvbandwidth Version: v0.6
Built from Git version: v0.6

CUDA Runtime Version: 12040
CUDA Driver Version: 12040
Driver Version: 550.54.15

Device 0: NVIDIA H100 80GB HBM3 (00000000:1B:00)
Device 1: NVIDIA H100 80GB HBM3 (00000000:43:00)

Running host_to_device_memcpy_ce.
memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0     55.27     21.40

SUM host_to_device_memcpy_ce 76.67

Waived:
Running device_to_device_memcpy_read_ce.
memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0       N/A    371.11
 1    372.50       N/A

SUM device_to_device_memcpy_read_ce 743.61

Running host_device_latency_sm.
memory latency SM CPU(row) <-> GPU(column) (ns)
           0         1
 0    772.58    801.00

SUM host_device_latency_sm 1573.58

NOTE: The reported results may not reflect the full capabilities of the platform.
"""


def test_nvbandwidth_is_read_cell_by_cell():
    devices, tests = parse_nvbandwidth(NVBANDWIDTH)
    assert devices == {0: "0000:1b:00", 1: "0000:43:00"}
    assert [(test.name, test.unit, test.to_gpus, test.cells) for test in tests] == [
        ("host_to_device_memcpy_ce", "GB/s", False, {(0, 0): 55.27, (0, 1): 21.40}),
        ("device_to_device_memcpy_read_ce", "GB/s", True, {(0, 1): 371.11, (1, 0): 372.50}),
        ("host_device_latency_sm", "ns", False, {(0, 0): 772.58, (0, 1): 801.0}),
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "it has no results"),
        (NVBANDWIDTH.partition(" 0     55.27")[0], "it breaks off in host_to_device_memcpy_ce"),
        (NVBANDWIDTH.partition("SUM host_to_device")[0], "it breaks off in host_to_device_memcpy_ce"),
        (NVBANDWIDTH.partition("memcpy CE GPU(row)")[0], "it breaks off in device_to_device_memcpy_read_ce"),
        (NVBANDWIDTH.replace(" 0       N/A    371.11", "[CUDA_ERROR_ECC_UNCORRECTABLE] in memcpy"), "CUDA_ERROR_ECC"),
    ],
)
def test_broken_nvbandwidth_output_is_refused(text, sentence):
    with pytest.raises(BadOutput, match=sentence):
        parse_nvbandwidth(text)


def dcgm(*results, root="DCGM Diagnostic", name="memory", **more):
    tests = [{"name": name, "results": list(results)}]
    return json.dumps({root: {"test_categories": [{"category": "Hardware", "tests": tests}], **more}})


@pytest.mark.parametrize(
    ("text", "outcomes"),
    [
        (
            dcgm({"entity_group": "GPU", "entity_group_id": 1, "entity_id": 2, "status": "Pass"}),
            [Outcome("memory", 2, "Pass", ())],
        ),
        (
            dcgm({"gpu_ids": "0,1", "status": "PASS"}, root="DCGM GPU Diagnostic"),
            [Outcome("memory", 0, "PASS", ()), Outcome("memory", 1, "PASS", ())],
        ),
        ("Successfully ran\n" + dcgm({"status": "Skip"}), [Outcome("memory", None, "Skip", ())]),
        (
            dcgm({"gpu_id": "3", "status": "Pass", "warnings": "GPU 3  has 2 row remaps"}),
            [Outcome("memory", 3, "Pass", ("GPU 3 has 2 row remaps",))],
        ),
        (
            dcgm({"entity_group": "GPU", "entity_id": 0, "status": "Fail",
                  "warnings": [{"error_id": 37, "error_severity": 2, "warning": "DBE"}, {"warning": "  "}]}),
            [Outcome("memory", 0, "Fail", ("DBE",))],
        ),
    ],
)  # fmt: skip
def test_dcgm_reports_are_read_in_all_their_shapes(text, outcomes):
    assert parse_dcgm_diag(text) == outcomes


def gpu_says(gpu, status, *errors):
    """A device's result as DCGM 4 writes it."""
    said = {"warnings": [{"warning": error} for error in errors]} if errors else {}
    return {"entity_group": "GPU", "entity_id": gpu, "status": status, **said}


def dcgm_with_summary(summary, *results):
    test = {"name": "memory", "results": list(results), "test_summary": summary}
    return json.dumps({"DCGM Diagnostic": {"test_categories": [{"category": "Hardware", "tests": [test]}]}})


ALONE = {"warning": "no hugepages"}


@pytest.mark.parametrize(
    ("results", "summary", "beyond"),
    [
        # What belongs to no device, and what a summary says otherwise than every device.
        ([gpu_says(0, "Pass")], {"status": "Fail", "warnings": [ALONE]}, [("Fail", ("no hugepages",))]),
        ([gpu_says(0, "Pass")], {"status": "Fail"}, [("Fail", ())]),
        ([gpu_says(0, "Pass", "DBE")], {"status": "Fail", "warnings": [{"warning": "DBE"}]}, [("Fail", ())]),
        ([gpu_says(0, "Fail", "DBE")], {"status": "Fail", "warnings": [{"warning": "DBE"}, ALONE]},
         [("Fail", ("no hugepages",))]),
        ([gpu_says(0, "Pass")], {"status": "Pass", "warnings": [ALONE]}, [("Pass", ("no hugepages",))]),
        ([], {"status": "Pass"}, [("Pass", ())]),
        # Nothing new.
        ([gpu_says(0, "Pass"), gpu_says(1, "Skip")], {"status": "Pass"}, []),
        ([gpu_says(0, "Fail", "DBE"), gpu_says(1, "Pass")], {"status": "Fail"}, []),
        ([gpu_says(0, "Fail", "DBE")], {"status": "Fail", "warnings": [{"warning": " DBE "}]}, []),
        # No summary at all.
        ([gpu_says(0, "Pass")], None, [("no status", ())]),
        ([gpu_says(0, "Pass")], "Pass", [("no status", ())]),
        ([gpu_says(0, "Pass")], [{"status": "Pass"}], [("no status", ())]),
        ([gpu_says(0, "Pass")], {"warnings": []}, [("no status", ())]),
        ([gpu_says(0, "Pass")], {"status": ["Pass"]}, [("['Pass']", ())]),
        ([gpu_says(0, "Pass")], {"status": "Pass", "warnings": 7}, [("Pass", ("7",))]),
    ],
)  # fmt: skip
def test_what_a_summary_says_beyond_its_results_is_the_nodes(results, summary, beyond):
    outcomes = parse_dcgm_diag(dcgm_with_summary(summary, *results))
    assert [(each.status, each.errors) for each in outcomes[len(results) :]] == beyond
    assert all(each.gpu is None for each in outcomes[len(results) :])


@pytest.mark.parametrize("summary", [{"status": "Fail", "warnings": [ALONE]}, "Pass"])
def test_a_summary_that_is_no_pass_fails_the_node_and_no_gpu(run_probe, tool, summary):
    tool("dcgmi", dcgm_with_summary(summary, gpu_says(0, "Pass"), gpu_says(1, "Pass")))
    run = run_probe(DcgmDiag, Machine())
    assert run.one("dcgm_failures", "node", test="memory").value == 1
    assert [run.one("dcgm_failures", gpu).value for gpu in ("gpu5", "gpu2")] == [0, 0]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "not JSON"),
        ("Error: unable to establish a connection to the specified host", "not JSON"),
        ('{"DCGM Diagnostic": {', "not JSON"),
        ("[" * 100_000 + "{}" + "]" * 100_000, "no report"),
        ('{"something": 1}', "no report"),
        ('{"DCGM Diagnostic": []}', "no report"),
        (dcgm(runtime_error="Hostengine is not running"), "could not run them: Hostengine is not running"),
        ('{"DCGM Diagnostic": {"test_categories": [7, {"tests": [{"results": "odd"}]}]}}', "no test in it"),
    ],
)
def test_what_is_no_dcgm_report_is_refused(text, sentence):
    with pytest.raises(BadOutput, match=sentence):
        parse_dcgm_diag(text)


IB = """---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      3740000          0.00               392.84               0.749294
---------------------------------------------------------------------------------------
"""


def test_ib_write_bw_is_read_in_either_unit():
    assert parse_ib_write_bw(IB) == 392.84
    megabytes = IB.replace("Gb/sec", "MB/sec").replace("392.84", "46831.0")
    assert parse_ib_write_bw(megabytes) == pytest.approx(374.648)


@pytest.mark.parametrize(
    "text", ["", "Couldn't connect to 127.0.0.1:18515", IB.partition(" 65536")[0], "BW average[Gb/sec]\nx"]
)
def test_broken_ib_write_bw_output_is_refused(text):
    with pytest.raises(BadOutput, match="table"):
        parse_ib_write_bw(text)


def test_nvbandwidth_names_gpus_by_slot_and_the_slowest_peer(run_probe, tool):
    tool("nvbandwidth", NVBANDWIDTH)
    run = run_probe(Nvbandwidth, Machine())
    assert run.one("nvbandwidth_rate", "gpu2", test="host_to_device_memcpy_ce").value == 21.40
    peer = run.one("nvbandwidth_rate", "gpu5", test="device_to_device_memcpy_read_ce")
    assert (peer.value, peer.note) == (372.50, "slowest with gpu2: 372.5 GB/s")
    assert run.one("nvbandwidth_latency", "gpu2").value == 801.0


def test_one_gpu_with_slow_links_does_not_slow_the_figures_of_the_others(run_probe, tool):
    rows = [[0 if row == column else 100 if 3 in (row, column) else 370 for column in range(4)] for row in range(4)]
    lines = [" ".join([str(row), *(str(cell or "N/A") for cell in cells)]) for row, cells in enumerate(rows)]
    title = "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)\n 0 1 2 3"
    name = "device_to_device_memcpy_read_ce"
    tool("nvbandwidth", "\n".join([f"Running {name}.", title, *lines, "", f"SUM {name} 1"]))
    run = run_probe(Nvbandwidth, Machine())
    assert [run.one("nvbandwidth_rate", f"gpu{gpu}", test=name).value for gpu in range(4)] == [370, 370, 370, 100]


def test_dcgms_pass_with_an_error_inside_is_counted(run_probe, tool):
    passing = {"entity_group": "GPU", "entity_id": 1, "status": "Pass", "warnings": [{"warning": "2 remapped rows"}]}
    tool("dcgmi", dcgm(passing, {"entity_group": "GPU", "entity_id": 0, "status": "Fail"}, {"status": "Skip"}))
    run = run_probe(DcgmDiag, Machine())
    errors = run.one("dcgm_errors", "gpu2", test="memory")
    assert (errors.value, errors.note) == (1, "2 remapped rows")
    assert run.one("dcgm_failures", "gpu2").value == 0
    assert run.one("dcgm_failures", "gpu5").value == 1
    assert (run.one("dcgm_tests").value, run.one("dcgm_skipped").value) == (2, 1)


def test_a_port_is_measured_against_its_own_rate(run_probe, tool):
    tool("ib_write_bw", IB)
    run = run_probe(IbWriteBw, Machine())
    assert run.one("ib_bandwidth", "nic:mlx5_0").value == 392.84
    assert run.one("ib_share", "nic:mlx5_0").value == pytest.approx(98.21)


@pytest.mark.parametrize(
    ("probe", "program", "params"),
    [
        (Nvbandwidth, "nvbandwidth", {}),
        (NcclTests, "all_reduce_perf", {"ops": ["all_reduce"]}),
        (DcgmDiag, "dcgmi", {}),
        (IbWriteBw, "ib_write_bw", {}),
    ],
)
def test_a_tool_that_hangs_is_ended_and_one_that_babbles_is_told(run_probe, tool, probe, program, params):
    tool(program, "", script="sleep 60 #")
    with pytest.raises(RuntimeError, match=r"did not end within 0\.2 s"):
        run_probe(probe, Machine(), limit_s=0.2, **params)
    tool(program, "error: something is amiss")
    with pytest.raises(RuntimeError, match="something is amiss"):
        run_probe(probe, Machine(), **params)


@pytest.mark.parametrize("probe", [Nvbandwidth, NcclTests, DcgmDiag, IbWriteBw])
def test_simulated_hardware_is_out_of_reach_of_vendors_tools(run_probe, probe):
    with pytest.raises(Skip, match="simulated"):
        run_probe(probe, SimpleNamespace(simulated=True))


@pytest.mark.parametrize(
    ("machine", "limit_s", "note", "waited_s"),
    [
        (Machine(50.0), 300.0, "", 0.0),
        (Machine(90.0), 300.0, "", 58.0),
        (Machine(90.0), 20.0, "the hottest GPU was still at 79 °C", 20.0),
        (Machine(90.0, floor_c=80.0), 300.0, "the hottest GPU was still at 80 °C", 48.0),
    ],
)
def test_a_tool_waits_until_the_burns_heat_is_gone(machine, limit_s, note, waited_s):
    context = SimpleNamespace(hardware=machine, params={"cool_c": 60.0, "cool_limit_s": limit_s})
    assert run.cool_down(context) == note
    assert machine.clock.slept == waited_s

"""Probes around vendors' tools: devices by slot, exit statuses, tools that hang. What is read: ``test_recordings``."""

import contextlib
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from muster_node.hardware.seam import Device, Fact
from muster_node.probe import Skip
from muster_node.probes.dcgm_diag import DcgmDiag
from muster_node.probes.ib_write_bw import IbWriteBw
from muster_node.probes.nccl_tests import NcclTests
from muster_node.probes.nvbandwidth import Nvbandwidth
from muster_node.tools import run
from tests.muster_node.probes.cooling_machine import Machine

BETWEEN = ["device_to_device_memcpy_read_ce"]
PROGRAMS = [
    (Nvbandwidth, "nvbandwidth", {}),
    (NcclTests, "all_reduce_perf", {"ops": ["all_reduce"]}),
    (DcgmDiag, "dcgmi", {}),
    (IbWriteBw, "ib_write_bw", {}),
]


def recorded(name):
    return yaml.safe_load((Path(__file__).parent / "data" / f"{name}.yaml").read_text(encoding="utf-8"))["output"]


def test_nvbandwidth_names_gpus_by_slot_and_the_slowest_peer(run_probe, tool):
    tool("nvbandwidth", recorded("nvbandwidth/v0.6-two-gpus"))
    run = run_probe(Nvbandwidth, Machine(), tests=[*BETWEEN, "host_to_device_memcpy_ce"])
    assert run.one("nvbandwidth_rate", "gpu2", test="host_to_device_memcpy_ce").value == 21.40
    peer = run.one("nvbandwidth_rate", "gpu5", test="device_to_device_memcpy_read_ce")
    assert peer.value == 372.50
    assert "gpu2" in peer.note
    assert run.one("nvbandwidth_latency", "gpu2").value == 801.0
    assert {row.value for row in run.all("nvbandwidth_corruptions")} == {0}


def test_nvbandwidth_without_addresses_numbers_gpus_by_bus_order(run_probe, tool):
    tool("nvbandwidth", recorded("nvbandwidth/v0.1-diagonal"))
    run = run_probe(Nvbandwidth, Machine(), tests=BETWEEN)
    assert {row.device: row.value for row in run.all("nvbandwidth_rate")} == {"gpu5": 158.50, "gpu2": 158.11}


def test_nvbandwidth_without_addresses_blames_no_slot_if_a_gpu_is_missing(run_probe, tool):
    class Three(Machine):
        def devices(self, kind):
            return [*super().devices(kind), Device("gpu7", "gpu", 7)]  # answers without an address

    tool("nvbandwidth", recorded("nvbandwidth/v0.1-diagonal"))
    with pytest.raises(RuntimeError, check=lambda error: error.__cause__.code == "unknown GPUs"):
        run_probe(Nvbandwidth, Three())


def test_corrupt_copies_are_counted_before_the_run_is_called_incomplete(run_probe, tool):
    tool("nvbandwidth", recorded("nvbandwidth/corrupt-data"), status=1)
    emitted = []
    with pytest.raises(RuntimeError):
        run_probe(Nvbandwidth, Machine(), into=emitted)
    found = {row.labels["test"]: row.value for row in emitted if row.metric == "nvbandwidth_corruptions"}
    assert found == {"host_to_device_memcpy_ce": 0, "device_to_device_memcpy_read_ce": 1}


def test_one_gpu_with_slow_links_does_not_slow_the_figures_of_the_others(run_probe, tool):
    class Four(Machine):
        def devices(self, kind):
            return [Device(f"gpu{number}", "gpu", number) for number in range(4)]

        def inventory(self):
            return [SimpleNamespace(name="pci_address", device=f"gpu{n}", text=f"0000:{n}0:00.0") for n in range(4)]

    rows = [[0 if row == column else 100 if 3 in (row, column) else 370 for column in range(4)] for row in range(4)]
    lines = [" ".join([str(row), *(str(cell or "N/A") for cell in cells)]) for row, cells in enumerate(rows)]
    title = "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)\n 0 1 2 3"
    name = "device_to_device_memcpy_read_ce"
    tool("nvbandwidth", "\n".join([f"Running {name}.", title, *lines, "", f"SUM {name} 1"]))
    run = run_probe(Nvbandwidth, Four(), tests=[name])
    assert [run.one("nvbandwidth_rate", f"gpu{gpu}", test=name).value for gpu in range(4)] == [370, 370, 370, 100]


@pytest.mark.parametrize("waived", [0, 1, 2])
def test_tests_that_nvbandwidth_left_out_are_missing_unless_it_waived_as_many(run_probe, tool, waived):
    """It prints no name: "Waived: " alone."""
    tool("nvbandwidth", recorded("nvbandwidth/v0.1-diagonal") + "Waived: \n" * waived)
    others = ["host_to_device_memcpy_ce", "device_to_host_memcpy_ce"]
    if waived == len(others):
        run = run_probe(Nvbandwidth, Machine(), tests=[*BETWEEN, *others])
        for name in others:
            assert {row.value for row in run.all("nvbandwidth_rate", test=name)} == {None}
        return
    with pytest.raises(RuntimeError, match="nothing of host_to_device_memcpy_ce; device_to_host_memcpy_ce"):
        run_probe(Nvbandwidth, Machine(), tests=[*BETWEEN, *others])


def test_a_gpu_that_nvbandwidth_has_no_figure_of_is_missing(run_probe, tool):
    lines = ["Device 0: NVIDIA H100 (00000000:1B:00)", "Device 1: NVIDIA H100 (00000000:43:00)",
             "Running host_to_device_memcpy_ce.", "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)", " 0 1",
             "0 55.1 N/A", "", "SUM host_to_device_memcpy_ce 55.1"]  # fmt: skip
    tool("nvbandwidth", "\n".join(lines))
    emitted = []
    with pytest.raises(RuntimeError, match="gpu2 in host_to_device_memcpy_ce"):
        run_probe(Nvbandwidth, Machine(), tests=["host_to_device_memcpy_ce"], into=emitted)
    assert [row.device for row in emitted if row.metric == "nvbandwidth_rate"] == ["gpu5"]


def test_an_address_that_no_gpu_answers_under_blames_no_slot(run_probe, tool):
    tool("nvbandwidth", recorded("nvbandwidth/v0.8-mpi-one-node"))  # one GPU at 1b, one at 2c
    with pytest.raises(RuntimeError, check=lambda error: error.__cause__.code == "unknown GPUs"):
        run_probe(Nvbandwidth, Machine())


def dcgm(*results):
    tests = [{"name": "memory", "results": list(results)}]
    return json.dumps({"DCGM Diagnostic": {"test_categories": [{"tests": tests}]}})


def test_dcgm_counts_failures_and_warnings_by_slot(run_probe, tool):
    passing = {"entity_group": "GPU", "entity_id": 1, "status": "Pass", "warnings": [{"warning": "2 remapped rows"}]}
    tool("dcgmi", dcgm(passing, {"entity_group": "GPU", "entity_id": 0, "status": "Fail"}, {"status": "Skip"}))
    run = run_probe(DcgmDiag, Machine())
    warnings = run.one("dcgm_warnings", "gpu2", test="memory")
    assert (warnings.value, warnings.note) == (1, "2 remapped rows")
    assert [run.one("dcgm_failures", gpu).value for gpu in ("gpu2", "gpu5", "node")] == [0, 1, None]


class WithSerials(Machine):
    def inventory(self):
        serials = {"gpu5": "1650000000005", "gpu2": "1650000000002"}
        return [*super().inventory(), *(Fact("gpu_serial", gpu, "text", text=each) for gpu, each in serials.items())]


FAILS = {"entity_group": "GPU", "entity_id": 1, "status": "Fail"}
PASSES = {"entity_group": "GPU", "entity_id": 0, "status": "Pass"}


@pytest.mark.parametrize("version", [3, 4])
def test_dcgm_names_gpus_by_serial_number_where_it_prints_them(run_probe, tool, version):
    report = json.loads(dcgm(PASSES, FAILS))
    if version == 3:
        report["DCGM Diagnostic"]["GPU Device Serials"] = {"0": "1650000000002", "1": "1650000000005"}
    else:
        entities = [{"entity_id": 0, "serial_num": "1650000000002"}, {"entity_id": 1, "serial_num": "1650000000005"}]
        report["entity_groups"] = [{"entity_group": "GPU", "entity_group_id": 1, "entities": entities}]
    tool("dcgmi", json.dumps(report))
    run = run_probe(DcgmDiag, WithSerials())
    assert {row.device: row.value for row in run.all("dcgm_failures")} == {"gpu2": 0, "gpu5": 1}


@pytest.mark.parametrize("serials", [{}, {"0": "1650000000005", "2": "1659999999999"}])
def test_a_failure_of_a_gpu_that_dcgm_knew_before_it_was_gone_is_of_no_slot(run_probe, tool, serials):
    report = json.loads(dcgm(PASSES, FAILS | {"entity_id": 2}))
    report["DCGM Diagnostic"]["GPU Device Serials"] = serials
    tool("dcgmi", json.dumps(report))
    emitted = []
    with contextlib.suppress(RuntimeError):  # where DCGM prints serial numbers, gpu2 is known to be untested
        run_probe(DcgmDiag, WithSerials(), into=emitted)
    failed = [row for row in emitted if row.metric == "dcgm_failures" and row.value]
    assert [row.device for row in failed] == ["node"]
    assert "GPU 2" in failed[0].note


def diagnosis(hardware, *gpus):
    """A report of level 3 in which the software of these GPUs was tested, and ``hardware`` says how memory fared."""

    def test(name, statuses):
        results = zip(gpus, statuses, strict=True)
        return {"name": name, "results": [PASSES | {"entity_id": gpu, "status": status} for gpu, status in results]}

    categories = [
        {"category": "Deployment", "tests": [test("software", ["Pass"] * len(gpus))]},
        {"category": "Hardware", "tests": [test("memory", hardware), test("diagnostic", ["Skip"] * len(gpus))]},
    ]
    return {"DCGM Diagnostic": {"test_categories": categories}}


def test_a_diagnosis_that_skipped_all_hardware_is_no_pass(run_probe, tool):
    tool("dcgmi", json.dumps(diagnosis(["Skip", "Skip"], 0, 1)))
    with pytest.raises(Skip):
        run_probe(DcgmDiag, WithSerials(), level=3)
    assert run_probe(DcgmDiag, WithSerials(), level=1).all("dcgm_failures"), "which tests no hardware"


@pytest.mark.parametrize(
    ("hardware", "gpus", "serials", "untested"),
    [
        (["Pass"], (0,), {"0": "1650000000005"}, "nothing of gpu2"),
        (["Pass"], (0,), {}, "nothing of 1 of 2 GPUs"),
        (["Skip", "Pass"], (0, 1), {}, "nothing of gpu5"),
    ],
)
def test_a_gpu_that_dcgm_did_not_test_is_missing(run_probe, tool, hardware, gpus, serials, untested):
    report = diagnosis(hardware, *gpus)
    report["DCGM Diagnostic"]["GPU Device Serials"] = serials
    tool("dcgmi", json.dumps(report))
    emitted = []
    with pytest.raises(RuntimeError, match=untested):
        run_probe(DcgmDiag, WithSerials(), level=3, into=emitted)
    ran = [row.metric for row in emitted if row.labels["test"] == "memory" and row.value is not None]
    assert ran == ["dcgm_failures", "dcgm_warnings"]


@pytest.mark.parametrize(
    ("hardware", "other", "untested"),
    [(["Pass", "Pass"], "0", ""), (["Pass", "Skip"], "0", "nothing of gpu2"),
     (["Pass", "Pass"], "1659999999999", "")],
)  # fmt: skip
def test_a_gpu_without_a_serial_number_may_be_one_that_dcgm_tested(run_probe, tool, hardware, other, untested):
    class OneSerial(Machine):
        def inventory(self):
            return [*super().inventory(), Fact("gpu_serial", "gpu5", "text", text="1650000000005")]

    report = diagnosis(hardware, 0, 1)
    report["DCGM Diagnostic"]["GPU Device Serials"] = {"0": "1650000000005", "1": other}
    tool("dcgmi", json.dumps(report))
    with pytest.raises(RuntimeError, match=untested) if untested else contextlib.nullcontext():
        run_probe(DcgmDiag, OneSerial(), level=3)


def test_gpus_that_share_their_boards_serial_number_go_by_their_addresses(run_probe, tool):
    class Superchip(Machine):
        def inventory(self):
            serials = {"gpu5": "165/GPU-1", "gpu2": "165/GPU-2"}
            facts = (Fact("gpu_serial", gpu, "text", text=each) for gpu, each in serials.items())
            return [*super().inventory(), *facts]

    report = json.loads(dcgm(PASSES, FAILS))
    report["DCGM Diagnostic"]["GPU Device Serials"] = {"0": "165", "1": "165"}
    tool("dcgmi", json.dumps(report))
    run = run_probe(DcgmDiag, Superchip())
    assert {row.device: row.value for row in run.all("dcgm_failures")} == {"gpu5": 0, "gpu2": 1}


def test_an_error_of_several_gpus_that_names_none_of_them_is_not_lost(run_probe, tool):
    warnings = [
        {"error_id": 29, "warning": "Persistence mode is off on GPU 0"},
        {"error_id": 44, "warning": "mismatch"},
    ]
    tool("dcgmi", dcgm({"gpu_ids": "0,1", "status": "Fail", "warnings": warnings}))
    run = run_probe(DcgmDiag, Machine())
    assert {row.device: row.value for row in run.all("dcgm_failures")} == {"gpu5": 0, "gpu2": 0, "node": 1}


def test_a_test_without_a_result_did_not_run(run_probe, tool):
    """dcgmi 4 lists each test by its name, and leaves out results and summaries of "not run" (NVIDIA/DCGM,
    dcgmi/Diag.cpp, HelperJsonAddResult): neither a pass nor a fault.
    """
    report = json.loads(dcgm(PASSES, FAILS | {"status": "Pass"}))
    report["DCGM Diagnostic"]["test_categories"][0]["tests"].append({"name": "pcie"})
    tool("dcgmi", json.dumps(report))
    run = run_probe(DcgmDiag, Machine())
    assert {row.labels["test"]: row.value for row in run.all("dcgm_failures")} == {"memory": 0, "pcie": None}
    del report["DCGM Diagnostic"]["test_categories"][0]["tests"][0]
    tool("dcgmi", json.dumps(report))
    with pytest.raises(RuntimeError, check=lambda error: error.__cause__.code == "no results"):
        run_probe(DcgmDiag, Machine())


def test_an_error_beside_the_report_is_one_of_the_run(run_probe, tool):
    tool("dcgmi", json.dumps({**json.loads(dcgm(PASSES)), "runtime_error": "a GPU is in use"}))
    with pytest.raises(RuntimeError, match="a GPU is in use"):
        run_probe(DcgmDiag, Machine())


NO_ENGINE = recorded("dcgm/no-connection")


@pytest.mark.parametrize("said", [NO_ENGINE, json.dumps({"DCGM Diagnostic": {"runtime_error": NO_ENGINE}})])
@pytest.mark.parametrize("stream", [1, 2])
def test_dcgm_without_its_service_is_as_good_as_not_installed(run_probe, tool, said, stream):
    tool("dcgmi", said, status=1, script=f"cat >&{stream}")
    with pytest.raises(Skip, match="nvidia-dcgm"):
        run_probe(DcgmDiag, Machine())


def test_a_service_that_ends_during_a_diagnosis_is_missing(run_probe, tool):
    said = "Error: Unable to complete diagnostic. Return: (-21) Host engine connection invalid/disconnected\n"
    tool("dcgmi", said, status=1)
    with pytest.raises(RuntimeError, match="Unable to complete diagnostic"):
        run_probe(DcgmDiag, Machine())


def test_persistence_mode_off_fails_no_gpu(run_probe, tool):
    tool("dcgmi", recorded("dcgm/v4-persistence-mode-off"), status=226)
    run = run_probe(DcgmDiag, Machine())
    assert [run.one("dcgm_failures", gpu).value for gpu in ("gpu5", "gpu2")] == [0, 0]
    assert [run.one("dcgm_warnings", gpu).value for gpu in ("gpu5", "gpu2")] == [1, 0]


def test_a_port_is_measured_against_its_own_rate(run_probe, tool):
    tool("ib_write_bw", recorded("perftest/gbits"))
    run = run_probe(IbWriteBw, Machine())
    assert run.one("ib_bandwidth", "nic:mlx5_0").value == 392.84
    assert run.one("ib_share", "nic:mlx5_0").value == pytest.approx(98.21)


def test_a_port_without_reliable_connections_is_left_out(run_probe, tool):
    """As EFA's, whose link layer is "Unknown"."""

    class WithEfa(Machine):
        layer = "InfiniBand"

        def inventory(self):
            return [
                *super().inventory(),
                Fact("ib_link_layer", "nic:mlx5_0", "text", text=self.layer),
                Fact("nic_speed", "nic:rdmap0s6", "Gb/s", 100.0),
                Fact("ib_port_active", "nic:rdmap0s6", "bool", 1.0),
                Fact("ib_link_layer", "nic:rdmap0s6", "text", text="Unknown"),
            ]

    tool("ib_write_bw", recorded("perftest/gbits"))
    assert [row.device for row in run_probe(IbWriteBw, WithEfa()).all("ib_bandwidth")] == ["nic:mlx5_0"]
    WithEfa.layer = "Unknown"
    with pytest.raises(Skip):
        run_probe(IbWriteBw, WithEfa())


@pytest.mark.parametrize(
    ("probe", "program", "params", "recording"),
    [
        (*PROGRAMS[0], "nvbandwidth/v0.6-two-gpus"),
        (*PROGRAMS[1], "nccl_tests/v2.13-h100"),
        (*PROGRAMS[2], "dcgm/v2-all-pass"),
        (*PROGRAMS[3], "perftest/gbits"),
    ],
)
def test_an_exit_status_counts_although_results_were_printed(run_probe, tool, probe, program, params, recording):
    tool(program, recorded(recording), status=1)
    with pytest.raises(RuntimeError, match="exit status 1"):
        run_probe(probe, Machine(), **params)


@pytest.mark.parametrize(("probe", "program", "params"), PROGRAMS)
def test_a_tool_that_hangs_is_ended_and_one_that_fails_is_quoted(run_probe, tool, probe, program, params):
    tool(program, "", script="sleep 60 #")
    with pytest.raises(RuntimeError, match=r"did not end within 0\.2 s"):
        run_probe(probe, Machine(), limit_s=0.2, **params)
    tool(program, "error: something is amiss")
    with pytest.raises(RuntimeError, match="something is amiss"):
        run_probe(probe, Machine(), **params)


@pytest.mark.parametrize("probe", [probe for probe, _, _ in PROGRAMS])
def test_vendors_tools_skip_simulated_hardware(run_probe, probe):
    with pytest.raises(Skip):
        run_probe(probe, SimpleNamespace(simulated=True))


def test_tools_run_in_the_c_locale(run_probe, tool, monkeypatch, tmp_path):
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    tool("show", script=f"echo $LC_ALL > {tmp_path}/locale #")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    run.run_tool(SimpleNamespace(scratch=scratch), ["show"], 5.0)
    assert (tmp_path / "locale").read_text() == "C\n"


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

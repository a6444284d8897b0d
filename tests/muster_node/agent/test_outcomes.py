"""Every end of a probe becomes an entry of the result, with its measurements until then."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.muster_node.agent.harness import Ended, Node, alive, call, plan

MISBEHAVIOUR = {
    "segfault": ("crashed", "killed by SIGSEGV"),
    "raises": ("crashed", "ValueError: the sum is off by one (bad.py:"),
    "exits": ("crashed", "the probe called sys.exit(3)"),
    "hard_exit": ("crashed", "exited with status 4, its last output was: cannot find the thing"),
    "silent_exit": ("crashed", "ended without a result"),
    "killed": ("crashed", "killed by SIGKILL from outside"),
    "out_of_memory": ("crashed", "MemoryError"),
    "garbage": ("crashed", "a line that is not JSON"),
    "forged": ("crashed", "the undeclared metric 'verdict'"),
    "infinite": ("crashed", "metric figure came with inf for a number"),
    "undeclared": ("crashed", "the undeclared metric 'verdict'"),
    "bad_device": ("crashed", "unusable device"),
    "long_line": ("crashed", "a line longer than 65536 bytes"),
    "flood": ("crashed", "it sent more than"),
    "loud_output": ("crashed", "the very last line"),
    "hangs": ("timed_out", "it did not end within 1 s"),
    "slow_leaver": ("completed", ""),
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ended]:
    """One job with every probe that misbehaves, and one behaving at either end."""
    node = Node(tmp_path_factory.mktemp("node"))
    bad = [call(name, 1.0 if name == "hangs" else 30.0) for name in MISBEHAVIOUR]
    yield node.run(plan(call("good"), *bad, call("good", value=2.5)))
    node.close()


@pytest.mark.parametrize("probe", sorted(MISBEHAVIOUR))
def test_misbehaviour_is_reported_in_one_sentence_and_keeps_measurements(ended: Ended, probe: str) -> None:
    status, reason = MISBEHAVIOUR[probe]
    outcome = ended.outcome(probe)
    assert outcome.status == status
    assert reason in outcome.reason
    assert "\n" not in outcome.reason
    assert ended.measured(probe)[0].value == 42


def test_the_job_goes_on_to_its_end(ended: Ended) -> None:
    assert ended.rc == 0
    assert ended.result.end == "completed"
    assert not ended.result.partial
    assert [probe.probe for probe in ended.result.probes] == ["good", *MISBEHAVIOUR, "good"]
    assert [row.value for row in ended.measured("good") if row.metric == "figure"] == [1.5, None, 2.5, None]


def test_units_come_from_the_declaration_and_every_field_arrives(ended: Ended) -> None:
    figure, rate, fact, missing = ended.measured("good")[:4]
    assert (figure.unit, figure.labels, figure.samples, figure.spread) == ("GB/s", {"op": "copy"}, 3, 0.25)
    assert (rate.device, rate.unit, rate.value) == ("gpu3", "TFLOPS", 7)
    assert (fact.device, fact.text, fact.value) == ("disk:sda", "a disk", None)
    assert (missing.value, missing.text, missing.note) == (None, None, "not supported")


def test_flooding_is_cut_off_and_costs_only_the_flooder(ended: Ended) -> None:
    assert (ended.job / "result.json").stat().st_size <= 5 * 1024 * 1024
    assert any("flood" in note for note in ended.result.notes)


def test_loud_output_is_kept_at_both_ends_only(ended: Ended) -> None:
    log = ended.job / "logs" / next(name for name in os.listdir(ended.job / "logs") if "loud_output" in name)
    text = log.read_text()
    assert len(text) < 1_000_000
    assert text.startswith("yyy")
    assert text.endswith("the very last line\n")
    assert "bytes left out]" in text


def test_a_segfault_leaves_its_python_stack_in_the_log(ended: Ended) -> None:
    log = ended.job / "logs" / next(name for name in os.listdir(ended.job / "logs") if "segfault" in name)
    assert "bad.py" in log.read_text()
    assert log.name in ended.outcome("segfault").reason


def test_the_result_holds_identity_environment_and_hash(ended: Ended) -> None:
    result = ended.result
    assert result.identity["boot_id"] == "boot-1"
    assert result.identity["serials"] == {"system": "SYS123", "gpu0": "GPU456"}
    assert {"kernel", "os", "python", "muster"} <= set(result.environment)
    assert result.environment["driver"] == "580.1"
    assert len(result.agent_sha256) == 64
    assert result.simulated is False


def test_progress_reads_well_and_carries_no_control_characters(ended: Ended) -> None:
    assert "at work [2J" in ended.out
    assert "\x1b" not in ended.out
    assert any(row["probe"] == "segfault" and "crashed after" in row["text"] for row in ended.progress())


def test_a_probe_file_that_cannot_be_imported_is_noted_where_a_probe_is_missing(ended: Ended, node: Node) -> None:
    assert not any("fake_probes.broken" in note for note in ended.result.notes), "what it ran was all there"
    done = node.run(plan(call("unknown"), call("good")))
    assert [outcome.status for outcome in done.result.probes] == ["skipped", "completed"]
    assert any("fake_probes.broken" in note for note in done.result.notes)


def test_skips_give_a_reason(node: Node) -> None:
    done = node.run(plan(call("skipper"), call("needy"), call("needs_gpu"), call("unknown"), call("good", wrong=1)))
    assert {outcome.status for outcome in done.result.probes} == {"skipped"}
    assert "no-such-tool-anywhere" in done.outcome("needy").reason
    assert "'unknown'" in done.outcome("unknown").reason
    assert "wrong" in done.outcome("good").reason


def test_a_figure_that_is_no_number_is_missing_and_never_zero(node: Node) -> None:
    done = node.run(plan(call("not_a_number")))
    (row,) = done.measured("not_a_number")
    assert row.value is None
    assert "nan" in row.note
    assert done.outcome("not_a_number").status == "completed"


def test_a_probe_computes_without_mps_in_the_precision_that_it_sets_on_gpus_in_bus_order(node: Node) -> None:
    kept = {"CUDA_CACHE_DISABLE": "1"}
    bound = {"OMP_PROC_BIND": "true", "OMP_PLACES": "cores", "GOMP_CPU_AFFINITY": "0", "KMP_AFFINITY": "compact"}
    hidden = {"NVIDIA_TF32_OVERRIDE": "0", "CUDA_VISIBLE_DEVICES": "1,0"}
    given = {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/mps", **hidden, **bound, **kept}
    done = node.run(plan(call("environment")), env=given)
    found = dict(str(row.text).split("=", 1) for row in done.measured("environment"))
    scratch = found.pop("scratch")
    assert found == {"CUDA_MPS_PIPE_DIRECTORY": scratch, "CUDA_DEVICE_ORDER": "PCI_BUS_ID", **kept}


def test_scratch_is_removed(node: Node) -> None:
    done = node.run(plan(call("scratcher")))
    (row,) = done.measured("scratcher")
    assert row.text is not None
    assert not Path(row.text).exists()
    left = {path.name for path in done.job.iterdir()}
    assert left == {"plan.json", "result.json", "progress.jsonl", "telemetry.jsonl.gz", "agent.pid", "logs"}


@pytest.mark.parametrize("hang", [False, True])
def test_a_grandchild_that_escaped_is_killed(node: Node, tmp_path: Path, hang: bool) -> None:
    pid_file = tmp_path / "escaped"
    done = node.run(plan(call("escapes", 2.0, hang=hang, pid_file=str(pid_file))))
    assert not alive(int(pid_file.read_text()))
    assert done.outcome("escapes").status == ("timed_out" if hang else "completed")
    assert any("escapes" in note for note in done.result.notes)


def test_a_stubborn_probe_is_killed_at_its_time_limit(node: Node) -> None:
    done = node.run(plan(call("stubborn", 0.5)))
    assert done.outcome("stubborn").status == "timed_out"


def test_a_reader_that_does_not_read_blocks_nothing(node: Node) -> None:
    running = node.start(plan(call("chatty")))
    assert running.process.wait(timeout=20) == 0
    done = running.end()
    assert done.outcome("chatty").status == "completed"
    assert len(done.progress()) > 5000

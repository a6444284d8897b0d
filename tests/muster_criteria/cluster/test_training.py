"""The training of a block: what holds it up is named, and what belongs to the block fails no member."""

from __future__ import annotations

import json
from typing import Any

import pytest

from muster_criteria.cluster import judge
from muster_criteria.cluster.model import TRAINING, ClusterJudgement, Earlier, Measurements, MemberResult
from muster_criteria.cluster.training import EARLIER_MIN, dense_peaks, mfu_of
from muster_criteria.measured import StageResult, parse_result
from muster_criteria.model import Lack, Severity, Verdict
from muster_criteria.sku_files.skus import list_skus, load_sku
from tests.muster_criteria.cluster_results import PROGRAMME, Sent, block, judge_block, members, row
from tests.muster_criteria.cluster_verdicts import cleared, verdicts


def real(sent: dict[str, Sent], earlier: Earlier | None = None) -> ClusterJudgement:
    """Judged as real hardware: times of simulated members are not judged."""
    results = [MemberResult(name, parsed({**each.raw(), "simulated": False})) for name, each in sent.items()]
    return judge.judge_block(results, PROGRAMME, earlier=earlier)


def parsed(raw: dict[str, Any]) -> StageResult:
    return parse_result(json.dumps(raw).encode())


def rules(judgement: ClusterJudgement) -> dict[str, list[str]]:
    return {name: [each.rule for each in member.findings] for name, member in judgement.members.items()}


def test_a_block_that_scales_passes() -> None:
    assert verdicts(real(block(4))) == {Verdict.PASS}


@pytest.mark.parametrize(("metric", "value"), [("scaling", 0.94), ("step_p95_to_p50", 1.06)])
def test_what_no_member_explains_warns_of_the_whole_block_and_fails_none(metric: str, value: float) -> None:
    sent = block(4)
    for each in sent.values():
        each.training[metric] = value
    judgement = real(sent)
    assert judgement.failed == {}
    assert rules(judgement) == {name: [metric] for name in sent}
    assert verdicts(judge_block(members(sent))) == {Verdict.PASS}  # simulated: a note says that it is not judged


def test_a_figure_shows_the_limit_that_it_was_held_to_and_none_where_it_was_not_judged() -> None:
    sent = block(4)

    def limits(judgement: ClusterJudgement, metric: str) -> set[tuple[float | None, float | None]]:
        rows = judgement.members["n0"].observations
        return {(row.floor, row.ceiling) for row in rows if row.metric == metric}

    assert limits(real(sent), "scaling") == {(0.95, None)}
    assert limits(real(sent), "step_p95_to_p50") == {(None, 1.05)}
    assert limits(real(sent), "collective_mismatches") == limits(real(sent), "self_mismatches") == {(0.0, 0.0)}
    assert limits(judge_block(members(sent)), "scaling") == {(None, None)}
    mixed = [MemberResult(name, parsed({**each.raw(), "simulated": name == "n0"})) for name, each in sent.items()]
    assert limits(judge_block(mixed), "scaling") == {(None, None)}


def test_a_straggler_explains_the_block_and_the_others_pass() -> None:
    sent = block(4)
    sent["n2"].compute["gpu1"] = 1.3
    for name, each in sent.items():
        each.training["scaling"] = 0.75
        each.wait = 0.02 if name == "n2" else 0.32
    judgement = real(sent)
    assert rules(judgement) == {"n0": [], "n1": [], "n2": ["straggler"], "n3": []}
    assert any("n2" in note for note in judgement.notes)


def test_a_straggler_explains_no_more_than_it_costs() -> None:
    sent = block(8)
    sent["n2"].compute["gpu1"] = 1.045
    for name, each in sent.items():
        each.training |= {"scaling": 0.5, "step_p95_to_p50": 2.0}
        each.wait = 0.02 if name == "n2" else 0.065
    found = rules(real(sent))
    assert all(found[name] == ["scaling", "step_p95_to_p50"] for name in set(sent) - {"n2"})


@pytest.mark.parametrize(("spread", "explains"), [(0.004, False), (0.4, True)])
def test_a_straggler_explains_irregular_steps_as_far_as_it_is_irregular(spread: float, explains: bool) -> None:
    """What is slow in every step moves the median of the steps as it moves their p95."""
    sent = block(8)
    sent["n2"].compute["gpu1"], sent["n2"].spread = 1.3, spread
    for name, each in sent.items():
        each.training["step_p95_to_p50"] = 1.28
        each.wait = 0.02 if name == "n2" else 0.32
    found = rules(real(sent))
    assert found.pop("n2") == ["straggler", *([] if explains else ["step_p95_to_p50"])]
    assert list(found.values()) == [[] if explains else ["step_p95_to_p50"]] * 7


@pytest.mark.parametrize(("share", "explains"), [(0.8, True), (0.4, False)])
def test_a_slow_path_explains_no_more_than_it_costs(share: float, explains: bool) -> None:
    """A path at two thirds of the others' rate lowers the block to two thirds at most."""
    sent = block(8)
    sent["n2"].path_rate = 40.0 * 2 / 3
    rate = Measurements(parsed(sent["n0"].raw())).value(TRAINING, "tokens_per_s", scope="block")
    assert rate is not None
    for each in sent.values():
        each.training["scaling"] = share
    found = rules(real(sent, Earlier(rate / 16 / share, EARLIER_MIN)))
    assert all(rows == ([] if explains else ["scaling", "tokens_per_s"]) for name, rows in found.items()
               if name not in ("n1", "n2"))  # fmt: skip


@pytest.mark.parametrize(("rate", "refused"), [(1e-9, False), (0.0, True)])
def test_a_path_that_its_receiver_calls_dead_explains_no_block_that_trains(rate: float, refused: bool) -> None:
    sent = block(8)
    sent["n2"].path_rate = rate
    for each in sent.values():
        each.training["scaling"] = 0.005
    judgement = real(sent)
    assert all("scaling" in found for found in rules(judgement).values())
    assert (Lack.REFUSED in {gap.code for gap in judgement.members["n2"].coverage.missing}) is refused


def test_a_port_of_a_tenth_of_the_rate_explains_a_block_that_waits_for_it() -> None:
    sent = block(8)
    sent["n2"].path_rate = 4.0
    for each in sent.values():
        each.training["scaling"] = 0.12
    assert {name for name, found in rules(real(sent)).items() if found} == {"n1", "n2"}


def test_a_straggler_explains_what_a_slow_path_does_not() -> None:
    sent = block(8)
    sent["n2"].compute["gpu1"], sent["n5"].path_rate = 2.0, 40.0 * 2 / 3
    for name, each in sent.items():
        each.training["scaling"], each.wait = 0.5, 0.02 if name == "n2" else 1.02
    assert rules(real(sent))["n0"] == []


def test_a_member_that_took_no_part_explains_nothing() -> None:
    sent = block(4)
    for name in ("n0", "n1", "n3"):
        sent[name].training["scaling"] = 0.5
        sent[name].lose("n2")
    found = rules(real(sent))
    assert [found[name] for name in ("n0", "n1", "n3")] == [["scaling"]] * 3


@pytest.mark.parametrize(
    ("share", "blocks", "warns"),
    [(0.92, EARLIER_MIN, False), (0.88, EARLIER_MIN, True), (0.1, EARLIER_MIN - 1, False), (1.5, 10, False)],
)
def test_a_block_in_which_all_are_slow_alike_is_compared_with_earlier_ones(
    share: float, blocks: int, warns: bool
) -> None:
    sent = block(4)
    rate = Measurements(parsed(sent["n0"].raw())).value(TRAINING, "tokens_per_s", scope="block")
    assert rate is not None
    judgement = real(sent, Earlier(rate / 8 / share, blocks))
    assert judgement.failed == {}
    assert rules(judgement) == dict.fromkeys(sent, ["tokens_per_s"] if warns else [])


def test_exposed_communication_that_all_share_makes_no_straggler_less() -> None:
    """All wait 0.5 s for what no compute hides; the straggler waits for nothing else."""
    sent = block(4)
    sent["n2"].compute["gpu1"] = 1.3
    for name, each in sent.items():
        each.wait = 0.5 if name == "n2" else 0.8
    ((name, (finding,)),) = real(sent).failed.items()
    assert (name, finding.rule, finding.device) == ("n2", "straggler", "gpu1")


def test_a_slow_path_is_named_by_both_its_ends() -> None:
    sent = block(4)
    sent["n2"].path_rate = 20.0  # what n1 sends arrives slowly
    judgement = real(sent)
    assert rules(judgement) == {"n0": [], "n1": ["slow_path"] * 2, "n2": ["slow_path"] * 2, "n3": []}
    assert all(each.severity is Severity.WARNING for each in judgement.members["n2"].findings)


def test_a_path_without_a_rate_costs_the_others_nothing() -> None:
    sent = block(4)
    sent["n2"].path_rate = None
    assert {"n0", "n1", "n3"} <= set(cleared(real(sent)))


@pytest.mark.parametrize(("senders", "devices"), [(("n6",), range(2, 60)), (("n0", "n1", "n2"), range(2))])
@pytest.mark.parametrize("rate", [20.0, 4000.0])
def test_a_member_that_invents_paths_hides_none_and_is_the_only_suspect(
    senders: tuple[str, ...], devices: range, rate: float
) -> None:
    sent = block(8)
    sent["n3"].path_rate = 20.0
    results = {name: each.raw() for name, each in sent.items()}
    results["n7"]["measurements"] += [
        row(TRAINING, "path_rate", f"gpu{at}", value=rate, labels={"sender": sender})
        for sender in senders for at in devices
    ]  # fmt: skip
    raws = {name: {**raw, "simulated": False} for name, raw in results.items()}
    judgement = judge_block([MemberResult(name, parsed(raw)) for name, raw in raws.items()], PROGRAMME)
    assert {name for name, found in rules(judgement).items() if "slow_path" in found} == {"n2", "n3"}
    refused = {
        name for name, each in judgement.members.items() if Lack.REFUSED in {g.code for g in each.coverage.missing}
    }
    assert refused == {"n7"}


@pytest.mark.parametrize(("beyond", "found"), [(-0.1, False), (0.1, True)])
def test_a_path_is_slow_from_its_limit_on(beyond: float, found: bool) -> None:
    sent = block(4)
    sent["n2"].path_rate = 0.4 * (100.0 - (PROGRAMME.limit("path_drop", "warn").number or 0.0) - beyond)
    assert bool(rules(real(sent))["n2"]) is found


def racks(count: int) -> dict[str, Sent]:
    """So many racks of 18 trays. Between them the network, within them NVLink."""
    sent = block(18 * count, gpus=4)
    for at, each in enumerate(sent.values()):
        each.domain = f"rack-{at // 18}.32766"
        each.path_rate = 45.0 if at % 18 == 0 else 350.0
    return sent


def test_a_path_between_racks_is_not_slow_for_not_being_nvlink() -> None:
    assert verdicts(real(racks(2))) == {Verdict.PASS}


def test_a_path_within_a_rack_and_one_between_racks_are_slow_by_others_of_their_kind() -> None:
    sent = racks(4)
    sent["n7"].path_rate = 150.0
    sent["n36"].path_rate = 20.0
    warned = {name: set(found) for name, found in rules(real(sent)).items() if found}
    assert warned == {name: {"slow_path"} for name in ("n6", "n7", "n35", "n36")}


def test_a_path_of_a_node_that_does_not_say_where_it_is_is_of_no_kind() -> None:
    sent = racks(2)
    sent["n7"].domain = sent["n8"].domain = ""
    sent["n8"].path_rate = 45.0
    assert all(not found for found in rules(real(sent)).values())


def test_a_slow_member_with_libraries_of_its_own_explains_a_block_that_scales_badly() -> None:
    sent = block(4)
    sent["n2"].apart("torch=2.14")
    sent["n2"].compute["gpu1"] = 1.3
    for each in sent.values():
        each.training["scaling"] = 0.8
    judgement = real(sent)
    assert rules(judgement) == {name: [] for name in sent}
    assert judgement.members["n2"].verdict is Verdict.PROVISIONAL
    assert any("scales badly" in note and "n2" in note for note in judgement.notes)
    sent["n2"].compute["gpu1"] = 1.0
    assert {tuple(found) for found in rules(real(sent)).values()} == {("scaling",)}


def test_a_node_that_is_slow_alone_is_warned_of() -> None:
    sent = block(4)
    sent["n3"].alone *= 0.9
    assert rules(real(sent)) == {"n0": [], "n1": [], "n2": [], "n3": ["slow_alone"]}
    sent["n3"].apart("driver_version=575")
    assert rules(real(sent)) == {"n0": [], "n1": [], "n2": [], "n3": ["slow_alone"]}


def test_a_shared_path_that_does_not_work_fails_no_node() -> None:
    sent = block(3)
    sent["n1"].shared_path = 0.0
    judgement = judge_block(members(sent))
    assert judgement.failed == {}
    assert rules(judgement) == {"n0": [], "n1": ["shared_path"], "n2": []}


def test_the_device_of_a_lost_member_is_the_one_that_the_others_name() -> None:
    sent = block(4)
    for name in ("n0", "n1", "n3"):
        sent[name].lose("n2").lost_part = "gpu1"
    judgement = judge_block(members(sent))
    assert judgement.missing == ("n2",)
    assert [each.device for each in judgement.members["n2"].findings] == ["gpu1"]


def test_mfu_is_counted_as_published() -> None:
    """Megatron-Bridge 25.11, Llama 3 8B, s = 8,192: 14,451 tokens/s a GPU are 744 TFLOPS."""
    sent = block(2, gpus=1)["n0"]
    sent.alone = 14_451.0
    sent.training["flop_per_token"] = 51.472e9
    rows = sent.raw()
    rows["measurements"].append(
        {
            "probe": "cluster_training",
            "metric": "training_recipe",
            "device": "node",
            "unit": "text",
            "text": "8b, bfloat16",
        }
    )
    measured = Measurements(parsed(rows))
    peaks = {"bfloat16": (989.4e12, "NVIDIA's data sheet")}
    alone, together = mfu_of(measured, peaks, 4)
    assert alone.value == pytest.approx(100 * 744 / 989.4, rel=0.001)
    assert together.value == pytest.approx(float(alone.value or 0.0) / 2)  # two nodes' rate over four devices
    assert [each.labels for each in mfu_of(measured, peaks, 0)] == [(("scope", "node"),)]
    assert mfu_of(measured, {"float16": (1.0, "")}, 2) == ()


def test_the_mfu_of_a_block_is_that_of_its_tokens_whichever_member_is_slow_and_needs_all_devices() -> None:
    sent = block(4)
    for each in sent.values():
        each.training["flop_per_token"] = 1e9
        each.storage.append({"probe": TRAINING, "metric": "training_recipe", "device": "node", "unit": "text",
                             "text": "8b, bfloat16"})  # fmt: skip
    sent["n3"].alone *= 0.5

    def mfu() -> dict[str, float]:
        given = [MemberResult(name, parsed(each.raw()), peaks={"bfloat16": (1e14, "")}) for name, each in sent.items()]
        return {
            name: row.value or 0.0 for name, one in judge_block(given).members.items() for row in one.observations
            if (row.metric, row.labels) == ("mfu", (("scope", "block"),))
        }  # fmt: skip

    assert mfu() == pytest.approx({"n0": 1.0, "n1": 1.0, "n2": 1.0, "n3": 0.5})  # 1,000 of 100,000 tokens/s a device
    del sent["n3"].training["training_devices"]
    assert mfu() == {}


@pytest.mark.parametrize("name", [name for name in list_skus() if name != "cpu-generic"])
def test_mfu_of_every_gpu_model_has_a_peak_to_be_counted_by(name: str) -> None:
    sku = load_sku(name)
    (published,) = (each.gemm_rate["bf16"] for each in sku.peaks if "bf16" in each.gemm_rate)
    peak, source = dense_peaks(sku.all_limits)["bfloat16"]
    assert peak == published * 1e12
    assert any(model in source for model in sku.names)


def test_a_sku_may_have_limits_of_its_own() -> None:
    gpu, cpu = load_sku("l40s-8").block, load_sku("cpu-generic").block
    assert gpu.limit("scaling", "warn").number == 0.95
    assert gpu.limit("step_p95_to_p50", "warn").number == 1.05
    assert (cpu.limit("scaling", "warn").number or 1.0) < 0.95
    assert len(cpu.limits) == len(gpu.limits), "they replace others"
    own = [each for each in load_sku("h100-sxm-8").block.limits if each.metric == "pair_bandwidth"]
    assert [(each.number, each.labels) for each in own] == [(360, {"backend": "ib_write_bw"})]
    assert len(load_sku("h100-sxm-8").block.limits) == len(gpu.limits) + 1

"""Goldens: what is promoted, what holds a promotion, and the findings of a device that returns other digests."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any

import pytest

from muster_criteria.context.goldens import Golden, Goldens, Sighting, consensus, digests_of, golden_id
from muster_criteria.model import COMMON_CAUSE, Action, FaultClass, Judgement, Lack, Severity, Verdict
from tests.muster_criteria.nodes import Case, MakeCase

KEY, OP = "driver=570; gpu_model=H100; torch=2.8", "attention"
THEN = datetime.datetime(2026, 11, 20, 12, tzinfo=datetime.UTC)
GPUS = [f"gpu{slot}" for slot in range(8)]


def seen(subject: str, node: str, digest: str = "right", **changes: Any) -> Sighting:
    identity = golden_id(KEY, OP, simulated=False)
    made = Sighting(identity, KEY, OP, digest, subject, "gpu0", node, "dag/run", THEN)
    return dataclasses.replace(made, **changes)


def fleet_of(*subjects: tuple[str, str], digest: str = "right") -> list[Sighting]:
    return [seen(subject, node, digest) for subject, node in subjects]


THREE = fleet_of(("gpu 1", "a"), ("gpu 2", "b"), ("gpu 3", "c"))


class TestPromotion:
    def test_three_gpus_on_three_nodes_that_agree_make_a_golden(self) -> None:
        assert consensus(THREE).digest == "right"

    @pytest.mark.parametrize(
        "sightings",
        [
            [],
            THREE[:2],
            fleet_of(("gpu 1", "a"), ("gpu 2", "a"), ("gpu 3", "b"), ("gpu 4", "b")),
            fleet_of(("gpu 1", "a"), ("gpu 1", "b"), ("gpu 1", "c")),
        ],
        ids=["none", "two", "four on two nodes", "one that was moved about"],
    )
    def test_fewer_do_not(self, sightings: list[Sighting]) -> None:
        agreed = consensus(sightings)
        assert not agreed.digest
        assert "have agreed" in agreed.why_not

    @pytest.mark.parametrize(("agreeing", "dissenting", "promoted"), [(8, 1, False), (9, 1, True), (50, 6, False)])
    def test_dissent_on_more_than_one_node_in_ten_holds_it(
        self, agreeing: int, dissenting: int, promoted: bool
    ) -> None:
        sightings = [seen(f"gpu {number}", f"n{number}") for number in range(agreeing)]
        sightings += [seen(f"gpu x{number}", f"x{number}", "other") for number in range(dissenting)]
        agreed = consensus(sightings)
        assert bool(agreed.digest) is promoted
        assert agreed.why_not.startswith("undecided") is not promoted

    def test_equal_halves_make_no_golden(self) -> None:
        halves = [seen(f"gpu {number}", f"n{number}", "right" if number % 2 else "other") for number in range(40)]
        assert not consensus(halves).digest

    def test_a_device_that_once_gave_other_bits_dissents(self) -> None:
        assert consensus([*THREE, seen("gpu 1", "a", "other")]).why_not.startswith("undecided")

    def test_where_all_agree_since_a_repair_the_remedy_is_named(self) -> None:
        was = [*THREE[:2], seen("gpu x", "x", "other")]
        assert "withdraw" not in consensus(was).why_not
        assert f"muster golden withdraw {was[0].golden_id}" in consensus([*was, seen("gpu x", "x")]).why_not

    def test_a_suspect_has_no_vote(self) -> None:
        dissent = seen("gpu x", "x", "other")
        assert consensus([*THREE, dissent], {"gpu x"}).digest == "right"
        assert not consensus(THREE, {"gpu 2"}).digest

    def test_real_and_simulated_and_every_part_of_the_key_are_kept_apart(self) -> None:
        ids = {golden_id(key, op, simulated=False) for key in (KEY, f"{KEY}; vbios=2") for op in (OP, "softmax")}
        ids.add(golden_id(KEY, OP, simulated=True))
        assert len(ids) == 5


def measured(case: MakeCase, **digests: str) -> Case:
    """A healthy node whose GPUs gave these digests ("right", by default)."""
    made = case("integrity")
    for gpu in GPUS:
        made.add("full_entropy", "golden_key", gpu, KEY, "text")
        made.add("full_entropy", "full_entropy_digest", gpu, digests.get(gpu, "right"), "text", labels={"op": OP})
    return made


GOLDEN = Golden(golden_id(KEY, OP, simulated=False), "right", THEN, ("gpu 1 on a", "gpu 2 on b", "gpu 3 on c"))
PROMOTED = Goldens({GOLDEN.id: GOLDEN})


def found(judgement: Judgement) -> list[tuple[str, Severity, FaultClass, Action]]:
    return [(each.device, each.severity, each.fault_class, each.action) for each in judgement.findings]


class TestJudging:
    def test_a_node_that_gives_the_golden_passes(self, case: MakeCase) -> None:
        judgement = measured(case).judge(goldens=PROMOTED)
        assert judgement.verdict is Verdict.PASS
        assert not judgement.findings

    def test_a_device_that_differs_is_named_and_cites_the_golden(self, case: MakeCase) -> None:
        judgement = measured(case, gpu5="wrong").judge(goldens=PROMOTED)
        assert judgement.verdict is Verdict.FAIL
        assert found(judgement) == [("gpu5", Severity.CRITICAL, FaultClass.GPU, Action.RMA)]
        (finding,) = judgement.findings
        assert finding.code == "golden.confirmed"
        assert GOLDEN.id in finding.source
        assert finding.measurements == ("full_entropy:full_entropy_digest[op=attention]@gpu5",)

    def test_without_siblings_that_gave_it_the_finding_is_unconfirmed(self, case: MakeCase) -> None:
        alone = measured(case, gpu5="wrong")
        alone.raw["measurements"] = [
            row for row in alone.raw["measurements"]
            if row["metric"] != "full_entropy_digest" or row["device"] in ("gpu4", "gpu5")
        ]  # fmt: skip
        (finding,) = alone.judge(goldens=PROMOTED).findings
        assert finding.action is Action.RETEST
        assert finding.code == "golden.unconfirmed"

    def test_where_all_gpus_differ_alike_no_gpu_is_named(self, case: MakeCase) -> None:
        judgement = measured(case, **dict.fromkeys(GPUS, "wrong")).judge(goldens=PROMOTED)
        assert judgement.verdict is Verdict.FAIL
        assert judgement.findings[0].rule == COMMON_CAUSE
        assert {each.action for each in judgement.findings} == {Action.FIX_SOFTWARE}

    def test_a_golden_says_nothing_of_another_key_or_of_simulated_nodes(self, case: MakeCase) -> None:
        other = measured(case, gpu5="wrong")
        for row in other.raw["measurements"]:
            row["text"] = f"{KEY}; vbios=2" if row["metric"] == "golden_key" else row["text"]
        assert not other.judge(goldens=PROMOTED).findings
        simulated = measured(case, gpu5="wrong")
        simulated.raw["simulated"] = True
        assert not simulated.judge(goldens=PROMOTED).findings

    def test_before_there_is_one_who_is_alone_is_warned_of_as_a_suspect(self, case: MakeCase) -> None:
        judgement = measured(case, gpu5="wrong").judge(goldens=Goldens(seen=tuple(THREE[:2])))
        assert judgement.verdict is Verdict.WARN
        assert found(judgement) == [("gpu5", Severity.WARNING, FaultClass.GPU, Action.RETEST)]
        assert judgement.findings[0].code == "golden.alone"

    def test_before_there_is_one_a_node_that_differs_as_a_whole_is_a_matter_of_software(self, case: MakeCase) -> None:
        judgement = measured(case, **dict.fromkeys(GPUS, "wrong")).judge(goldens=Goldens(seen=tuple(THREE[:2])))
        assert "withdraw" not in judgement.findings[0].summary
        assert len(set(judgement.findings[0].measurements)) == len(GPUS)
        other = seen("gpu 9", "d", golden_id="of another operation")
        repaired = (*THREE[:2], *(seen(each.subject, each.node, "wrong") for each in THREE[:2]), other)
        (since,) = measured(case, **dict.fromkeys(GPUS, "wrong")).judge(goldens=Goldens(seen=repaired)).findings
        assert f"muster golden withdraw {GOLDEN.id}" in since.summary
        assert judgement.verdict is Verdict.WARN
        assert found(judgement) == [("node", Severity.WARNING, FaultClass.SOFTWARE, Action.FIX_SOFTWARE)]

    def test_a_node_that_agrees_with_most_is_not_warned_of_one_that_did_not(self, case: MakeCase) -> None:
        odd = dataclasses.replace(THREE[2], digest="wrong")
        assert measured(case).judge(goldens=Goldens(seen=(*THREE[:2], odd))).verdict is Verdict.PASS
        assert measured(case).judge(goldens=Goldens(seen=(THREE[0], odd))).verdict is Verdict.WARN

    def test_the_first_of_a_kind_has_nothing_to_differ_from(self, case: MakeCase) -> None:
        assert measured(case).judge(goldens=Goldens()).verdict is Verdict.PASS

    def test_a_gpu_that_no_other_can_be_compared_with_does_not_pass_unless_a_golden_judges_it(
        self, case: MakeCase
    ) -> None:
        made = measured(case, gpu7="wrong")
        for row in made.rows("golden_key", "gpu7"):
            row["text"] = f"{KEY}; sms=114"
        judgement = made.judge()
        assert judgement.verdict is Verdict.PROVISIONAL
        assert [(gap.code, gap.device) for gap in judgement.coverage.unjudged] == [(Lack.NOT_COMPARED, "gpu7")]
        own = dataclasses.replace(GOLDEN, id=golden_id(f"{KEY}; sms=114", OP, simulated=False), digest="wrong")
        assert made.judge(goldens=Goldens({own.id: own})).verdict is Verdict.PASS

    def test_the_only_gpu_of_a_node_passes_with_a_note_until_there_is_a_golden(self, case: MakeCase) -> None:
        made = measured(case)
        made.raw["measurements"] = [
            row for row in made.raw["measurements"]
            if row["device"] == "gpu0" or not row["metric"].startswith(("golden", "full_entropy_digest"))
        ]  # fmt: skip
        judgement = made.judge()
        assert judgement.verdict is Verdict.PASS
        assert len(judgement.notes) == 1
        assert not made.judge(goldens=PROMOTED).notes

    @pytest.mark.parametrize("metric", ["golden_key", "full_entropy_digest"])
    def test_a_gpu_without_digests_or_key_is_not_measured(self, case: MakeCase, metric: str) -> None:
        judgement = case("integrity", level="short").drop(metric, "gpu5").judge()
        assert judgement.verdict is Verdict.INCONCLUSIVE
        assert {(gap.code, gap.device) for gap in judgement.coverage.missing} == {(Lack.NOT_REPORTED, "gpu5")}

    def test_a_device_that_contradicts_itself_has_no_vote(self, case: MakeCase) -> None:
        twice = measured(case).add("full_entropy", "full_entropy_digest", "gpu5", "x", "text", labels={"op": OP})
        assert {each.device for each in digests_of(twice.result())} == set(GPUS) - {"gpu5"}

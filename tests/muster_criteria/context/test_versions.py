"""Versions of drivers and firmware gate intake: what differs is named, what is unknown never passes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from muster_criteria.context.versions import differing
from muster_criteria.model import Gap, Lack, Verdict
from muster_criteria.sku_files.model import SkuError
from muster_criteria.sku_files.skus import load_sku
from muster_criteria.sku_files.versions import Allowed
from muster_criteria.stage.case import Case as JudgeCase
from muster_criteria.stage.prefilter import conspicuous
from tests.muster_criteria.nodes import Case, MakeCase

WHY = {"source": "own decision of the fleet", "date": "2026-11-23"}


def gated(case: MakeCase, *entries: dict[str, Any], stage: str = "intake") -> Case:
    made = case(stage)
    made.sku = made.sku.model_copy(update={"versions": tuple(Allowed.model_validate(e | WHY) for e in entries)})
    return made


@pytest.mark.parametrize(
    ("part", "form", "version", "allowed"),
    [
        ("driver_version", {"exactly": ["580.126.09"]}, "580.126.09", True),
        ("driver_version", {"exactly": ["580.126.09"]}, "580.126.9", False),
        ("driver_version", {"at_least": "580.95", "below": "590"}, "580.126.09", True),
        ("driver_version", {"at_least": "580.95"}, "580.65.06", False),
        ("driver_version", {"below": "580"}, "580", False),
        ("driver_version", {"at_least": "580"}, "unreadable", None),
        ("driver_version", {"at_least": "535.129.03", "below": "580.95.05"}, "535.129.03", True),
        ("driver_version", {"at_least": "580.95.05"}, "580.82.07", False),
        ("bios_version", {"at_least": "1.4b"}, "1.4", False),
        ("bios_version", {"at_least": "1.4b"}, "1.4a", False),
        ("bios_version", {"at_least": "1.4b"}, "1.4B", True),
        ("bios_version", {"at_least": "1.4b"}, "1.5", True),
        ("bios_version", {"below": "1.4a"}, "1.4", True),
        ("bios_version", {"at_least": "2.20"}, "U54", None),
        ("bios_version", {"at_least": "2.10"}, "V2.10", True),
        ("bios_version", {"at_least": "2.20"}, "U54 v2.30 (02/02/2024)", None),
        ("bios_version", {"at_least": "U54 v2.20"}, "U54 v2.10 (02/02/2024)", False),
        ("bios_version", {"at_least": "U54 v2.20"}, "U54 v2.20 (02/02/2024)", True),
        ("bios_version", {"at_least": "3.20"}, "ESE104A-1.10", None),
        ("bios_version", {"at_least": "ESE126A-3.20"}, "ESE124B-3.11", False),
        ("bios_version", {"exactly": ["U54"], "at_least": "2.20"}, "U54", True),
        ("cuda_version", {"at_least": "13.0"}, "13", True),
        ("cuda_version", {"below": "13"}, "13.0", False),
        ("nic_firmware", {"at_least": "28.39.1002"}, "28.39.1002 (MT_0000000838)", True),
        ("nic_firmware", {"at_least": "28.40.1000"}, "28.39.1002 (MT_0000000838)", False),
        ("kernel", {"at_least": "5.15.0-1053"}, "5.15.0-1049-nvidia", False),
        ("kernel", {"at_least": "5.15.0-1049", "below": "6"}, "5.15.0-1049-nvidia", True),
        ("fabric_manager_version", {"at_least": "2.21.5"}, "2.21.5+cuda12.4", True),
        ("bmc_firmware", {"at_least": "25.06-2_NV_WW_03"}, "25.06-2_NV_WW_02", False),
        ("bmc_firmware", {"at_least": "1.3.15"}, "01.03.16", True),
        ("cpu_microcode", {"at_least": "0x2b000571"}, "0x2b000590", True),
        ("cpu_microcode", {"at_least": "0xd0003d1"}, "0xd0003b9", False),
        ("vbios", {"at_least": "96.00.74.00.01"}, "96.00.74.00.01", True),
        ("vbios", {"at_least": "96.00.A5.00.01"}, "96.00.B0.00.01", True),
        ("vbios", {"at_least": "96.00.10.00.01"}, "96.00.9F.00.01", True),
        ("vbios", {"at_least": "96.00.A5.00.01"}, "96.00.9F.00.01", False),
        ("driver_version", {"exactly": ["1"], "at_least": "580"}, "590.1", True),
    ],
)
def test_which_versions_are_allowed(part: str, form: dict[str, Any], version: str, allowed: bool | None) -> None:
    assert Allowed.model_validate({"part": part, **form, **WHY}).allows(version, ()) is allowed


def test_a_version_that_differs_fails_intake_and_is_named_once_for_all_gpus(case: MakeCase) -> None:
    node = gated(case, {"part": "vbios", "exactly": ["96.00.A5.00.01"]}, {"part": "driver_version", "exactly": "570"})
    judgement = node.judge()

    assert judgement.verdict is Verdict.FAIL
    (finding,) = judgement.findings
    assert (finding.code, finding.metric, finding.device) == ("version", "vbios", "node")
    assert len(finding.measurements) == 8
    for slot in range(7):
        node.set("vbios", f"gpu{slot}", value="96.00.A5.00.01")
    (finding,) = node.judge().findings
    assert finding.device == "gpu7"


def test_only_intake_is_gated(case: MakeCase) -> None:
    assert gated(case, {"part": "vbios", "exactly": ["1"]}, stage="integrity").judge().verdict is Verdict.PASS


@pytest.mark.parametrize("unknown", ["drop", "empty"])
def test_a_version_that_is_not_known_never_passes(case: MakeCase, unknown: str) -> None:
    node = gated(case, {"part": "bios_version", "at_least": "2"}, {"part": "vbios", "exactly": ["96"]})
    node.drop("vbios", "gpu3")
    if unknown == "empty":
        node.add("inventory", "bios_version", "node", None, "text", note="permission denied")
    judgement = node.judge()

    assert judgement.verdict is Verdict.INCONCLUSIVE
    gaps = {(gap.what, gap.device) for gap in judgement.coverage.missing}
    assert {("bios_version", "node" if unknown == "empty" else ""), ("vbios", "gpu3")} <= gaps


def test_a_version_that_cannot_be_compared_neither_fails_nor_passes(case: MakeCase) -> None:
    node = gated(case, {"part": "driver_version", "at_least": "R570"})
    judgement = node.judge()

    assert (judgement.verdict, judgement.findings) == (Verdict.INCONCLUSIVE, ())
    why = "570 cannot be compared with R570"
    assert Gap(Lack.UNJUDGED, why, "driver_version", "node") in judgement.coverage.missing
    result = node.result()
    assert conspicuous(JudgeCase(node.sku, result.stage, result.level, result))


@pytest.mark.parametrize(
    ("running", "verdict"),
    [
        ({"570": 7}, Verdict.PASS),  # too few to be a fleet: a note
        ({"570": 8}, Verdict.PASS),
        ({"580": 7}, Verdict.PASS),
        ({"580": 8}, Verdict.FAIL),
        ({"580": 90, "570": 8}, Verdict.PASS),  # half way through a rollout
        ({"580": 90, "570": 7}, Verdict.FAIL),
    ],
)
def test_as_the_fleet_takes_eight_nodes_that_agree(case: MakeCase, running: dict[str, int], verdict: Verdict) -> None:
    node = gated(case, {"part": "driver_version", "as_the_fleet": True})
    judgement = node.judge(running={"driver_version": running})

    assert judgement.verdict is verdict
    agreed = any(nodes >= 8 for nodes in running.values())
    assert bool([note for note in judgement.notes if "driver_version" in note]) is not agreed


def test_the_version_of_a_rollout_is_allowed_beside_the_fleets(case: MakeCase) -> None:
    entry = {"part": "driver_version", "as_the_fleet": True, "exactly": ["570"]}
    assert gated(case, entry).judge(running={"driver_version": {"560": 50}}).verdict is Verdict.PASS
    entry["exactly"] = ["575"]
    assert gated(case, entry).judge(running={"driver_version": {"560": 8}}).verdict is Verdict.FAIL


@pytest.mark.parametrize("widened", [{"exactly": ["575"]}, {"at_least": "575"}])
def test_a_fleet_that_does_not_agree_judges_no_version_by_what_widens_it(
    case: MakeCase, widened: dict[str, Any]
) -> None:
    node = gated(case, {"part": "driver_version", "as_the_fleet": True, **widened})
    judgement = node.judge(running={"driver_version": {"570": 7}})

    assert (judgement.verdict, judgement.findings) == (Verdict.PASS, ())
    assert [note for note in judgement.notes if "driver_version" in note]


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ({"sku": "cpu-generic", "versions": []}, "cpu-generic"),
        ({"sku": "h100-sxm-8", "versions": [{"part": "vbios", **WHY}]}, "versions.0"),
        ({"sku": "h100-sxm-8", "versions": [{"part": "firmwear", "exactly": ["1"], **WHY}]}, "versions.0.part"),
        ({"sku": "h100-sxm-8", "versions": [{"part": "vbios", "exactly": [96.5], **WHY}]}, "versions.0.exactly"),
        ({"sku": "h100-sxm-8", "versions": [{"part": "vbios", "exactly": ["1"]}]}, "versions.0.source"),
        ({"sku": "h100-sxm-8", "versions": [{"part": "kernel", "at_least": "6", "below": "5", **WHY}]}, "versions.0"),
        ({"sku": "h100-sxm-8", "versions": [{"part": "kernel", "at_least": "new", **WHY}]}, "versions.0"),
        ("- 1", "file"),
        ("a: [", "YAML"),
    ],
)
def test_a_wrong_file_is_one_sentence_that_names_file_and_place(tmp_path: Path, content: Any, named: str) -> None:
    (tmp_path / "versions").mkdir()
    text = content if isinstance(content, str) else yaml.safe_dump(content)
    (tmp_path / "versions" / "h100-sxm-8.yaml").write_text(text)
    with pytest.raises(SkuError) as error:
        load_sku("h100-sxm-8", [tmp_path])
    assert named in str(error.value)
    assert "\n" not in str(error.value)


def test_a_fleets_file_replaces_the_skus_entries_and_changes_its_revision(tmp_path: Path) -> None:
    before = load_sku("h100-sxm-8")
    (tmp_path / "versions").mkdir()
    entry = {"part": "vbios", "exactly": ["96.00.A5.00.01"], "source": "own decision", "date": "2026-11-23"}
    (tmp_path / "versions" / "h100-sxm-8.yaml").write_text(yaml.safe_dump({"sku": "h100-sxm-8", "versions": [entry]}))
    after = load_sku("h100-sxm-8", [tmp_path])
    assert [each.part for each in after.versions] == ["vbios"]
    assert after.revision != before.revision


def test_members_that_differ_are_named() -> None:
    members = {"a": {"driver": "1"}, "b": {"driver": "1"}, "c": {"driver": "2"}}
    assert len(differing(members, ("driver", "bios"))) == 1
    assert len(differing({**members, "c": {}}, ("driver",))) == 1
    assert differing({"a": {}, "b": {}}, ("driver",)) == []

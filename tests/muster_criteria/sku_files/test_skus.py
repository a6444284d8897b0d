"""SKU files: a wrong one is refused in one sentence that names file and key. The wording is in test_wording."""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from muster_criteria.sku_files import skus
from muster_criteria.sku_files.model import SkuError
from muster_criteria.sku_files.skus import lint_sku, list_skus, load_sku
from muster_criteria.sku_files.work import at_level
from muster_criteria.stages import LEVELS
from tests.muster_criteria.sku_files.spoiling import Spoil, rewrite


def limit_of(raw: dict[str, Any], metric: str, key: str) -> dict[str, Any]:
    found: dict[str, Any] = next(entry for entry in raw["limits"] if entry["metric"] == metric and key in entry)
    return found


def test_list_names_what_is_shipped_and_what_is_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("sku: mine")

    shipped = ["a100-sxm-40gb-8", "a100-sxm-80gb-8", "b200-sxm-8", "cpu-generic", "gb200-nvl72", "h100-sxm-8"]
    shipped += ["h200-sxm-8", "l40s-8", "mi300x-8"]
    assert list_skus() == shipped
    assert list_skus([tmp_path, tmp_path / "absent"]) == [*shipped, "mine"]


def test_an_unknown_sku_names_those_there_are_and_the_nearest() -> None:
    with pytest.raises(SkuError) as error:
        load_sku("h100-smx-8")

    assert all(name in str(error.value) for name in list_skus())


@pytest.mark.parametrize("name", ["../h100-sxm-8", "", "zzz", "programmes/gpu-node"])
def test_a_name_cannot_leave_the_folders(name: str) -> None:
    with pytest.raises(SkuError):
        load_sku(name)


def test_ones_own_folder_comes_first(folder: Path) -> None:
    rewrite(folder, lambda raw: raw.update(title="ours"))

    assert load_sku("h100-sxm-8", [folder]).title == "ours"
    assert load_sku("h100-sxm-8").title != "ours"


@pytest.mark.parametrize("programme", ["gpu-node", "block"])
def test_the_revision_changes_with_the_file_and_with_its_programmes(folder: Path, programme: str) -> None:
    before = load_sku("h100-sxm-8").revision
    assert load_sku("h100-sxm-8", [folder]).revision == before

    with (folder / "programmes" / f"{programme}.yaml").open("a") as file:
        file.write("# changed\n")

    assert load_sku("h100-sxm-8", [folder]).revision != before


def test_a_sku_is_read_again_when_a_file_changes_even_one_that_keeps_its_time(folder: Path) -> None:
    block = folder / "programmes" / "block.yaml"
    before, time = skus.current_sku("h100-sxm-8", (folder,)), block.stat().st_mtime_ns
    assert skus.current_sku("h100-sxm-8", (folder,)) is before

    with block.open("a") as file:
        file.write("# changed\n")
    os.utime(block, ns=(time, time))

    assert skus.current_sku("h100-sxm-8", (folder,)).revision != before.revision


WRONG: list[tuple[str, Spoil]] = [
    (
        "a negative limit",
        lambda raw: limit_of(raw, "gemm_rate", "floor").update(floor=-5),
    ),
    (
        "no source",
        lambda raw: limit_of(raw, "gemm_rate", "floor").pop("source"),
    ),
    (
        "no unit",
        lambda raw: limit_of(raw, "gemm_rate", "floor").pop("unit"),
    ),
    (
        "no date",
        lambda raw: limit_of(raw, "gemm_rate", "floor").pop("date"),
    ),
    (
        "a floor above the physical peak",
        lambda raw: limit_of(raw, "gemm_rate", "floor").update(floor=2000),
    ),
    (
        "a best above the physical peak",
        lambda raw: raw["figures"][0].update(best=990),
    ),
    (
        "a floor of more than the best",
        lambda raw: raw["figures"][0]["floor"].update(share=1.1),
    ),
    (
        "a floor above a ceiling",
        lambda raw: raw["limits"].append(limit_of(raw, "temperature_max", "ceiling") | {"ceiling": None, "floor": 90}),
    ),
    (
        "a wrong unit",
        lambda raw: limit_of(raw, "memory_bandwidth", "floor").update(unit="MB/s"),
    ),
    (
        "an unknown metric",
        lambda raw: limit_of(raw, "gemm_rate", "floor").update(metric="gemm_rat"),
    ),
    (
        "two keys in one limit",
        lambda raw: limit_of(raw, "gemm_rate", "floor").update(ceiling=900),
    ),
    (
        "no key in a limit",
        lambda raw: limit_of(raw, "gemm_rate", "floor").update(floor=None),
    ),
    (
        "a key that is not known",
        lambda raw: limit_of(raw, "gemm_rate", "floor").update(flor=3),
    ),
    (
        "an inventory key among the limits",
        lambda raw: limit_of(raw, "gemm_rate", "floor").update(floor=None, at_least=5),
    ),
    (
        "the same limit twice",
        lambda raw: raw["limits"].append(limit_of(raw, "gemm_rate", "floor") | {"floor": 900}),
    ),
    (
        "a limit for a stage that there is not",
        lambda raw: limit_of(raw, "gemm_rate", "floor").update(stages=["warm_up"]),
    ),
    (
        "a pattern that is none",
        lambda raw: raw["inventory"][0].update(matches="("),
    ),
    (
        "a programme that there is not",
        lambda raw: raw.update(programme="tpu-node"),
    ),
    ("no programme", lambda raw: raw.pop("programme")),
    ("a programme outside its folder", lambda raw: raw.update(programme="../programmes/gpu-node")),
    ("a family with a name that no file can have", lambda raw: raw.update(includes=["g" * 300])),
    (
        "another name than the file's",
        lambda raw: raw.update(sku="h200"),
    ),
    (
        "a sensor that the programme never reads",
        lambda raw: raw["sensors"][0].update(probe="gemm_rate"),
    ),
    (
        "a sensor that its probe does not read",
        lambda raw: raw["sensors"][0].update(metric="gemm_rate"),
    ),
    (
        "a share that is none",
        lambda raw: limit_of(raw, "gemm_rate", "floor").update(floor=None, siblings_at_least=1.2),
    ),
]


@pytest.mark.parametrize("spoil", [case[1] for case in WRONG], ids=[case[0] for case in WRONG])
def test_a_wrong_file_is_refused_in_one_sentence(folder: Path, spoil: Spoil) -> None:
    path = rewrite(folder, spoil)

    with pytest.raises(SkuError) as error:
        load_sku("h100-sxm-8", [folder])

    assert str(error.value).endswith(".")
    assert "\n" not in str(error.value)
    assert any(problem.file == "h100-sxm-8.yaml" for problem in lint_sku(path))


WRONG_PROGRAMMES: list[tuple[str, Spoil]] = [
    (
        "an unknown probe",
        lambda raw: raw["stages"]["burn_in"]["probes"].update(
            gpu_brun=raw["stages"]["burn_in"]["probes"].pop("gpu_burn")
        ),
    ),
    ("an unknown parameter", lambda raw: raw["stages"]["burn_in"]["probes"]["gpu_burn"]["params"].update(second=1)),
    (
        "a metric that the probe does not measure",
        lambda raw: raw["stages"]["burn_in"]["probes"]["gpu_burn"]["require"].append(
            {"metric": "fan_max", "devices": "node"}
        ),
    ),
    (
        "a level without a value",
        lambda raw: raw["stages"]["burn_in"]["probes"]["gpu_burn"]["timeout_s"].pop("long"),
    ),
    (
        "what is to be judged and is not required",
        lambda raw: raw["stages"]["burn_in"]["probes"]["gpu_burn"]["require"][0].update(or_judged="gemm_rate"),
    ),
    (
        "nothing required",
        lambda raw: [probe.update(require=[], shows=[]) for probe in raw["stages"]["burn_in"]["probes"].values()],
    ),
    ("an unknown stage", lambda raw: raw["stages"].update(warm_up={"probes": {}})),
]


@pytest.mark.parametrize("spoil", [case[1] for case in WRONG_PROGRAMMES], ids=[case[0] for case in WRONG_PROGRAMMES])
def test_a_wrong_programme_is_refused(folder: Path, spoil: Spoil) -> None:
    rewrite(folder, spoil, "programmes/gpu-node")

    with pytest.raises(SkuError):
        load_sku("h100-sxm-8", [folder])


@pytest.mark.parametrize(
    ("required", "codes"),
    [
        ({"metric": "host_burn_rate", "judged": False}, ["nothing-judged"] * len(LEVELS)),
        (
            {"metric": "host_burn_rate", "judged": False, "levels": ["demo"]},
            ["nothing-judged", *["nothing-required"] * 3],
        ),
        ({"metric": "host_burn_rate"}, []),
        ({"metric": "edac_corrected", "judged": False}, []),
    ],
)
def test_a_stage_that_judges_nothing_could_never_pass(folder: Path, required: dict[str, Any], codes: list[str]) -> None:
    def spoil(raw: dict[str, Any]) -> None:
        entry = {"timeout_s": 60, "require": [required | {"devices": "node"}]}
        raw["stages"]["burn_in"]["probes"] = {"gpu_burn": entry}

    rewrite(folder, spoil, "programmes/gpu-node")
    # The floor of the host's cores refers to their count, which the inventory of this stage took.
    found = [problem.code for problem in lint_sku("h100-sxm-8", [folder])]
    assert [code for code in found if code != "not-required"] == codes


WRONG_BLOCKS: list[tuple[str, Spoil, str]] = [
    ("a limit that the judge needs", lambda raw: raw["limits"].pop(0), "bad-value"),
    ("an unknown key", lambda raw: raw.update(stages={}), "unknown-key"),
    ("an unknown probe", lambda raw: raw["probes"].update(nothing=raw["probes"]["cluster_training"]), "unknown-probe"),
    (
        "a metric that the probe does not measure",
        lambda raw: raw["probes"]["cluster_training"]["require"].append({"metric": "speed", "devices": "node"}),
        "unknown-metric",
    ),
]


@pytest.mark.parametrize(("spoil", "code"), [case[1:] for case in WRONG_BLOCKS], ids=[case[0] for case in WRONG_BLOCKS])
def test_a_wrong_programme_of_a_block_is_refused(folder: Path, spoil: Spoil, code: str) -> None:
    rewrite(folder, spoil, "programmes/block")

    (problem,) = lint_sku("h100-sxm-8", [folder])
    assert (problem.file, problem.code) == ("programmes/block.yaml", code)
    with pytest.raises(SkuError):
        load_sku("h100-sxm-8", [folder])


@pytest.mark.parametrize(
    "text", ["", "- a", "a: [", "sku: !!python/object/apply:os.system [ls]", "\x00", "a: 1\n" * 50_000]
)
def test_what_is_no_sku_file_is_stated_too(tmp_path: Path, text: str) -> None:
    (tmp_path / "odd.yaml").write_text(text)

    with pytest.raises(SkuError):
        load_sku("odd", [tmp_path])


def test_lint_reports_all_problems_at_once(folder: Path) -> None:
    def spoil(raw: dict[str, Any]) -> None:
        limit_of(raw, "gemm_rate", "floor").update(unit="GHz")
        limit_of(raw, "temperature_max", "ceiling").update(metric="temp")

    problems = lint_sku(rewrite(folder, spoil))

    assert [problem.code for problem in problems] == ["wrong-unit", "unknown-metric"]
    with pytest.raises(SkuError):
        load_sku("h100-sxm-8", [folder])


def test_a_limit_that_is_copied_a_thousand_times_is_no_half_million_problems(folder: Path) -> None:
    path = rewrite(folder, lambda raw: raw["limits"].extend([limit_of(raw, "gemm_rate", "floor")] * 1000))
    assert 1000 <= len(lint_sku(path)) < 1100


def test_values_by_level() -> None:
    assert at_level({"demo": 1, "short": 2, "standard": 3, "long": None}, "long") is None
    assert at_level([1, 2], "demo") == [1, 2]
    assert at_level({"dtype": "bf16"}, "demo") == {"dtype": "bf16"}
    assert load_sku("cpu-generic").inventory[0].date <= datetime.date.today()


@pytest.mark.parametrize("key", ["of_unit", "per_unit"])
def test_a_derivation_says_the_units_of_what_it_is_made_of(folder: Path, key: str) -> None:
    path = folder / "programmes" / "gpu-node.yaml"
    raw = yaml.safe_load(path.read_text())
    derivation = raw["derive"][0]
    rule = dict(derivation)

    del derivation[key]
    path.write_text(yaml.safe_dump(raw, allow_unicode=True))
    assert [(each.file, each.key, each.code) for each in lint_sku("h100-sxm-8", [folder])] == [
        ("programmes/gpu-node.yaml", f"derive.0.{key}", "missing-key")
    ]
    with pytest.raises(SkuError):
        load_sku("h100-sxm-8", [folder])

    raw["derive"][0] = {**rule, key: "kHz"}
    path.write_text(yaml.safe_dump(raw, allow_unicode=True))
    (problem,) = lint_sku("h100-sxm-8", [folder])
    assert problem.code == "wrong-unit"


def test_a_derivation_from_another_kind_of_device_is_refused(folder: Path) -> None:
    path = folder / "programmes" / "gpu-node.yaml"
    raw = yaml.safe_load(path.read_text())
    (derivation,) = (each for each in raw["derive"] if each["metric"] == "power_share")
    derivation["device"] = "cpu"
    path.write_text(yaml.safe_dump(raw, allow_unicode=True))
    codes = {each.code for each in lint_sku("h100-sxm-8", [folder]) if each.key.startswith("derive")}
    assert codes == {"wrong-device"}


def test_a_file_is_parsed_once_and_each_reader_has_values_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("limits: [{metric: a}]\n")
    skus._values.cache_clear()
    _, first = skus._read_yaml(path)
    first["limits"][0]["metric"] = "changed"
    assert skus._read_yaml(path)[1] == {"limits": [{"metric": "a"}]}
    assert skus._values.cache_info().misses == 1
    path.write_text("limits: [{metric: b}]\n")
    assert skus._read_yaml(path)[1] == {"limits": [{"metric": "b"}]}


@pytest.mark.parametrize(
    ("entry", "code", "hint"),
    [
        (
            {"metric": "cuda_version", "device": "node", "unit": "text", "equals": 12.8},
            "wrong-type",
            "put it in quotes",
        ),
        ({"metric": "bmc_firmware", "device": "node", "unit": "text", "at_least": 25.06}, "wrong-type", "one_of"),
        ({"metric": "cpu_sockets", "device": "node", "unit": "count", "equals": "2"}, "wrong-type", "without quotes"),
        ({"metric": "memory_total", "device": "node", "unit": "GiB", "matches": "^20"}, "wrong-type", "at_least"),
        ({"metric": "gpu_count", "device": "node", "unit": "count", "one_of": ["8"]}, "wrong-type", "at_least"),
        ({"metric": "kernel", "device": "gpu", "unit": "text", "matches": "^5"}, "wrong-device", "on node"),
        ({"metric": "power_limit", "device": "node", "unit": "W", "equals": 700}, "wrong-device", "on gpu"),
    ],
)
def test_an_item_that_would_judge_nothing_is_refused(folder: Path, entry: dict[str, Any], code: str, hint: str) -> None:
    def spoil(raw: dict[str, Any]) -> None:
        of = [each for each in raw["inventory"] if each["metric"] != entry["metric"]]
        raw["inventory"] = [*of, entry | {"source": "our image of June", "date": "2026-06-01"}]

    assert [(each.code, hint in each.message) for each in lint_sku(rewrite(folder, spoil))] == [(code, True)]


def test_a_floor_of_a_text_is_refused(folder: Path) -> None:
    entry = {
        "metric": "kernel",
        "device": "node",
        "unit": "text",
        "floor": 5,
        "source": "for a test",
        "date": "2026-06-01",
    }
    (problem,) = lint_sku(rewrite(folder, lambda raw: raw["limits"].append(entry)))
    assert problem.code == "wrong-type"

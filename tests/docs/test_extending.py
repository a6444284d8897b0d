"""The worked examples of docs/extending.md, as they stand in docs/examples: each does what the page says."""

from __future__ import annotations

import dataclasses
import datetime
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import muster_node.probes
from muster.admission import backends, clusters
from muster.errors import BadSettings
from muster_criteria import policy_file
from muster_criteria.fleet.series.readings import readings_of, together
from muster_criteria.health import policy as health
from muster_criteria.model import FaultClass, Verdict
from muster_criteria.sku_files import declarations
from muster_criteria.sku_files.learn import learn, rates
from muster_criteria.sku_files.learned import as_file
from muster_criteria.sku_files.skus import SHIPPED, lint_sku, load_sku
from muster_criteria.sku_files.work import sku_work
from muster_node.agent.registry import declaration, discover
from muster_node.contract import Measurement
from muster_node.hardware import open_hardware
from muster_node.probe import Context, resolve_params
from muster_reports import mail
from muster_reports import sections as report_sections
from muster_reports.digest import render, sections
from muster_reports.digest.facts import Facts, Move, Node
from tests.muster_criteria.nodes import Case, healthy_raw
from tests.muster_reports.conftest import cpu_pass

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
SKUS = [EXAMPLES / "skus"]
PAGE = (ROOT / "docs" / "extending.md").read_text()


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """The example probe beside the shipped ones, after ``make declarations``."""
    folder = tmp_path / "probes"
    folder.mkdir()
    shutil.copy(EXAMPLES / "loopback_latency.py", folder)
    monkeypatch.setattr(muster_node.probes, "__path__", [*muster_node.probes.__path__, str(folder)])
    data = tmp_path / "probes.json"
    data.write_text(json.dumps(declarations.condensed(map(declaration, discover().probes.values()))))
    monkeypatch.setattr(declarations, "FILE", data)
    declarations.declared_probes.cache_clear()
    yield
    declarations.declared_probes.cache_clear()
    sys.modules.pop("muster_node.probes.loopback_latency", None)


def test_the_probe_is_found_and_measures(installed: None, tmp_path: Path) -> None:
    probe = discover().probes["loopback_latency"]
    emitted: list[tuple[str, str, float]] = []
    probe().run(
        Context(
            open_hardware(), resolve_params(probe, {"rounds": 20}), 1, tmp_path,
            lambda metric, device, value, samples: emitted.append((metric, device, value)), lambda sentence: None,
        )
    )  # fmt: skip
    ((metric, device, value),) = emitted
    assert (metric, device) == ("loopback_round_trip", "node")
    assert value > 0


def test_the_sku_is_well_and_judges_what_the_probe_measured(installed: None) -> None:
    assert lint_sku("acme-cpu", SKUS) == []
    sku = load_sku("acme-cpu", SKUS)

    def verdict(stage: str, metric: str = "", value: float = 0.0) -> Verdict:
        case = Case(sku, healthy_raw(sku, stage))
        if stage == "intake":
            case.add("inventory", "kernel", "node", "6.8.0-45", "text")
            case.add("inventory", "bios_version", "node", "2.20.3", "text")
        for row in case.rows(metric) if metric else ():
            row.update(value=value)
        return case.judge().verdict

    assert {verdict(stage) for stage in sku.programme.stages} == {Verdict.PASS}
    assert verdict("performance", "loopback_round_trip", 6000.0) is Verdict.WARN
    assert verdict("burn_in", "host_product_mismatches", 1) is Verdict.FAIL
    assert verdict("burn_in", "memory_burn_mismatches", 1) is Verdict.FAIL
    assert verdict("integrity", "gemm_mismatches", 5) is Verdict.FAIL
    assert verdict("thermal", "soak_rate_drop", 60) is Verdict.FAIL


def test_the_sku_on_the_page_is_well(tmp_path: Path) -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.S)
    name = yaml.safe_load(text)["sku"]
    (tmp_path / f"{name}.yaml").write_text(text)
    assert lint_sku(name, [tmp_path]) == []


def test_the_health_policy_takes_the_entry_on_the_page() -> None:
    (entry,) = re.findall(r"`(\{checks: .+\})`", PAGE)
    text = f"{(SHIPPED / 'policies' / 'health.yaml').read_text()}  - {entry}\n"
    policy = policy_file.parse(health.HealthPolicy, text.encode(), "the page")
    added = policy.entries[-1]
    assert health.entry_for(health.Facts(added.checks[0], bad_for_s=added.bad_for_s), policy) is added


def test_floors_of_the_skus_rates_are_learned_without_a_limit_on_them(installed: None, tmp_path: Path) -> None:
    sku = load_sku("acme-cpu", SKUS)
    assert {"burn_rate", "soak_rate"} <= set(rates(sku))

    known = {"at": 1e9, "run": "r", "sku": sku.name, "environment": {}}
    burns = [Measurement("cpu_burn", "burn_rate", "cpu0", "GFLOPS", 40.0 + node) for node in range(16)]
    read = together(readings_of([row], node=f"n{node}", **known) for node, row in enumerate(burns))
    made = learn(read, [], limits=sku.limits)
    (tmp_path / "learned").mkdir()
    text = as_file(sku.name, made, "demo", 1, datetime.date(2026, 11, 29), sku.limits, sku_work(sku, "demo"))
    (tmp_path / "learned" / "acme-cpu-0001.yaml").write_text(text)
    case = Case(load_sku("acme-cpu", [tmp_path, *SKUS]), healthy_raw(sku, "burn_in"))
    for row in case.rows("burn_rate"):
        row.update(value=1.0 if row["device"] == "cpu0" else 48.0, unit="GFLOPS")
    judgement = case.judge()
    assert judgement.verdict is Verdict.FAIL
    assert {finding.fault_class for finding in judgement.findings} == {FaultClass.CPU}


def test_the_report_section_is_one_file_and_in_mail_and_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "slowest_stage.py", tmp_path)
    monkeypatch.setattr(report_sections, "__path__", [*report_sections.__path__, str(tmp_path)])
    try:
        made = mail.render(dataclasses.replace(cpu_pass(), waivers=()))
    finally:
        sys.modules.pop("muster_reports.sections.slowest_stage", None)
    assert "Slowest stage" in made.html
    assert "SLOWEST STAGE" in made.text


def test_the_digest_section_is_one_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "withdrawn_by_rack.py", tmp_path)
    monkeypatch.setattr(sections, "__path__", [*sections.__path__, str(tmp_path)])
    now = datetime.datetime(2026, 6, 8, tzinfo=datetime.UTC)
    nodes = {name: Node(name, "h100", rack, "quarantine", now, None) for name, rack in (("a", "r1"), ("b", "r1"))}
    moves = [Move(name, now, "production", "quarantine", "slow") for name in nodes]
    facts = Facts(now - datetime.timedelta(days=7), now, nodes, moves, [], [], {})
    try:
        assert render.all_sections(facts)[-1].rows == (("r1", "2"),)
    finally:
        sys.modules.pop("muster_reports.digest.sections.withdrawn_by_rack", None)


def test_a_backend_is_one_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Under another name than the example's, which the tests of admission load."""
    text = (EXAMPLES / "node_list.py").read_text().replace('Literal["node_list"]', 'Literal["nodes_of_acme"]')
    (tmp_path / "nodes_of_acme.py").write_text(text)
    (tmp_path / "nodes").write_text("r1n1\n")
    cluster = {"acme": {"kind": "nodes_of_acme", "path": str(tmp_path / "nodes")}}
    monkeypatch.setenv("MUSTER_SCHEDULERS", json.dumps(cluster))
    with pytest.raises(BadSettings):
        clusters.backend_of("acme")
    monkeypatch.setattr(backends, "__path__", [*backends.__path__, str(tmp_path)])
    try:
        assert list(clusters.backend_of("acme").look(["r1n1"])) == ["r1n1"]
    finally:
        sys.modules.pop("muster.admission.backends.nodes_of_acme", None)

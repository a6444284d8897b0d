"""The alert rules: each fires when it should and not else, by promtool, and has its paragraph in the docs."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import yaml

from tests.support.airflow_home import ROOT

FILE = ROOT / "plugins" / "muster" / "deploy" / "alerts.yaml"
RULES = {rule["alert"]: rule for rule in yaml.safe_load(FILE.read_text())["groups"][0]["rules"]}
OLD, NOW = 1, 6 * 86400  # seconds at which promtool's clock begins, and where it ends
STEP_H = 12  # the rules are evaluated that often, which costs promtool its time

RUNS = 'muster_run_duration_seconds_gcount{simulated="false"'
OUT = "muster_nodes_not_serving_oldest_timestamp_seconds"
REAL, SIMULATED = '{simulated="false"}', '{simulated="true"}'
QUESTIONS = "muster_questions_oldest_timestamp_seconds"
HELD = "muster_nodes_held_oldest_timestamp_seconds"
UNCERTIFIED = "muster_nodes_uncertified_oldest_timestamp_seconds"
UNSWEPT = "muster_nodes_unswept_oldest_timestamp_seconds"
DIFFERS = "muster_scheduler_differences_oldest_timestamp_seconds"
ENDED = "muster_dag_last_success_timestamp_seconds"
CHANGES = "muster_scheduler_changes_oldest_timestamp_seconds"
ANOTHER = f"{OLD}+{STEP_H * 3600}"
"""Of an oldest time: whenever it is read, it is another node's, which has just come."""
CASES: dict[str, tuple[dict[str, float | str], dict[str, float | str]]] = {
    "MusterBreakerOpen": ({'muster_breaker_open{simulated="false"}': 1}, {'muster_breaker_open{simulated="true"}': 1}),
    "MusterVerdictHeld": (
        {f"{HELD}{REAL}": NOW - 2 * 3600}, {f"{HELD}{REAL}": ANOTHER, f"{HELD}{SIMULATED}": OLD},
    ),
    "MusterQuestionOpen": (
        {f"{QUESTIONS}{REAL}": OLD}, {f"{QUESTIONS}{REAL}": NOW - 3600, f"{QUESTIONS}{SIMULATED}": OLD},
    ),
    "MusterNodesOut": (
        {f'{OUT}{{turn="person",simulated="false"}}': OLD},
        {
            f'{OUT}{{turn="vendor",simulated="false"}}': OLD, f'{OUT}{{turn="person",simulated="true"}}': OLD,
            f'{OUT}{{turn="muster",simulated="false"}}': OLD, f'{OUT}{{turn="person",simulated="false"}}': NOW - 3600,
            f'{OUT}{{turn="scheduler",simulated="false"}}': 0,
        },
    ),
    "MusterNodesWait": (
        {f'{OUT}{{turn="muster",simulated="false"}}': OLD},
        {
            f'{OUT}{{turn="muster",simulated="false"}}': NOW - 4 * 86400,
            f'{OUT}{{turn="muster",simulated="true"}}': OLD, f'{OUT}{{turn="person",simulated="false"}}': OLD,
        },
    ),
    "MusterCorruptData": (
        {'muster_corrupting_findings{metric="pulse_mismatches",simulated="false"}': 1},
        {
            'muster_findings{stage="integrity",class="gpu",severity="critical",simulated="false"}': 1,
            'muster_corrupting_findings{metric="pulse_mismatches",simulated="true"}': 1,
        },
    ),
    "MusterManyFail": (
        {f'{RUNS},verdict="FAIL"}}': 3, f'{RUNS},verdict="PASS"}}': 8, f'{RUNS},verdict="SKIPPED"}}': 90},
        {
            f'{RUNS},verdict="FAIL"}}': 3, f'{RUNS},verdict="PASS"}}': 2, f'{RUNS},verdict="SKIPPED"}}': 5,
            'muster_run_duration_seconds_gcount{simulated="true",verdict="FAIL"}': 30,
        },
    ),
    "MusterNothingTested": (
        {
            'muster_nodes_test_due{simulated="false"}': 5, f'{RUNS},dag="node_qualification",verdict="PASS"}}': 5,
            f'{RUNS},dag="node_revalidation",verdict="SKIPPED"}}': 5,
        },
        {'muster_nodes_test_due{simulated="false"}': 5, f'{RUNS},dag="node_revalidation",verdict="PASS"}}': 5},
    ),
    "MusterDagStopped": (
        {f'{ENDED}{{dag="housekeeping"}}': OLD},
        {f'{ENDED}{{dag="peer_statistics"}}': ANOTHER, f'{ENDED}{{dag="fleet_digest"}}': OLD},
    ),
    "MusterNodesStale": (
        {'muster_nodes_stale{simulated="false"}': 1},
        {'muster_nodes_stale{simulated="false"}': 0, 'muster_nodes_stale{simulated="true"}': 5},
    ),
    "MusterNodesUnswept": (
        {f'{UNSWEPT}{{simulated="false"}}': NOW - 2 * 86400},
        {f'{UNSWEPT}{{simulated="false"}}': ANOTHER, f'{UNSWEPT}{{simulated="true"}}': OLD},
    ),
    "MusterUncertified": (
        {f"{UNCERTIFIED}{REAL}": NOW - 25 * 3600}, {f"{UNCERTIFIED}{REAL}": ANOTHER, f"{UNCERTIFIED}{SIMULATED}": OLD},
    ),
    "MusterTestStuck": (
        {f"muster_tests_oldest_timestamp_seconds{REAL}": OLD},
        {
            f"muster_tests_oldest_timestamp_seconds{REAL}": 0,
            f"muster_tests_oldest_timestamp_seconds{SIMULATED}": OLD,
        },
    ),
    "MusterNewNodesStuck": (
        {'muster_pool_last_job_timestamp_seconds{pool="rack-r12",simulated="false"}': OLD},
        {
            'muster_pool_last_job_timestamp_seconds{pool="rack-r12",simulated="false"}': NOW - 4 * 86400,
            'muster_pool_last_job_timestamp_seconds{pool="rack-r12",simulated="true"}': OLD,
        },
    ),
    "MusterControllerFaults": (
        {f"muster_controller_faults{REAL}": 1},
        {f"muster_controller_faults{REAL}": 0, f"muster_controller_faults{SIMULATED}": 1},
    ),
    "MusterMailsWaiting": (
        {"muster_mails_oldest_timestamp_seconds": OLD}, {"muster_mails_oldest_timestamp_seconds": NOW - 60},
    ),
    "MusterMailsParked": ({"muster_mails_parked": 1}, {"muster_mails_parked": 0}),
    "MusterSchedulerWaiting": (
        {f'{CHANGES}{{wanted="withdrawn"}}': NOW - 3600},
        {f'{CHANGES}{{wanted="admitted"}}': OLD, f'{CHANGES}{{wanted="withdrawn"}}': NOW - 1500},
    ),
    "MusterAdmissionWaiting": (
        {f'{CHANGES}{{wanted="admitted"}}': NOW - 25 * 3600},
        {f'{CHANGES}{{wanted="withdrawn"}}': OLD, f'{CHANGES}{{wanted="admitted"}}': NOW - 3600},
    ),
    "MusterAuditWaiting": (
        {'muster_audit_oldest_timestamp_seconds{sink="siem"}': OLD},
        {'muster_audit_oldest_timestamp_seconds{sink="siem"}': 0},
    ),
    "MusterSchedulerDiffers": ({DIFFERS: NOW - 3600}, {DIFFERS: ANOTHER, "muster_scheduler_differences": 1}),
}  # fmt: skip


def test_each_alert_has_a_paragraph() -> None:
    headings = [line for line in (ROOT / "docs" / "alerts.md").read_text().splitlines() if line.startswith("## ")]
    assert [f"## {name}" for name in RULES] == headings
    for name, rule in RULES.items():
        assert rule["annotations"]["runbook_url"] == f"{{{{ $externalLabels.muster_docs }}}}/alerts.md#{name.lower()}"


def test_a_rule_with_a_time_survives_a_scrape_that_failed() -> None:
    """A series ends with a scrape that fails, and the time of ``for`` begins again with each value that is missing."""
    lasting = {name: rule["expr"] for name, rule in RULES.items() if rule["for"] != "0m"}
    assert set(lasting) == {
        "MusterMetricsAbsent", "MusterNothingTested", "MusterDagStopped", "MusterNodesStale", "MusterNodesUnswept",
    }  # fmt: skip
    del lasting["MusterMetricsAbsent"]
    assert [name for name, expr in lasting.items() if re.search(r"muster_\w+(\{[^}]*\})?(?![\w{\[])", expr)] == []


LASTING = {
    "MusterNothingTested": ('muster_nodes_test_due{simulated="false"}', "5"),
    "MusterDagStopped": (f'{ENDED}{{dag="housekeeping"}}', "0"),
    "MusterNodesStale": (f"muster_nodes_stale{REAL}", "1"),
    "MusterNodesUnswept": (f"{UNSWEPT}{REAL}", "1"),
}
UP, READ = 'up{job="muster",instance="%s"}', 'muster_read_timestamp_seconds{job="muster",instance="%s"}'


@pytest.mark.needs_prometheus
def test_neither_a_gap_nor_another_address_silences_an_alert(tmp_path: Path) -> None:
    tests = []
    for name, (series, value) in LASTING.items():
        before, after = (labelled(series, "muster", address) for address in "ab")
        gaps = {before: " ".join([f"{value} stale"] * 216)}
        moved = {before: f"{value}x200 stale", after: f"_x200 {value}x230"}
        tests += [case(name, seen, "5m", "26h", ['{job="muster"}']) for seen in (gaps, moved)]
    promtool(tmp_path, tests, "5m")


@pytest.mark.needs_prometheus
def test_metrics_that_are_absent_are_one_alert_and_a_controller_without_them_is_named(tmp_path: Path) -> None:
    well = {UP % "a": "1x432", READ % "a": "1x432"}
    lab = 'up{job="muster-lab",instance="c"}'
    tests = [
        case("MusterMetricsAbsent", seen, "5m", "1h", firing, by="job, instance")
        for seen, firing in (
            ({UP % "a": " ".join(["0 stale"] * 216)}, ["{}"]),
            ({UP % "a": "0x432", UP % "b": "0x432"}, ["{}"]),
            (well | {UP % "b": "0x432"}, ['{job="muster",instance="b"}']),
            (well | {lab: "0x432"}, ['{job="muster-lab",instance="c"}']),
            (well | {'up{job="node",instance="d"}': "0x432"}, []),
        )
    ]
    promtool(tmp_path, tests, "5m")


def labelled(series: str, job: str, instance: str) -> str:
    name, _, more = series.partition("{")
    return f'{name}{{job="{job}",instance="{instance}"{"," + more if more else "}"}'


def case(
    name: str, seen: Mapping[str, str], every: str, at: str, firing: Sequence[str], by: str = "job"
) -> dict[str, object]:
    """A test of promtool: of the series ``seen``, the alert fires for each of the labels ``firing``, once."""
    return {
        "name": name,
        "interval": every,
        "input_series": [{"series": series, "values": values} for series, values in seen.items()],
        "promql_expr_test": [{
            "expr": f'count by ({by}) (ALERTS{{alertname="{name}",alertstate="firing"}})', "eval_time": at,
            "exp_samples": [{"labels": labels, "value": 1} for labels in firing],
        }],
    }  # fmt: skip


def promtool(folder: Path, tests: Sequence[Mapping[str, object]], every: str) -> None:
    path = folder / "test.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [str(FILE)], "evaluation_interval": every, "tests": list(tests)}))
    for words in (["check", "rules", str(FILE)], ["test", "rules", str(path)]):
        done = subprocess.run(["promtool", *words], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.needs_prometheus
def test_each_alert_fires_once_for_a_controller_whatever_another_shows(tmp_path: Path) -> None:
    assert set(CASES) == set(RULES) - {"MusterMetricsAbsent"}
    ahead: dict[str, float | str] = {f'{ENDED}{{dag="peer_statistics"}}': NOW + 86400}
    cases = [("MusterDagStopped", (ahead, {})), *CASES.items()]
    tests = []
    for name, (fires_on, quiet_on) in cases:
        shown = [("muster", each, fires_on) for each in "ab"] + [("muster-lab", each, quiet_on) for each in "cd"]
        seen = {
            labelled(series, job, replica): f"{value}x{NOW // 3600 // STEP_H}"
            for job, replica, values in shown for series, value in values.items()
        }  # fmt: skip
        tests.append(case(name, seen, f"{STEP_H}h", f"{NOW}s", ['{job="muster"}']))
    parked = {
        "name": "the runbook is an absolute address",
        "interval": f"{STEP_H}h",
        "external_labels": {"muster_docs": "https://docs.example/muster"},
        "input_series": [{"series": 'muster_mails_parked{job="muster"}', "values": "1x2"}],
        "alert_rule_test": [
            {
                "eval_time": f"{STEP_H}h",
                "alertname": "MusterMailsParked",
                "exp_alerts": [
                    {
                        "exp_labels": {"severity": "warning", "job": "muster"},
                        "exp_annotations": {
                            "summary": "muster: Mails or notifications were given up: 1.",
                            "runbook_url": "https://docs.example/muster/alerts.md#mustermailsparked",
                        },
                    }
                ],
            }
        ],
    }
    tests.append(parked)
    promtool(tmp_path, tests, f"{STEP_H}h")

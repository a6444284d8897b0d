"""The DAG files themselves: cheap to parse, shaped as the node's story, with a form that explains itself."""

from __future__ import annotations

import collections
import datetime
import heapq
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from airflow.sdk.exceptions import AirflowFailException
from jsonschema import Draft7Validator
from jsonschema.validators import validator_for

from muster.errors import MusterError
from muster.model import dags
from muster.model.runs import RunKey
from muster.model.stages import STAGES
from muster.operators import forms
from muster.operators.lifecycle import admission, repair, revalidation, sweep
from muster.operators.testing import block, claims, qualification, remote_job
from muster.rules.preview import stage_plans
from muster.settings import Settings
from muster_criteria.cluster import plan as cluster_plan
from muster_criteria.sku_files.skus import SHIPPED, load_sku
from tests.dags.conftest import dag_of
from tests.support import airflow_home

HEAVY = [
    "great_expectations",
    "pandas",
    "numpy",
    "torch",
    "matplotlib",
    "pyarrow",
    "muster_criteria.stage.judge",
    "alembic",
    "prometheus_client",
    "muster.api.app",
]

PARSE = """
import json, sys, types
from airflow.dag_processing.dagbag import DagBag
from airflow.task.priority_strategy import validate_and_load_priority_weight_strategy as rule
bag = DagBag(sys.argv[1])
weight = lambda t: rule(t.weight_rule).get_weight(types.SimpleNamespace(task=t))
import muster_plugin
from airflow.settings import get_policy_plugin_manager
policies = [str(each) for each in get_policy_plugin_manager().get_plugins()]
loaded = [name for name in json.loads(sys.argv[2]) if name in sys.modules]
tasks = {d.dag_id: {t.task_id: {"rule": t.trigger_rule.value, "pool": t.pool, "retries": t.retries, "setup": t.is_setup,
         "delay": t.retry_delay.total_seconds(), "limit": t.execution_timeout and t.execution_timeout.total_seconds(),
         "teardown": t.is_teardown, "weight": weight(t),
         "then": sorted(t.downstream_task_ids)} for t in d.tasks} for d in bag.dags.values()}
tags = {d.dag_id: sorted(d.tags) for d in bag.dags.values()}
runs = {d.dag_id: d.max_active_runs for d in bag.dags.values()}
together = {d.dag_id: d.max_active_tasks for d in bag.dags.values()}
print("ANSWER" + json.dumps({"errors": bag.import_errors, "loaded": loaded, "tasks": tasks, "tags": tags,
                             "runs": runs, "together": together, "policies": policies}))
"""


@pytest.fixture(scope="module")
def parsed() -> dict:
    dags = str(airflow_home.ROOT / "dags")
    command = [sys.executable, "-c", PARSE, dags, json.dumps(HEAVY)]
    env = {**os.environ, "PYTHONPATH": str(airflow_home.ROOT / "plugins")}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert "ANSWER" in done.stdout, done.stderr[-3000:]
    return json.loads(done.stdout.partition("ANSWER")[2])


def test_a_test_that_runs_a_dag_still_has_its_time_limit(airflow_db: None) -> None:
    from airflow.dag_processing.dagbag import DagBag

    before = signal.getitimer(signal.ITIMER_REAL)[0]
    DagBag(str(airflow_home.ROOT / "dags"))
    assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] < before


def test_each_dag_says_for_whom_it_is(parsed: dict) -> None:
    for dag_id, tags in parsed["tags"].items():
        assert "muster" in tags, dag_id
        assert len({"operator", "provisioning", "manager", "system"} & set(tags)) == 1, dag_id


def test_a_new_installation_mails_no_digest(airflow_db: None) -> None:
    """Airflow runs the latest past date of a schedule at once: on a Monday this was a mail too many."""
    from airflow.dag_processing.dagbag import DagBag
    from airflow.serialization.encoders import coerce_to_core_timetable
    from airflow.timetables.base import TimeRestriction

    dag = DagBag(str(airflow_home.ROOT / "dags" / "fleet_digest.py")).dags["fleet_digest"]
    timetable = coerce_to_core_timetable(dag.timetable)
    at_once = TimeRestriction(earliest=dag.start_date, latest=None, catchup=False)
    first = timetable.next_dagrun_info(last_automated_data_interval=None, restriction=at_once)
    assert first.run_after > datetime.datetime.now(datetime.UTC)


def test_a_pass_over_nodes_ends_within_its_run(airflow_db: None) -> None:
    (most,) = (each.le for each in Settings.model_fields["sweep_seconds"].metadata if hasattr(each, "le"))
    longest = datetime.timedelta(seconds=sweep.PASS_S + most)
    assert longest < dag_of(dags.HEALTH_SWEEP).dagrun_timeout


def test_every_file_is_a_dag(parsed: dict) -> None:
    assert parsed["errors"] == {}
    assert set(parsed["tasks"]) == set(dags.ALL) == {path.stem for path in (airflow_home.ROOT / "dags").glob("*.py")}


def test_parsing_loads_nothing_heavy(parsed: dict) -> None:
    """Every task process parses its DAG file: what that imports, our policy too, is paid for by each of them."""
    assert parsed["loaded"] == []
    assert any("muster.integration.policy" in each for each in parsed["policies"])


def test_every_task_has_a_time_limit(parsed: dict) -> None:
    unlimited = {
        f"{dag}.{name}" for dag, tasks in parsed["tasks"].items() for name, task in tasks.items() if not task["limit"]
    }
    assert unlimited == set()


def test_every_task_survives_the_death_of_a_few_workers(parsed: dict) -> None:
    """Else a question is not put, a re-test that a person chose not started, a report not mailed: in a campaign three
    tries of one task met the records away.
    """
    lost = {
        f"{dag}.{name}" for dag, tasks in parsed["tasks"].items() for name, task in tasks.items() if task["retries"] < 4
    }
    assert lost == set()


def test_no_node_waits_for_others_but_for_a_pool_or_a_worker(parsed: dict) -> None:
    """Airflow's own limit is 16: of runs, which can be questions that wait for days, and of the members of a block."""
    assert {parsed["runs"][dag] for dag in (*dags.HOLDERS, dags.NEW_HARDWARE)} == {forms.AT_ONCE}
    assert parsed["together"][dags.CLUSTER_QUALIFICATION] == forms.AT_ONCE >= 10_000


def test_the_story_in_order(parsed: dict) -> None:
    tasks = parsed["tasks"]["node_qualification"]
    story = ["claim", "intake", "burn_in", "integrity", "performance", "thermal", "conclude", "release", "report"]
    assert set(tasks) == set(story)
    for task, then in itertools.pairwise(story):
        assert then in tasks[task]["then"]


JUDGED = {*STAGES, "gather", "train", *(f"{what}_{n}" for what in ("plan", "pairs") for n in range(1, 10))}
"""Tasks of a test whose failure is no failure of the run by itself: ``conclude`` decides by what the records hold."""


def test_no_run_is_green_in_which_a_task_failed(parsed: dict) -> None:
    """Airflow asks only the last tasks, and who watches the DAGs asks the run: a sweep that reads no node for days."""
    green = set()
    for dag, tasks in parsed["tasks"].items():
        work = {name: task for name, task in tasks.items() if not task["teardown"]}
        setups = {name for name, task in work.items() if task["setup"]}  # of one that fails all of its tasks do
        for name in work.keys() - JUDGED - setups:
            failed = [name]
            for each in failed:
                failed += [
                    then for then in work[each]["then"]
                    if then in work and then not in failed and work[then]["rule"] in ("all_success", "none_failed")
                ]  # fmt: skip
            if not any(work.keys().isdisjoint(work[each]["then"]) for each in failed):
                green.add(f"{dag}.{name}")
    assert green == set()


def test_new_nodes_wait_in_the_burn_pool_and_nodes_that_serve_do_not(parsed: dict) -> None:
    pooled = {
        (dag_id, name) for dag_id, tasks in parsed["tasks"].items()
        for name, task in tasks.items() if task["pool"] == "muster_burn"
    }  # fmt: skip
    assert pooled == {("node_qualification", stage) for stage in STAGES}


@pytest.mark.parametrize("dag_id", ["node_qualification", "node_revalidation"])
def test_a_run_that_has_begun_goes_before_one_that_begins(parsed: dict, dag_id: str) -> None:
    tasks = parsed["tasks"][dag_id]
    weights = [tasks[name]["weight"] for name in ("claim", *STAGES, "conclude", "release", "report")]
    assert all(before < then for before, then in itertools.pairwise(weights))
    block = parsed["tasks"]["cluster_qualification"]
    assert block["plan_1"]["weight"] < block["train"]["weight"]


@pytest.mark.parametrize("late", [False, True])
def test_no_verdict_of_a_large_delivery_is_too_old_at_the_end_of_its_run(parsed: dict, late: bool) -> None:
    """64 new nodes at level long, 16 slots: a free slot goes to the waiting stage of the greatest weight.

    ``late``: before Airflow has looked at the run whose stage ended, the slot is another's.
    """
    weights = [parsed["tasks"]["node_qualification"][stage]["weight"] for stage in STAGES]
    plans = stage_plans(load_sku("h100-sxm-8", (SHIPPED,)), "long")
    hours = [sum(probe.timed_s for probe in plan.probes) / 3600 for plan in plans]
    waits, under_way = [(0, node) for node in range(64)], list[tuple[float, int, int]]()
    now, free, passed = 0.0, 16, collections.defaultdict[int, list[float]](list)
    while waits or under_way:
        waits.sort(key=lambda each: (-weights[each[0]], each[1]))
        for stage, node in waits[:free]:
            heapq.heappush(under_way, (now + hours[stage], stage, node))
        free, waits = free - len(waits[:free]), waits[free:]
        now, stage, node = heapq.heappop(under_way)
        passed[node].append(now)
        if late and waits:
            other, waiting = waits.pop(0)
            heapq.heappush(under_way, (now + hours[other], other, waiting))
        else:
            free += 1
        waits += [(stage + 1, node)] * (stage + 1 < len(STAGES))
    assert max(times[-1] - times[0] for times in passed.values()) < Settings().admission_max_age_hours
    assert min(times[-1] for times in passed.values()) < 2 * sum(hours), "the first is ready early"


def test_no_stage_is_lost_with_a_few_workers(parsed: dict) -> None:
    tasks = parsed["tasks"]["node_qualification"]
    retries = {tasks[name]["retries"] for name in STAGES}
    assert retries == {remote_job.RETRIES}
    assert remote_job.RETRIES > remote_job.ATTEMPTS


def test_a_node_is_let_go_and_reported_however_its_run_ends(parsed: dict) -> None:
    tasks = parsed["tasks"]["node_qualification"]
    assert tasks["claim"]["setup"]
    assert {name for name, task in tasks.items() if task["teardown"]} == {"report", "release"}
    # The run's own outcome is the last task's that is no teardown: a failed verdict must not end in a green run.
    assert tasks["conclude"]["then"] == ["release"]
    assert tasks["conclude"]["rule"] == "all_done"
    assert tasks["release"]["then"] == ["report"], "how a run ends that was not concluded is settled by the release"


def test_a_block_is_let_go_and_reported_however_its_run_ends(parsed: dict) -> None:
    tasks = parsed["tasks"]["cluster_qualification"]
    assert tasks["claim_block"]["setup"]
    assert {name for name, task in tasks.items() if task["teardown"]} == {"report", "release"}
    assert tasks["conclude"]["then"] == ["release"]
    assert tasks["release"]["then"] == ["report"], "where a member ends is settled only when it is let go"
    # With fewer slots in the burn pool than members, those with a slot would wait for those without.
    assert tasks["train"]["pool"] == "default_pool"


def test_the_form_explains_every_parameter() -> None:
    from airflow.dag_processing.dagbag import DagBag

    dags = DagBag(str(airflow_home.ROOT / "dags")).dags
    assert {name for name, dag in dags.items() if dag.params} == set(FIRST)
    for dag in dags.values():
        for name in dag.params:
            schema = dag.params.get_param(name).schema
            assert schema["description_md"]
            assert schema["title"]
            assert validator_for(schema, default=None) is Draft7Validator, "the latest draft costs each task more CPU"
    dag = dags["node_qualification"]
    assert set(dag.params) == {"node", "level", "reason", "force_reason", "pool"}
    assert dag.params.get_param("level").schema["enum"] == ["demo", "short", "standard", "long"]
    assert dag.params.get_param("force_reason").value is None


def asked(key: RunKey, conf: dict[str, object]) -> object:
    run = SimpleNamespace(dag_id=key.dag_id, run_id=key.run_id, conf=conf)
    return admission.AskOperator.execute.__wrapped__(  # type: ignore[attr-defined]
        dag_of(key.dag_id).get_task("ask"), {"params": conf, "dag_run": run}
    )


FIRST: dict[str, Callable[[RunKey, dict[str, object]], object]] = {
    dags.NODE_QUALIFICATION: qualification.claim,
    dags.CLUSTER_QUALIFICATION: block.claim,
    dags.NODE_REVALIDATION: revalidation.claim,
    dags.REPAIR: repair.claim,
    dags.IDLE_REVALIDATION: lambda key, conf: revalidation.pick(key.run_id, conf),
    dags.ADMISSION: asked,
    dags.HELD_VERDICT: asked,
}
"""What the first task of each DAG with a form does."""


@pytest.mark.parametrize("dag_id", FIRST)
def test_a_run_takes_the_keys_of_its_form_and_no_other(dag_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known: set[str] = set()

    def note(_: object, *keys: str) -> None:
        known.update(keys)
        raise MusterError("enough")

    monkeypatch.setattr(claims, "refuse_unknown", note)
    monkeypatch.setattr(claims.store.signs, "note_refusal", lambda *_, **__: None)
    with pytest.raises(AirflowFailException):
        FIRST[dag_id](RunKey(dag_id, "run"), {"node": "n", "nodes": ["n"], "fault": "f", "level": "demo"})
    assert known == set(dag_of(dag_id).params)


@pytest.mark.parametrize("dag_id", ["admission", "held_verdict"])
def test_a_decision_is_given_a_reason_of_its_own(dag_id: str) -> None:
    """A field with the name of one of the DAG's parameters arrives filled in with the run's: one click would decide."""
    made = dag_of(dag_id)
    fields = made.get_task("ask").serialized_params
    assert set(fields) & set(made.params) == set()
    (reason,) = fields.values()
    assert (reason["value"], reason["schema"]["type"]) == ("", "string"), "empty, and required by Airflow's form"


def test_a_member_is_retried_while_the_others_wait_for_it(parsed: dict) -> None:
    assert parsed["tasks"]["cluster_qualification"]["train"]["delay"] < cluster_plan.JOIN_TIMEOUT_S

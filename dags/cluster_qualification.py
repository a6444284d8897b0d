"""Validates qualified nodes together, judges them by one another, and admits those that pass to production."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, TaskGroup, TriggerRule, task

from muster.model import dags
from muster.model.runs import RunKey
from muster.model.stages import ROUND_STAGES
from muster.operators import forms
from muster.operators.testing import block, rounds, stage
from muster.operators.testing.member import RETRY_DELAY, MusterMemberOperator
from muster.operators.testing.pair import MusterPairOperator
from muster.operators.testing.remote_job import RETRIES
from muster_criteria.cluster.plan import MEMBERS_MAX, SOAK_MINUTES_MAX

PARAMS = {
    "nodes": forms.field(
        type="array",
        items={"type": "string", "minLength": 1},
        minItems=2,
        maxItems=MEMBERS_MAX,
        uniqueItems=True,
        title="Nodes",
        description_md="The qualified nodes of the block, at least two; the others meet at the first.",
    ),
    "level": forms.level(),
    "reason": forms.reason("Why the nodes are tested now; printed in the reports."),
    "soak_minutes": forms.field(
        0,
        type="integer",
        minimum=0,
        maximum=SOAK_MINUTES_MAX,
        title="Soak, minutes",
        description_md="Repeat collectives for so long, and read the ports' error counters each minute. 0: as the "
        "level has it (**long**: an hour).",
    ),
    "fault_run": forms.field(
        False,
        type="boolean",
        title="Kill ranks",
        description_md="Train once more, kill a rank at one third and at two thirds of it, and measure the restarts, "
        "as **long** does.",
    ),
    "force_reason": forms.force_reason("the nodes", "one of them", "the block refused while one of its nodes is busy"),
}

with DAG(
    dag_id=dags.CLUSTER_QUALIFICATION,
    description="Tests qualified nodes in pairs, then all together, and fails each node that degrades the others",
    schedule=None,
    max_active_runs=forms.AT_ONCE,
    max_active_tasks=forms.AT_ONCE,
    params=PARAMS,
    doc_md=__doc__,
    tags=["muster", "operator"],
    render_template_as_native_obj=True,
    **forms.DAG_DEFAULTS,
):

    @task
    def claim_block(params: Any = None, dag_run: Any = None, ti: Any = None) -> list[str]:
        """Claim all nodes of the block for this run, or none."""
        return block.claim(RunKey.of(dag_run), params, ti.try_number, dag_run.triggering_user_name, dag_run.run_after)

    @task
    def plan(first: bool = False, dag_run: Any = None) -> list[dict[str, str]]:
        """Plan the next round of pairs from the results so far; returns no pairs if nothing is left to find out."""
        return rounds.next_round(RunKey.of(dag_run), first=first)

    @task(trigger_rule=TriggerRule.ALL_DONE)
    def gather(dag_run: Any = None) -> list[str]:
        """Returns the members that run collectives and training together: all that the rounds did not lose."""
        return rounds.members_left(RunKey.of(dag_run))

    @task(trigger_rule=TriggerRule.ALL_DONE)
    def judge_block(dag_run: Any = None) -> None:
        """Judge the members by one another; one that fails goes into quarantine."""
        block.judge(RunKey.of(dag_run))

    @task
    def admit(dag_run: Any = None) -> None:
        """Admit the members that pass the gate; a person decides on the others that did not fail."""
        block.admit(RunKey.of(dag_run))

    @task
    def questions(params: Any = None, dag_run: Any = None) -> list[dict[str, Any]]:
        """Returns one admission run to start per node, so that an open question does not hold the block."""
        return block.questions(RunKey.of(dag_run), params["level"])

    @task(trigger_rule=TriggerRule.ALL_DONE)
    def conclude(dag_run: Any = None) -> str:
        """Summarise the block in a sentence; fails unless every member passed."""
        return block.conclude(RunKey.of(dag_run))

    @task
    def report(dag_run: Any = None) -> dict[str, str]:
        """Mail a report for each member; if mail is down, they are sent later."""
        return block.report(RunKey.of(dag_run))

    # Tasks pass on only the members' names, to be mapped over; everything else is in the records.
    taken: Any = claim_block().as_setup()
    # The rounds are unrolled, since each depends on the results before it. A pair that fails ends no round; a round
    # without pairs is skipped, and so are those after it.
    before: Any = taken
    with TaskGroup("fabric", prefix_group_id=False):
        for number, _ in enumerate(ROUND_STAGES, start=1):
            # What follows a setup task must follow its success.
            rule = TriggerRule.ALL_SUCCESS if number == 1 else TriggerRule.NONE_SKIPPED
            planned: Any = plan.override(task_id=f"plan_{number}", trigger_rule=rule)(first=number == 1)
            tested = MusterPairOperator.partial(
                task_id=f"pairs_{number}", pool="default_pool", retries=RETRIES, retry_delay=RETRY_DELAY,
                map_index_template="{{ task.pair }}",
            ).expand_kwargs(planned)  # fmt: skip
            before >> planned
            before = tested
    gathered: Any = gather()
    before >> gathered
    # Not in the burn pool: with fewer slots than members, members with a slot would wait for those without one.
    train = MusterMemberOperator.partial(
        task_id="train", pool="default_pool", retries=RETRIES, retry_delay=RETRY_DELAY,
        map_index_template="{{ task.member }}",
    ).expand(member=gathered)  # fmt: skip
    judged: Any = judge_block()
    entered: Any = admit()
    asked: Any = questions()
    ask = forms.starting("ask", dags.ADMISSION).expand_kwargs(asked)
    concluded: Any = conclude()
    # Reported last: a member's final state is known only after its release.
    released = stage.release().as_teardown(setups=taken)
    train >> judged >> entered >> asked
    judged >> concluded
    ask >> concluded
    forms.all_succeed(ask)
    concluded >> released >> report().as_teardown(setups=taken)

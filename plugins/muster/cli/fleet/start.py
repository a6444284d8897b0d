"""``muster qualify``, ``revalidate``, ``block``, ``admit``, ``approve``: start DAG runs, answer their questions."""

from __future__ import annotations

import dataclasses
import datetime
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from muster import acting
from muster.cli.fleet.follow import follow
from muster.cli.terminal import dry, show
from muster.cli.terminal.options import AsJson
from muster.errors import MusterError
from muster.integration.runid import run_id
from muster.model.dags import ADMISSION, CLUSTER_QUALIFICATION, NODE_QUALIFICATION, NODE_REVALIDATION
from muster.model.nodes import Node
from muster.model.runs import Run, RunKey
from muster.settings import settings
from muster_criteria.stages import LEVELS

if TYPE_CHECKING:
    from muster.integration.airflow_api import AirflowClient

WELL = ("PASS", "WARN", "PROVISIONAL")

Nodes = Annotated[list[str], typer.Argument(help="Names of nodes.", metavar="NODE…")]
Level = Annotated[str, typer.Option(help="How thoroughly: demo, short, standard or long.")]
Why = Annotated[str, typer.Option("--reason", help="Why; the same nodes are tested once for the same reason.")]
Force = Annotated[bool, typer.Option("--force", help="Test even a node that is in use.")]
ForceReason = Annotated[str, typer.Option(help="Why a node in use is tested; shown on the report.")]
Watch = Annotated[bool, typer.Option("--watch", help="Wait; show each stage and its verdict as it comes.")]


@dataclasses.dataclass(frozen=True)
class _Wanted:
    """A DAG run to start. ``check`` raises MusterError with the reason why it must not start."""

    dag: str
    of: str
    run_id: str
    conf: Mapping[str, Any]
    check: Callable[[], object]


def qualify(
    nodes: Nodes,
    level: Level = "standard",
    reason: Why = "new hardware",
    force: Force = False,
    force_reason: ForceReason = "",
    watch: Watch = False,
    dry_run: dry.DryRun = False,
    json: AsJson = False,
) -> None:
    """Test nodes, one DAG run each, from intake to qualified."""
    why = _forced(force, force_reason)
    known = _known(nodes, level)
    if dry_run:
        rehearsal = dry.qualification(list(known), NODE_QUALIFICATION, level, reason, force_reason.strip())
        rehearsal.show(json)
        return
    _start([_test(NODE_QUALIFICATION, [node], level, reason, why) for node in known.values()], watch, json)


def revalidate(
    nodes: Nodes,
    level: Level = "short",
    reason: Why = "by hand",
    watch: Watch = False,
    dry_run: dry.DryRun = False,
    json: AsJson = False,
) -> None:
    """Test nodes of production again, one DAG run each; a node in use is left alone."""
    from muster.model.states import SERVING

    known = _known(nodes, level)
    for node in known.values():
        if node.state not in SERVING:
            raise MusterError(f"{node.name} is in {node.state}: only nodes in production are revalidated; qualify it")
    _start([_test(NODE_REVALIDATION, [node], level, reason) for node in known.values()], watch, json, dry_run)


def block(
    nodes: Nodes,
    level: Level = "standard",
    reason: Why = "new hardware",
    force: Force = False,
    force_reason: ForceReason = "",
    watch: Watch = False,
    dry_run: dry.DryRun = False,
    json: AsJson = False,
) -> None:
    """Test qualified nodes together, as one block; those that meet every condition enter production."""
    from muster.model.states import SERVING, State

    why = _forced(force, force_reason)
    members = list(_known(nodes, level).values())
    if len(members) < 2:
        raise MusterError("a block has at least two different nodes")
    for node in members:
        if node.state is not State.QUALIFIED:
            way = "revalidate" if node.state in SERVING else "qualify"
            alone = f"`muster {way} {node.name}` tests it alone"
            raise MusterError(f"{node.name} is in {node.state}: only qualified nodes are tested together; {alone}")
    _start([_test(CLUSTER_QUALIFICATION, members, level, reason, why)], watch, json, dry_run)


def admit(nodes: Nodes, reason: Why = "by hand", dry_run: dry.DryRun = False, json: AsJson = False) -> None:
    """Ask about nodes that do not enter production by themselves; `muster approve` answers."""
    wanted = []
    for node in _known(nodes, LEVELS[0]).values():
        conf = {"node": node.name, "reason": reason}
        wanted.append(_Wanted(ADMISSION, node.name, run_id(node.name, reason), conf, functools.partial(_askable, node)))
    _start(wanted, False, json, dry_run)


def approve(
    run: Annotated[str, typer.Argument(help="The run that asks; without it, the open questions are listed.")] = "",
    option: Annotated[str, typer.Option(help="The answer: one of the question's options.")] = "",
    reason: Annotated[str, typer.Option(help="Why; it stays in the node's history.")] = "",
    dry_run: dry.DryRun = False,
    json: AsJson = False,
) -> None:
    """List the questions that wait for a person, or answer one under your login to Airflow."""
    from muster import store
    from muster.admission import answers
    from muster.integration.airflow_api import REASON, AirflowClient

    with AirflowClient.from_settings() as airflow:
        waiting = questions(airflow)
        if not run:
            if json:
                show.as_json(waiting)
                return
            rows = [[each.run, each.subject, ", ".join(each.options)] for each in waiting]
            show.table(["run", "question", "options"], rows, empty="no question waits for an answer")
            return
        question = next((each for each in waiting if each.run == run), None)
        if question is None:
            raise MusterError(f"no question of run {run!r} waits for an answer: see `muster approve`")
        if option not in question.options:
            raise MusterError(f"give one of its answers with --option: {', '.join(question.options)}")
        if not reason.strip():
            raise MusterError("give the reason with --reason: it stays in the node's history")
        _check_login()
        node = store.nodes.get(str(airflow.conf(question.dag, run).get("node")))
        answers.check(option, node, RunKey(question.dag, run))
        if dry_run and json:
            show.as_json({"dry_run": True, "run": run, "option": option})
            return
        if dry_run:
            typer.echo(f"{run}: would be answered {option}: {question.subject}\ndry run: nothing was answered")
            return
        airflow.hitl_answer(question.dag, run, question.task, [option], {REASON: reason.strip()})
    if json:
        show.as_json({"run": run, "option": option})
    else:
        typer.echo(f"{run}: answered {option}; the run carries it out")


def _check_login() -> None:
    """Raise MusterError if the answer would come from no person: its run would refuse it later, unseen."""
    from muster.model.names import is_person

    current = settings()
    login = "" if current.airflow_token.get_secret_value() else current.airflow_username
    if login and not is_person(login):
        raise MusterError(
            f"the Airflow login {login!r} names no person: answer under your own, with MUSTER_AIRFLOW_USERNAME"
        )


def questions(airflow: AirflowClient) -> list[Question]:
    """The questions that wait for a person. Raises MusterError if Airflow does not give them."""
    return [Question.of(each) for each in airflow.hitl_pending()]


@dataclasses.dataclass(frozen=True)
class Question:
    """An open question: its run, its subject, and its possible answers."""

    dag: str
    run: str
    task: str
    subject: str
    options: tuple[str, ...]

    @classmethod
    def of(cls, waiting: Mapping[str, Any]) -> Question:
        """The question of Airflow's own description."""
        task = waiting["task_instance"]
        options = tuple(map(str, waiting["options"]))
        return cls(task["dag_id"], task["dag_run_id"], task["task_id"], str(waiting["subject"]), options)


def _known(names: Sequence[str], level: str) -> dict[str, Node]:
    from muster import store

    if level not in LEVELS:
        raise MusterError(f"there is no level {level!r}: give one of {', '.join(LEVELS)}")
    return {name: store.nodes.get(name) for name in names}


def _forced(force: bool, why: str) -> str:
    if force != bool(why.strip()):
        raise MusterError("testing a node that is in use needs both --force and --force-reason 'why'")
    return f"{why.strip()} ({settings().who}, {acting.current()})" if force else ""


def _test(dag: str, nodes: Sequence[Node], level: str, reason: str, force_reason: str = "") -> _Wanted:
    several = len(nodes) > 1
    run = run_id(f"{nodes[0].name}+{len(nodes) - 1}" if several else nodes[0].name, reason)
    conf: dict[str, Any] = {"level": level, "reason": reason}
    conf |= {"nodes": [node.name for node in nodes]} if several else {"node": nodes[0].name}
    if force_reason:
        conf["force_reason"] = force_reason
    if nodes[0].pool and not several:
        conf["pool"] = nodes[0].pool

    def check() -> None:
        from muster.admission.startable import startable

        for node in nodes:
            startable(node, dag, run, level, reason, force_reason)

    return _Wanted(dag, ", ".join(node.name for node in nodes), run, conf, check)


def _askable(node: Node) -> None:
    """Raises MusterError if the gate refuses the node, or has nothing to ask a person."""
    from muster import store
    from muster.model.states import State
    from muster.rules.gate import Admit, Refuse

    decision = store.admission.decision(node.name)
    if isinstance(decision, Refuse):
        raise MusterError(f"it does not enter production: {'; '.join(decision.reasons)}")
    if isinstance(decision, Admit) and node.state is State.PRODUCTION:
        raise MusterError("it is in production already")


def _rehearse(runs: Sequence[_Wanted]) -> dry.Rehearsal:
    """What ``_start`` would start and refuse, without a request to Airflow."""
    found = dry.Rehearsal(runs[0].dag)
    for run in runs:
        try:
            run.check()
        except MusterError as error:
            found.refused[run.of] = str(error)
            continue
        found.would_start[run.of] = run.run_id
    return found


def _start(runs: Sequence[_Wanted], watch: bool, json: bool, dry_run: bool = False) -> None:
    """Start the runs that pass their check; exit status 1 if one was refused, or did not end well while watched."""
    from muster.integration.airflow_api import AirflowClient

    if dry_run:
        _rehearse(runs).show(json)
        return
    began = datetime.datetime.now(datetime.UTC)
    started: dict[str, str] = {}
    refused: dict[str, str] = {}
    with AirflowClient.from_settings() as airflow:
        for run in runs:
            try:
                run.check()
                airflow.trigger(run.dag, run.run_id, run.conf, note=f"{run.of}: {run.conf['reason']}")
            except MusterError as error:
                typer.echo(f"muster: {run.of}: {error}", err=True)
                refused[run.of] = str(error)
                continue
            started[run.of] = run.run_id
            if not json:
                typer.echo(f"{run.of}: run {run.run_id} is started")
        dag = runs[0].dag
        if started and airflow.is_paused(dag):
            typer.echo(f"muster: the DAG {dag} is paused: the runs wait until you unpause it in Airflow", err=True)
        ended = follow(airflow, dag, started, quiet=json) if watch else []
    if json:
        lost = _not_begun(started, ended, began) if watch else {}
        show.as_json({"dag": dag, "started": started, "refused": refused, "ended": ended, "not_begun": lost})
    elif watch:
        show.table(
            ["node", "verdict", "state", "headline"],
            [[run.node, run.verdict or "", run.state_after or "", run.headline] for run in ended],
            empty="no run was recorded",
        )
        for of, why in _not_begun(started, ended, began).items():
            typer.echo(f"muster: {of}: {why}", err=True)
    recorded = {run.run_id for run in ended if run.verdict in WELL}
    if refused or (watch and (recorded != set(started.values()) or any(run.verdict not in WELL for run in ended))):
        raise typer.Exit(1)


def _not_begun(started: Mapping[str, str], ended: Sequence[Run], since: datetime.datetime) -> dict[str, str]:
    """{nodes: why} of the runs that ended in Airflow and are in no record."""
    from muster import store

    recorded, refusals = {run.run_id for run in ended}, store.signs.refusals(since)
    found = {}
    for of, run in started.items():
        if run in recorded:
            continue
        if why := next((refusals[name] for name in of.split(", ") if name in refusals), ""):
            found[of] = f"run {run} did not begin: {why}"
            continue
        found[of] = (
            f"run {run} ended in Airflow and is not in {store.engine.state().url}. Either its first task failed (see "
            "its log in Airflow), or its workers have other settings than this command: compare `muster settings`, "
            "run with their environment, first MUSTER_DATABASE_URL and MUSTER_HOME"
        )
    return found

"""The tasks around a block's members: take all nodes or none, judge them together, admit, report, let them go.

Each is a plain function of run ids and parameters; the DAG file makes tasks of them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from muster import records
from muster.admission import entry
from muster.errors import MusterError
from muster.integration import closing, logins, runid
from muster.lifecycle.gate import Admit
from muster.lifecycle.transitions import CLUSTER_STAGES, State
from muster.operators import claims
from muster.records import NodeRecord
from muster.remote import attempt as remote
from muster.settings import settings
from muster_criteria.model import Judgement, Severity, Verdict
from muster_criteria.sku_files.model import Sku
from muster_criteria.sku_files.skus import load_sku

log = logging.getLogger(__name__)

STAGE = CLUSTER_STAGES[0]

PORTS = range(20000, 30000)
"""Where members meet: below the ports that Linux hands out by itself (ip_local_port_range begins at 32768)."""

ADMITTED = "admitted"

ADDRESS_LABEL = "block_address"
"""A node's label that says where other nodes reach it, if that is not where the controller does."""


def claim(dag_id: str, run_id: str, params: Mapping[str, Any], try_number: int = 1) -> dict[str, Any]:
    """Take all nodes of the block for this run, or none; gives what their plans share, members in order of rank.

    Raises AirflowFailException, one sentence, where a person has to do something first.
    """
    with claims.failing_at_once():
        return _claim(dag_id, run_id, params, try_number)


def _claim(dag_id: str, run_id: str, params: Mapping[str, Any], try_number: int) -> dict[str, Any]:
    names, level = [str(name) for name in params["nodes"]], str(params["level"])
    force, reason = claims.forced(params), str(params.get("reason") or "")
    if len(set(names)) < 2 or len(set(names)) != len(names):
        raise MusterError(f"a block is at least two nodes, each named once, not {', '.join(names) or 'none'}")
    nodes = [claims.testable(name, level) for name in names]
    _check_nodes(nodes)
    with claims.held(names, dag_id, run_id):
        claims.refuse_in_use(names, force)
        for name in names:
            records.begin_run(dag_id, run_id, name, level, reason, force, required_stages=CLUSTER_STAGES)
        for name in names:
            records.begin_stage(dag_id, run_id, STAGE, node=name)
    # Another try meets elsewhere and under another secret: what is left of an earlier one must not be let in.
    drawn = int.from_bytes(hashlib.sha256(f"{dag_id}/{run_id}/{try_number}".encode()).digest()[:8], "big")
    master = nodes[0]
    return {
        "members": names,
        "master_addr": str(master.labels.get(ADDRESS_LABEL) or master.host),
        "master_port": PORTS[drawn % len(PORTS)],
        "session": secrets.token_hex(16),
        "seed": drawn & 0x7FFFFFFF,
    }


def _check_nodes(nodes: Sequence[NodeRecord]) -> None:
    """Raises MusterError unless these nodes can be a block."""
    for node in nodes:
        if node.state not in (State.QUALIFIED, State.CLUSTER_VALIDATION):
            raise MusterError(
                f"{node.name} is {node.state}, and only qualified nodes are validated together: qualify it first "
                f"(`muster qualify {node.name}`), or leave it out"
            )
    if len({node.simulated for node in nodes}) > 1:
        raise MusterError("real and simulated nodes cannot be one block: each would vouch for the other")


def judge(dag_id: str, run_id: str, members: Sequence[str]) -> dict[str, dict[str, str]]:
    """Judge the block by what its members sent, and record each one's verdict: {member: {verdict, reason}}.

    A convicted member goes to quarantine at once, whatever becomes of the others.
    """
    from muster_criteria.cluster.judge import MemberResult, judge_block

    heard = {name: _heard(dag_id, run_id, name) for name in members}
    skus = {name: load_sku(records.get_node(name).sku, settings().sku_folders) for name in members}
    results = {
        name: MemberResult(name, one.result, one.why_missing, devices=_gpus(skus[name])) for name, one in heard.items()
    }
    block = judge_block(list(results.values()))
    for note in block.notes:
        log.warning("%s", note)
    outcome: dict[str, dict[str, str]] = {}
    for said in block.members:
        one, sku, run = heard[said.name], skus[said.name], records.get_run(dag_id, run_id, node=said.name)
        judgement = said.judgement(results[said.name], run.level, sku.name, sku.revision)
        judgement = _with_established(dataclasses.replace(judgement, stage=STAGE), one.established, run.simulated)
        stored = records.record_stage(
            dag_id, run_id, one.result, judgement, one.raw, one.telemetry, one.attempts, node=said.name
        ).judgement
        headline = f"cluster validation: {stored.reason}"
        blameless = not said.missing and bool(block.missing or block.failed)
        in_doubt = stored.verdict is Verdict.INCONCLUSIVE
        # Who was in doubt only because another member was lost has not been tested; no budget of its own is spent.
        verdict = Verdict.SKIPPED if in_doubt and blameless else stored.verdict
        closed = records.finish_run(dag_id, run_id, verdict, headline, node=said.name)
        log.info("%s: %s: %s (%s)", said.name, stored.verdict, stored.reason, closed.state_after)
        outcome[said.name] = {"verdict": str(stored.verdict), "reason": stored.reason}
    return outcome


def _gpus(sku: Sku) -> int | None:
    counted = sku.devices.get("gpu")
    return counted if isinstance(counted, int) and counted > 0 else None


@dataclasses.dataclass(frozen=True)
class _Heard:
    """What there is of one member. ``established``: its judgement so far, if the controller found something itself."""

    result: Any = None
    raw: bytes | None = None
    telemetry: bytes | None = None
    attempts: int = 1
    why_missing: str = ""
    established: Judgement | None = None


def _heard(dag_id: str, run_id: str, name: str) -> _Heard:
    from muster_criteria.measured import parse_result

    kept = records.stage_bytes(dag_id, run_id, STAGE, node=name)
    before = _stored(dag_id, run_id, name)
    if kept is None or before is None:
        return _Heard(why_missing="its task ended before anything came back from it")
    established = before if any(finding.metric == "evidence" for finding in before.findings) else None
    if kept.result is None:
        return _Heard(attempts=kept.attempts, why_missing=before.reason, established=established)
    return _Heard(parse_result(kept.result), kept.result, kept.telemetry, kept.attempts, established=established)


def _stored(dag_id: str, run_id: str, name: str) -> Judgement | None:
    stages = records.run_report(dag_id, run_id, node=name).stages
    return next((each.judgement for each in stages if each.judgement.stage == STAGE), None)


def _with_established(judgement: Judgement, established: Judgement | None, simulated: bool) -> Judgement:
    """``judgement``, and what the controller itself established about the member: an uncommanded reboot, for one."""
    judgement = dataclasses.replace(judgement, simulated=judgement.simulated or simulated)
    if established is None:
        return judgement
    own = tuple(finding for finding in established.findings if finding.metric == "evidence")
    grave = any(finding.severity is Severity.CRITICAL and not finding.waived for finding in own)
    if not grave or judgement.verdict is Verdict.FAIL:
        return dataclasses.replace(judgement, findings=(*own, *judgement.findings))
    return dataclasses.replace(
        judgement, verdict=Verdict.FAIL, reason=own[0].summary, findings=(*own, *judgement.findings)
    )


def admit(dag_id: str, run_id: str, outcome: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Let those members into production that the gate lets pass by itself: {member: what it said, in one sentence}.

    Only members that nothing was found on are asked about. A backend that cannot be told fails the task, which then is
    tried again; members that are in already are told to it once more.
    """
    told, failures = {}, []
    for name, said in outcome.items():
        if said["verdict"] not in (Verdict.PASS, Verdict.WARN):
            continue
        try:
            decision = entry.admit(name, dag_id, run_id)
        except MusterError as error:
            failures.append(f"{name}: {error}")
            continue
        told[name] = ADMITTED if isinstance(decision, Admit) else "; ".join(decision.reasons)
        log.info("%s: %s", name, told[name])
    if failures:
        raise AirflowException("; ".join(failures))
    return told


def questions(run_id: str, level: str, told: Mapping[str, str]) -> list[dict[str, Any]]:
    """A run of the admission DAG for each member that a person has to decide on, as TriggerDagRunOperator takes it."""
    return [
        {
            "trigger_run_id": runid.run_id(name, f"after {run_id}"),
            "conf": {"node": name, "level": level, "reason": f"after {run_id}"},
        }
        for name, said in told.items()
        if said != ADMITTED
    ]


def conclude(outcome: Mapping[str, Mapping[str, str]] | None) -> str:
    """One sentence on the block; a run in which any member was convicted, or stayed in doubt, fails here."""
    if not outcome:
        raise AirflowFailException("the block was not judged")
    told = {
        verdict: [f"{name} ({said['reason']})" for name, said in outcome.items() if said["verdict"] == verdict]
        for verdict in (Verdict.FAIL, Verdict.INCONCLUSIVE)
    }
    if any(told.values()):
        parts = [f"{verdict}: {'; '.join(names)}" for verdict, names in told.items() if names]
        raise AirflowFailException(". ".join(parts))
    return f"all {len(outcome)} members held together"


def report(dag_id: str, run_id: str, members: Sequence[str]) -> dict[str, str]:
    """Mail one report for each member that was begun: {member: what became of the mail}."""
    from muster.operators import mailing

    return {name: mailing.send_report(dag_id, run_id, node=name) for name in members}


def release(dag_id: str, run_id: str, members: Sequence[str]) -> list[str]:
    """Release all nodes of the block, with nothing of this run left running on them."""
    for name in members:
        try:
            remote.stop_leftovers(dag_id, run_id, [STAGE], logins.connect, node=name)
        except MusterError as error:
            # The node ends the job itself by its deadline, and ends older jobs as soon as a newer run starts one.
            log.warning("the job of this run on %s may still be running: %s", name, error)
    freed = closing.release(dag_id, run_id, "the run is over")
    log.info("released %s", ", ".join(freed) or "nothing: they had been released before")
    return freed

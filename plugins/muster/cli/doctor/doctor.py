"""``muster doctor``: what the controller needs, what is missing, and the command that sets it. Changes nothing."""

from __future__ import annotations

import collections
import os
import smtplib
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from muster import ownership
from muster.cli.doctor import connections, disks, environment, plugin, records, repairs
from muster.cli.doctor.checks import Check, Mark
from muster.cli.terminal import show
from muster.errors import BadSettings, ControllerFault, MusterError
from muster.model.dags import ALL, BURN_POOL, NEW_HARDWARE, NODE_QUALIFICATION, STOPPED_AFTER
from muster.model.nodes import Node
from muster.model.states import State
from muster.settings import Settings, settings
from muster_criteria.text import one_line

if TYPE_CHECKING:
    from muster.integration.airflow_api import AirflowClient, Pool

COMPONENTS = ("metadatabase", "scheduler", "triggerer", "dag_processor")
"""As in ``muster.integration.policy``, which is not imported here because it imports Airflow."""
SQLITE_NODES_MAX = 8
"""Up to this number of nodes (the demo has 7), fleet records on SQLite cause no advice."""
SMTP_TIMEOUT_S = 10.0


def doctor(
    json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """Check everything the controller needs. Ends with status 1 if something needed is missing.

    Run it where the scheduler and the workers run, with their environment: connections are looked up as they do.
    """
    checks = list(examine())
    rows = ([each.mark, each.item, each.message, each.fix] for each in checks)
    show.answer(checks, ["", "what", "found", "to do"], rows, json=json, empty="nothing was checked")
    if any(each.mark is Mark.MISSING for each in checks):
        raise typer.Exit(1)


def examine(timeout_s: float = 30.0) -> Iterator[Check]:
    """All checks, in the order in which a new installation sets things up. ``timeout_s``: of a request to Airflow."""
    try:
        current = settings()
    except BadSettings as error:
        yield Check(Mark.MISSING, "settings", str(error), "see `muster settings`")
        return
    yield from environment.variables()
    yield home(current.home)
    yield from disks.low(current)
    yield from environment.files(current)
    yield database()
    yield from records.fences()
    yield skus(current)
    yield agent(current.home)
    yield ssh_connection(current)
    yield from environment.token(current)
    yield from airflow(current, timeout_s)
    yield mail(current)
    yield from records.mail_rules(current)
    yield from schedulers(current)
    yield from records.signing_key()
    yield from between_tests(current)
    if current.audit_sinks:
        yield audit_stream(current)


def home(folder: Path) -> Check:
    """MUSTER_HOME can be written."""
    try:
        ownership.folder(folder)
    except OSError as error:
        return Check(Mark.MISSING, "MUSTER_HOME", f"{folder} cannot be made: {error.strerror}", _HOME)
    if not os.access(folder, os.W_OK | os.X_OK):
        return Check(Mark.MISSING, "MUSTER_HOME", f"{folder} cannot be written", _HOME)
    return Check(Mark.OK, "MUSTER_HOME", str(folder))


_HOME = "set MUSTER_HOME=/a/folder/of/this/user for every component"
_DATABASE = "set MUSTER_DATABASE_URL=postgresql://USER:PASSWORD@HOST/muster for every component"


def database() -> Check:
    """The fleet records are reachable, at this version's schema, and on PostgreSQL for more than a demo."""
    from muster import store

    try:
        found = store.engine.state()
        if found.schema is None:
            return Check(Mark.MISSING, "fleet records", f"{found.url} has no tables", "muster db upgrade")
        nodes = [node for node in _kept() if not node.simulated]
    except MusterError as error:
        return Check(Mark.MISSING, "fleet records", str(error), f"muster db upgrade, or {_DATABASE}")
    seen = f"{found.url}, schema {found.schema}, {len(nodes)} nodes"
    if found.sqlite and len(nodes) > SQLITE_NODES_MAX:
        return Check(Mark.ADVICE, "fleet records", f"{seen}: SQLite is for the demo", _DATABASE)
    return Check(Mark.OK, "fleet records", seen)


def _kept() -> list[Node]:
    """All nodes but those that have left the fleet. Raises MusterError."""
    from muster import store

    return store.nodes.find(states=set(State) - {State.RETIRED})


def skus(current: Settings) -> Check:
    """The SKU files can be read, and the folders of MUSTER_SKU_PATH exist."""
    from muster_criteria.sku_files.model import SkuError
    from muster_criteria.sku_files.skus import list_skus, load_sku

    for folder in current.sku_folders:
        if not folder.is_dir():
            return Check(Mark.MISSING, "SKU files", f"MUSTER_SKU_PATH names {folder}, which is no folder", "correct it")
    known = list_skus(current.sku_folders)
    for name in known:
        try:
            load_sku(name, current.sku_folders)
        except SkuError as error:
            return Check(Mark.MISSING, "SKU files", str(error), f"muster sku lint {name}")
    return Check(Mark.OK, "SKU files", ", ".join(known))


def audit_stream(current: Settings) -> Check:
    """Each receiver of MUSTER_AUDIT_SINKS can be used, and accepted what was sent last."""
    from muster import store
    from muster.audit.sinks import sink

    try:
        for name, configured in current.audit_sinks.items():
            sink(name, configured)
        failing = [lag.sentence for lag in store.audit.lags() if lag.last_error]
    except MusterError as error:
        return Check(Mark.MISSING, "audit stream", str(error), "see `muster settings`")
    if failing:
        return Check(Mark.ADVICE, "audit stream", "; ".join(failing), "make the receiver accept events")
    return Check(Mark.OK, "audit stream", ", ".join(sorted(current.audit_sinks)))


def between_tests(current: Settings) -> Iterator[Check]:
    """The policies of health and repair; the sources that may report, where there are any."""
    from muster.integration import report_sources

    yield from repairs.examine()
    if current.report_sources:
        usable, wrong = report_sources.sources()
        if wrong:
            yield Check(Mark.MISSING, "reports", "; ".join(wrong), "see docs/starting-tests.md")
        else:
            yield Check(Mark.OK, "reports", ", ".join(sorted(usable)))


def agent(folder: Path) -> Check:
    """The node side can be packed into one file."""
    from muster.remote.job.zipapp import build_agent

    try:
        built = build_agent(folder / "agents")
    except ControllerFault as error:
        return Check(Mark.MISSING, "node side", str(error), _HOME)
    return Check(Mark.OK, "node side", f"{built.path.name[:12]}….pyz, {built.path.stat().st_size // 1024} KiB")


def ssh_connection(current: Settings) -> Check:
    """The SSH login of the tasks: the Airflow connection MUSTER_SSH_CONN_ID, with a key that can be read."""
    name = current.ssh_conn_id
    fix = connections.given(name, {"conn_type": "ssh", "login": "USER", "extra": {"key_file": "/path/to/id_ed25519"}})
    from muster.remote.connection.login import Credentials

    found, source = connections.find(name), f"connection {name}"
    if found is None:
        return connections.absent("SSH login", name, fix)
    try:
        who = Credentials.of_connection(found.login, found.password, found.extra)
    except ControllerFault as error:
        return Check(Mark.MISSING, "SSH login", f"{source}: {error}", fix)
    if not (who.key_file or who.private_key):
        return Check(Mark.MISSING, "SSH login", f"{source} has neither key_file nor private_key", fix)
    try:
        who.key()
    except ControllerFault as error:
        put = f"put the private key that the nodes know at {who.key_file}, for this user to read"
        return Check(Mark.MISSING, "SSH login", f"{error} ({name})", put if who.key_file else fix)
    if who.key_file and (closing := ownership.closing(Path(who.key_file))):
        return Check(Mark.MISSING, "SSH login", f"the SSH key file {who.key_file} can be read by others", closing)
    given = who.key_file or "a key"
    user = who.username or "each node's own user"
    return Check(Mark.OK, "SSH login", f"{source}: {user}, {given}")


def airflow(current: Settings, timeout_s: float) -> Iterator[Check]:
    """Airflow's components are healthy, the login works, DAGs and plugin are loaded, every pool exists."""
    from muster.integration.airflow_api import AirflowClient

    address = "start it, and what ends TLS in front of it, or set MUSTER_AIRFLOW_URL=…: docs/deploying.md, TLS"
    login = "set MUSTER_AIRFLOW_USERNAME=… MUSTER_AIRFLOW_PASSWORD=… (or MUSTER_AIRFLOW_TOKEN=…)"
    with AirflowClient.from_settings(timeout_s) as client:
        try:
            health = client.health()
        except MusterError as error:
            yield Check(Mark.MISSING, "Airflow", str(error), address)
            return
        ill = [f"{name} is {health.get(name, 'absent')}" for name in COMPONENTS if health.get(name) != "healthy"]
        if ill:
            seen = f"{current.airflow_url}: {', '.join(ill)}"
            yield Check(Mark.MISSING, "Airflow", seen, "start it, or read its log")
        else:
            yield Check(Mark.OK, "Airflow", f"{current.airflow_url}: {', '.join(COMPONENTS)} healthy")
        try:
            loaded = client.dags()
        except MusterError as error:
            yield Check(Mark.MISSING, "Airflow login", str(error), login)
            return
        yield dags(loaded)
        yield from plugin.loaded(client)
        yield from records.frozen(loaded)
        yield from stopped(client, loaded)
        yield from retries(client)
        try:
            yield pools(client.pools(), current)
        except MusterError as error:
            yield Check(Mark.MISSING, "pools", str(error), login)


def dags(paused: dict[str, bool]) -> Check:
    """Every DAG is loaded, and none is paused; ``paused`` is {DAG id: whether it is paused}."""
    absent = [name for name in ALL if name not in paused]
    if absent:
        fix = "put dags/ into Airflow's DAGs folder and plugins/muster_plugin.py into its plugins folder"
        fix += "; airflow dags list-import-errors"
        return Check(Mark.MISSING, "DAGs", f"not loaded: {', '.join(absent)}", fix)
    waiting = [name for name in ALL if paused[name]]
    if waiting:
        fix = "; ".join(f"airflow dags unpause {name}" for name in waiting)
        if NEW_HARDWARE in waiting:
            fix += f"; announce again what came meanwhile (to hold tests back, pause {NODE_QUALIFICATION} instead)"
        return Check(Mark.ADVICE, "DAGs", f"paused: {', '.join(waiting)}", fix)
    return Check(Mark.OK, "DAGs", f"{len(ALL)} loaded, none paused")


def stopped(client: AirflowClient, paused: dict[str, bool]) -> Iterator[Check]:
    """The last run of each DAG with a schedule succeeded, not long ago; silent if so, or if its first may still end."""
    from muster import store
    from muster.integration.airflow_api import AHEAD

    try:
        now, enrolled = store.clock.now(), store.nodes.enrolled_since()
        found = {name: client.last_ended(name) for name in STOPPED_AFTER if paused.get(name) is False}
    except MusterError:  # of the records or of Airflow, which another line reports
        return
    for name, last in found.items():
        state, at = last or ("", enrolled or now)
        if at > now + AHEAD:  # Airflow counts the time of the next run from that of the last
            seen = f"{name} begins no run before {show.when(at)}: the clock of a scheduler was ahead"
            fix = "keep that machine's clock by NTP; then delete the runs of the DAG in Airflow that are dated ahead"
            yield Check(Mark.MISSING, "DAGs", seen, fix)
        elif state == "failed" or now - at > STOPPED_AFTER[name]:
            ended = f"the last run of {name} {'failed' if state == 'failed' else 'ended'} at {show.when(at)}"
            seen = ended if last else f"no run of {name} has ended since the first node was enrolled, {show.when(at)}"
            yield Check(Mark.MISSING, "DAGs", seen, "look into its log, and into the scheduler's")


def retries(client: AirflowClient) -> Iterator[Check]:
    """No task waits for hours since a clock of Airflow's was wrong; silent if so."""
    from muster import store

    try:
        late = client.postponed(store.clock.now())
    except MusterError:  # of the records or of Airflow, which another line reports
        return
    if late:
        until = max(task.until for task in late)
        waits = "1 task waits" if len(late) == 1 else f"{len(late)} tasks wait"
        seen = f"{waits} until {show.when(until)}: the clock of a scheduler, worker or triggerer was ahead"
        yield Check(Mark.MISSING, "retries", seen, "keep that machine's clock by NTP; then muster runs retry")


def pools(known: dict[str, Pool], current: Settings) -> Check:
    """Every pool that nodes name exists, counts deferred tasks, and has more than one slot for several nodes."""
    try:
        named = collections.Counter(node.pool or BURN_POOL for node in _kept())
    except MusterError:
        named = collections.Counter()
    wanted = sorted({*named, BURN_POOL})
    absent = [name for name in wanted if name not in known]
    blind = [name for name in wanted if name in known and not known[name].include_deferred]
    if absent or blind:
        parts = [f"missing: {', '.join(absent)}"] * bool(absent)
        parts += [f"without deferred tasks: {', '.join(blind)}"] * bool(blind)
        return Check(Mark.MISSING, "pools", "; ".join(parts), _pool_fix((absent + blind)[0], current))
    shown = ", ".join(_pool(name, known[name], named[name]) for name in wanted)
    narrow = [name for name in wanted if known[name].slots in (0, 1) and named[name] > 1]
    if narrow:
        return Check(Mark.ADVICE, "pools", f"{shown}; one slot loads one node at a time", _pool_fix(narrow[0], current))
    return Check(Mark.OK, "pools", shown)


def _pool(name: str, pool: Pool, nodes: int) -> str:
    """The pool's slots, its nodes, and how many of their stages wait for a slot now."""
    slots = "unlimited slots" if pool.slots < 0 else f"{pool.slots} slot{'s' if pool.slots != 1 else ''}"
    waiting = f", {pool.waiting} waiting" if pool.waiting else ""
    return f"{name} ({slots} for {nodes} node{'s' if nodes != 1 else ''}{waiting})"


def _pool_fix(name: str, current: Settings) -> str:
    slots = current.burn_slots if name == BURN_POOL else "SLOTS"
    return f"airflow pools set {name} {slots} 'nodes under load at once' --include-deferred"


def mail(current: Settings) -> Check:
    """Reports have a recipient, and the mail server of the SMTP connection answers."""
    from muster.reporting import mail_rules

    rules, wrong = mail_rules.read(current.mail_rules)
    everyone = mail_rules.usable(current.mail_recipients, "MUSTER_MAIL_TO", wrong)
    mail_rules.usable([current.mail_from], "MUSTER_MAIL_FROM", wrong)
    if rules and not everyone and not mail_rules.of_notices(rules, everyone):
        wrong.append("no question reaches a person: set MUSTER_MAIL_TO, or notices of a rule")
    if wrong:
        return Check(Mark.MISSING, "mail", "; ".join(wrong), "correct these settings: see docs/mail.md")
    people = dict.fromkeys([*everyone, *(address for rule in rules for address in rule.to)])
    if not people:
        return Check(Mark.ADVICE, "mail", "no report is mailed", "set MUSTER_MAIL_TO=… for every component")
    name = current.smtp_conn_id
    server = {"host": "mail.example.org", "port": 587, "login": "USER", "password": "…"}
    fix = connections.given(name, {"conn_type": "smtp", **server, "extra": {"disable_ssl": True}})
    found = connections.find(name)
    if found is None:
        return connections.absent("mail", name, fix)
    if not found.host:
        return Check(Mark.MISSING, "mail", f"the Airflow connection {name} has no host", fix)
    where = f"{found.host}:{found.port or 'default port'}"
    try:
        _log_in(name)
    except smtplib.SMTPAuthenticationError as error:
        said = error.smtp_error.decode(errors="replace") if isinstance(error.smtp_error, bytes) else error.smtp_error
        why = f"{where} refuses the login {found.login!r} of connection {name}: {error.smtp_code} {one_line(said)}"
        return Check(Mark.MISSING, "mail", why, fix)
    except ssl.SSLCertVerificationError as error:
        trust = "set SSL_CERT_FILE=… (the certificates of its CA), for every component; or its name in the connection"
        return Check(Mark.MISSING, "mail", f"{where}: its certificate is not trusted: {error.verify_message}", trust)
    except (smtplib.SMTPNotSupportedError, ssl.SSLError) as error:
        why = f"{where}: no encryption ({error}): disable_ssl and disable_tls in the extra of {name} choose which"
        return Check(Mark.MISSING, "mail", why, fix)
    except (OSError, smtplib.SMTPException) as error:
        return Check(Mark.ADVICE, "mail", f"{where} does not answer: {error}; mails wait until it does", fix)
    as_whom = f" to {found.login}" if found.login else ""
    return Check(Mark.OK, "mail", f"{found.host} answers{as_whom}; reports go to {', '.join(people)}")


def _log_in(conn_id: str) -> None:
    """Connect, encrypt and log in as the delivery does, by the SMTP provider's own hook, and say NOOP.

    Raises OSError, SMTPException.
    """
    with connections.airflow_libraries():
        from airflow.providers.smtp.hooks.smtp import SmtpHook
        from airflow.sdk.exceptions import AirflowException

        class Once(SmtpHook):
            """The hook without retries, and with a timeout for which a person can wait."""

            timeout = int(SMTP_TIMEOUT_S)
            smtp_retry_limit = 0

        try:
            with Once(smtp_conn_id=conn_id) as hook:
                if isinstance(hook._smtp_client, smtplib.SMTP):
                    hook._smtp_client.noop()
        except AirflowException as error:  # it hides a server that hangs up
            raise smtplib.SMTPException(str(error)) from error


def schedulers(current: Settings) -> Iterator[Check]:
    """Each cluster of MUSTER_SCHEDULERS answers, and lets our login change its nodes."""
    from muster import store
    from muster.admission import clusters

    try:
        places = store.schedulers.places()
    except MusterError:  # reported by ``database``
        places = []
    for name in sorted(current.schedulers):
        item, mine = f"scheduler {name}", [place.name for place in places if place.cluster == name]
        try:
            clusters.ask(name, mine[:1])
            clusters.backend_of(name).check_rights()
        except MusterError as error:
            yield Check(Mark.MISSING, item, str(error), "see docs/deploying.md, and `muster node schedulers`")
            continue
        yield Check(Mark.OK, item, f"answers; {len(mine)} nodes have their place there")

"""The demo from start to end: services, fleet, enrolment, live progress, verdicts and the examiner's score."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import pathlib
import secrets
import sys
import time
from collections.abc import Callable

from rich.console import Console
from rich.markup import escape

from muster import store
from muster.admission import clusters
from muster.admission import service as schedulers
from muster.errors import MusterError
from muster.integration.airflow_api import AirflowClient
from muster.integration.runid import run_id
from muster.model import dags
from muster.model.states import State
from muster_demo import between, fleet, service, slurm, watchdog
from muster_demo.draw import Planted, draw_faults, load_answers, node_names, save_answers
from muster_demo.hosts import Hosts, Keys, make_client_keys
from muster_demo.jobs import Jobs
from muster_demo.outcome import (
    read_mails,
    show_aftermath,
    show_approvals,
    show_blocks,
    show_breaker,
    show_score,
    show_slurm,
    show_verdicts,
)
from muster_demo.pytorch import find_interpreter
from muster_demo.scoring import NAMED_BY, Score, judged, score
from muster_demo.service import ACTOR, Approver, ServiceStory, finished, service_of
from muster_demo.services import ServiceFailed, Supervisor, base_environment
from muster_demo.stack import Login, Stack, airflow_settings, connections, migrate, new_login, write_password
from muster_demo.table import SERVICE, Progress, clock
from muster_demo.watch import LOOK_EVERY_S, Run, Watcher, patiently, trigger_once
from muster_demo.workdir import Busy, Workdir

LEVEL = "demo"
REASON = "demo"
TIME_LIMIT_S = 2400.0
"""The demo gives up after this time (s): five times what a machine with two idle cores needs."""

MAIL_S = 60.0
CLUSTER = "slurm"
"""The demo's Slurm among MUSTER_SCHEDULERS."""

PATIENCE_S = 60.0
"""Seconds that a question waits for the user before the demo answers it; with ``--exit`` it does not wait."""

HOST_IN_USE = "the demo's own controller runs on this machine as well"
"""The reason, shown in the report, for testing this machine although its guard finds it in use."""

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


class DemoFailed(Exception):
    """The demo cannot continue; the message states the reason to the user."""


@dataclasses.dataclass(frozen=True)
class Options:
    """The demo's command-line options."""

    seed: int
    exit_after: bool
    directory: pathlib.Path
    time_limit_s: float = TIME_LIMIT_S


def main(
    seed: int | None = None,
    exit_after: bool = False,
    directory: pathlib.Path | None = None,
    time_limit_s: float = TIME_LIMIT_S,
) -> int:
    """Run the demo and return its exit status: 0 only if all checks of ``scoring`` hold.

    Works in ``directory`` (default: .demo here), which it empties first. Without ``exit_after`` Airflow stays up until
    a signal stops the demo. A new fleet has no peers to judge nodes by, so the demo asks the user about each node
    before it enters production, and answers after a while itself. No process outlives the call.
    """
    options = Options(
        seed=secrets.randbelow(10_000) if seed is None else seed,
        exit_after=exit_after,
        directory=(directory or pathlib.Path(".demo")).resolve(),
        time_limit_s=time_limit_s,
    )
    return watchdog.run(lambda: run(options))


def run(options: Options) -> int:
    """The demo itself, below its watchdog."""
    console = make_console()
    place = Workdir(options.directory)
    supervisor = Supervisor(place.logs)
    try:
        with place.claim():
            try:
                return Demo(options, place, supervisor, console).run()
            finally:
                supervisor.stop(patience_s=3.0)
    except (Busy, DemoFailed, ServiceFailed, slurm.SlurmFailed, MusterError) as error:
        console.print(f"[bold red]The demo failed:[/] {escape(str(error))}", soft_wrap=True)
        return 1


def make_console() -> Console:
    """A console for stdout; 160 columns wide if that is no terminal."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=160)


class Demo:
    """One demo. Each step prints what it does, and when."""

    def __init__(self, options: Options, place: Workdir, supervisor: Supervisor, console: Console) -> None:
        self.options = options
        self.place = place
        self.supervisor = supervisor
        self.console = console
        self.began = time.monotonic()
        self.actor_password = secrets.token_urlsafe(9)
        self.jobs: Jobs | None = None
        """Users' jobs; None without Slurm."""
        self.in_block: tuple[Planted, ...] = ()
        """The faults that appeared in a member of the block."""
        self.late: Planted | None = None
        """The fault that appeared in service."""

    def say(self, sentence: str) -> None:
        """One line with the time elapsed."""
        self.console.print(f"[dim]\\[{clock(self.elapsed()):>5}][/] {sentence}", soft_wrap=True)

    def elapsed(self) -> float:
        """Seconds since the demo began."""
        return time.monotonic() - self.began

    def run(self) -> int:
        """Run all steps; returns the exit status."""
        if not (REPOSITORY / "dags").is_dir():
            raise DemoFailed(f"there are no DAGs in {REPOSITORY / 'dags'}: run the demo from a clone of the repository")
        python = find_interpreter()
        if python is None:
            raise DemoFailed("no python3 here can import torch: 'make demo' installs it")
        self.say(f"Muster demo, seed {self.options.seed} (--seed {self.options.seed} plants the same faults again)")
        keys = make_client_keys(self.place.root / "keys")
        self.start_slurm()
        stack = self.start_services(keys)
        members = self.start_fleet(keys)
        self.enrol(members, python)
        stack.wait_ready(dags.NODE_QUALIFICATION)
        login = "" if self.options.exit_after else f", login {stack.login.username}, password {stack.login.password}"
        self.say(f"Airflow is up: {stack.login.url}{escape(login)}")
        client = AirflowClient(stack.login.url, stack.login.username, stack.login.password)
        runs = self.trigger(members, client)
        watcher = Watcher(runs, client)
        with Progress(self.console) as progress:
            self.follow(watcher, progress)
        self.serve(stack, client)
        result = self.conclude(members, runs)
        if not self.options.exit_after:
            patiently(lambda: client.unpause(dags.IDLE_REVALIDATION))
            self.ask_about(members[0], client)
            self.linger(stack.login)
        return 0 if result.ok else 1

    def start_slurm(self) -> None:
        """Start a Slurm with every node of the fleet, where it is installed; without it the demo goes on."""
        names = (fleet.host_name(), *node_names())
        if why := slurm.missing(self.place.slurm, names):
            self.say(f"No Slurm in this demo: {escape(why)}")
            return
        cluster = slurm.Slurm(self.supervisor, self.place.slurm, names, base_environment(self.place.mark))
        try:
            cluster.start()
        except (ServiceFailed, slurm.SlurmFailed) as error:
            cluster.stop()
            self.say(f"No Slurm in this demo, since it does not start here: {escape(str(error))}")
            return
        self.jobs = Jobs(cluster, self.say)
        self.say(f"Slurm is up, with {len(names)} nodes (SLURM_CONF={cluster.conf})")

    def start_services(self, keys: Keys) -> Stack:
        """Start the mail sink and Airflow; Airflow is not ready yet when this returns."""
        port_file = self.place.root / "mail.port"
        base = base_environment(self.place.mark)
        self.supervisor.start(
            "mail", [sys.executable, "-m", "muster_demo.mailsink", str(self.place.mail), str(port_file)], base
        )
        login = new_login()
        for username, password in ((login.username, login.password), (ACTOR, self.actor_password)):
            write_password(self.place.airflow, username, password)
        self.supervisor.wait_until("the mail sink", port_file.exists, 30)
        between.write_policies(self.place.policies, LEVEL)
        self.place.shared.mkdir()
        mine = muster_settings(self.place, login, self.options) | scheduler_settings(self.jobs)
        os.environ.update(mine)
        environment = {
            **base,
            **mine,
            **connections(keys, int(port_file.read_text())),
            **airflow_settings(login, self.place.airflow, REPOSITORY / "dags", REPOSITORY / "plugins"),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{login.username}:admin,{ACTOR}:user",
        }
        self.say("Starting Airflow (SQLite, one machine) and a mail sink")
        migrate(environment, self.place.logs / "migrate.log")
        stack = Stack(self.supervisor, environment, login)
        stack.start()
        return stack

    def start_fleet(self, keys: Keys) -> list[fleet.Member]:
        """Build the simulated machines with their faults and start every node's SSH server."""
        faults = draw_faults(self.options.seed)
        save_answers(self.place.answers, self.options.seed, faults)
        self.place.nodes.mkdir()
        fleet.build_machines(self.place.nodes, self.options.seed, faults)
        members = fleet.start_servers(Hosts(self.supervisor, self.place.nodes, keys, self.place.mark), self.place.nodes)
        host = members[0]
        self.say(f"{host.name} is this machine, reached over SSH by {host.server}; SKU {host.sku}, truly measured")
        self.say(
            f"{len(members) - 1} simulated nodes ({fleet.SIMULATED_SKU}), each an SSH server with a host key of its "
            f"own; {len(faults)} of them have a fault"
        )
        return members

    def enrol(self, members: list[fleet.Member], python: str) -> None:
        """Enter the fleet in the records."""
        store.engine.upgrade()
        added = [store.nodes.add(fleet.describe(member, python)) for member in members]
        self.say(f"{added.count('added')} nodes enrolled, host keys pinned")
        if self.jobs is None:
            return
        names = [member.name for member in members]
        clusters.check(CLUSTER, names)
        for name in names:
            store.schedulers.assign(name, CLUSTER, name, ACTOR, "make demo")
            if trouble := schedulers.carry_out(name):
                raise DemoFailed(f"{name} cannot be closed in Slurm: {trouble}")
        self.say("Slurm: every node is closed to users' jobs until Muster admits it")

    def trigger(self, members: list[fleet.Member], client: AirflowClient) -> list[Run]:
        """Trigger one qualification for each node, this machine first."""
        patiently(lambda: client.ensure_pool(fleet.POOL, 1))
        patiently(lambda: client.unpause(dags.NODE_QUALIFICATION))
        runs = [
            Run(member.name, member.simulated, dags.NODE_QUALIFICATION, run_id(member.name, REASON))
            for member in members
        ]
        for run in runs:
            conf = {"node": run.node, "level": LEVEL, "reason": REASON, "pool": fleet.POOL}
            if not run.simulated:
                conf["force_reason"] = HOST_IN_USE
            trigger_once(client, run.dag_id, run.run_id, conf)
        self.say(f"{len(runs)} qualifications triggered; one node at a time measures, and the others wait")
        return runs

    def serve(self, stack: Stack, client: AirflowClient) -> None:
        """Take the qualified simulated nodes into production, and test one of them again there."""
        names = [node.name for node in store.nodes.find(states=(State.QUALIFIED,)) if node.simulated]
        if len(names) < 3:
            self.say(f"{len(names)} simulated nodes qualified: too few for a block, so none enters production")
            return
        self.say(f"{', '.join(names)} qualified: now they are validated together, and go into production")
        # One goes into production and the last is its spare, so that the faults are in neither.
        self.plant_in_block(names[1])
        actor = AirflowClient(stack.login.url, ACTOR, self.actor_password)
        approver = Approver(actor, 0.0 if self.options.exit_after else PATIENCE_S, self.say)
        watcher = Watcher([], client, service.cells)
        with Progress(self.console, SERVICE) as progress:
            follow = functools.partial(self.follow, watcher, progress)
            ServiceStory(watcher, approver, follow, level=LEVEL, fail=self.fail, users=self.jobs).run(names)

    def plant_in_block(self, node: str) -> None:
        """Let two GPUs of a simulated node change after its own tests, so that its block meets them."""
        self.in_block = between.plant(self.place.nodes / node / "machine", node, self.options.seed, *NAMED_BY)
        slow, wrong = (fault.device for fault in self.in_block)
        self.say(f"{node} (simulated) changes now: {slow} has a low clock, {wrong} corrupts; its block must name both")

    def fail(self, node: str) -> None:
        """Let a GPU of a simulated node fail while it serves."""
        (self.late,) = between.plant(self.place.nodes / node / "machine", node, self.options.seed, between.KIND)
        self.say(f"A GPU of {node} fails between tests; the next health sweep reads every node in service")

    def follow(self, watcher: Watcher, progress: Progress, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Show progress until every run is over, doing ``meanwhile`` at each look.

        Raises DemoFailed when time is up, naming what hangs.
        """
        while True:
            self.supervisor.check()
            meanwhile()
            rows = watcher.look()
            progress.show(rows, self.elapsed())
            if all(row.done for row in rows):
                return
            if self.elapsed() > self.options.time_limit_s:
                raise DemoFailed(
                    f"not done within {clock(self.options.time_limit_s)}; still unfinished: {watcher.hanging()}. "
                    f"The logs are in {self.place.logs} and {self.place.airflow / 'logs'}."
                )
            time.sleep(LOOK_EVERY_S)

    def conclude(self, members: list[fleet.Member], runs: list[Run]) -> Score:
        """Print the verdicts, then the examiner's score."""
        reports = [report for run in runs if (report := finished(run)) is not None]
        services = {member.name: service_of(member.name) for member in members}
        expected = sum(judged(report) for report in reports) + sum(each.mails for each in services.values())
        deadline = time.monotonic() + MAIL_S
        while len(mails := read_mails(self.place.mail)) < expected and time.monotonic() < deadline:
            time.sleep(0.5)
        show_verdicts(self.console, reports, services)
        show_blocks(self.console, services.values())
        show_breaker(self.console, store.withdrawals.breaker(simulated=True))
        show_approvals(self.console, services.values(), ACTOR)
        aftermath = between.aftermath(self.late) if self.late else None
        show_aftermath(self.console, aftermath)
        in_slurm = self.jobs.seen() if self.jobs else None
        if self.jobs:
            show_slurm(self.console, self.jobs.slurm)
        host, *simulated = members
        result = score(
            reports,
            services,
            load_answers(self.place.answers),
            mails,
            host=host.name,
            simulated=tuple(member.name for member in simulated),
            slurm=in_slurm,
            in_block=self.in_block,
            aftermath=aftermath,
        )
        show_score(self.console, result)
        self.say(f"Reports: {self.place.mail} (the .html files open in a browser; .eml are the mails as sent)")
        self.say(f"Elapsed: {clock(self.elapsed())}")
        return result

    def ask_about(self, host: fleet.Member, client: AirflowClient) -> None:
        """Ask the user, and only the user, whether the real machine enters production, if it qualified."""
        if store.nodes.get(host.name).state is not State.QUALIFIED:
            return
        question = run_id(host.name, REASON)
        conf = {"node": host.name, "level": LEVEL, "reason": "the demo asks its user"}
        trigger_once(client, dags.ADMISSION, question, conf)
        self.say(
            f"Whether {host.name}, the real one, enters production is your decision: {service.question_page(question)}"
        )

    def linger(self, login: Login) -> None:
        """Leave Airflow up until a signal stops the demo."""
        self.console.print(
            f"\nAirflow: [bold]{login.url}[/]  login [bold]{login.username}[/]  password "
            f"[bold]{escape(login.password)}[/]\nThe fleet: [bold]{login.url}/plugin/fleet[/]\nCtrl-C ends everything."
        )
        try:
            while True:
                self.supervisor.check()
                time.sleep(1)
        except watchdog.Stopped:
            self.console.print("Stopping")


def muster_settings(place: Workdir, login: Login, options: Options) -> dict[str, str]:
    """Muster's own settings, for the controller's processes and for this one."""
    return {
        "MUSTER_HOME": str(place.controller),
        "MUSTER_AIRFLOW_URL": login.url,
        "MUSTER_AIRFLOW_USERNAME": login.username,
        "MUSTER_AIRFLOW_PASSWORD": login.password,
        "MUSTER_MAIL_TO": "fleet-operators@localhost",
        "MUSTER_MAIL_FROM": "muster@localhost",
        "MUSTER_POLL_SECONDS": "1",
        "MUSTER_RETRY_SECONDS": "15",
        "MUSTER_ADMISSION_LEVEL": LEVEL,
        # Without a user, a question that the demo fails to answer must not block it.
        "MUSTER_APPROVAL_HOURS": "0.1" if options.exit_after else "24",
        "MUSTER_REVALIDATION_LEVEL": LEVEL,
        "MUSTER_REVALIDATION_AFTER_HOURS": "0",
        "MUSTER_SKU_PATH": str(place.policies),
        "MUSTER_REPLACE_BY_ITSELF": "true",
        "MUSTER_SHARED_PATH": str(place.shared),
    }


def scheduler_settings(jobs: Jobs | None) -> dict[str, str]:
    """The demo's Slurm as a cluster of Muster's settings; {} without it."""
    if jobs is None:
        return {}
    chosen = {"kind": "slurm", "slurm_conf": str(jobs.slurm.conf), "test_partition": slurm.TESTS}
    return {"MUSTER_SCHEDULERS": json.dumps({CLUSTER: chosen})}

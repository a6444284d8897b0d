"""One leg's fleet and controller, started and kept running; the handle by which faults reach their victims."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import httpx
import psutil
import psycopg
import yaml

from muster import store
from muster.admission import service
from muster.integration.airflow_api import AirflowClient
from muster_criteria.cluster.model import TRAINING
from muster_demo import between
from muster_demo.between import KIND
from muster_demo.fleet import REPAIRED
from muster_demo.services import Supervisor, base_environment
from muster_demo.slurm import Slurm
from muster_demo.watchdog import end_all
from tests.chaos.ledger import Ledger
from tests.chaos.link import Link, Links
from tests.chaos.nodes import ChaosFleet, mount
from tests.chaos.receiver import Receiver
from tests.chaos.schedulers import OnKubernetes, OnSlurm, Scheduler
from tests.support.servers import bmc, celery_airflow, kubernetes_server, postgresql, sshd
from tests.support.servers.celery_airflow import COMPONENTS, CeleryStack
from tests.support.servers.slurm import end_jobs
from tests.support.simulated_fleet import write_block, write_sku

JOB_LIMIT_S = 60
WORN = f"""
  - metric: {KIND}
    device: gpu
    unit: bool
    equals: 0
    fault: hbm
    action: reset
    meaning: waits for a reset to remap a memory row
    source: "NVML remapped rows: a pending remap takes effect at the next reset"
    date: 2026-11-21
"""
"""What the SKU asks of GPUs besides their model."""
PERSON = "chaos-operator"
DAG_ID = "node_qualification"
KEPT = (*COMPONENTS, "redis", "slurm-slurmctld", kubernetes_server.API_SERVER)
"""Services that are started again when they have ended, as systemd or Kubernetes does."""
RESTART_S = 3.0
CONTROLLER_DISK = "512m"
"""For Airflow's and Muster's own files, logs of tasks among them."""
CONCURRENCY = 8
"""Task processes of one worker: what faults hold up keeps its process."""


@dataclasses.dataclass
class World:
    """What a fault may strike. ``down``: services that a fault holds down. ``todo``: for each fault the steps that lift
    it and need a service which another fault may hold down: each is tried until it succeeds. ``ended``: when each
    service that is to be started again was first seen to have ended. ``records``: the database of the fleet records.
    ``second``: the second controller, while there is one.
    """

    folder: Path
    supervisor: Supervisor
    fleet: ChaosFleet
    slurm: Slurm
    schedulers: list[Scheduler]
    stack: CeleryStack
    database: postgresql.PostgreSQL
    smtp: Link
    audit: Link
    receiver: Receiver
    ledger: Ledger
    client: AirflowClient
    records: str = "muster"
    second: AirflowClient | None = None
    down: set[str] = dataclasses.field(default_factory=set)
    todo: list[list[Callable[[], None]]] = dataclasses.field(default_factory=list)
    ended: dict[str, float] = dataclasses.field(default_factory=dict)

    def kill(self, name: str) -> None:
        """End a service and all its processes at once, until ``revive``."""
        self.down.add(name)
        service_ = self.supervisor.services[name]
        if not service_.ended():
            end_all([psutil.Process(service_.pid)], patience_s=0)
            service_.process.wait(10)

    def revive(self, name: str) -> None:
        """Start it again as it was."""
        self.down.discard(name)
        self.ended.pop(name, None)
        ended = self.supervisor.services[name]
        if ended.ended():
            self.supervisor.start(name, ended.command, ended.environment)

    @property
    def stopped(self) -> bool:
        """Whether all components of Airflow are stopped, for a back-up to be restored."""
        return self.down.issuperset(COMPONENTS)

    def use_records(self, name: str) -> None:
        """Let this database hold the records, for components that start from now on and for this process."""
        self.records, url = name, self.database.url(name)
        os.environ["MUSTER_DATABASE_URL"] = url
        for environment in (
            self.stack.environment,
            *(self.supervisor.services[each].environment for each in COMPONENTS),
        ):
            environment["MUSTER_DATABASE_URL"] = url

    def keep(self) -> None:
        """Start again what ended without being held down, after a while."""
        for name in KEPT:
            kept = self.supervisor.services.get(name)
            if kept is None or name in self.down or not kept.ended():
                continue
            since = self.ended.setdefault(name, time.monotonic())
            if time.monotonic() - since > RESTART_S:
                self.ledger.write("restarted", service=name)
                self.revive(name)

    @contextlib.contextmanager
    def lifted_by(self, *steps: Callable[[], None]) -> Iterator[None]:
        """After the block the steps lift a fault, in order and as soon as possible. They do so too where the block
        fails: an answer that was lost may have been a yes.
        """
        try:
            yield
        finally:
            self.todo.append(list(steps))

    def scheduler_of(self, node: str) -> Scheduler:
        """The one to which it belongs."""
        return next(each for each in self.schedulers if node in each.names)

    def sql(self, database: str, statement: str) -> None:
        """Do something to the database server as its administrator."""
        options = "-c default_transaction_read_only=off"
        with psycopg.connect(self.database.url(database), autocommit=True, options=options) as connection:
            connection.execute(statement.encode())


@contextlib.contextmanager
def running(folder: Path, names: tuple[str, ...], seed: int, *, disks: bool) -> Iterator[World]:
    """All of it, ready; every third node belongs to Kubernetes if it can. Everything ends with the block.

    Raises ServiceFailed.
    """
    links, receiver = Links(), Receiver(folder / "events")
    documents = bmc.write(folder / "bmc", [bmc.fan(), bmc.fan("Fan 2")], [bmc.air()], [bmc.supply()])
    with (
        postgresql.running(connections=300) as database,
        mock.patch.dict(os.environ),
        receiver,
        bmc.static(documents) as url,
    ):
        supervisor = Supervisor(folder / "logs")
        apart = () if kubernetes_server.missing() else names[2::3]
        cluster = Slurm(
            supervisor, folder / "s", tuple(each for each in names if each not in apart), base_environment({})
        )
        fleet = ChaosFleet(folder / "fleet", names, seed, links, httpx.URL(url).port or 80, disks=disks)
        (folder / "airflow").mkdir()
        if disks:
            mount(folder / "airflow", CONTROLLER_DISK)
        try:
            cluster.start()
            schedulers: list[Scheduler] = [OnSlurm(cluster)]
            if apart:
                schedulers.append(OnKubernetes(supervisor, folder / "kubernetes", apart, links))
            smtp = Link(links, lambda: int((folder / "mail.port").read_text()))
            audit = Link(links, lambda: receiver.port)
            settings = _settings(supervisor, folder, fleet, cluster, smtp, audit)
            settings["MUSTER_DATABASE_URL"] = database.create("muster")
            settings["MUSTER_SCHEDULERS"] = json.dumps({each.kind: each.settings for each in schedulers})
            for each in schedulers:
                settings |= each.connection
            os.environ.update(settings)
            ledger = Ledger(folder / "ledger.jsonl")
            _enrol(fleet, schedulers, ledger)
            environment = {**base_environment({}), **settings}
            with celery_airflow.running(supervisor, folder, database, environment, CONCURRENCY) as stack:
                stack.wait_ready(DAG_ID)
                client = AirflowClient(stack.login.url, stack.login.username, stack.login.password, timeout_s=5)
                yield World(
                    folder, supervisor, fleet, cluster, schedulers, stack, database, smtp, audit, receiver,
                    ledger, client,
                )  # fmt: skip
        finally:
            supervisor.stop()
            end_jobs(cluster.conf)
            store.engine.dispose()
            links.close()
            for name in names:
                end_all(fleet.processes(name), patience_s=0)
                subprocess.run(["umount", "--lazy", str(fleet.work(name))], capture_output=True, check=False)


def _settings(
    supervisor: Supervisor, folder: Path, fleet: ChaosFleet, cluster: Slurm, smtp: Link, audit: Link
) -> dict[str, str]:
    """Start the nodes and the mail sink; gives Muster's settings but for records and schedulers."""
    environment = base_environment({})
    fleet.start(supervisor, {**environment, "SLURM_CONF": str(cluster.conf)})
    port = folder / "mail.port"
    sink = [sys.executable, "-m", "muster_demo.mailsink", str(folder / "mails"), str(port)]
    supervisor.start("mail", sink, environment)
    supervisor.wait_until("the mail sink", port.exists, 30)
    extra = {"disable_ssl": True, "disable_tls": True, "retry_limit": 0, "timeout": 5}
    mail = {"conn_type": "smtp", "host": "127.0.0.1", "port": smtp.port, "extra": extra}
    return {
        "MUSTER_HOME": str(folder / "airflow" / "muster"),
        "MUSTER_SKU_PATH": str(_write_sku(folder / "skus")),
        sshd.CONNECTION: sshd.connection(fleet.keys.private),
        "MUSTER_SSH_TIMEOUT_S": "5",
        "MUSTER_POLL_SECONDS": "1",
        "MUSTER_BMC_SECONDS": "2",
        # Three attempts outlast a fault of 40 s, as those 300 s apart by default outlast one of ten minutes.
        "MUSTER_RETRY_SECONDS": "20",
        "MUSTER_MAIL_TO": "fleet@example.org",
        "MUSTER_ADMISSION_LEVEL": "demo",
        "MUSTER_REVALIDATION_LEVEL": "demo",
        # So small a fleet has a circuit breaker only while 20 nodes serve; here each withdrawal is judged by itself.
        "MUSTER_BREAKER_FLEET": "1000",
        # Each machine is judged by itself: faults are drawn without regard to racks and images.
        "MUSTER_COMMON_CAUSE_HOURS": "0.0001",
        "MUSTER_AUDIT_SINKS": json.dumps({"siem": {"kind": "http", "url": f"http://127.0.0.1:{audit.port}/"}}),
        "AIRFLOW_CONN_SMTP_DEFAULT": json.dumps(mail),
    }


def _write_sku(folder: Path) -> Path:
    """The SKU of the fleet, which also asks for what fails in service, and policies that repair it."""
    path = write_sku(folder, JOB_LIMIT_S) / "fleet-node.yaml"
    path.write_text(path.read_text() + WORN)
    programme = folder / "programmes" / "fleet.yaml"
    stages = yaml.safe_load(programme.read_text())
    # All stages are this one by reference.
    stages["stages"]["intake"]["probes"]["inventory"]["require"].append({"metric": KIND, "devices": "each gpu"})
    programme.write_text(yaml.safe_dump(stages, sort_keys=False))
    between.write_policies(folder, "demo")
    # The controller's work is the same as with eight ranks a node, for which there are no cores.
    write_block(folder, {TRAINING: {"gpus": "one"}}, optional="each gpu")
    return folder


def _enrol(fleet: ChaosFleet, schedulers: list[Scheduler], ledger: Ledger) -> None:
    """Write the nodes into the records and close them in their schedulers."""
    store.engine.upgrade()
    fleet.enrol("fleet-node", REPAIRED)
    for scheduler in schedulers:
        for name in scheduler.names:
            ledger.machine(name, faulty=False)
            store.schedulers.assign(name, scheduler.kind, name, PERSON, "the campaign begins")
            service.carry_out(name)

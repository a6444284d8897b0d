"""Every setting of the controller, from MUSTER_* environment variables, with defaults that work on one machine."""

from __future__ import annotations

import datetime
import functools
import os
import re
from pathlib import Path
from typing import Annotated, Any

import pydantic
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict
from pydantic_settings.exceptions import SettingsError

from muster import acting, redaction
from muster.blackout import closed
from muster.errors import BadSettings
from muster.model.names import RELATIVE, absolute, absolute_list, is_http
from muster.model.stages import Level
from muster_criteria.text import refusal

EVENT_DAYS_MIN = 365
"""The fleet records delete no younger event (a trigger of the initial migration)."""

AbsolutePath = Annotated[Path, pydantic.AfterValidator(absolute)]

LONGEST = {"days": 36_500, "hours": 876_000, "minutes": 52_560_000, "seconds": 86_400, "s": 86_400}
"""The largest number by the unit that ends a setting's name. A century: dates end in the year 9999. In seconds a day:
a wait on a socket is limited to 24 days."""

COUNT_MAX = 1_000_000_000
"""The largest number of anything else: Airflow's database keeps a pool's slots in 32 bits."""

QUOTED_MAX = 80
"""A longer value of a setting is not quoted in a message."""


class _Files(pydantic.BaseModel):
    """Files and records: the controller's own files, the fleet records, SKU files and a folder of the nodes."""

    home: AbsolutePath = pydantic.Field(default=Path("~/.local/share/muster"), description="the controller's files")
    database_url: str = pydantic.Field(
        default="", description="fleet records: a SQLAlchemy URL; empty is SQLite in MUSTER_HOME/muster.db"
    )
    sku_path: str = pydantic.Field(
        default="", description="folders with your own SKU files, colon separated; searched before the shipped ones"
    )
    archive: AbsolutePath | None = pydantic.Field(
        default=None,
        description="folder of full reports, evidence and faults that wait for the records, which all workers share; "
        "unset: reports in MUSTER_HOME",
    )
    shared_path: str = pydantic.Field(
        default="",
        description="folder that all nodes share, where blocks save their checkpoints; it belongs to root or the SSH "
        "user, and others may write to it only if it is sticky; empty: not tested",
    )
    topology: AbsolutePath | None = pydantic.Field(
        default=None,
        description="where blocks' nodes sit: Slurm's topology.conf or topology.yaml, the output of ibnetdiscover, or "
        "a folder with NODE.lldp of each node; unset: their labels leaf and pod",
    )


class _Nodes(pydantic.BaseModel):
    """Access to nodes and BMCs: how the controller reaches nodes and their BMCs."""

    ssh_conn_id: str = pydantic.Field(default="muster_ssh", description="Airflow connection with the SSH user and key")
    ssh_timeout_s: float = pydantic.Field(default=10.0, gt=0, description="seconds a node may take to answer")
    bmc_seconds: float = pydantic.Field(
        default=900.0, ge=0, description="seconds between readings of a BMC under load; 0: before and after it only"
    )
    poll_seconds: float = pydantic.Field(
        default=5.0,
        gt=0,
        description="seconds between two looks at a running job; grows to at most 30 the longer the job runs",
    )
    retry_seconds: float = pydantic.Field(
        default=300.0, gt=0, description="seconds before an inconclusive stage is measured again"
    )
    burn_slots: int = pydantic.Field(
        default=16, ge=1, description="new nodes tested at once: slots of the pool muster_burn when it is created"
    )
    busy_daemons: str = pydantic.Field(
        default="",
        description="processes that poll by design, by name, comma separated (wekanode, ovs-vswitchd): that they are "
        "busy is no use of a node; a process on a GPU always is",
    )


class _Airflow(pydantic.BaseModel):
    """Airflow's API: the API server that commands and pages call, and who calls it."""

    airflow_url: str = pydantic.Field(default="http://localhost:8080", description="Airflow's API server")
    airflow_username: str = pydantic.Field(default="", description="login for Airflow's API")
    airflow_password: pydantic.SecretStr = pydantic.Field(default=pydantic.SecretStr(""), description="its password")
    airflow_token: pydantic.SecretStr = pydantic.Field(
        default=pydantic.SecretStr(""), description="a token for Airflow's API, instead of login and password"
    )
    programs: str = pydantic.Field(
        default="provisioner",
        description="logins of programs, comma separated, a comma alone for none: no decision is accepted under them",
    )
    person: str = pydantic.Field(
        default="", description="the login under which you approve; the records name you by it; empty: your login name"
    )


class _Mail(pydantic.BaseModel):
    """Mail: who gets reports, and by which server."""

    mail_to: str = pydantic.Field(default="", description="recipients of the reports, comma separated; empty: no mail")
    mail_rules: list[dict[str, Any]] = pydantic.Field(
        default=[], description="who else gets which reports, as a JSON list (docs/mail.md)"
    )
    mail_from: str = pydantic.Field(default="muster@localhost", description="sender of the reports")
    smtp_conn_id: str = pydantic.Field(default="smtp_default", description="Airflow connection of the mail server")


class _Admission(pydantic.BaseModel):
    """Admission and certificates: what lets a node enter production, and for how long it is attested."""

    admission_level: Level = pydantic.Field(
        default="standard", description="level at which a node must pass to enter production by itself"
    )
    admission_max_age_hours: float = pydantic.Field(
        default=168.0, gt=0, description="age limit of such a pass, on a node and in a block"
    )
    lemon_score: float = pydantic.Field(
        default=0.0,
        ge=0,
        description="failures in service, weighing less by the month, after which a node with its old parts enters "
        "production by a person's decision alone; 0: never",
    )
    approval_hours: float = pydantic.Field(
        default=72.0, gt=0, description="hours an approval may take before the node stays out"
    )
    replace_by_itself: bool = pydantic.Field(
        default=False,
        description="whether, without asking a person, a spare (label spare) that the gate admits takes the place of a "
        "node that left production",
    )
    certificate_key_file: AbsolutePath | None = pydantic.Field(
        default=None, description="the key that signs certificates; unset: certificate.key in MUSTER_HOME, made once"
    )
    certificate_days: float = pydantic.Field(
        default=42.0, gt=0, description="days after the oldest pass or a person's admission when a certificate expires"
    )


class _Revalidation(pydantic.BaseModel):
    """Tests of idle nodes: which nodes in service are tested again, and when."""

    revalidation_level: Level = pydantic.Field(default="short", description="level of the tests of idle nodes")
    revalidation_share: float = pydantic.Field(
        default=0.01, gt=0, le=1, description="share of the nodes in service tested at once; at least one, with rests"
    )
    revalidation_after_hours: float = pydantic.Field(
        default=4.0, ge=0, description="hours after a test in which an idle node is not tested again; 0: it never rests"
    )
    revalidation_whole_days: float = pydantic.Field(
        default=28.0,
        gt=0,
        description="days after which an idle node takes the whole test again; half the minutes at most",
    )
    revalidation_minutes: float = pydantic.Field(
        default=45.0,
        gt=0,
        description="minutes for which an idle node is likely to stay free: no test is longer, but for whole ones that "
        "are overdue or requested",
    )
    revalidation_blackouts: str = pydantic.Field(
        default="", description="UTC windows in which no idle test starts: Mon-Fri 08:00-18:00; Sun 00:00-24:00"
    )
    revalidation_node_kw: float = pydantic.Field(
        default=10.2, ge=0, description="kW of one node under load (DGX H100's data sheet: 10.2)"
    )
    revalidation_domain_kw: dict[str, float] = pydantic.Field(
        default={}, description="kW for tests by power domain (a node's label power_domain), as JSON"
    )


class _Breaker(pydantic.BaseModel):
    """Circuit breaker: how many nodes tests may withdraw before a person decides."""

    breaker_hours: float = pydantic.Field(default=24.0, gt=0, description="window of the circuit breaker")
    breaker_share: float = pydantic.Field(
        default=0.2, gt=0, le=1, description="share of the nodes in service that tests may withdraw in the window"
    )
    breaker_nodes: int = pydantic.Field(
        default=50, ge=1, description="nodes that tests may withdraw in the window, whatever the size of the fleet"
    )
    breaker_fleet: int = pydantic.Field(default=20, ge=1, description="fewer nodes in service have no circuit breaker")
    common_cause_hours: float = pydantic.Field(
        default=24.0, gt=0, description="window in which nodes of a rack or image that fail alike count as one problem"
    )


class _Schedulers(pydantic.BaseModel):
    """Schedulers: the clusters that obey verdicts."""

    schedulers: dict[str, dict[str, Any]] = pydantic.Field(
        default={},
        description="clusters whose schedulers obey Muster, as JSON {name: {kind: slurm, kubernetes or webhook, …}}",
    )
    scheduler_timeout_s: float = pydantic.Field(default=20.0, gt=0, description="seconds a scheduler may take")


class _Observing(pydantic.BaseModel):
    """Metrics and audit stream: what programs read and receive."""

    metrics_token_file: AbsolutePath | None = pydantic.Field(
        default=None, description="the file with the token that opens the metrics, read at each request; unset: closed"
    )
    audit_sinks: dict[str, dict[str, Any]] = pydantic.Field(
        default={}, description="receivers of the audit stream, as JSON {name: {kind: file, syslog or http, …}}"
    )


class _Health(pydantic.BaseModel):
    """Health between tests: the sweep over nodes in service, and who else may report about them."""

    sweep_nodes: int = pydantic.Field(
        default=100, ge=1, le=2000, description="nodes that a sweep reads at once, each over one SSH connection"
    )
    sweep_seconds: float = pydantic.Field(
        default=90.0, ge=5, le=300, description="seconds a node's sweep may take, 60 of them to wake GPUs that rest"
    )
    report_sources: dict[str, dict[str, Any]] = pydantic.Field(
        default={},
        description="programs that may report observations, and answer for nodes whose label repair_owner is their "
        "`repairs`, and nothing else, as JSON {name: {sha256: hash of its token, cluster, form, nodes, most, repairs, "
        "per_minute}}",
    )


class _Retention(pydantic.BaseModel):
    """Retention: for how long data is kept."""

    retention_archive_days: int = pydantic.Field(
        default=365,
        ge=0,
        description="days the full reports and bundles of evidence in MUSTER_ARCHIVE are kept, bundles at least until "
        "their incident is closed; 0: forever",
    )
    retention_telemetry_days: int = pydantic.Field(
        default=90, ge=1, description="days raw telemetry is kept; the charts' points stay with the run"
    )
    retention_results_days: int = pydantic.Field(default=365, ge=1, description="days raw results are kept")
    retention_measurements_days: int = pydantic.Field(
        default=730, ge=1, description="days single measurements are kept"
    )
    retention_runs_days: int = pydantic.Field(
        default=0,
        ge=0,
        description="days runs with verdicts and findings are kept, longer while a verdict of theirs is current or a "
        "part is a suspect by them; 0: forever",
    )
    retention_parts_days: int = pydantic.Field(
        default=0, ge=0, description="days parts that sit in no node, and suspicions of them, are kept; 0: forever"
    )
    retention_events_days: int = pydantic.Field(
        default=0,
        ge=0,
        description="days the history of nodes and leases is kept, 365 at least; 0: forever. Adoptions, the last move "
        "of each node, and the first entries into production of it and of its present machine, are kept for good",
    )


class Settings(
    _Retention, _Health, _Observing, _Schedulers, _Breaker, _Revalidation, _Admission, _Mail, _Airflow, _Nodes, _Files,
    BaseSettings,
):  # fmt: skip
    """The controller's settings; each is read from the environment variable MUSTER_<NAME>."""

    model_config = SettingsConfigDict(
        env_prefix="MUSTER_", env_ignore_empty=True, frozen=True, extra="ignore", allow_inf_nan=False
    )

    @pydantic.field_validator("*", mode="after")
    @classmethod
    def _bounded(cls, value: Any, field: pydantic.ValidationInfo) -> Any:
        most = LONGEST.get(str(field.field_name).rpartition("_")[2], COUNT_MAX)
        if isinstance(value, int | float) and value > most:
            raise ValueError(f"it has to be {most:,} at most")
        return value

    @pydantic.field_validator("retention_events_days", mode="after")
    @classmethod
    def _a_year(cls, days: int) -> int:
        if 0 < days < EVENT_DAYS_MIN:
            raise ValueError(f"the database deletes no event of the last {EVENT_DAYS_MIN} days; give more, or 0")
        return days

    @pydantic.field_validator("airflow_url", mode="after")
    @classmethod
    def _address(cls, url: str) -> str:
        if not is_http(url):
            raise ValueError("give an address like http://localhost:8080")
        return url

    @pydantic.field_validator("revalidation_blackouts", mode="after")
    @classmethod
    def _windows(cls, windows: str) -> str:
        closed(windows, datetime.datetime.now(datetime.UTC))
        return windows

    @pydantic.field_validator("database_url", mode="after")
    @classmethod
    def _sqlite_file(cls, url: str) -> str:
        if re.match(r"sqlite[^:]*:///[^/]", url):
            raise ValueError(RELATIVE)
        return url

    @pydantic.field_validator("sku_path", mode="after")
    @classmethod
    def _folders(cls, paths: str) -> str:
        return absolute_list(paths)

    @pydantic.field_validator("shared_path", mode="after")
    @classmethod
    def _on_nodes(cls, path: str) -> str:
        if path and not path.startswith("/"):  # a "~" would be the home of a user of the node
            raise ValueError(RELATIVE)
        return path

    @property
    def records_url(self) -> str:
        """The fleet records' SQLAlchemy URL. Plain ``postgresql://`` is taken to mean the psycopg 3 driver."""
        if not self.database_url:
            return f"sqlite:///{self.home / 'muster.db'}"
        scheme, separator, rest = self.database_url.partition("://")
        return f"postgresql+psycopg{separator}{rest}" if scheme in ("postgres", "postgresql") else self.database_url

    @property
    def archive_folder(self) -> Path:
        """Where full reports are kept."""
        return self.archive or self.home / "reports"

    @property
    def sku_folders(self) -> tuple[Path, ...]:
        """The folders of ``sku_path``, in order."""
        return tuple(Path(part) for part in self.sku_path.split(":") if part)

    @property
    def busy_daemon_names(self) -> tuple[str, ...]:
        """The names of ``busy_daemons``."""
        return tuple(part.strip() for part in self.busy_daemons.split(",") if part.strip())

    @property
    def mail_recipients(self) -> tuple[str, ...]:
        """The addresses of ``mail_to``."""
        return tuple(part.strip() for part in self.mail_to.split(",") if part.strip())

    def run_page(self, dag_id: str, run_id: str) -> str:
        """The address of a run in Airflow's pages."""
        return f"{self.airflow_url.rstrip('/')}/dags/{dag_id}/runs/{run_id}"

    @property
    def who(self) -> str:
        """The person that the command line acts for."""
        return self.person.strip() or acting.os_login().removeprefix("os:")


def settings() -> Settings:
    """The settings of the environment. Raises BadSettings, which names the variable and what is wrong."""
    # Called by every session with the records: the values of other variables are not even decoded.
    ours = (name for name in os.environb if name.upper().startswith(b"MUSTER_"))
    return _settings(tuple((name, os.environb[name]) for name in ours))


@functools.lru_cache(maxsize=8)
def _settings(_environment: tuple[tuple[bytes, bytes], ...]) -> Settings:
    # Reading costs 0.6 ms, and every session with the records needs it; the key is all that is read.
    try:
        return Settings()
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        name = "MUSTER_" + "_".join(str(part) for part in first["loc"]).upper()
        why = redaction.of_text(refusal(first["msg"]))
        raise BadSettings(f"{name}{_quoted(first)} cannot be used: {why}; correct it or unset it") from None
    except SettingsError as error:
        field = re.search(r'field "(\w+)"', str(error))
        name = f"MUSTER_{field[1].upper()}" if field else "a MUSTER_ setting"
        raise BadSettings(f"{name} cannot be used: it is not JSON; correct it or unset it") from None


def _quoted(error: ErrorDetails) -> str:
    """The refused value, where it is one of few characters and can be no secret."""
    field, given = Settings.model_fields.get(str(error["loc"][0])), error["input"]
    secret = field is not None and re.search("Secret|dict|list", str(field.annotation))
    if secret or len(error["loc"]) > 1 or not isinstance(given, str | int | float) or len(str(given)) > QUOTED_MAX:
        return ""
    return f"={redaction.of_text(str(given))!r}"

"""Slurm, by its own commands. Only ``scontrol update`` needs the rights of an operator, or sudo.

Measured on 22.05: RESUME raises somebody else's DOWN to IDLE and UNDRAIN does not; a drain overwrites any Reason;
`scontrol reconfigure` loses AvailableFeatures and keeps Extra; `sinfo --json` ends with status 0 and no nodes while
slurmctld is down.
"""

from __future__ import annotations

import datetime
import functools
import os
import pwd
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple

import pydantic

from muster.admission.backend import TEST_PREFIX, AdmissionBackend, Mark, Seen, each_alone
from muster.admission.backends.slurm.job import SlurmTests, fields
from muster.admission.backends.slurm.node import BY, PREFIX, WAS, WITHDRAWN, SlurmNode, plain
from muster.admission.runner import Runner
from muster.errors import BadScheduler, LeftAlone, SchedulerDown, first_line
from muster.model.names import absolute_text
from muster.model.schedulers import UsersJob
from muster.remote.connection.ssh import NodeAddress
from muster.settings import settings
from muster_criteria.hostlist import expanded
from muster_criteria.text import one_line

FEATURE = "muster"
"""The feature of every node that Muster admitted. It is constant: jobs may ask for it, and it says nothing else."""

REASON_LENGTH = 200
_JSON = pydantic.TypeAdapter(dict[str, Any])
_SLURM_USER = re.compile(r"^SlurmUser\s*=\s*([^\s(]+)\((\d+)\)", re.MULTILINE)
_JOB = re.compile(r"(\d+(?:[_+]\d+)?)\|(.+)")  # a directory's names of users may hold blanks
"""An id with which ``scancel`` ends only that job, array task (36_3) or component of a heterogeneous job (36+1)."""

_HIDDEN = "a Slurm job that ends now, or is hidden from Muster's user by PrivateData"

_THEIRS_LENGTH = 80

_NOT_SET = "(null)"
_NEVER = frozenset({"", "INFINITE", "NONE", "-1"})
"""Values of SuspendTime with which Slurm switches no node off."""

_NO_NODE = "muster-no-such-node"
NO_JOB = "1_1"
"""sudo is asked whether this may be cancelled; it never is. An array task, since older rules allow only whole jobs."""

_RUNS = frozenset({"R", "S", "ST", "CG", "SI", "SO", "RS"})
_BEFORE = frozenset({"PD", "CF", "RD", "RF", "RH", "RQ", "RV"})
"""Compact states of jobs that are on their nodes, and of those that are not yet; any other state is an ended job."""


class Login(pydantic.BaseModel):
    """A login node. The SSH login is the one of MUSTER_SSH_CONN_ID; its host key is pinned."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    host: str
    host_key: str
    port: int = 22
    user: str = ""


class SlurmSettings(pydantic.BaseModel):
    """One cluster: its commands run here with ``slurm_conf``, or on a login node. ``sudo``: before scontrol update.

    ``user``: under which Slurm records our drains; empty: root with sudo, else the user who runs the commands.
    ``test_partition``: where tests of idle nodes run as jobs; empty: they drain the node.
    ``end_corrupted_jobs``: cancel users' jobs on a node once a test has found that it corrupts data.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    kind: Literal["slurm"]
    slurm_conf: Annotated[str, pydantic.AfterValidator(absolute_text)] = ""
    login: Login | None = None
    sudo: bool = False
    user: str = ""
    test_partition: str = ""
    end_corrupted_jobs: bool = False


class _Job(NamedTuple):
    number: str
    user: str


class Slurm(AdmissionBackend):
    """One cluster; nodes have their names in slurm.conf."""

    def __init__(self, chosen: SlurmSettings) -> None:
        variables = (("SLURM_CONF", chosen.slurm_conf),) if chosen.slurm_conf else ()
        # If sudoers does not keep the variable, sudo fails instead of reaching another slurm.conf's cluster.
        kept = ("--preserve-env=SLURM_CONF",) if variables else ()
        self._sudo = ("sudo", "-n", *kept) if chosen.sudo else ()
        self._user = chosen.user or ("root" if chosen.sudo else "")
        login = chosen.login
        address = NodeAddress(login.host, login.host, login.port, login.user, login.host_key) if login else None
        self._runner = Runner(settings().scheduler_timeout_s, variables, address)
        self.end_jobs = self._end_jobs if chosen.end_corrupted_jobs else None
        partition = chosen.test_partition
        self.tests = SlurmTests(self._runner, partition) if partition else None

    def check_rights(self) -> None:
        """Request a change of a node that does not exist: slurmctld checks the login's rights first (22.05).

        Raises BadScheduler if the cluster's settings refuse our marks, or switch nodes off that we test.
        """
        config = fields(self._runner.run("scontrol", "show", "config"))
        if missing := _missing(config):
            raise BadScheduler(missing)
        if self.end_jobs and self._sudo and "jobs" in config.get("PrivateData", "").split(","):
            raise BadScheduler(
                "end_corrupted_jobs is set, and PrivateData=jobs hides users' jobs: make Muster's user an operator in "
                "place of sudo"
            )
        try:
            self._update(_NO_NODE, "Extra=-")
        except SchedulerDown as error:
            if "Invalid node name" not in str(error):
                raise SchedulerDown(f"{self._our_user()} may not change nodes in Slurm: {error}") from None
        if self.end_jobs and self._sudo:
            try:
                self._runner.run("sudo", "-n", "-l", "scancel", NO_JOB)
            except SchedulerDown as error:
                raise SchedulerDown(
                    f"end_corrupted_jobs is set, and sudo allows no scancel here: {error}; see the last line of "
                    "docs/examples/muster_slurm.sudoers"
                ) from None

    def look(self, names: Collection[str]) -> Mapping[str, Seen]:
        """As ``sinfo`` shows the nodes; jobs are named if one node is asked for. Raises SchedulerDown."""
        alone = len(names) == 1
        return each_alone(self._shown(names), lambda shown: self._seen(SlurmNode.model_validate(shown), named=alone))

    def users_jobs(self, names: Collection[str]) -> Iterable[UsersJob]:
        """As ``squeue`` lists them, those that ended within MinJobAge too. Raises SchedulerDown."""
        listed = self._queue("--states=all", "--format", "%A|%u|%S|%e|%t|%N")
        tests = {job for job, name in self._queue("--states=all", "--user", self._me(), "--format", "%A|%j", cells=2)
                 if name.startswith(TEST_PREFIX)}  # fmt: skip
        wanted = {*names}
        for number, user, began, ended, state, nodes in listed:
            if number in tests or state in _BEFORE or not began.isdecimal():
                continue
            over = state not in _RUNS
            until = _moment(int(ended)) if over and ended.isdecimal() else None
            if (since := _moment(int(began))) and bool(until) is over:
                what = one_line(f"job {number} of {user}")[:REASON_LENGTH]
                yield from (UsersJob(name, what, since, until) for name in expanded(nodes) if name in wanted)

    def _queue(self, *options: str, cells: int = 6) -> list[list[str]]:
        """Returns the cells of each line of ``squeue``, times in seconds since 1970; malformed lines are left out.

        ``--all`` here and below, since jobs of partitions that are hidden, or closed to our group, are not shown
        without it (squeue(1)).
        """
        raw = self._runner.run("env", "SLURM_TIME_FORMAT=%s", "squeue", "--all", "--noheader", *options)
        lines = [line.split("|", cells - 1) for line in raw.decode("utf-8", "replace").splitlines()]
        return [line for line in lines if len(line) == cells and line[0].isdecimal()]

    def admit(self, name: str, mark: Mark, wanted_at: datetime.datetime | None = None) -> str:
        """UNDRAIN, if the drain is ours, or a person's with muster:verify that is older than the test. RESUME, which
        also ends DOWN, only if slurmctld lost the node and found it again while the drain was ours.

        Raises LeftAlone, SchedulerDown.
        """
        self._our_user()  # first, so that no command runs between the look and the change
        node = self._node(name)
        seen, changes = self._seen(node), _mark_change(node, mark.text)
        if seen.marked and not changes and not node.drained:
            return ""  # also while it does not respond, as for a second after an UNDRAIN
        self._refuse(node, mark)
        if not seen.marked:
            changes.append(f"AvailableFeatures={','.join(filter(None, (node.features, FEATURE)))}")
        if seen.ours and not node.reason.startswith(PREFIX):
            changes.append(f"Reason={PREFIX}{WITHDRAWN}")  # only Extra, which changes now, says that the drain is ours
        if changes:
            self._update(name, *changes)
            node = self._node(name)
            self._refuse(node, mark)  # somebody may have drained it since: each command may need a login of its own
        if node.drained:
            self._update(name, "State=RESUME" if node.came_back else "State=UNDRAIN")
            if self._node(name).drained:
                raise SchedulerDown(f"Slurm confirmed the admission of {name}, and shows it drained")
        return seen.drain

    def withdraw(
        self, name: str, reason: str, wanted_at: datetime.datetime | None = None, *, for_good: bool = False
    ) -> None:
        """DRAIN with our reason, unless somebody else drained it and it is not ``for_good``.

        A node that is down, rebooting or in maintenance is drained too, since it would be open when it comes back;
        until then our reason is followed by the one that it showed, with who took it down or drained it. Raises
        LeftAlone for a node that powers up for a job, is a future one or in an unknown state; SchedulerDown.
        """
        self._our_user()  # as above
        node = self._node(name)
        seen = self._seen(node)
        if seen.foreign and not (seen.both or for_good):
            return
        theirs = ""
        if seen.ours and (seen.apart or for_good):
            theirs = "".join(node.reason.partition(WAS)[1:])
        elif seen.apart or seen.foreign:
            user = f"{BY}{node.reason_set_by_user or 'an unknown user'}" if seen.foreign else ""
            theirs = f"{WAS}{plain(node.reason or seen.apart or seen.foreign)[:_THEIRS_LENGTH]}{user})"
        text = (PREFIX + plain(reason))[: REASON_LENGTH - len(theirs)] + theirs
        if seen.ours and node.reason == text:
            return
        if {"FUTURE", "UNKNOWN"} & {*node.words}:
            raise LeftAlone(f"{name} is not drained in Slurm: it is {seen.apart}")
        if node.powers_up_for_a_job:
            raise LeftAlone(f"{name} is not drained in Slurm: it powers up for a job, and is drained when it is up")
        today = datetime.datetime.now(datetime.UTC).date()
        self._update(name, "State=DRAIN", f"Reason={text}", *_mark_change(node, f"{WITHDRAWN} {today}"))
        if not self._node(name).drained:
            raise SchedulerDown(f"Slurm confirmed the drain of {name}, and shows it without one")

    def _end_jobs(self, name: str) -> Iterator[str]:
        """Cancel all jobs on the node except our test; yields each, once cancelled, as "12 (train) of alice"."""
        listed = self._listed(name)
        if not listed and self._node(name).used:
            raise SchedulerDown(f"no job is ended on {name}: it has {_HIDDEN}")
        for job in listed:
            shown = self._name_of(job, name)
            if not self._is_test(job, shown):
                self._runner.run(*self._sudo, "scancel", job.number)
                yield one_line(f"{job.number} ({shown}) of {job.user}")[:REASON_LENGTH]

    def _refuse(self, node: SlurmNode, mark: Mark) -> None:
        if why := self._seen(node).stays_closed(mark):
            raise LeftAlone(f"{node.name} is not admitted in Slurm: {why}")

    def _node(self, name: str) -> SlurmNode:
        try:
            return SlurmNode.model_validate(self._shown([name])[name])
        except KeyError:
            raise SchedulerDown(f"Slurm does not know the node {name}; see `sinfo -N`") from None
        except pydantic.ValidationError as error:
            raise SchedulerDown(f"Slurm shows {name} in a way that Muster cannot read: {first_line(error)}") from None

    def _shown(self, names: Collection[str]) -> dict[str, dict[str, Any]]:
        """{name: the node in Slurm's JSON}, not validated yet. Raises SchedulerDown."""
        try:
            found = self._json("sinfo", "--all", "--json")
            if found.get("sinfo") and "nodes" not in found:
                # From 23.02 on sinfo writes groups of nodes, and scontrol, which has no --json before, the nodes.
                found = self._json("scontrol", "--all", "--json", "show", "nodes")
            if found.get("errors") or not found.get("nodes"):
                why = found.get("errors") or "slurmctld is starting"
                raise SchedulerDown(f"sinfo shows no nodes ({why}): slurmctld is down, or refuses {self._our_user()}")
            named = [each for each in found["nodes"] if isinstance(each, dict) and isinstance(each.get("name"), str)]
        except (pydantic.ValidationError, TypeError) as error:
            what = "Slurm's JSON holds what Muster cannot read, as of another version"
            raise SchedulerDown(f"{what}: {first_line(error)}") from None
        return {each["name"]: each for each in named if each["name"] in {*names}}

    def _json(self, *command: str) -> dict[str, Any]:
        """Returns a command's JSON. A Reason may hold bytes that are no UTF-8, as typed or cut within a character."""
        return _JSON.validate_json(self._runner.run(*command).decode("utf-8", "replace"))

    def _seen(self, node: SlurmNode, *, named: bool = False) -> Seen:
        slurm_users = functools.partial(_slurm_users, self._runner)
        ours = node.is_ours(self._our_user(), slurm_users)
        used = "jobs in Slurm" if node.used else ""
        taken_down = node.taken_down_by(slurm_users)
        foreign = taken_down or ("" if ours else node.closed_by)
        return Seen(
            open=not node.drained and not node.apart,
            ours=ours,
            foreign=foreign,
            foreign_since=_moment(node.reason_changed_at) if foreign else None,
            apart=node.apart,
            booted=_moment(node.boot_time) if ours and node.came_back else None,
            worked_on=node.worked_on,
            kept=node.kept,
            used_by=(self._jobs(node.name, node.used) if named else used) or node.promised,
            unsure="" if node.drained else "Slurm may start a job on it at any moment",
            marked=FEATURE in node.features.split(","),
            drain=f"{node.reason_changed_at} {node.reason}" if ours else "",
            both=bool(taken_down),
            by_scheduler=bool(foreign) and not taken_down and node.by_slurmctld(slurm_users),
        )

    def _jobs(self, name: str, used: bool) -> str:
        """Returns the users' jobs on the node, including suspended ones, with which ``sinfo`` shows it idle."""
        listed = self._listed(name)
        jobs = [job for job in listed if job.user != self._me() or not self._is_test(job, self._name_of(job, name))]
        if listed and not jobs:
            return ""  # our own test is no allocation
        lines = one_line(", ".join(f"{job.number} of {job.user}" for job in jobs))[:REASON_LENGTH]
        return f"Slurm job {lines}" if lines else _HIDDEN if used else ""

    def _listed(self, name: str) -> list[_Job]:
        raw = self._runner.run("squeue", "--all", "--noheader", "--nodelist", name, "--format", "%i|%u")
        jobs = []
        for line in raw.decode("utf-8", "replace").splitlines():
            found = _JOB.fullmatch(line)
            if found is None:
                raise SchedulerDown(f"squeue wrote what Muster cannot read: {line[:40]!r}")
            jobs.append(_Job(*found.groups()))
        return jobs

    def _name_of(self, job: _Job, node: str) -> str:
        """Returns the job's name, by a command of its own: a user chooses the name, which may contain line breaks.
        Without the node, squeue would list all components of a heterogeneous job.
        """
        asked = ("--nodelist", node, "--jobs", job.number, "--format", "%j")
        raw = self._runner.run("squeue", "--all", "--noheader", *asked)
        return raw.decode("utf-8", "replace").removesuffix("\n")

    def _is_test(self, job: _Job, name: str) -> bool:
        return job.user == self._me() and name.startswith(TEST_PREFIX)

    def _me(self) -> str:
        return _user_of(self._runner)

    def _our_user(self) -> str:
        self._user = self._user or self._me()
        return self._user

    def _update(self, name: str, *changes: str) -> None:
        self._runner.run(*self._sudo, "scontrol", "update", f"NodeName={name}", *changes)


def _missing(config: Mapping[str, str]) -> str:
    """Returns what has to be changed in slurm.conf before Muster can use the cluster, "" if nothing. Pure."""
    if "extra_constraints" in config.get("SchedulerParameters", "").split(","):
        return (
            "SchedulerParameters has extra_constraints, with which a node's Extra takes nothing but JSON, and Muster "
            "writes its marks there: that is not supported, so remove it from slurm.conf"
        )
    if config.get("SuspendProgram", _NOT_SET) == _NOT_SET or config.get("SuspendTime", "") in _NEVER:
        return ""
    lacks = "Slurm's power saving switches drained nodes off while they are tested over SSH: add to slurm.conf"
    states = config.get("SuspendExcStates")
    if states is None:  # before 23.02
        given = {config.get(name, _NOT_SET) for name in ("SuspendExcNodes", "SuspendExcParts")} - {_NOT_SET}
        return "" if given else f"{lacks} SuspendExcNodes= with the nodes that Muster tests"
    named = [] if states == _NOT_SET else states.upper().split(",")
    return "" if "DRAIN" in named else f"{lacks} SuspendExcStates={','.join([*named, 'DRAIN'])}"


@functools.cache
def _user_of(runner: Runner) -> str:
    """Returns who runs the commands. Raises SchedulerDown."""
    if runner.login is None:
        return pwd.getpwuid(os.geteuid()).pw_name
    return runner.run("id", "-un").decode("utf-8", "replace").strip()


@functools.cache
def _slurm_users(runner: Runner) -> frozenset[str]:
    """Returns the name and the number of slurmctld's user, either of which Slurm may show. Raises SchedulerDown."""
    shown = runner.run("scontrol", "show", "config").decode("utf-8", "replace")
    found = _SLURM_USER.search(shown)
    return frozenset(found.groups()) if found else frozenset()


def _mark_change(node: SlurmNode, text: str) -> list[str]:
    """Returns the change of Extra, empty if it shows ``text`` already, or belongs to somebody else."""
    wanted = PREFIX + text
    return [f"Extra={wanted}"] if node.extra != wanted and (not node.extra or node.extra.startswith(PREFIX)) else []


def _moment(epoch: int) -> datetime.datetime | None:
    return datetime.datetime.fromtimestamp(epoch, datetime.UTC) if epoch else None


BACKEND = (SlurmSettings, Slurm)

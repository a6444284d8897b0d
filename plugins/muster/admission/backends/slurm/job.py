"""A test as a Slurm job: exclusive, of the lowest tier, so that Slurm cancels it for any job of a user.

The job holds the node by a step that sleeps, and the node side runs as another step of it. Steps get SIGTERM at once
and a batch script only half a minute later (measured on 22.05), so the script does nothing but wait for the first step.
"""

from __future__ import annotations

import dataclasses
import math
import re
import time
from collections.abc import Collection

from muster.admission.backend import LIMIT_MINUTES
from muster.admission.runner import Runner
from muster.errors import BadScheduler, JobEnded, LeftAlone, SchedulerDown
from muster_criteria.hostlist import expanded

START_S = 90.0
"""A job that does not run after this time (s) is cancelled. In a busy cluster only backfill starts a job of the lowest
tier, every 30 s by default (``bf_interval``). A worker slot is taken meanwhile."""

HINDERED_S = 5.0
"""For up to this time (s), Slurm may show another reason first (22.05: PartitionConfig for PartitionTimeLimit)."""

ASKED_EVERY_S = 1.0

_ITS_TURN = ("None", "Priority", "Resources", "ReqNodeNotAvail", "Nodes required")
"""Beginnings of the reasons of jobs that wait for users' jobs. A person has to remove the cause of any other reason."""

_WAITS = frozenset({"PENDING", "CONFIGURING"})
_ENDED_BY_SLURM = frozenset({"PREEMPTED", "COMPLETING"})
"""A job whose processes are still ending is COMPLETING, whatever ended it."""

_AT_ONCE = frozenset({"00:00:00", "-1"})
_LIMIT = re.compile(r"(?:(\d+)-)?(\d+):(\d\d):\d\d")
"""A time limit, "1-12:00:00"; none is "UNLIMITED"."""
_GPUS = re.compile(r"(?:^|,)(gpu:[^,(]+)")
"""GPUs in a node's Gres, such as "gpu:h100:8(S:0-1),shard:64", without the sockets."""

_BACKFILL = re.compile(r"\bbf_interval=(\d+)")
_FIELD = re.compile(r"(\w+)(?:=|[ \t]+=[ \t])(\S*)")
"""A field of scontrol: "Name = value", a line each, or "Name=value" one after the other. The value may be empty."""

_ALL = "ALL"
_EXAMPLE = "docs/examples/slurm_idle_tests.conf"


@dataclasses.dataclass(frozen=True)
class SlurmTests:
    """Test jobs in ``partition``."""

    runner: Runner
    partition: str

    def check(self, nodes: Collection[str], minutes: int) -> None:
        """Raise BadScheduler unless any job of another partition takes the nodes back from ours, and the partition lets
        a job run for ``minutes``; SchedulerDown.
        """
        self._asked(nodes, minutes)

    def _asked(self, nodes: Collection[str], minutes: int) -> int:
        """Returns the time limit (minutes) to request for a test whose stages take ``minutes``. Raises as ``check``."""
        name = self.partition
        config = fields(self.runner.run("scontrol", "show", "config"))
        if config.get("PreemptType") != "preempt/partition_prio":
            raise BadScheduler(
                f"idle tests in partition {name} would hold up jobs: PreemptType is {config.get('PreemptType')}; "
                f"set it to preempt/partition_prio ({_EXAMPLE})"
            )
        shown = self.runner.run("scontrol", "--all", "--oneliner", "show", "partition").decode("utf-8", "replace")
        partitions = {found["PartitionName"]: found for found in map(fields, shown.splitlines()) if found}
        ours = partitions.get(name)
        if ours is None:
            raise BadScheduler(f"there is no partition {name} for idle tests; see {_EXAMPLE}")
        tier = int(ours["PriorityTier"])
        lower = [
            other for other, found in partitions.items()
            if other != name and int(found["PriorityTier"]) <= tier and _holds_any(found.get("Nodes", _ALL), nodes)
        ]  # fmt: skip
        exempt = config.get("PreemptExemptTime", "")
        why = {
            f"partition {lower[0] if lower else ''} has no higher PriorityTier": bool(lower),
            f"PreemptMode={ours['PreemptMode']}": ours["PreemptMode"] != "CANCEL",
            f"GraceTime={ours['GraceTime']} keeps the user waiting": ours["GraceTime"] != "0",
            f"PreemptExemptTime={exempt} keeps the user waiting": exempt not in _AT_ONCE,
        }
        for each, holds in why.items():
            if holds:
                raise BadScheduler(
                    f"partition {name} is not preemptible by every job at once: {each}; give it PreemptMode=CANCEL, "
                    f"GraceTime=0 and the lowest PriorityTier of all, and set no PreemptExemptTime ({_EXAMPLE})"
                )
        if ours["State"] != "UP":
            raise BadScheduler(f"partition {name} starts no job: its State is {ours['State']}; set it to UP")
        longest = _minutes(ours["MaxTime"])
        if longest < minutes:
            hours = math.ceil(minutes / 60)
            raise BadScheduler(
                f"partition {name} does not start the test: its MaxTime is {ours['MaxTime']}, and a test may take "
                f"{minutes} minutes; set it to {hours // 24}-{hours % 24:02}:00:00 or more ({_EXAMPLE}), or choose a "
                "lower level"
            )
        backfill = _BACKFILL.search(config.get("SchedulerParameters", ""))
        if backfill is not None and int(backfill[1]) >= START_S:
            raise BadScheduler(
                f"partition {name} starts no test in time: {backfill[0]} in SchedulerParameters, and a test waits for "
                f"{START_S:.0f} s; set it to {START_S / 2:.0f} or less"
            )
        listed = self.runner.run("sinfo", "--noheader", "--Node", f"--partition={name}", "--format=%N")
        if outside := set(nodes) - set(listed.decode("utf-8", "replace").split()):
            raise BadScheduler(f"partition {name} does not hold {min(outside)}: add the node to its Nodes ({_EXAMPLE})")
        return int(min(longest, max(LIMIT_MINUTES, minutes)))

    def begin(self, node: str, job: str, minutes: int) -> None:
        """Submit the job, unless it is there, and wait until it runs. Raises LeftAlone, BadScheduler, SchedulerDown."""
        asked = self._asked([node], minutes)
        if not self._find(job)[0]:
            # A shorter limit, as before a reservation, is better than no test.
            limits = (f"--time={asked}", f"--time-min={minutes}")
            self.runner.run(
                "sbatch", "--parsable", "--no-requeue", "--exclusive", "--nodes=1", "--mem=0", *self._gpus(node),
                f"--nodelist={node}", f"--partition={self.partition}", f"--job-name={job}", *limits,
                "--output=/dev/null", "--chdir=/", f"--wrap=exec srun --overlap --ntasks=1 sleep {asked * 60}",
            )  # fmt: skip
        submitted = time.monotonic()
        while (found := self._find(job))[1] != "RUNNING":
            _, state, reason = found
            hindered = state == "PENDING" and not reason.replace("_", " ").startswith(_ITS_TURN)
            if state not in _WAITS or time.monotonic() - submitted > (HINDERED_S if hindered else START_S):
                self.end(job)
                why = f"{node} is not tested: Slurm did not start the test on it ({reason or state or 'it is gone'})"
                if hindered:
                    raise SchedulerDown(f"{why}; remove the cause in Slurm: partition {self.partition}, account or QOS")
                raise LeftAlone(why)
            time.sleep(ASKED_EVERY_S)

    def step(self, job: str) -> tuple[str, ...] | None:
        """Returns the words that run a command as a step of the job, on its node; None if Slurm preempted the job.

        Raises JobEnded, SchedulerDown.
        """
        number, state, _ = self._find(job)
        if state != "RUNNING":
            number, state, _ = self._find(job, "--states=all")
            if state in _ENDED_BY_SLURM and self._preempted(number):
                return None
            raise JobEnded(f"the test job {job} ended, and no job of a user took its node: {state or 'forgotten'}")
        variables = [f"{name}={value}" for name, value in self.runner.variables]
        # A test uses all CPUs, but a cluster may bind the only task of a step to one CPU by default.
        options = ("--overlap", "--ntasks=1", "--cpu-bind=none", "--mem=0")
        silent = ("--input=none", "--output=none")
        return (*(("env", *variables) if variables else ()), "srun", f"--jobid={number}", *options, *silent)

    def end(self, job: str) -> None:
        """Cancel the job, if it is there. No other job is touched: its name is ours and its number is Slurm's."""
        number, _, _ = self._find(job)
        if number:
            self.runner.run("scancel", "--me", number)

    def _find(self, job: str, *options: str) -> tuple[str, str, str]:
        """Returns number, state and reason of the newest job of that name, "" each if there is none."""
        raw = self.runner.run("squeue", "--all", "--noheader", "--me", "--name", job, "--format=%i %T %r", *options)
        found = [line.partition(" ") for line in raw.decode("utf-8", "replace").splitlines()]
        for number, _, _ in found:
            if not number.isdecimal():
                raise SchedulerDown(f"squeue wrote what Muster cannot read: {number[:40]!r}")
        number, _, shown = max(found, key=lambda parts: int(parts[0]), default=("", "", ""))
        state, _, reason = shown.partition(" ")
        return number, state, reason.strip()

    def _preempted(self, number: str) -> bool:
        """Whether a job of a user took the node: Slurm preempted ours, and the node is up and answers (no ``*``)."""
        shown = fields(self.runner.run("scontrol", "--all", "--oneliner", "show", "job", number))
        if shown.get("PreemptTime", "None") == "None":
            return False
        asked = ("sinfo", "--all", "--noheader", f"--nodes={shown.get('NodeList', '')}", "--format=%T")
        state = self.runner.run(*asked).decode("utf-8", "replace").lower()
        return not state.startswith(("down", "fail", "error", "unknown")) and "*" not in state

    def _gpus(self, node: str) -> tuple[str, ...]:
        """Returns the option that requests all GPUs of the node: an exclusive job has them, but gives its steps only
        what it requests. MIG slices are requested by the types that Slurm shows. Shards are not requested: they are
        parts of the same GPUs.
        """
        # Without --all, a node whose partitions are all hidden is not found.
        shown = fields(self.runner.run("scontrol", "--all", "--oneliner", "show", "node", node))
        gpus = _GPUS.findall(shown.get("Gres", ""))
        return (f"--gres={','.join(gpus)}",) if gpus else ()


def _holds_any(hosts: str, nodes: Collection[str]) -> bool:
    return hosts == _ALL or not set(nodes).isdisjoint(expanded(hosts))


def _minutes(limit: str) -> float:
    found = _LIMIT.fullmatch(limit)
    if found is None:
        return math.inf
    days, hours, minutes = (int(part or 0) for part in found.groups())
    return (days * 24 + hours) * 60 + minutes


def fields(raw: bytes | str) -> dict[str, str]:
    """Returns what scontrol shows, {name: value up to its first blank}."""
    text = raw if isinstance(raw, str) else raw.decode("utf-8", "replace")
    return dict(_FIELD.findall(text))

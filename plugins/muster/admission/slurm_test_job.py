"""A test as a job of Slurm: exclusive, of the lowest tier, so that Slurm cancels it for any job of a user.

The job holds the node by a step that sleeps, and the node side runs as a further step of it. Steps get SIGTERM at once
and a batch script only half a minute later (measured on 22.05), so the script does nothing but wait for the first step.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Collection

from muster.admission.backend import LIMIT_MINUTES, START_S
from muster.admission.runner import Runner
from muster.errors import BadScheduler, JobEnded, LeftAlone, SchedulerDown

_WAITS = frozenset({"PENDING", "CONFIGURING"})
_ENDED_BY_SLURM = frozenset({"PREEMPTED", "COMPLETING"})
"""A job whose processes still end is completing, whatever ended it."""

_AT_ONCE = frozenset({"00:00:00", "-1"})
_FIELD = re.compile(r"(\w+)(?:=|[ \t]+=[ \t])(\S*)")
"""A field of scontrol: "Name = value", a line each, or "Name=value" one after the other. The value may be empty."""

_EXAMPLE = "docs/examples/slurm_idle_tests.conf"


@dataclasses.dataclass(frozen=True)
class SlurmTests:
    """Test jobs in ``partition``. ``gres``: what an exclusive job does not give its steps by itself ("gpu:8")."""

    runner: Runner
    partition: str
    gres: str = ""

    def check(self, nodes: Collection[str]) -> None:
        """Raise BadScheduler unless each job of another partition takes the nodes back from ours; SchedulerDown."""
        name = self.partition
        config = _fields(self.runner.run("scontrol", "show", "config"))
        if config.get("PreemptType") != "preempt/partition_prio":
            raise BadScheduler(
                f"idle tests in partition {name} would hold up jobs: PreemptType is {config.get('PreemptType')}; "
                f"set it to preempt/partition_prio ({_EXAMPLE})"
            )
        shown = self.runner.run("scontrol", "--all", "--oneliner", "show", "partition").decode("utf-8", "replace")
        partitions = {found["PartitionName"]: found for found in map(_fields, shown.splitlines()) if found}
        ours = partitions.get(name)
        if ours is None:
            raise BadScheduler(f"there is no partition {name} for idle tests; see {_EXAMPLE}")
        tier = int(ours["PriorityTier"])
        lower = [other for other, found in partitions.items() if other != name and int(found["PriorityTier"]) <= tier]
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
        listed = self.runner.run("sinfo", "--noheader", "--Node", f"--partition={name}", "--format=%N")
        if outside := set(nodes) - set(listed.decode("utf-8", "replace").split()):
            raise BadScheduler(f"partition {name} does not hold {min(outside)}: add the node to its Nodes ({_EXAMPLE})")

    def begin(self, node: str, job: str) -> None:
        """Submit the job, unless it is there, and wait until it runs. Raises LeftAlone, BadScheduler, SchedulerDown."""
        self.check([node])
        if not self._find(job)[0]:
            limit = str(LIMIT_MINUTES)
            self.runner.run(
                "sbatch", "--parsable", "--no-requeue", "--exclusive", "--nodes=1", "--mem=0", *self._gres(),
                f"--nodelist={node}", f"--partition={self.partition}", f"--job-name={job}", f"--time={limit}",
                "--output=/dev/null", "--chdir=/", f"--wrap=exec srun --overlap --ntasks=1 sleep {LIMIT_MINUTES * 60}",
            )  # fmt: skip
        until = time.monotonic() + START_S
        while (state := self._find(job)[1]) != "RUNNING":
            if state not in _WAITS or time.monotonic() > until:
                self.end(job)
                raise LeftAlone(f"{node} is not tested: Slurm did not start the test on it, so jobs of users need it")
            time.sleep(0.2)

    def step(self, job: str) -> tuple[str, ...] | None:
        """Returns the words that run a command as a step of the job, on its node; None if Slurm preempted the job.

        Raises JobEnded, SchedulerDown.
        """
        number, state = self._find(job)
        if state != "RUNNING":
            number, state = self._find(job, "--states=all")
            if state in _ENDED_BY_SLURM and self._preempted(number):
                return None
            raise JobEnded(f"the test job {job} ended, and no job of a user took its node: {state or 'forgotten'}")
        variables = [f"{name}={value}" for name, value in self.runner.variables]
        options = ("--overlap", "--ntasks=1", "--mem=0", *self._gres(), "--input=none", "--output=none")
        return (*(("env", *variables) if variables else ()), "srun", f"--jobid={number}", *options)

    def end(self, job: str) -> None:
        """Cancel the job, if it is there. No other job is touched: its name is ours and its number is Slurm's."""
        number, _ = self._find(job)
        if number:
            self.runner.run("scancel", "--me", number)

    def _find(self, job: str, *options: str) -> tuple[str, str]:
        """Returns number and state of the newest job of that name, "" twice if there is none."""
        raw = self.runner.run("squeue", "--all", "--noheader", "--me", "--name", job, "--format=%i %T", *options)
        found = [line.partition(" ") for line in raw.decode("utf-8", "replace").splitlines()]
        for number, _, _ in found:
            if not number.isdecimal():
                raise SchedulerDown(f"squeue wrote what Muster cannot read: {number[:40]!r}")
        number, _, state = max(found, key=lambda parts: int(parts[0]), default=("", "", ""))
        return number, state.strip()

    def _preempted(self, number: str) -> bool:
        """Whether a job of a user took the node, which is not down and answers (its state has no ``*``)."""
        shown = _fields(self.runner.run("scontrol", "--oneliner", "show", "job", number))
        if shown.get("PreemptTime", "None") == "None":
            return False
        asked = ("sinfo", "--all", "--noheader", f"--nodes={shown.get('NodeList', '')}", "--format=%T")
        state = self.runner.run(*asked).decode("utf-8", "replace").lower()
        return not state.startswith(("down", "fail", "error", "unknown")) and "*" not in state

    def _gres(self) -> tuple[str, ...]:
        return (f"--gres={self.gres}",) if self.gres else ()


def _fields(raw: bytes | str) -> dict[str, str]:
    text = raw if isinstance(raw, str) else raw.decode("utf-8", "replace")
    return dict(_FIELD.findall(text))

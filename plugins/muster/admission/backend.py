"""The interface to the schedulers that allocate nodes to users, and what one shows of a node."""

from __future__ import annotations

import dataclasses
import datetime
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol, TypeVar

from muster.errors import MusterError, first_line
from muster.model.schedulers import UsersJob
from muster.rules.idle.selection import Idle

log = logging.getLogger(__name__)

VERIFY = "muster:verify"
"""In a person's reason for a drain: test the node next, and open it if it passes."""

TEST_PREFIX = "muster-test-"
"""Begins the names of our test jobs."""

LIMIT_MINUTES = 24 * 60
"""At least so long is asked for, for waits and repeats."""


@dataclasses.dataclass(frozen=True)
class Mark:
    """What an admission shows with a node: the verdict, its date and the certificate's id.

    ``verdict``: "revoked", with that date, if the certificate is. ``tested_since``: when the run began that the
    admission rests on; None if it rests on no test that still holds.
    """

    verdict: str
    date: datetime.date
    certificate: str
    tested_since: datetime.datetime | None = None

    @property
    def text(self) -> str:
        """As a scheduler shows it."""
        return f"{self.verdict} {self.date} certificate {self.certificate}"


@dataclasses.dataclass(frozen=True)
class Seen:
    """A node as its scheduler shows it.

    ``open``: users' jobs may begin on it. ``ours``: Muster closed it; without ``both``, alone. ``both``: the scheduler
    keeps our closing together with somebody else's. ``foreign``: who else closed it, and why. ``foreign_since``: since
    when, where known. ``by_scheduler``: the scheduler itself did, and no person or program. ``apart``: why it is not
    opened now, nor tested while it serves (rebooting, powered down, not responding, down). ``booted``: since when a
    node runs that we closed, and that its scheduler holds down only because it did not answer for a while; it answers
    again. ``worked_on``: why others may be at work on it, closed or not (in maintenance, powered down), which may have
    restarted it. ``kept``: why it is not free even closed, though that restarts no node. ``used_by``: the users' jobs
    on it, or what it is promised to. ``unsure``: why it may be in use all the same. ``marked``: an open node shows what
    ``admit`` set with it. ``created``: since when the scheduler has the node, where another machine that joins under
    its name is a new node to it. ``drain``: our own drain, by its time and reason, where the scheduler may forget that
    it was lifted.
    """

    open: bool
    ours: bool = False
    foreign: str = ""
    foreign_since: datetime.datetime | None = None
    apart: str = ""
    worked_on: str = ""
    used_by: str = ""
    unsure: str = ""
    marked: bool = True
    created: datetime.datetime | None = None
    drain: str = ""
    both: bool = False
    kept: str = ""
    booted: datetime.datetime | None = None
    by_scheduler: bool = False

    @property
    def verify(self) -> bool:
        """Whether the person who closed the node wants it tested."""
        return VERIFY in self.foreign

    @property
    def in_hand(self) -> str:
        """Who closed it and may be at work on it, and why: a person or a program, and not its scheduler itself."""
        return "" if self.by_scheduler else self.foreign

    @property
    def theirs(self) -> str:
        """Why Muster begins nothing by itself on a node that is closed, "" if nothing keeps it from that."""
        return f"it is closed: {self.in_hand}" if self.in_hand and not self.verify else ""

    def proved(self, tested_since: datetime.datetime | None) -> bool:
        """Whether a node that came back was tested since."""
        return bool(self.booted and tested_since and tested_since > self.booted)

    def stays_closed(self, mark: Mark) -> str:
        """Returns why an admission leaves the node as it is, "" if it may open it: it is not apart, or was tested since
        it came back, and no other closed it, or a test passed that the person who closed it wanted, and that began
        afterwards.
        """
        if self.apart and not self.proved(mark.tested_since):
            start = f"{self.booted:%H:%M, %d %B} UTC" if self.booted else ""
            began = f", and no whole test of it began since it started at {start}" if start else ""
            return f"it is {self.apart}{began}"
        wanted = self.verify and mark.tested_since and self.foreign_since and mark.tested_since > self.foreign_since
        return "" if wanted else self.foreign

    @property
    def allocation(self) -> str:
        """To whom or what the node is allocated ("Slurm job 4711 of alice"), or may be at any moment, "" if it is not:
        what stops a test that a person starts, and a repair.

        One that is closed and down is not: what was repaired by a restart is proved by a test before it is opened.
        """
        return self.taken or self.unsure

    @property
    def taken(self) -> str:
        """Why a node is not tested even once it is closed, "" if it may be."""
        why = self.worked_on or self.kept
        return self.used_by or (f"it is {why}" if why else "")

    @property
    def idle(self) -> Idle:
        """Whether a node in service is unused, so that it may be tested."""
        if self.used_by or (self.apart and not self.booted):
            return Idle(False, self.used_by or f"it is {self.apart}")
        if not self.open and not self.verify and not self.booted:
            return Idle(False, f"it is closed: {self.foreign or 'by Muster'}")
        return Idle(True, requested=self.foreign, since=self.foreign_since) if self.verify else Idle(True)


_Shown = TypeVar("_Shown")


def each_alone(shown: Mapping[str, _Shown], seen: Callable[[_Shown], Seen]) -> dict[str, Seen]:
    """Returns {name: the node as ``seen`` reads it}. One that cannot be read is apart: it stops none of the others."""
    found: dict[str, Seen] = {}
    for name, each in shown.items():
        try:
            found[name] = seen(each)
        except MusterError:
            raise
        except Exception as error:
            log.warning("%s cannot be read as its scheduler shows it: %s", name, error)
            why = f"shown in a way that Muster cannot read: {first_line(error)}"
            found[name] = Seen(open=False, apart=why, worked_on=why)
    return found


class PreemptibleTests(Protocol):
    """Tests of idle nodes as jobs of their scheduler, each of which gives its node back to any job of a user.

    ``job``: the test's name, which begins with TEST_PREFIX; ``minutes``: how long its stages may take together. The
    scheduler ends it after LIMIT_MINUTES, or after these if they are more; sooner where it lets no job run for so long,
    but not before these have passed. Each method raises SchedulerDown.
    """

    def check(self, nodes: Collection[str], minutes: int) -> None:
        """Raise BadScheduler unless every job of a user takes any of the nodes back from ours, at once, and a test may
        run for as long as its stages may take.
        """

    def begin(self, node: str, job: str, minutes: int) -> None:
        """Submit the job, unless it is there, and wait until it runs. Raises BadScheduler.

        Raises LeftAlone if a job of a user may be why it does not start; SchedulerDown for another reason.
        """

    def step(self, job: str) -> tuple[str, ...] | None:
        """Returns the words before a command that make it part of the running job on its node.

        None if a job of a user took the node. Raises JobEnded if it ended for another reason.
        """

    def end(self, job: str) -> None:
        """Cancel the job, if it is there, and wait until its end can touch no other test. Raises SchedulerDown if it
        does not end in time.
        """


class AdmissionBackend:
    """A scheduler, which knows nodes by names of its own.

    Every method ends within its deadlines and is idempotent: repeated, it changes nothing. Each raises SchedulerDown if
    the scheduler does not answer, refuses, or did not do what it confirmed. ``wanted_at`` names a change: it is the
    same for every repetition, and later for each later change of the node.

    ``tests``: how idle nodes are tested without closing them; None if a test closes its node. ``end_jobs``: ends the
    users' jobs on a node, by name, and yields a description of each once it has ended that one; None unless the
    cluster's settings want it (``end_corrupted_jobs``).
    """

    tests: PreemptibleTests | None = None
    end_jobs: Callable[[str], Iterable[str]] | None = None

    def check_rights(self) -> None:
        """Raise SchedulerDown if our login may not change the nodes, where that can be asked without a change;
        BadScheduler if the scheduler's own settings prevent what we do with them.
        """

    def users_jobs(self, names: Collection[str]) -> Iterable[UsersJob]:
        """Yields the users' jobs on these nodes that run, and those that ended lately and are still listed; none from a
        scheduler that does not tell.

        One job of several nodes is one entry for each of them.
        """
        return ()

    def look(self, names: Collection[str]) -> Mapping[str, Seen]:
        """Returns the nodes as the scheduler shows them, by name, without those that it does not know."""
        raise NotImplementedError

    def look_without_jobs(self, names: Collection[str]) -> Mapping[str, Seen]:
        """As ``look``, but ``used_by`` may be "": for a scheduler that is asked for users' jobs by another question."""
        return self.look(names)

    def admit(self, name: str, mark: Mark, wanted_at: datetime.datetime | None = None) -> str:
        """Open the node to users' jobs, and show ``mark`` with it. Somebody else's drain stays.

        Returns ``Seen.drain`` of what it lifted, "" without.

        Raises LeftAlone if somebody else closed it, or it is apart and its scheduler does not show this admission yet.
        """
        raise NotImplementedError

    def withdraw(
        self, name: str, reason: str, wanted_at: datetime.datetime | None = None, *, for_good: bool = False
    ) -> None:
        """Close the node to new jobs; running jobs end by themselves. What somebody else closed stays theirs, unless it
        is ``for_good``: of a node that leaves the scheduler, which would be open once they lift that.

        One that we closed shows the new reason, in schedulers that show reasons. One that is apart is closed for when
        it comes back; raises LeftAlone where that cannot be.
        """
        raise NotImplementedError

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
"""The names of our test jobs begin with this."""

LIMIT_MINUTES = 24 * 60
"""Minimum time that a test job requests, since it may wait and repeat."""


@dataclasses.dataclass(frozen=True)
class Mark:
    """What an admission shows with a node: the verdict, its date and the certificate's id.

    ``verdict``: "revoked", with that date, if the certificate is. ``tested_since``: when the run began on which the
    admission is based; None if it is based on no test that is still valid.
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

    ``open``: users' jobs may begin on it. ``ours``: Muster closed it, alone unless ``both``. ``both``: the
    scheduler keeps our closing together with somebody else's. ``foreign``: who else closed it, and why.
    ``foreign_since``: since when, where known. ``by_scheduler``: the scheduler itself closed it, not a person or a
    program. ``apart``: why it is neither opened now nor tested in service (rebooting, powered down, not responding,
    down). ``booted``: when a node that we closed started, if its scheduler holds it down only because it did not answer
    for a while, and it answers again. ``worked_on``: why others may be working on it, and may have restarted it, closed
    or not (in maintenance, powered down). ``kept``: why it is not free even when closed, for a reason that restarts no
    node. ``used_by``: the users' jobs on it, or what it is promised to. ``unsure``: why it may be in use nevertheless.
    ``marked``: an open node shows what ``admit`` set with it. ``created``: when the node was added to the scheduler,
    if that treats another machine of the same name as a new node. ``drain``: time and reason of our own drain, if the
    scheduler may forget that it was lifted.
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
        """Who closed it, and may be working on it, and why: a person or a program, but not the scheduler itself."""
        return "" if self.by_scheduler else self.foreign

    @property
    def theirs(self) -> str:
        """Why Muster starts nothing by itself on the node, since somebody closed it; "" if it may."""
        return f"it is closed: {self.in_hand}" if self.in_hand and not self.verify else ""

    def proved(self, tested_since: datetime.datetime | None) -> bool:
        """Whether a node that came back (``booted``) was tested after its start."""
        return bool(self.booted and tested_since and tested_since > self.booted)

    def stays_closed(self, mark: Mark) -> str:
        """Returns why an admission must not open the node; "" if it may.

        It may if the node is not apart, or was tested since it came back; and if no one else closed it, or if the
        person who closed it requested a test and one that began afterwards has passed."""
        if self.apart and not self.proved(mark.tested_since):
            start = f"{self.booted:%H:%M, %d %B} UTC" if self.booted else ""
            began = f", and no whole test of it began since it started at {start}" if start else ""
            return f"it is {self.apart}{began}"
        wanted = self.verify and mark.tested_since and self.foreign_since and mark.tested_since > self.foreign_since
        return "" if wanted else self.foreign

    @property
    def allocation(self) -> str:
        """To whom or what the node is allocated ("Slurm job 4711 of alice"), or may be at any moment; "" if it is not.

        An allocation stops a test that a person starts, and a repair. A node that is closed and down is not allocated:
        if a restart repairs it, a test has to prove that before it is opened.
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
    """Returns {name: the node as ``seen`` reads it}. A node that cannot be read is apart: it stops no other."""
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
    scheduler ends it after the larger of ``minutes`` and LIMIT_MINUTES, or after its own limit if that is shorter, but
    never before ``minutes`` have passed. Each method raises SchedulerDown.
    """

    def check(self, nodes: Collection[str], minutes: int) -> None:
        """Raise BadScheduler unless any job of a user takes a node back from a test at once, and a test may run for as
        long as its stages may take.
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
        """Cancel the job, if it is there, and wait until its end can affect no other test. Raises SchedulerDown if it
        does not end in time.
        """


class AdmissionBackend:
    """A scheduler, which has its own names for nodes.

    Every method ends within its deadlines and is idempotent. Each raises SchedulerDown if the scheduler does not
    answer, refuses, or did not do what it confirmed. ``wanted_at`` identifies a change: it is the same for every
    repetition, and later for each later change of the node.

    ``tests``: how idle nodes are tested without closing them; None if a test closes its node. ``end_jobs(name)``: ends
    the users' jobs on a node, and yields a description of each one that it has ended; None unless the cluster's
    settings enable it (``end_corrupted_jobs``).
    """

    tests: PreemptibleTests | None = None
    end_jobs: Callable[[str], Iterable[str]] | None = None

    def check_rights(self) -> None:
        """Raise SchedulerDown if our login may not change nodes, as far as that can be checked without a change;
        BadScheduler if the scheduler's settings prevent what Muster does with nodes.
        """

    def users_jobs(self, names: Collection[str]) -> Iterable[UsersJob]:
        """Yields the users' jobs that run on these nodes, or ended lately and are still listed; none if the scheduler
        does not list jobs. A job on several nodes has one entry for each of them.
        """
        return ()

    def look(self, names: Collection[str]) -> Mapping[str, Seen]:
        """Returns the nodes as the scheduler shows them, by name, without those that it does not know."""
        raise NotImplementedError

    def look_without_jobs(self, names: Collection[str]) -> Mapping[str, Seen]:
        """As ``look``, but ``used_by`` may be "": for a scheduler that lists users' jobs by a separate request."""
        return self.look(names)

    def admit(self, name: str, mark: Mark, wanted_at: datetime.datetime | None = None) -> str:
        """Open the node to users' jobs, and show ``mark`` with it. Somebody else's drain stays.

        Returns ``Seen.drain`` of the drain that it lifted, "" if none. Raises LeftAlone if somebody else closed the
        node, or it is apart and its scheduler does not show this admission yet.
        """
        raise NotImplementedError

    def withdraw(
        self, name: str, reason: str, wanted_at: datetime.datetime | None = None, *, for_good: bool = False
    ) -> None:
        """Close the node to new jobs; running jobs end by themselves. What somebody else closed is left as it is,
        unless ``for_good``: a node that leaves the scheduler would otherwise be open once they reopen it.

        A node that Muster closed before shows the new reason, if the scheduler shows reasons. One that is apart is
        closed for its return; raises LeftAlone if that is not possible.
        """
        raise NotImplementedError

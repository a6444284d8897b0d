"""Reads a BMC while a job runs, since a fan may stop under load and turn again after the job."""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from muster import store
from muster.model.runs import Job, RunKey
from muster.remote.bmc import redfish
from muster.remote.bmc.bmc import BadBmc, Bmc, Login, parse_bmc
from muster.settings import settings
from muster_criteria.chassis import STAGES, with_earlier

_THREADS = concurrent.futures.ThreadPoolExecutor(max_workers=8, thread_name_prefix="bmc")
"""A separate pool, so that slow BMCs do not occupy the threads that all triggers of a triggerer share."""


@dataclasses.dataclass(frozen=True)
class BmcWatch:
    """Which BMC is read every ``every_s`` seconds, and the job that its readings belong to. Holds no secrets.

    ``serial``: of the node's system, as the records have it.
    """

    bmc: dict[str, Any]
    every_s: float
    dag_id: str
    run_id: str
    stage: str
    attempt_key: str
    serial: str = ""

    @classmethod
    def of(cls, job: Job, bmc: Mapping[str, Any], serial: str) -> BmcWatch | None:
        """The watch for a job; None if the node has no BMC, or the stage does not use it."""
        every_s = settings().bmc_seconds
        if not bmc or not every_s or job.stage not in STAGES:
            return None
        return cls(dict(bmc), every_s, job.dag_id, job.run_id, job.stage, job.attempt_key, serial)

    async def read(self, login: Callable[[Bmc], Awaitable[Login]]) -> str:
        """Read the BMC once and store the worst readings with the job. Returns the reason for a failure, or ""."""
        try:
            bmc = parse_bmc(self.bmc)
            who = await login(bmc) if bmc else Login()
        except BadBmc as error:
            return str(error)
        return await asyncio.get_running_loop().run_in_executor(_THREADS, self._read, who)

    def _read(self, who: Login) -> str:
        reading = redfish.ask(self.bmc, self.stage, who, serial=self.serial)
        job = store.runs.get_job(RunKey(self.dag_id, self.run_id), self.stage, self.attempt_key)
        if reading is None or job is None:
            return ""
        worst = with_earlier(job.chassis, reading, meanwhile=True)
        store.runs.change_job(job, chassis=worst.to_json())
        return reading.trouble

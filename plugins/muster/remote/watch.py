"""A BMC that is read while a job runs: a fan that stood still for an hour may turn again when all is over."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from typing import Any

from airflow.providers.common.compat.connection import get_async_connection
from airflow.sdk.exceptions import AirflowNotFoundException

from muster import records
from muster.judging.chassis import STAGES, with_earlier
from muster.records import JobRecord
from muster.remote import redfish
from muster.remote.bmc import BadBmc, Login, login, no_connection, of_connection, parse_bmc
from muster.settings import settings


@dataclasses.dataclass(frozen=True)
class Watch:
    """Which BMC is read every ``every_s`` seconds, and the job that its readings belong to. No secrets are in it."""

    bmc: dict[str, Any]
    every_s: float
    dag_id: str
    run_id: str
    stage: str
    attempt_key: str

    @classmethod
    def of(cls, job: JobRecord, bmc: Mapping[str, Any]) -> dict[str, Any] | None:
        """For a trigger's arguments; None where there is no BMC, or it need not be read meanwhile."""
        every_s = settings().bmc_seconds
        if not bmc or not every_s or job.stage not in STAGES:
            return None
        return dataclasses.asdict(cls(dict(bmc), every_s, job.dag_id, job.run_id, job.stage, job.attempt_key))

    async def read(self) -> str:
        """Read it once, and keep with the job what is worse than before; returns what was in the way, or ""."""
        try:
            who = await self._login()
        except BadBmc as error:
            return str(error)
        return await asyncio.to_thread(self._read, who)

    async def _login(self) -> Login:
        """As ``bmc.login``, in the way in which a triggerer gives connections."""
        bmc = parse_bmc(self.bmc)
        if bmc is None or not bmc.connection:
            return login(bmc) if bmc else Login()
        try:
            return of_connection(bmc, await get_async_connection(bmc.connection))
        except AirflowNotFoundException:
            raise no_connection(bmc) from None

    def _read(self, who: Login) -> str:
        told = redfish.ask(self.bmc, self.stage, who)
        job = records.get_job(self.dag_id, self.run_id, self.stage, self.attempt_key)
        if told is None or job is None:
            return ""
        worst = with_earlier(job.chassis, told, meanwhile=True)
        records.record_job(dataclasses.replace(job, chassis=worst.to_json()))
        return told.trouble

"""The description of a node's BMC: its URL and where its password is stored, never the password itself."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import pydantic

from muster.errors import MusterError, first_refused
from muster.model.names import absolute_text, is_http


class BadBmc(MusterError):
    """An invalid BMC description; the message is one sentence on what to correct."""


class Bmc(pydantic.BaseModel):
    """A BMC with a Redfish interface.

    Login and password come from the Airflow connection ``connection``, whose host is the URL's, or the password from
    the environment variable ``password_env`` for ``user``; with neither, requests are sent without a login. A login is
    sent over https only. ``verify``: whether its certificate is checked, or the file of the authority that signed it.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True)

    url: str
    user: str = ""
    connection: str = ""
    password_env: str = ""
    verify: bool | str = True

    @pydantic.field_validator("url")
    @classmethod
    def _bare(cls, url: str) -> str:
        if not is_http(url):
            raise ValueError("url is not like https://10.0.0.7")
        parts = urlsplit(url)
        if parts.username or parts.password or parts.query:
            raise ValueError("url has a login in it, and secrets are not kept here: name a connection or password_env")
        return url.rstrip("/")

    @pydantic.field_validator("verify")
    @classmethod
    def _absolute(cls, verify: bool | str) -> bool | str:
        return absolute_text(verify) if isinstance(verify, str) else verify

    @pydantic.field_validator("password_env")
    @classmethod
    def _for_bmcs(cls, name: str) -> str:
        # Any other variable may hold another secret of the controller, and would be sent to the URL.
        if name and not _PASSWORD_ENV.fullmatch(name):
            raise ValueError("the variable's name begins with MUSTER_BMC_, then letters, digits and '_'")
        return name

    @pydantic.model_validator(mode="after")
    def _one_credential(self) -> Bmc:
        if self.connection and self.password_env:
            raise ValueError("both connection and password_env are given; keep one")
        if self.password_env and not self.user:
            raise ValueError("password_env is given without a user")
        if self.user and not (self.password_env or self.connection):
            raise ValueError(f"user {self.user} has no password: name a connection or password_env")
        if (self.connection or self.password_env) and not self.url.lower().startswith("https:"):
            raise ValueError(f"a login is not sent without encryption: give a url with https instead of {self.url}")
        return self


_PASSWORD_ENV = re.compile(r"MUSTER_BMC_[A-Za-z0-9_]+")


@dataclasses.dataclass(frozen=True)
class Login:
    """A BMC's user and password; both empty for requests without a login."""

    user: str = ""
    password: str = dataclasses.field(default="", repr=False)


def parse_bmc(described: Mapping[str, Any]) -> Bmc | None:
    """Returns the BMC of an inventory line or a record; None for an empty description. Raises BadBmc."""
    if not described:
        return None
    try:
        return Bmc.model_validate(dict(described))
    except pydantic.ValidationError as error:
        raise BadBmc(f"bmc cannot be used: {first_refused(error)}") from None


def login(bmc: Bmc) -> Login:
    """Returns the BMC's credentials. Raises BadBmc if they are missing; the message holds no secret."""
    if bmc.password_env:
        password = os.environ.get(bmc.password_env)
        if password is None:
            raise BadBmc(f"the environment variable {bmc.password_env} with the BMC's password is not set")
        return Login(bmc.user, password)
    if not bmc.connection:
        return Login()
    from airflow.sdk import Connection
    from airflow.sdk.exceptions import AirflowNotFoundException

    try:
        return of_connection(bmc, Connection.get(bmc.connection))
    except AirflowNotFoundException:
        raise no_connection(bmc) from None


def of_connection(bmc: Bmc, found: Any) -> Login:
    """Returns the BMC's credentials from its Airflow connection. Raises BadBmc for a connection of another host."""
    host = urlsplit(bmc.url).hostname or ""
    if (found.host or "").lower() != host:
        raise BadBmc(
            f"the Airflow connection {bmc.connection} is not for {host}: set its host to {host}, or name another one"
        )
    return Login(bmc.user or found.login or "", found.password or "")


def no_connection(bmc: Bmc) -> BadBmc:
    """Returns the error for a missing Airflow connection."""
    return BadBmc(f"there is no Airflow connection {bmc.connection}, which has the BMC's login")

"""The read API: nodes, verdicts, findings and certificates as JSON, for logins that may see the Fleet page.

Its figures come from the functions that the page uses. Logins, commands and BMCs of nodes are left out.
"""

from __future__ import annotations

import datetime
from typing import Annotated, Any

import pydantic
from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response
from fastapi.openapi.utils import get_openapi

from muster import store
from muster.errors import UnknownNode
from muster.model.figures import FleetRow
from muster.model.health import Observation
from muster.model.nodes import Lemon, Pause
from muster.model.runs import OpenFinding, StageVerdict
from muster.model.states import State
from muster.rules.lifecycle.certificate import why_invalid
from muster.web import fleet
from muster.web.access import read
from muster.web.overview import fleet_now
from muster_criteria.model import Verdict

VERSION = "1"
PAGE_MAX = 1000


class Node(pydantic.BaseModel):
    """A node. ``machine_since``: since when this machine has the name; ``held_run``: the run whose verdict is held;
    ``pause``: that of its tests, while it lasts; ``lemon``: a person's mark that it fails again and again.
    """

    model_config = pydantic.ConfigDict(from_attributes=True)

    name: str
    host: str
    state: State
    sku: str
    rack: str
    pool: str
    labels: dict[str, str]
    simulated: bool
    shadow: bool
    held_run: Annotated[str, pydantic.BeforeValidator(lambda run: str(run) if run else "")]
    pause: Pause | None
    lemon: Lemon | None
    added_at: datetime.datetime
    contact_at: datetime.datetime | None
    machine_since: datetime.datetime | None


class Certificate(pydantic.BaseModel):
    """A node's newest certificate. ``invalid``: why it holds no longer, "" while it holds; ``document``: as signed."""

    id: str
    node: str
    issued_at: datetime.datetime
    expires_at: datetime.datetime
    verdict: str
    invalid: str
    document: str


def known(name: str) -> str:
    """The name, if such a node is enrolled. Raises HTTPException 404."""
    try:
        return store.nodes.get(name).name
    except UnknownNode as error:
        raise HTTPException(404, str(error)) from None


Name = Annotated[str, Depends(known)]
router = APIRouter(prefix="/v1", dependencies=[Depends(read)])


@router.get("/nodes")
def nodes(
    request: Request,
    response: Response,
    state: str = "",
    verdict: str = "",
    sku: str = "",
    rack: str = "",
    pod: str = "",
    q: str = "",
    after: str = "",
    limit: Annotated[int, Query(ge=1, le=PAGE_MAX, description=f"{PAGE_MAX} at most")] = PAGE_MAX,
) -> list[FleetRow]:
    """Nodes by name with their last run, filtered as on the Fleet page, at most ``limit``, ``after`` a name. The header
    Link names the next page, if there is one.
    """
    for given, known_ones in ((state, (*State, *fleet.GROUPS)), (verdict, (*Verdict, fleet.NONE))):
        if given and given not in known_ones:
            raise HTTPException(422, f"{given[:80]!r} is none of {', '.join(known_ones)}.")
    filters = fleet.Filters(state=state, verdict=verdict, sku=sku, rack=rack, pod=pod, q=q)
    rows = fleet.chosen(fleet_now()[0], filters, store.overview.nodes_with(q) if q else ())
    # In one order, whatever the database's collation: `after` is compared here.
    left = sorted((row for row in rows if row.node > after), key=lambda row: row.node)
    if len(left) > limit:
        more = request.url.include_query_params(after=left[limit - 1].node).query
        response.headers["Link"] = f'<?{more}>; rel="next"'
    return left[:limit]


@router.get("/nodes/{name}")
def node(name: Name) -> Node:
    """One node."""
    return Node.model_validate(store.nodes.get(name))


@router.get("/nodes/{name}/verdicts")
def verdicts(name: Name) -> list[StageVerdict]:
    """The node's current verdicts, of every stage, oldest first."""
    return store.verdicts.latest(name)


@router.get("/nodes/{name}/findings")
def findings(name: Name) -> list[OpenFinding]:
    """The node's open findings, with the waivers that are valid now."""
    return store.verdicts.open_findings(name)


@router.get("/nodes/{name}/observations")
def observations(name: Name) -> list[Observation]:
    """What was observed of the node between tests, what was seen last first, at most 100."""
    return store.health.of_node(name)


@router.get("/nodes/{name}/certificate")
def certificate(name: Name) -> Certificate:
    """The node's newest certificate, valid or not; 404 without one."""
    found = store.certificates.newest(name)
    if found is None:
        raise HTTPException(404, f"{name} has no certificate")
    why = why_invalid(found.revoked, found.expires_at, store.clock.now())
    return Certificate(
        id=found.id, node=found.node, issued_at=found.issued_at, expires_at=found.expires_at, verdict=found.verdict,
        invalid=why, document=found.document,
    )  # fmt: skip


@router.get("/openapi.json", include_in_schema=False)
def openapi(request: Request) -> dict[str, Any]:
    """The description of this API."""
    server = {"url": str(request.scope.get("root_path", "")) or "/"}
    return get_openapi(title="Muster", version=VERSION, routes=router.routes, servers=[server])

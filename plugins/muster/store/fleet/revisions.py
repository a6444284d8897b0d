"""The contents of SKU files that verdicts cite, kept so that the verdicts can be re-evaluated."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import select, tuple_
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from muster.errors import UnknownRevision
from muster.settings import settings
from muster.store.database import access
from muster.store.database.engine import reading
from muster.store.database.models import RevisionRow

if TYPE_CHECKING:
    from muster_criteria.sku_files.model import Sku

log = logging.getLogger(__name__)


def load(sku: str, revision: str) -> Sku:
    """The SKU as it was at that revision. Raises UnknownRevision if it is not kept, or cannot be read."""
    from muster_criteria.sku_files.model import Sku

    with reading() as session:
        content = session.scalar(
            select(RevisionRow.content).where(RevisionRow.sku == sku, RevisionRow.revision == revision)
        )
        known = list(
            session.scalars(select(RevisionRow.revision).where(RevisionRow.sku == sku).order_by(RevisionRow.kept_at))
        )
    if content is None:
        kept = f"kept are {', '.join(known)}" if known else "none of it are kept"
        raise UnknownRevision(f"no revision {revision!r} of SKU {sku} is kept ({kept}); give a folder of SKU files")
    try:
        return Sku.model_validate_json(content)
    except ValueError as error:
        raise UnknownRevision(
            f"revision {revision} of SKU {sku} cannot be used by this version of Muster ({_first(error)}); "
            "give a folder of SKU files, or re-evaluate with the version that recorded the verdict"
        ) from error


def work(sku: str, revision: str, level: str) -> dict[str, str]:
    """What the probes had to do at that revision (``work.work_of``); empty if it is not kept."""
    with reading() as session:
        return works(session, {(sku, revision)}, level).get((sku, revision), {})


def works(session: Session, cited: Collection[tuple[str, str]], level: str) -> dict[tuple[str, str], dict[str, str]]:
    """{(SKU, revision): what the probes had to do (``work.work_of``)} for those of ``cited`` that are kept."""
    from muster_criteria.sku_files.work import work_of

    row = (RevisionRow.sku, RevisionRow.revision)
    query = select(*row, RevisionRow.content).where(tuple_(*row).in_(list(cited)))
    return {
        (sku, revision): work_of(json.loads(text)["programme"], level) for sku, revision, text in session.execute(query)
    }


def keep_revision(session: Session, sku: str, revision: str) -> None:
    """Keep the contents of the SKU's files, once, in the caller's transaction, if they are at that revision."""
    known = select(RevisionRow.revision).where(RevisionRow.sku == sku, RevisionRow.revision == revision)
    if session.scalar(known) is not None:
        return
    content = _content(sku, revision, settings().sku_folders)
    if content is None:
        return
    # Another task may write the same revision at this moment; either row will do.
    with contextlib.suppress(IntegrityError), session.begin_nested():
        session.add(RevisionRow(sku=sku, revision=revision, kept_at=access.now(), content=content))


@functools.lru_cache(maxsize=32)
def _content(sku: str, revision: str, folders: tuple[Path, ...]) -> str | None:
    """The SKU's files as JSON; None, logged once per process, if they are no longer at that revision."""
    from muster_criteria.sku_files.model import SkuError
    from muster_criteria.sku_files.skus import load_sku

    try:
        now = load_sku(sku, folders)
    except SkuError as error:
        log.warning("verdicts by %s %s cannot be re-evaluated: %s", sku, revision, error)
        return None
    if now.revision != revision:
        log.warning("verdicts by %s %s cannot be re-evaluated: the files are at %s now", sku, revision, now.revision)
        return None
    return now.model_dump_json()


def _first(error: ValueError) -> str:
    return " ".join(str(error).split())[:160]

"""Spares that take the places of nodes that left production, where the setting lets them."""

from __future__ import annotations

import logging

from muster import store
from muster.admission.service import carry_out
from muster.errors import MusterError
from muster.model.replacing import Replacement
from muster.settings import settings

log = logging.getLogger(__name__)


def replace_nodes() -> list[Replacement]:
    """Admit each proposed spare that the gate admits, if MUSTER_REPLACE_BY_ITSELF says so. Returns what was done."""
    if not settings().replace_by_itself:
        return []
    done = []
    for each in store.replacing.proposals():
        if not each.fitness.admitted:
            log.info("%s %s", each.spare, each.sentence)
            continue
        try:
            store.replacing.admit(each)
        except MusterError as error:  # the next look decides again
            log.warning("%s", error)
            continue
        if trouble := carry_out(each.spare):
            log.warning("%s: its scheduler gets the change later: %s", each.spare, trouble)
        done.append(each)
    return done

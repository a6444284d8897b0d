"""Notes the users' jobs that the schedulers show on the nodes, for each node's history."""

from __future__ import annotations

import collections

from muster import store
from muster.admission.clusters import backend_of
from muster.errors import apart


def note() -> list[str]:
    """Note the users' jobs of each cluster that lists them. Returns a sentence for each that does not answer."""
    by_cluster: dict[str, set[str]] = collections.defaultdict(set)
    for place in store.schedulers.places():
        by_cluster[place.cluster].add(place.name)
    failed: list[str] = []
    for cluster, names in by_cluster.items():
        with apart(f"the users' jobs of {cluster} are not known", failed):
            store.users_jobs.note(cluster, list(backend_of(cluster).users_jobs(names)))
    return failed

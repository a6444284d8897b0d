"""What every claim on a node checks and tells alike, whatever the node is wanted for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from airflow.sdk.exceptions import AirflowFailException

from muster import records
from muster.errors import DatabaseNotReady, MusterError
from muster.records import NodeRecord
from muster.remote.launch import parse_launch
from muster.settings import settings
from muster_criteria.sku_files import programme
from muster_criteria.sku_files.model import SkuError
from muster_criteria.sku_files.skus import load_sku


@contextlib.contextmanager
def told() -> Iterator[None]:
    """What a person has to put right fails the task at once, in one sentence (AirflowFailException)."""
    try:
        yield
    except DatabaseNotReady:
        raise  # not the run's fault: Airflow tries again
    except (MusterError, SkuError) as error:
        raise AirflowFailException(str(error)) from error


def testable(params: Mapping[str, Any]) -> tuple[NodeRecord, str]:
    """The node and the level that a run's parameters name. Raises MusterError or SkuError, one sentence."""
    level = str(params["level"])
    node = records.get_node(str(params["node"]))
    load_sku(node.sku, settings().sku_folders)
    parse_launch(node.launch)
    if level not in programme.LEVELS:
        raise MusterError(f"there is no level {level!r}; it is one of {', '.join(programme.LEVELS)}")
    return node, level

"""What a person's answer says that it will do."""

from __future__ import annotations

import json

import pytest

from muster import store
from muster.admission import answers
from tests.muster import fleet
from tests.support import lives


def test_a_re_test_by_a_job_that_gives_way_drains_nothing(sqlite_db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The effects of the answer name a drain only where a test closes the node."""
    store.nodes.add(fleet.new_node("by-job"))
    lives.in_production("by-job")
    store.schedulers.assign("by-job", "slurm1", "n0", "Ada", "new")
    said = {}
    for partition in ("muster", ""):
        chosen = {"kind": "slurm", "test_partition": partition} if partition else {"kind": "slurm"}
        monkeypatch.setenv("MUSTER_SCHEDULERS", json.dumps({"slurm1": chosen}))
        said[partition] = "drains n0" in " ".join(answers.effects(answers.RETEST, store.nodes.get("by-job")))
    assert said == {"muster": False, "": True}

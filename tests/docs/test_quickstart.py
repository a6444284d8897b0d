"""docs/quickstart.md works as written: its commands, run in order by bash, lead to a verdict on a host.

So does the way on from there in docs/deploying.md, to the first node that a Slurm cluster admits: one Airflow and one
test of the host serve both pages, whose commands for it differ in level and reason alone.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.quickstart import BLOCK, FORCED, NAME, ROOT, controller, quickstart, replaced, run
from tests.support.servers import slurm, sshd

pytestmark = [
    pytest.mark.slow, pytest.mark.needs_sshd, pytest.mark.needs_torch,
    pytest.mark.needs_slurm, pytest.mark.early(3),
]  # fmt: skip


@pytest.fixture
def host(tmp_path: Path) -> Iterator[sshd.Sshd]:
    with sshd.running(tmp_path / "host") as started:
        yield started
        sshd.kill_jobs(started.home / ".muster")


def slurm_blocks(conf: Path, test: str) -> list[str]:
    """The commands of docs/deploying.md for a node that the quickstart enrolled: the setting, from the scheduler to the
    verdict, and from there to a user's job. The test itself is ``test``, the quickstart's own command.
    """
    section = (ROOT / "docs" / "deploying.md").read_text().partition("\n## Slurm\n")[2].partition("\n## ")[0]
    setting, to_verdict, to_job = BLOCK.findall(section)
    alone = re.sub(r', "beta": .*(?=}\'\n)', "", setting)
    enrol, _, to_verdict = to_verdict.partition("\n")
    assert enrol in (ROOT / "docs" / "quickstart.md").read_text()
    asked = test.replace(f" {FORCED}", "").replace("first try", "first node")
    return [
        "export " + replaced(alone, ("/etc/slurm/slurm.conf", str(conf))) + "export MUSTER_ADMISSION_LEVEL=demo\n",
        replaced(to_verdict, (asked, test)),
        to_job,
    ]


def test_both_pages_lead_to_a_verdict_and_to_the_first_node_that_slurm_admits(host: sshd.Sshd, tmp_path: Path) -> None:
    page = quickstart(host)
    enrol, test, read = re.split(r"^(muster qualify .*\n)", page.after, flags=re.M)
    with slurm.running(2) as cluster:
        setting, to_verdict, to_job = slurm_blocks(cluster.conf, test)
        page = dataclasses.replace(page, settings=f"{page.settings}\n{setting}")
        with controller(tmp_path, page, cluster.env) as bash:
            run(bash, enrol)
            seen = run(bash, to_verdict)
            assert "State=IDLE+DRAIN" in seen
            assert "Reason=muster: registered" in seen
            run(bash, read)
            shown = json.loads(run(bash, f"muster runs show {NAME}__first-try --json"))
            assert shown["verdict"] in ("PASS", "WARN", "PROVISIONAL"), shown
            assert "State=IDLE+DRAIN" in cluster.show("n1")
            seen = run(bash, to_job)
        assert "ActiveFeatures=muster" in seen
        assert "State=IDLE " in cluster.show("n1")
        assert cluster.show("n1").count("certificate") == 1

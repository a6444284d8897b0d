"""docs/quickstart.md works as written: its commands, run in order by bash, lead to a verdict on a host.

So does the way on from there in docs/deploying.md, to the first node that a Slurm cluster admits.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.quickstart import BLOCK, FORCED, HOST, NAME, ROOT, controller, quickstart, replaced, run
from tests.support.servers import slurm, sshd

pytestmark = [
    pytest.mark.slow, pytest.mark.needs_sshd, pytest.mark.needs_torch, pytest.mark.early(3),
]  # fmt: skip


@pytest.fixture
def host(tmp_path: Path) -> Iterator[sshd.Sshd]:
    with sshd.running(tmp_path / "host") as started:
        yield started
        sshd.kill_jobs(started.home / ".muster")


def test_the_page_leads_to_a_verdict(host: sshd.Sshd, tmp_path: Path) -> None:
    page = quickstart(host)
    with controller(tmp_path, page) as bash:
        run(bash, page.after)
        shown = json.loads(run(bash, f"muster runs show {NAME}__first-try --json"))
    assert shown["verdict"] in ("PASS", "WARN", "PROVISIONAL"), shown


def slurm_blocks(host: sshd.Sshd, conf: Path) -> list[str]:
    """The commands of docs/deploying.md: the setting, from enrolment to the verdict, and from there to a user's job."""
    section = (ROOT / "docs" / "deploying.md").read_text().partition("\n## Slurm\n")[2].partition("\n## ")[0]
    setting, to_verdict, to_job = BLOCK.findall(section)
    alone = re.sub(r', "beta": .*(?=}\'\n)', "", setting)
    return [
        "export " + replaced(alone, ("/etc/slurm/slurm.conf", str(conf))) + "export MUSTER_ADMISSION_LEVEL=demo\n",
        replaced(
            to_verdict,
            (f"add {HOST} --name {NAME} --sku h100-sxm-8",
             f"add 127.0.0.1 --port {host.port} --name {NAME} --sku cpu-generic"),
            ("/opt/torch", sys.prefix),
            ("--watch", f"--watch {FORCED}"),
        ),
        to_job,
    ]  # fmt: skip


@pytest.mark.needs_slurm
def test_the_page_leads_to_the_first_node_that_slurm_admits(host: sshd.Sshd, tmp_path: Path) -> None:
    with slurm.running(2) as cluster:
        setting, to_verdict, to_job = slurm_blocks(host, cluster.conf)
        page = quickstart(host)
        page = dataclasses.replace(page, settings=f"{page.settings}\n{setting}")
        with controller(tmp_path, page, cluster.env) as bash:
            seen = run(bash, to_verdict)
            assert "State=IDLE+DRAIN" in seen
            assert "Reason=muster: registered" in seen
            assert "State=IDLE+DRAIN" in cluster.show("n1")
            seen = run(bash, to_job)
        assert "ActiveFeatures=muster" in seen
        assert "State=IDLE " in cluster.show("n1")
        assert cluster.show("n1").count("certificate") == 1

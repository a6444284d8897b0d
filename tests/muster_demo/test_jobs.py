"""Users' jobs on a real Slurm as the demo starts it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster_demo import slurm
from muster_demo.jobs import Jobs
from muster_demo.services import ServiceFailed, Supervisor
from tests.support.servers.slurm import running


@pytest.fixture(scope="module")
def cluster() -> Iterator[slurm.Slurm]:
    with running(2) as started:
        yield started


@pytest.mark.slow
@pytest.mark.needs_slurm
def test_a_users_job_runs_and_takes_a_node_back_from_a_test(cluster: slurm.Slurm) -> None:
    messages: list[str] = []
    users = Jobs(cluster, messages.append)
    users.run_on("n0")
    cluster.update("n1", "State=DRAIN", "Reason=muster: failed | burn_in")
    cluster.call(
        "sbatch", "--no-requeue", "--exclusive", "--nodelist=n0", f"--partition={slurm.TESTS}", "--output=/dev/null",
        "--chdir=/", "--wrap=sleep 300",
    )  # fmt: skip
    users.take_back("n0")
    found = users.seen()
    assert (found.ran, list(found.gave_way)) == (("n0",), ["n0"])
    assert found.closed == {"n1": "muster: failed | burn_in"}
    assert "the user's after" in messages[-1]


def test_what_keeps_slurm_out_of_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for program in slurm.PROGRAMS:
        (tmp_path / program).touch(mode=0o755)
    monkeypatch.setattr(slurm, "_PATH", str(tmp_path))
    assert slurm.missing(Path("/tmp")) == ""
    assert "too long" in slurm.missing(Path("/tmp") / ("deep/" * 20))
    monkeypatch.setenv("PATH", "/nowhere")
    (tmp_path / "slurmctld").unlink()
    assert "slurmctld" in slurm.missing(Path("/tmp"))


@pytest.mark.slow
@pytest.mark.needs_slurm
def test_a_slurm_that_does_not_start_leaves_no_process_and_no_trouble_behind() -> None:
    folder = Path(tempfile.mkdtemp(prefix="muster-slurm-"))
    supervisor = Supervisor(folder / "logs")
    broken = slurm.Slurm(supervisor, folder, ("n0",), {"PATH": "/usr/bin:/bin"}, further="NoSuchSetting=1\n")
    with pytest.raises((ServiceFailed, slurm.SlurmFailed)):
        broken.start()
    broken.stop()
    supervisor.check()
    assert supervisor.services == {}
    shutil.rmtree(folder)

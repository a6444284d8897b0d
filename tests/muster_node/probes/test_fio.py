"""fio through a stand-in that writes what fio writes: its file is capped, and removed afterwards."""

import json
import os
import stat

import pytest

from muster_node.agent import jobdir
from muster_node.probe import Skip
from muster_node.probes.fio import TESTS, Fio


@pytest.fixture(autouse=True)
def local(monkeypatch):
    """Wherever the tests' folder lies."""
    monkeypatch.setattr(jobdir, "file_system", lambda path: "ext4")


def test_memory_is_no_disk(run_probe, stand_in, monkeypatch, tmp_path):
    stand_in(WRITES)
    monkeypatch.setattr(jobdir, "file_system", lambda path: "tmpfs")
    with pytest.raises(Skip, match="tmpfs"):
        run_probe(Fio, mib=8, directory=str(tmp_path))
    assert not list(tmp_path.glob("*.asked"))


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """``stand_in(script)``: a fio that runs this shell script, given fio's own arguments."""

    def install(script):
        tool = tmp_path / "bin" / "fio"
        tool.parent.mkdir(exist_ok=True)
        tool.write_text("#!/bin/sh\n" + script)
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")

    return install


WRITES = """
for each; do case $each in --filename=*) echo x > "${each#--filename=}"; echo "$@" >> "${each#--filename=}.asked";; esac
done
"""


SIDE = {"bw_bytes": 2_100_000_000, "iops": 2002.7, "clat_ns": {"percentile": {"99.000000": 6_258_688}}}
OUTPUT = json.dumps({"jobs": [{"error": 0, "read": SIDE, "write": SIDE}]})


def test_every_test_is_run_on_a_capped_file_of_its_own_that_is_removed(run_probe, stand_in, tmp_path):
    stand_in(WRITES + f"cat <<'END'\n{OUTPUT}\nEND\n")
    run = run_probe(Fio, mib=8, seconds=1.0, directory=str(tmp_path))
    for test in TESTS:
        assert run.one("fio_rate", "disk:scratch", test=test).value == 2100.0
        assert run.one("fio_iops", test=test).value == 2002.7
        assert run.one("fio_latency_p99", test=test).value == 6.258688
    (arguments,) = tmp_path.glob("*.asked")
    assert arguments.read_text().count("--size=8M") == len(TESTS)
    assert not list(tmp_path.glob("*.scratch"))


@pytest.mark.parametrize(
    ("ending", "why"),
    [
        ("echo 'fio: engine libaio not loadable' >&2; exit 1", "its last line: fio: engine libaio not loadable"),
        (f"cat <<'END'\n{OUTPUT}\nEND\nexit 1", "exit status 1"),
    ],
)
def test_a_fio_that_fails_is_an_error_and_leaves_no_file(run_probe, stand_in, tmp_path, ending, why):
    stand_in(WRITES + ending + "\n")
    with pytest.raises(RuntimeError, match=why):
        run_probe(Fio, mib=8, directory=str(tmp_path), tests=["write 1M"])
    assert not list(tmp_path.glob("*.scratch"))


def test_a_file_that_would_take_too_much_room_is_not_written(run_probe, tmp_path):
    with pytest.raises(Skip):
        run_probe(Fio, mib=2**40, directory=str(tmp_path))


def test_an_unknown_test_is_named(run_probe):
    with pytest.raises(ValueError):
        run_probe(Fio, tests=["trim"])

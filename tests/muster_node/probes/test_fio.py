"""fio through a stand-in that writes what fio writes: what is read of it, and that its file is gone afterwards."""

import json
import os
import stat

import pytest

from muster_node.probe import Skip
from muster_node.probes.fio import TESTS, Fio, FioRun, parse_fio
from muster_node.tools.run import BadOutput


def output(error=0, bw=2_100_000_000, iops=2002.7, percentiles=True):
    """In the shape of fio 3; one side of a job is empty."""
    idle = {"bw_bytes": 0, "iops": 0.0, "clat_ns": {"min": 0}}
    busy = {"bw_bytes": bw, "iops": iops, "clat_ns": {"percentile": {"50.000000": 3_000_000, "99.000000": 6_258_688}}}
    if not percentiles:
        del busy["clat_ns"]
    return json.dumps({"fio version": "fio-3.36", "jobs": [{"jobname": "muster", "error": error, "read": busy,
                                                              "write": idle}]})  # fmt: skip


def test_a_result_is_read_also_behind_a_warning():
    assert parse_fio(output(), "read") == FioRun(2.1e9, 2002.7, 6.258688)
    assert parse_fio("fio: some warning\n" + output(percentiles=False), "randread") == FioRun(2.1e9, 2002.7, None)


@pytest.mark.parametrize(
    ("text", "pattern", "why"),
    [
        ("", "read", "no result of a job"),
        (output()[:-20], "read", "no result of a job"),
        ('{"jobs": []}', "read", "no result of a job"),
        (output(error=22), "read", "it failed: Invalid argument"),
        (output(), "write", "it moved nothing"),
    ],
)
def test_what_is_no_result_is_refused(text, pattern, why):
    with pytest.raises(BadOutput, match=why):
        parse_fio(text, pattern)


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


def both_sides():
    job = json.loads(output())
    job["jobs"][0]["write"] = job["jobs"][0]["read"]
    return json.dumps(job)


def test_every_test_is_run_on_a_capped_file_of_its_own_that_is_removed(run_probe, stand_in, tmp_path):
    stand_in(WRITES + f"cat <<'END'\n{both_sides()}\nEND\n")
    run = run_probe(Fio, mib=8, seconds=1.0, directory=str(tmp_path))
    for test in TESTS:
        assert run.one("fio_rate", "disk:scratch", test=test).value == 2100.0
        assert run.one("fio_iops", test=test).value == 2002.7
        assert run.one("fio_latency_p99", test=test).value == 6.258688
    (asked,) = tmp_path.glob("*.asked")
    assert asked.read_text().count("--size=8M") == len(TESTS)
    assert not list(tmp_path.glob("*.scratch"))


def test_a_fio_that_fails_is_told_with_its_word_and_leaves_no_file(run_probe, stand_in, tmp_path):
    stand_in(WRITES + "echo 'fio: engine libaio not loadable' >&2; exit 1\n")
    with pytest.raises(RuntimeError, match=r"write 1M: it has no result of a job; it said: fio: engine libaio"):
        run_probe(Fio, mib=8, directory=str(tmp_path), tests=["write 1M"])
    assert not list(tmp_path.glob("*.scratch"))


def test_a_file_that_would_take_too_much_room_is_not_written(run_probe, tmp_path):
    with pytest.raises(Skip, match="are free"):
        run_probe(Fio, mib=2**40, directory=str(tmp_path))


def test_an_unknown_test_is_named(run_probe):
    with pytest.raises(ValueError, match="no test 'trim'"):
        run_probe(Fio, tests=["trim"])

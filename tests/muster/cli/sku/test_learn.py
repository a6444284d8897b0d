"""``muster sku learn``: from recorded runs to a new revision, which nothing overwrites and a dry run does not write."""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from muster import store
from muster.errors import MusterError
from muster.model.runs import RunKey
from muster.settings import settings
from muster_criteria.sku_files.skus import load_sku
from muster_node.contract import Measurement
from tests.muster import fleet

STACK = ""
"""Of nodes whose environment names no driver and no libraries."""

Muster = Callable[..., "tuple[int, str, str]"]


def measured(name: str, rate: float, *, simulated: bool = False, level: str = "short") -> None:
    """A node that passed its performance stage with these bf16 rates on two GPUs."""
    store.nodes.add(fleet.new_node(name, sku="h200-sxm-8"))
    lease = store.leases.acquire(name, RunKey(fleet.DAG, f"{name}__run"))
    store.runs.begin(RunKey(fleet.DAG, lease.run_id), name, level, "for a test")
    figures = [
        Measurement("gemm_rate", "gemm_rate", f"gpu{gpu}", "TFLOPS", rate + gpu, labels={"dtype": "bf16"})
        for gpu in range(2)
    ]
    result, raw = fleet.result("performance", node=name, measurements=figures, simulated=simulated)
    by = load_sku("h200-sxm-8", settings().sku_folders)
    judged = dataclasses.replace(
        fleet.judgement("performance", level=level), observations=(), sku=by.sku, sku_version=by.revision
    )
    fleet.record(RunKey(fleet.DAG, lease.run_id), result, judged, raw)
    store.leases.release(RunKey(fleet.DAG, lease.run_id), "done")


@pytest.fixture
def fifteen(sqlite_db: object) -> None:
    for number in range(15):
        measured(f"gpu-{number:04d}", 740.0 + number)


@pytest.mark.usefixtures("fifteen")
def test_floors_are_learned_from_enough_real_nodes_only(
    muster: Muster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn = ("sku", "learn", "h200-sxm-8", "--level", "short", "--into", str(tmp_path))
    measured("gpu-sim", 740.0, simulated=True)
    status, out, err = muster(*learn)
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert "nothing is learned for h200-sxm-8 at level short: 15 healthy nodes are measured" in err

    measured("gpu-0015", 760.0)
    status, out, _ = muster(*learn, "--dry-run")
    assert status == 0
    # 0.90 and 0.95 times 748, the median of 740 to 755 twice and of 760 and 761
    assert "gemm_rate[dtype=bf16]\tgpu\t673.2 TFLOPS\t710.6 TFLOPS\t748" in out
    assert f"dry run: {tmp_path}/learned/h200-sxm-8-0001.yaml was not written" in out
    assert not (tmp_path / "learned").exists()
    before = len(store.audit.batch("siem", 999))

    for revision, path, state in (("0001", "", "is not in force"), ("0002", str(tmp_path), "is in force from now on")):
        monkeypatch.setenv("MUSTER_SKU_PATH", path)
        status, out, err = muster(*learn)
        assert err == ""
        assert status == 0
        assert f"{tmp_path}/learned/h200-sxm-8-{revision}.yaml {state}" in out
    other = tmp_path / "other"
    status, _, err = muster(*learn[:-1], str(other))
    assert (status, err.count("\n"), other.exists()) == (1, 1, False)
    assert len(list((tmp_path / "learned").iterdir())) == 2
    assert [each.evidence["revision"] for each in store.audit.batch("siem", 999)[before:]] == [1, 2]
    floors = [
        limit
        for limit in load_sku("h200-sxm-8", [tmp_path]).on(STACK, "short").limits
        if limit.source.startswith("learned from 32")
    ]
    assert [(limit.breach, limit.number) for limit in floors] == [("fail", 673.2), ("warn", 710.6)]


@pytest.mark.usefixtures("sqlite_db")
def test_floors_of_one_level_do_not_keep_those_of_another(muster: Muster, tmp_path: Path) -> None:
    for level, rate in (("short", 740.0), ("standard", 600.0)):
        for number in range(16):
            measured(f"gpu-{level}-{number:02d}", rate, level=level)
        status, out, _ = muster("sku", "learn", "h200-sxm-8", "--level", level, "--into", str(tmp_path))
        assert status == 0
        assert "gemm_rate[dtype=bf16]: " not in out, "no note"
    sku = load_sku("h200-sxm-8", [tmp_path])
    floors = {
        (level, limit.number)
        for level in ("short", "standard")
        for limit in sku.on(STACK, level).limits
        if limit.source.startswith("learned from") and limit.breach == "fail"
    }
    # 0.90 of the medians 740.5 and 600.5
    assert floors == {("short", 666.4), ("standard", 540.4)}


@pytest.mark.usefixtures("fifteen")
def test_no_floor_comes_into_force_without_its_event(
    muster: Muster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured("gpu-0015", 760.0)

    def broken(*_: object) -> None:
        assert load_sku("h200-sxm-8", [tmp_path]).learned == ()
        raise MusterError("the records cannot be written")

    monkeypatch.setattr(store.audit, "command", broken)
    status, _, err = muster("sku", "learn", "h200-sxm-8", "--level", "short", "--into", str(tmp_path))
    assert (status, "cannot be written" in err) == (1, True)
    assert list((tmp_path / "learned").iterdir()) == []


@pytest.mark.usefixtures("fifteen")
def test_a_full_disk_leaves_nothing_that_tests_would_read(
    muster: Muster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured("gpu-0015", 760.0)

    def full(path: Path, text: str, **_: object) -> None:
        path.write_bytes(text[:50].encode())
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    status, _, err = muster("sku", "learn", "h200-sxm-8", "--level", "short", "--into", str(tmp_path))
    assert (status, err.count("\n"), "No space left" in err) == (1, 1, True)
    assert load_sku("h200-sxm-8", [tmp_path]).learned == ()


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["h200-sxm-8"], "nowhere to write to: name a folder with --into, or set MUSTER_SKU_PATH"),
        (["h200-sxm-8", "--into", ".", "--level", "standart"], "there is no level 'standart'"),
        (["h200-smx-8", "--into", "."], "there is no SKU 'h200-smx-8': did you mean h200-sxm-8?"),
    ],
)
@pytest.mark.usefixtures("sqlite_db")
def test_what_is_wrong_is_one_sentence(muster: Muster, args: list[str], sentence: str) -> None:
    status, out, err = muster("sku", "learn", *args)
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert sentence in err

"""Counters that are reset between two sweeps hide no error and invent none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_criteria.health.counters import Count, rises

VOLATILE = {"scope": "volatile"}


def count(value: float, name: str = "ecc_corrected", device: str = "gpu0", **labels: str) -> Count:
    return Count(name, device, labels, value)


def risen(now: list[Count], before: list[Count], *, same_boot: bool = True, loaded: bool = False) -> dict[str, float]:
    known = {each.key: each.value for each in before}
    return {each.key: rise for each, rise in rises(now, known, same_boot=same_boot, loaded=loaded)}


ERRORS, LOAD, BOOT, SWEEP = "errors", "load", "boot", "sweep"
STEPS = st.lists(
    st.tuples(st.just(ERRORS), st.integers(1, 50)) | st.tuples(st.sampled_from([LOAD, BOOT, SWEEP]), st.just(0)),
    max_size=30,
)


@pytest.mark.many_examples
@given(STEPS, st.booleans())
def test_what_is_counted_is_what_came_whatever_was_reset(steps: list[tuple[str, int]], logged: bool) -> None:
    """Exactly what came since the last sweep or reset, where the log says when the driver was loaded; no more than
    that, where it does not. What a reset discards before it was read is lost.
    """
    shown = since = came = boot = swept_boot = 0
    counted, loaded = 0.0, False
    known: dict[str, float] | None = None
    for step, number in [*steps, (SWEEP, 0)]:
        if step == ERRORS:
            shown, since = shown + number, since + number
        elif step in (LOAD, BOOT):
            shown, since, loaded, boot = 0, 0, loaded or step == LOAD, boot + (step == BOOT)
        else:
            now = count(float(shown), **VOLATILE)
            if known is not None:
                found = list(rises([now], known, same_boot=boot == swept_boot, loaded=logged and loaded))
                assert all(rise >= 0 for _, rise in found)
                counted += sum(rise for _, rise in found)
                came += since
            known, swept_boot, since, loaded = {now.key: now.value}, boot, 0, False
    assert counted == came if logged else counted <= came


def test_where_one_counter_of_a_gpu_went_back_all_of_its_driver_did() -> None:
    before = [count(100, **VOLATILE), count(3, "nvlink_errors", link="0"), count(9, "pcie_replay"),
              count(50, device="gpu1", **VOLATILE)]  # fmt: skip
    now = [count(5, **VOLATILE), count(4, "nvlink_errors", link="0"), count(9, "pcie_replay"),
           count(51, device="gpu1", **VOLATILE)]  # fmt: skip
    assert risen(now, before) == {
        "ecc_corrected|gpu0|volatile": 5, "nvlink_errors|gpu0|0": 4, "pcie_replay|gpu0": 0,
        "ecc_corrected|gpu1|volatile": 1,
    }  # fmt: skip


def test_what_the_part_keeps_is_not_new_after_a_reset_or_in_another_part() -> None:
    kept = count(7, "row_remap_corrected"), count(7, scope="aggregate"), count(7, "nvme_media_errors", "disk:nvme0")
    more = [Count(each.name, each.device, each.labels, 9) for each in kept]
    assert risen(more, list(kept), loaded=True) == {each.key: 2 for each in kept}
    assert risen(list(kept), more) == {}
    assert risen(more, list(kept), same_boot=False) == {}


def test_links_make_errors_while_they_train_so_those_of_a_boot_are_not_counted() -> None:
    before = [
        count(0, "nvlink_errors", link="0"),
        count(0, "machine_checks", "node"),
        count(0, "edac_corrected", "node"),
    ]
    now = [Count(each.name, each.device, each.labels, 6) for each in before]
    assert risen(now, before, same_boot=False) == {"edac_corrected|node": 6}


def test_the_first_reading_is_where_counting_begins() -> None:
    assert risen([count(5000, **VOLATILE)], []) == {}

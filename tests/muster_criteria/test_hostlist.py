"""Slurm's lists of hosts: what Slurm writes, and anything else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_criteria.hostlist import HOSTS_MAX, expanded


@pytest.mark.parametrize(
    ("hosts", "names"),
    [
        ("n1", ["n1"]), ("n[1-3,07]", ["n1", "n2", "n3", "n07"]),
        ("n[08-11],x", ["n08", "n09", "n10", "n11", "x"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]), ("n[1-2]-ib,m3", ["n1-ib", "n2-ib", "m3"]), ("", []),
        ("a[3-1],b[x]c,d[],e[1, 2]", ["e1", "e2"]),
    ],
)  # fmt: skip
def test_a_list_of_hosts_as_slurm_writes_it(hosts: str, names: list[str]) -> None:
    assert list(expanded(hosts)) == names


@given(hosts=st.text("n1-9,[]0", max_size=30))
def test_no_list_of_hosts_has_more_names_than_slurm_allows(hosts: str) -> None:
    assert sum(1 for _ in expanded(hosts)) <= HOSTS_MAX

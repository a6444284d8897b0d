"""Parsers of tools' output against recordings: adding a recording is adding a file under ``data/<tool>/``.

A file holds ``source`` (where its form comes from), ``command``, ``output``, and ``reading``: what a person reads from
the output, or ``{error: code}``.
"""

import functools
from pathlib import Path

import pytest
import yaml

from muster_criteria import policy_file
from muster_criteria.device_events.judge import event_of
from muster_criteria.device_events.policy import EventPolicy, response_to
from muster_criteria.sku_files.skus import SHIPPED
from muster_node.hardware.events import labels_of
from muster_node.hardware.host.kernel_events import device_events
from muster_node.tools import dcgm, fio, ipmi, nccl_tests, nvbandwidth, perftest
from muster_node.tools.output import BadOutput

DATA = Path(__file__).parent / "data"
RECORDINGS = sorted(DATA.glob("*/*.yaml"))


def read_nvbandwidth(text):
    found = nvbandwidth.parse_nvbandwidth(text)
    tests = {
        test.name: {"unit": test.unit, **{f"{row},{column}": cell for (row, column), cell in test.cells.items()}}
        for test in found.tests
    }
    return {"devices": found.devices, "tests": tests, "corrupt": list(found.corrupt)}


def read_dcgm(text):
    def result(outcome):
        states = {"skipped": outcome.skipped, "failed": outcome.failed, "warned": outcome.warned}
        return next((state for state, holds in states.items() if holds), "passed")

    return [
        [each.test, "node" if each.gpu is None else each.gpu, result(each), *(error.text for error in each.errors)]
        for each in dcgm.parse_dcgm_diag(text).outcomes
    ]


def read_nccl_tests(text):
    found = nccl_tests.parse_nccl_tests(text)
    return {"busbw": found.busbw, "wrong": found.wrong, "ranks": found.ranks}


def read_fio(text, pattern):
    found = fio.parse_fio(text, pattern)
    return {"bytes_per_s": found.bytes_per_s, "iops": found.iops, "p99_ms": found.p99_ms}


@functools.cache
def policy():
    path = policy_file.find(EventPolicy, "nvidia-xid", [SHIPPED])
    return policy_file.parse(EventPolicy, path.read_bytes(), path.name)


def read_xids(text):
    """Each message with its GPU, and what the shipped policy does about it."""
    found = device_events(text.splitlines())
    judged = [event_of("gpu0", labels_of(each, number), each.text, each.count) for number, each in enumerate(found)]
    return [
        [each.code, each.pci, str(response_to(event, policy()).severity)]
        for each, event in zip(found, judged, strict=True)
    ]


READERS = {
    "xids": read_xids,
    "nccl_tests": read_nccl_tests,
    "nvbandwidth": read_nvbandwidth,
    "perftest": lambda text: {"gbit_per_s": round(perftest.parse_ib_write_bw(text), 3)},
    "fio": read_fio,
    "dcgm": read_dcgm,
    "ipmi": lambda text: [
        [each.metric, each.name, each.value if each.text is None else each.text] for each in ipmi.parse_sdr(text)
    ],
}


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_recordings_are_parsed_to_the_expected_values(path):
    recording = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert recording["source"]
    reader, more = READERS[path.parent.name], {"pattern": recording["pattern"]} if "pattern" in recording else {}
    try:
        reading = reader(recording["output"], **more)
    except BadOutput as error:
        reading = {"error": error.code}
    assert reading == recording["reading"]

"""Parsers against recorded data: a new case is a new entry in data/*.json, without code."""

import dataclasses
import json
from pathlib import Path

import pytest

from muster_node import processes
from muster_node.hardware.host import kernel_events, kernel_log, parse

DATA = Path(__file__).parent / "data"
FILES = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(DATA.glob("*.json"))]
PARSERS = {**vars(parse), **vars(kernel_log), **vars(kernel_events), **vars(processes)}
CASES = [
    pytest.param(file["parser"], case["input"], case["expected"], id=f"{file['parser']}: {case['about']}")
    for file in FILES
    for case in file["cases"]
]


def plain(value):
    """What JSON can express: tuples are lists there, dataclasses objects."""
    return json.loads(json.dumps(value, default=dataclasses.asdict))


@pytest.mark.parametrize(("parser", "text", "expected"), CASES)
def test_recorded(parser, text, expected):
    assert plain(PARSERS[parser](text)) == expected


def test_every_parser_has_recordings():
    parsers = {name for name in PARSERS if name.startswith("parse_")} - {"parse_clock"}
    assert parsers <= {file["parser"] for file in FILES}


@pytest.mark.parametrize(
    ("cpufreq", "info", "clock", "note"),
    [
        ([3800000.0, 3700000.0], {"mhz": 2000.0, "tsc_mhz": 2000.0, "flags": ["tsc"]}, 3800.0, ""),
        ([], {"mhz": 2596.1, "tsc_mhz": 2596.1, "flags": ["tsc"]}, 2596.1, "momentary"),
        ([], {"mhz": None, "tsc_mhz": 2596.1, "flags": ["tsc"]}, 2596.1, "time-stamp counter"),
        ([], {"mhz": None, "tsc_mhz": 100.0, "flags": ["asimd"]}, None, "not supported"),
    ],
)
def test_clock_takes_the_best_source_and_says_which(cpufreq, info, clock, note):
    value, source = parse.parse_clock(cpufreq, info)
    assert value == clock
    assert note in source

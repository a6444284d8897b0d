"""What a node sends: everything that is not exactly a result is refused in one sentence, quickly."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster_criteria.measured import RESULT_BYTES_MAX, BadResult, StageResult, parse_result
from muster_criteria.text import TEXT_MAX
from muster_node import contract
from tests.muster_criteria.nodes import MakeCase


def sentence_of(raw: bytes) -> str:
    with pytest.raises(BadResult) as error:
        parse_result(raw)
    message = str(error.value)
    assert message.endswith(".")
    assert "\n" not in message
    assert len(message) < 700
    return message


def spoilt(case: MakeCase, **keys: Any) -> bytes:
    return json.dumps(case("intake", "cpu-generic").raw | keys).encode()


def spoilt_measurement(case: MakeCase, **keys: Any) -> bytes:
    raw = case("intake", "cpu-generic").raw
    raw["measurements"][0] |= {"value": None, "text": None} | keys
    return json.dumps(raw).encode()


def test_the_contract_is_the_node_sides_own() -> None:
    """Both sides of the wire are written down once each; this is what keeps them equal."""
    assert contract.RESULT_BYTES_MAX == RESULT_BYTES_MAX
    written = contract.Result(
        job_id="j",
        node="n",
        stage="intake",
        level="demo",
        fence=3,
        agent_sha256="ab" * 32,
        simulated=True,
        started_at=1.0,
        ended_at=2.0,
        end=contract.END_DEADLINE,
        partial=True,
        identity={"boot_id": "b", "serials": {"gpu0": "1"}, "cores": 4},
        environment={"kernel": "6"},
        guard={"busy": True, "evidence": ["somebody"]},
        probes=[contract.ProbeOutcome("p", contract.TIMED_OUT, "late", 1.0, 2.0)],
        measurements=[contract.Measurement("p", "m", "nic:ib0/2", "°C/W", value=1, labels={"op": "copy"}, spread=0.1)],
        telemetry_file=contract.TelemetryFile("telemetry.jsonl.gz", "0" * 64, 3, 100),
        notes=["ended early"],
    )

    read = parse_result(written.to_json().encode())

    assert read.schema_ == contract.RESULT_SCHEMA
    assert (read.end, read.partial, read.simulated, read.guard.busy) == ("deadline", True, True, True)
    assert read.measurements[0].value == 1.0
    assert read.telemetry_file is not None


@pytest.mark.parametrize("end", sorted(contract.EXIT_OF_END))
def test_every_end_of_the_contract_is_known(case: MakeCase, end: str) -> None:
    assert parse_result(spoilt(case, end=end)).end == end


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b'{"schema":',
        b"\xff\xfe\x00",
        b'{"schema": NaN}',
        b'"\\ud800"',
        b"1e99999",
    ],
)
def test_what_is_no_result_is_refused(raw: bytes) -> None:
    sentence_of(raw)


def test_more_than_the_cap_is_not_even_read() -> None:
    assert sentence_of(b" " * (RESULT_BYTES_MAX + 1)).startswith("the result is 5242881 bytes")


@pytest.mark.parametrize(
    "keys",
    [
        {"schema": "muster.result/2"},
        {"end": "perfect"},
        {"unknown": 1},
        {"fence": -1},
        {"fence": "1"},
        {"simulated": "no"},
        {"measurements": {}},
        {"measurements": [1] * 60_001},
        {"stage": "../etc"},
        {"telemetry_file": {"file": "../../x", "sha256": "0" * 64, "rows": 1, "bytes": 1}},
        {"started_at": float("nan")},
        {"environment": {"a": {"b": 1}}},
    ],
    ids=str,
)
def test_a_result_with_one_wrong_key_is_refused(case: MakeCase, keys: dict[str, Any]) -> None:
    sentence_of(spoilt(case, **keys))


@pytest.mark.parametrize(
    "keys",
    [
        {"value": float("nan")},
        {"value": float("inf")},
        {"value": -1e300},
        {"value": "12"},
        {"value": True},
        {"value": 1.0, "text": "both"},
        {"device": "gpu0\n"},
        {"device": "gpu0; rm -rf /"},
        {"metric": "a" * 81},
        {"unit": "<script>"},
        {"labels": {"dtype": 16}},
        {"labels": {str(n): "x" for n in range(9)}},
        {"spread": -0.1},
        {"samples": -1},
        {"samples": 10**30},
    ],
    ids=str,
)
def test_a_measurement_with_one_wrong_key_is_refused(case: MakeCase, keys: dict[str, Any]) -> None:
    assert "measurements.0" in sentence_of(spoilt_measurement(case, **keys))


def test_free_text_is_made_harmless(case: MakeCase) -> None:
    hostile = "a\x1b[31mred\x00\r\nSubject: x\u202eevil\u2028line\ufeff"

    note = parse_result(spoilt_measurement(case, note=hostile)).measurements[0].note

    assert note.isprintable()
    assert note == "a [31mred Subject: x evil line"


def test_long_text_is_cut_and_marked(case: MakeCase) -> None:
    note = parse_result(spoilt_measurement(case, note="x" * 10_000)).measurements[0].note

    assert len(note) == TEXT_MAX
    assert note.endswith("…")


def test_nothing_changes_afterwards(case: MakeCase) -> None:
    result = parse_result(spoilt(case))
    with pytest.raises(ValueError):
        result.simulated = True  # type: ignore[misc]


def largest() -> bytes:
    """About five megabytes of measurements, as many as a node may send."""
    one = (
        '{"probe":"exact_gemm","metric":"gemm_mismatches","device":"cpu%d",'
        '"unit":"count","value":0.0,"labels":{"n":"%d"}}'
    )
    rows = ",".join(one % (n % 256, n) for n in range(43_000))
    head = {key: value for key, value in HEAD.items() if key != "measurements"}
    return (json.dumps(head)[:-1] + f', "measurements": [{rows}]}}').encode()


HEAD: dict[str, Any] = {
    "schema": "muster.result/1",
    "job_id": "j",
    "node": "n",
    "stage": "integrity",
    "level": "demo",
    "fence": 1,
    "agent_sha256": "",
    "simulated": False,
    "started_at": 1.0,
    "ended_at": 2.0,
    "end": "completed",
    "partial": False,
    "identity": {},
    "environment": {},
    "guard": {},
    "probes": [],
    "measurements": [],
}


@pytest.mark.parametrize(
    ("raw", "good"),
    [
        pytest.param(largest(), True, id="the largest good one"),
        pytest.param(b'{"measurements":[' + b"1," * 2_000_000 + b"1]}", False, id="two million numbers"),
        pytest.param(b'{"measurements":[' + b"{}," * 1_500_000 + b"{}]}", False, id="a million and a half empty maps"),
    ],
)
def test_five_megabytes_are_read_or_refused_in_one_sentence(raw: bytes, good: bool) -> None:
    """What that costs is measured by ``tests.bench.results``."""
    assert len(raw) <= RESULT_BYTES_MAX
    if good:
        assert len(parse_result(raw).measurements) == 43_000
    else:
        sentence_of(raw)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=200)
@given(raw=st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_a_result_or_a_sentence(raw: bytes) -> None:
    with pytest.raises(BadResult):
        parse_result(raw)


@settings(max_examples=300)
@given(key=st.sampled_from(sorted(HEAD)), value=JSON)
def test_any_value_under_any_key_is_a_result_or_a_sentence(key: str, value: Any) -> None:
    try:
        result = parse_result(json.dumps(HEAD | {key: value}).encode())
    except BadResult:
        return
    assert isinstance(result, StageResult)

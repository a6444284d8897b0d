"""What a stage leaves behind: measurements beside their limits, findings, verdict, charts; and what a report shows."""

from __future__ import annotations

import dataclasses
import gzip
import json
import statistics
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import sqlalchemy
from sqlalchemy import func, select

from muster import acting, store
from muster.errors import MusterError
from muster.model.nodes import Lease
from muster.model.runs import Job
from muster.store.database import access
from muster.store.database.engine import reading
from muster.store.database.models import ArtifactRow, MeasurementRow, StageRow
from muster.store.output import charts
from muster.store.output.charts import DEVICES, POINTS, chart_series, telemetry_rows
from muster_criteria.context.waivers import finding_id
from muster_criteria.model import Verdict
from muster_node.contract import Measurement
from tests.muster import fleet


@pytest.fixture
def lease(fleet_db: str) -> Lease:
    with acting.under("os:ada"):
        store.nodes.add(fleet.new_node())
    return fleet.begin()


def record(lease: Lease, stage: str = "intake", **options: object) -> None:
    parsed, raw = fleet.result(stage, serials={"gpu0": "G0"}, simulated=True)
    judgement = fleet.judgement(stage, Verdict.FAIL, findings=(fleet.FINDING,))
    fleet.record(lease.key, parsed, judgement, raw, **options)


def count(table: type[MeasurementRow] | type[StageRow] | type[ArtifactRow]) -> int:
    with reading() as session:
        return session.scalar(select(func.count()).select_from(table)) or 0


class TestReport:
    @pytest.mark.both_dialects
    def test_it_is_what_was_judged(self, lease: Lease) -> None:
        record(lease, telemetry=fleet.telemetry(100), attempts=2)
        store.runs.finish(lease.key, Verdict.FAIL, "gpu3 is slow.")
        report = store.reporting.run(lease.key, run_url="http://airflow/run")
        stage = report.stages[0]
        found = fleet.finding(id=finding_id("gpu-0001", fleet.FINDING))
        assert stage.judgement == fleet.judgement("intake", Verdict.FAIL, findings=(found,), simulated=True)
        assert (stage.attempts, stage.duration_s) == (2, 90)
        assert stage.probes == (("gemm_rate", "completed", ""),)
        assert (report.verdict, report.headline, report.state_after) == (Verdict.FAIL, "gpu3 is slow.", "quarantine")
        assert dict(report.identity)["serials gpu0"] == "G0"
        assert dict(report.environment) == {"kernel": "6.1"}
        assert report.not_run[0][0] == "burn_in"
        assert report.run_url == "http://airflow/run"

    def test_simulated_stays_simulated(self, lease: Lease) -> None:
        """A real result after a simulated one leaves run and report marked; no result changes what the node is."""
        record(lease)
        real, raw = fleet.result("burn_in")
        fleet.record(lease.key, real, fleet.judgement("burn_in"), raw)
        assert not store.nodes.get("gpu-0001").simulated
        assert store.runs.get(lease.key).simulated
        assert store.reporting.run(lease.key).simulated

    def test_the_attachment_is_the_report(self, lease: Lease) -> None:
        record(lease, telemetry=fleet.telemetry(100))
        content = json.loads(store.reporting.run(lease.key).result_json)
        assert content["schema"] == "muster.report/1"
        assert content["stages"][0]["judgement"]["findings"][0]["device"] == "gpu3"
        assert content["simulated"] is True
        assert "telemetry" not in content["stages"][0]

    def test_a_verdict_is_read_without_what_was_measured(self, lease: Lease) -> None:
        record(lease)
        whole, short = (store.reporting.judgements(lease.key, observed=each) for each in (True, False))
        assert whole["intake"].observations
        assert short == {"intake": dataclasses.replace(whole["intake"], observations=())}

    def test_a_stage_without_a_result_has_its_verdict(self, lease: Lease) -> None:
        lost = fleet.judgement("intake", Verdict.INCONCLUSIVE)
        fleet.record(lease.key, None, lost)
        stage = store.reporting.run(lease.key).stages[0]
        assert stage.judgement.verdict is Verdict.INCONCLUSIVE
        assert (stage.started_at, stage.probes) == (None, ())

    def test_a_stage_that_was_begun_and_never_judged_says_so(self, lease: Lease) -> None:
        store.runs.record_job(Job(lease.dag_id, lease.run_id, "intake", "1", "lost", "/j", note="connection lost"))
        report = store.reporting.run(lease.key)
        assert [stage for stage, _ in report.not_run][:2] == ["intake", "burn_in"]
        assert "connection lost" in report.not_run[0][1]


class TestMeasurements:
    @pytest.mark.both_dialects
    def test_every_one_is_kept_and_the_judged_ones_have_their_limits(self, lease: Lease) -> None:
        figures = [
            Measurement("gemm_rate", "gemm_rate", "gpu0", "TFLOPS", 612.5),
            Measurement("inventory", "gpu_model", "gpu0", "text", text="H100"),
            Measurement("inventory", "fan", "node", "%", note="not supported"),
        ]
        parsed, raw = fleet.result(measurements=figures)
        fleet.record(lease.key, parsed, fleet.judgement(), raw)
        with reading() as session:
            rows = list(session.scalars(select(MeasurementRow).order_by(MeasurementRow.id)))
        assert [(row.metric, row.value, row.text, row.floor, row.ok) for row in rows] == [
            ("gemm_rate", 612.5, None, 600.0, True),
            ("gpu_model", None, "H100", None, None),
            ("fan", None, None, None, None),
        ]
        assert rows[2].note == "not supported"

    @pytest.mark.both_dialects
    def test_a_retried_task_replaces_itself_and_a_repeated_stage_supersedes(self, lease: Lease) -> None:
        for _ in range(2):
            record(lease)
        assert (count(StageRow), count(MeasurementRow), count(ArtifactRow)) == (1, 1, 1)
        repeated, raw = fleet.result(note="the second time")
        fleet.record(lease.key, repeated, fleet.judgement(), raw)
        assert (count(StageRow), count(MeasurementRow)) == (2, 2)
        assert [each.verdict for each in store.runs.stages(lease.key)] == [Verdict.PASS]

    @pytest.mark.both_dialects
    def test_a_count_of_samples_may_be_as_large_as_the_result_allows(self, lease: Lease) -> None:
        many = [Measurement("gemm_rate", "gemm_rate", "gpu0", "TFLOPS", 600.0, samples=2**53)]
        parsed, raw = fleet.result(measurements=many)
        fleet.record(lease.key, parsed, fleet.judgement(), raw)
        with reading() as session:
            assert session.scalar(select(func.max(MeasurementRow.samples))) == 2**53

    def test_two_thousand_cost_a_few_statements(self, lease: Lease) -> None:
        figures = [Measurement("p", f"m{index}", f"gpu{index % 8}", "count", float(index)) for index in range(2000)]
        parsed, raw = fleet.result(measurements=figures)
        statements: list[str] = []

        def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
            statements.append(statement)

        sqlalchemy.event.listen(sqlalchemy.Engine, "before_cursor_execute", note)
        try:
            fleet.record(lease.key, parsed, fleet.judgement(), raw)
        finally:
            sqlalchemy.event.remove(sqlalchemy.Engine, "before_cursor_execute", note)
        assert 0 < len(statements) < 30
        assert count(MeasurementRow) == 2001


class TestCharts:
    def test_short_telemetry_is_kept_as_it_is(self) -> None:
        (series,) = chart_series(fleet.telemetry(60))
        assert (series.series, series.device, series.unit) == ("temperature", "gpu0", "°C")
        assert series.seconds == tuple(float(second) for second in range(60))
        assert series.values == tuple(40.0 + second % 50 for second in range(60))

    @pytest.mark.parametrize("seconds", [301, 5_000, 40_000])
    def test_long_telemetry_is_thinned_evenly(self, seconds: int) -> None:
        (series,) = chart_series(fleet.telemetry(seconds))
        assert POINTS / 2 <= len(series.values) <= POINTS
        assert series.seconds[-1] > 0.98 * seconds
        assert list(series.seconds) == sorted(series.seconds)
        assert sum(series.values) / len(series.values) == pytest.approx(64.5, abs=1.0)

    @pytest.mark.parametrize("seconds", [600, 40_000])
    def test_thinned_telemetry_keeps_its_extremes_and_its_median(self, seconds: int) -> None:
        brief = {seconds // 3: 97.0, seconds // 2: 12.0}
        rows = (
            json.dumps({"t": t, "series": "temperature", "device": "gpu0", "value": brief.get(t, 64.0)})
            for t in range(seconds)
        )
        (series,) = chart_series(gzip.compress("\n".join(rows).encode()))
        assert (min(series.values), statistics.median(series.values), max(series.values)) == (12.0, 64.0, 97.0)

    def test_of_many_devices_the_odd_ones_are_kept(self) -> None:
        shown = chart_series(fleet.telemetry(10, devices=[f"cpu{index}" for index in range(64)]))
        assert len(shown) == DEVICES
        assert {"cpu0", "cpu63"} <= {chart.device for chart in shown}

    def test_what_makes_no_sense_is_left_out(self) -> None:
        lines = [
            b'{"t": 1, "series": "clock", "device": "gpu0", "value": 1980}', b"garbage", b"[1]", b'{"t": "x"}',
            b'{"t": 2, "series": "clock", "device": ["gpu0"], "value": 1}',
            b'{"t": 2, "series": "clock", "device": "gpu0", "value": NaN}',
            b'{"t": 2, "series": "throttle", "device": "gpu0", "state": "none"}', b"\xff\xfe",
        ]  # fmt: skip
        (series,) = chart_series(gzip.compress(b"\n".join(lines)))
        assert series.values == (1980.0,)
        assert chart_series(b"no gzip at all") == []
        assert len(chart_series(fleet.telemetry(100)[:-20])) <= 1

    @pytest.mark.parametrize(
        "line",
        [
            b"[" * 60_000,
            b'{"t": 1, "series": "power", "device": "gpu0", "value": %s}' % (b"9" * 400),
            b'{"t": 1e308, "series": "power", "device": "gpu0", "value": 1e308}',
            b'{"t": 1, "series": "power", "device": "\\ud800", "value": 1, "state": "\\ud800"}',
        ],
    )  # fmt: skip
    def test_no_line_prevents_the_verdict(self, lease: Lease, line: bytes) -> None:
        sound = b'{"t": 1, "series": "clock", "device": "gpu0", "value": 1980}\n'
        record(lease, telemetry=gzip.compress(sound + (line + b"\n") * 700 + sound))
        (stage,) = store.reporting.run(lease.key).stages
        assert [each.values for each in stage.telemetry if each.series == "clock"] == [(1980.0, 1980.0)]

    @pytest.mark.parametrize(("cap", "value"), [("BYTES", 10_000), ("SPARE_BYTES", 10_000)])
    def test_a_bomb_is_not_unpacked_to_its_end(self, cap: str, value: int, monkeypatch: pytest.MonkeyPatch) -> None:
        packed = gzip.compress(b'{"t": 1, "series": "power", "device": "gpu0", "value": 1}\n' * 100_000)
        monkeypatch.setattr(charts, cap, value)
        assert sum(1 for _ in telemetry_rows(packed)) < 50_000

    def test_the_number_of_tracks_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        made: list[object] = []
        track = charts._Track
        monkeypatch.setattr(charts, "_Track", lambda: made.append(1) or track())
        chart_series(fleet.telemetry(2, devices=[f"cpu{index}" for index in range(5_000)]))
        assert len(made) <= 2048, "as many as a node keeps"


class TestExport:
    def test_a_run_becomes_files(self, lease: Lease, tmp_path: Path) -> None:
        telemetry = fleet.telemetry(100)
        record(lease, telemetry=telemetry)
        files = store.export.run(lease.key, tmp_path / "a" / "b")
        assert {file.name for file in files} == {
            "run.json", "measurements.parquet", "intake.result.json", "intake.telemetry.jsonl.gz",
        }  # fmt: skip
        assert (tmp_path / "a/b/intake.telemetry.jsonl.gz").read_bytes() == telemetry
        content = json.loads((tmp_path / "a/b/run.json").read_text())
        judgement = content["stages"][0]["judgement"]
        assert [each["value"] for each in judgement["observations"]] == [612.5]
        assert judgement["findings"][0]["labels"] == [["dtype", "bf16"]]
        assert content["agents"] == {"intake": "ab" * 32}
        assert content["events"][0]["reason"] == "enrolled"
        assert content["events"][0]["login"] == "os:ada"
        assert (tmp_path / "a/b/intake.result.json").read_bytes() == fleet.result(
            serials={"gpu0": "G0"}, simulated=True
        )[1]

    def test_figures_of_runs_with_and_without_limits_have_one_schema(self, lease: Lease, tmp_path: Path) -> None:
        record(lease)
        store.nodes.add(fleet.new_node("other"))
        other, judged = fleet.begin("other", "other"), fleet.judgement()
        text = dataclasses.replace(judged.observations[0], value=None, text="570", floor=None)
        store.runs.begin_stage(other.key, "intake")
        fleet.record(other.key, None, dataclasses.replace(judged, observations=(text,)))
        for each in (lease, other):
            store.export.run(each.key, tmp_path / each.run_id)
        first, second = (pq.read_schema(tmp_path / each.run_id / "measurements.parquet") for each in (lease, other))
        assert first == second

    @pytest.mark.parametrize("name", ["run.json", "measurements.parquet", "intake.result.json"])
    def test_no_file_is_replaced_and_no_link_followed(
        self, lease: Lease, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        """The folder may be the caller's, who is another user than the one that writes by the documented command."""
        record(lease)
        folder, file = tmp_path / "new", tmp_path / "kept"
        file.write_text("kept")
        run_row = access.run_row

        def meanwhile(*of: Any) -> Any:
            if folder.exists():
                (folder / name).symlink_to(file)
            return run_row(*of)

        monkeypatch.setattr(access, "run_row", meanwhile)
        with pytest.raises(MusterError):
            store.export.run(lease.key, folder)
        assert file.read_text() == "kept"

    def test_a_folder_that_cannot_be_written_is_one_sentence(self, lease: Lease, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(MusterError):
            store.export.run(lease.key, tmp_path / "file")

"""Settings, run ids, and the admission backend that only reads our records."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster import store
from muster.admission import service
from muster.cli.controller.settings import shown
from muster.errors import BadSettings
from muster.integration.runid import of_delivery, run_id, slug
from muster.model.states import State
from muster.rules.lifecycle.decisions import is_person
from muster.settings import Settings, settings
from tests.muster import fleet

AIRFLOW_RUN_ID = re.compile(r"^[A-Za-z0-9_.~:+-]+$")


class TestRunId:
    @pytest.mark.parametrize("made", [run_id, of_delivery])
    @given(reason=st.text())
    def test_whatever_the_reason_airflow_takes_the_id(self, made: Callable[[str, str], str], reason: str) -> None:
        name = made("gpu-0001", reason)
        assert AIRFLOW_RUN_ID.fullmatch(name)
        assert len(name) <= 250
        assert name == made("gpu-0001", reason)
        assert name.startswith("gpu-0001__")
        assert name != "gpu-0001__"

    def test_it_is_readable(self) -> None:
        assert run_id("gpu-0001", "New hardware, rack 12") == "gpu-0001__new-hardware-rack-12"

    def test_the_same_words_are_the_same_reason(self) -> None:
        assert slug("new hardware") == slug("  New  Hardware! ")

    def test_reasons_that_differ_beyond_what_a_slug_shows_differ(self) -> None:
        assert slug("x" * 100) != slug("x" * 101)
        assert slug("修理") != slug("交換")
        assert slug("!") != slug("?")


class TestSettings:
    def test_the_records_are_in_home_unless_set_otherwise(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MUSTER_HOME", "/somewhere")
        assert settings().records_url == "sqlite:////somewhere/muster.db"
        monkeypatch.setenv("MUSTER_DATABASE_URL", "postgresql://u@h/d")
        assert settings().records_url == "postgresql+psycopg://u@h/d"

    def test_an_empty_variable_counts_as_unset(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in Settings.model_fields:
            monkeypatch.delenv(f"MUSTER_{name.upper()}", raising=False)
        unset = settings()
        for name in Settings.model_fields:
            monkeypatch.setenv(f"MUSTER_{name.upper()}", "")
        assert settings() == unset

    def test_a_comma_alone_is_a_list_of_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert not is_person("provisioner")
        monkeypatch.setenv("MUSTER_PROGRAMS", ",")
        assert is_person("provisioner")

    @pytest.mark.parametrize("name", ["home", "archive", "topology", "certificate_key_file", "metrics_token_file"])
    def test_a_path_may_be_of_the_users_home(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        monkeypatch.setenv(f"MUSTER_{name.upper()}", "~/it")
        assert getattr(settings(), name) == Path.home() / "it"

    def test_lists_are_split(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MUSTER_MAIL_TO", "a@x.org, b@x.org,")
        monkeypatch.setenv("MUSTER_SKU_PATH", "/a:/b")
        assert settings().mail_recipients == ("a@x.org", "b@x.org")
        assert [str(folder) for folder in settings().sku_folders] == ["/a", "/b"]

    def test_a_value_that_cannot_be_used_is_one_sentence(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MUSTER_RETENTION_TELEMETRY_DAYS", "soon")
        with pytest.raises(BadSettings, match=r"MUSTER_RETENTION_TELEMETRY_DAYS='soon' cannot be used: .*; correct it"):
            settings()

    def test_nothing_secret_is_shown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MUSTER_AIRFLOW_PASSWORD", "hunter2")
        monkeypatch.setenv("MUSTER_AIRFLOW_TOKEN", "hunter2")
        monkeypatch.setenv("MUSTER_DATABASE_URL", "postgresql://muster:hunter2@db/fleet")
        values = {name: value for name, value, _ in shown(settings())}
        assert values["MUSTER_DATABASE_URL"] == "postgresql://muster:********@db/fleet"
        assert values["MUSTER_AIRFLOW_PASSWORD"] == "********"
        assert "hunter2" not in str(values) + repr(settings().airflow_token)

    def test_no_receiver_is_shown_with_its_path(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A chat's webhook is a secret in an address; so is what stands in a header."""
        sink = {"kind": "http", "url": "https://ada:hunter2@hooks.example.org/T0/hunter2?key=hunter2"}
        monkeypatch.setenv("MUSTER_AUDIT_SINKS", json.dumps({"chat": sink}))
        rule = {"name": "r", "notifier": "x.Y", "arguments": {"slack_conn_id": "c", "token": "hunter2"}}
        monkeypatch.setenv("MUSTER_MAIL_RULES", json.dumps([rule]))
        values = {name: value for name, value, _ in shown(settings())}
        assert "https://hooks.example.org/…" in values["MUSTER_AUDIT_SINKS"].encode().decode("unicode_escape")
        assert "hunter2" not in str(values)

    @pytest.mark.parametrize("given", ['{"alpha": {"kind": "slurm"', '{"alpha": "hunter2"}', '"hunter2"', "[hunter2]"])
    def test_a_setting_that_is_no_json_is_one_sentence_without_its_value(
        self, monkeypatch: pytest.MonkeyPatch, given: str
    ) -> None:
        monkeypatch.setenv("MUSTER_SCHEDULERS", given)
        with pytest.raises(BadSettings) as refused:
            settings()
        assert "MUSTER_SCHEDULERS" in str(refused.value)
        assert "hunter2" not in str(refused.value)

    @pytest.mark.parametrize("name", ["MUSTER_HOME", "MUSTER_TOPOLOGY", "MUSTER_SKU_PATH"])
    def test_a_path_in_the_home_of_no_login_is_refused(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        monkeypatch.setenv(name, "~no-such-login/x")
        with pytest.raises(BadSettings) as refused:
            settings()
        assert name in str(refused.value)

    def test_each_folder_of_a_path_may_be_in_ones_home(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", "/home/ada")
        monkeypatch.setenv("MUSTER_SKU_PATH", "~/one::~/two")
        assert settings().sku_folders == (Path("/home/ada/one"), Path("/home/ada/two"))

    def test_every_setting_says_what_it_is(self) -> None:
        assert all(description for _, _, description in shown(settings()))


@pytest.mark.usefixtures("sqlite_db")
def test_without_a_scheduler_only_production_counts_as_allocated() -> None:
    store.nodes.add(fleet.new_node())
    assert service.allocation("gpu-0001") == ""
    fleet.qualify()
    store.nodes.move("gpu-0001", State.PRODUCTION, "Ada", "needed now")
    assert service.allocation("gpu-0001")

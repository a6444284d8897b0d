"""The Helm values: every name in them is one that the chart, Airflow or Muster knows, and the tested ones are there.

The chart's schema has 650 kB and is not shipped: ``CHART`` declares, for the parts that the values use, what
``chart/values.schema.json`` of github.com/apache/airflow declares (read at commit 002e553, with ``values.yaml`` at
commit d6ba481; ``createUserJob.defaultUser`` is that of chart 1.19 and later). With the chart, ``helm template`` checks
the values against the whole schema, and so does this test if AIRFLOW_CHART_SCHEMA names that file.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from muster.settings import Settings
from tests.support import airflow_home
from tests.support.servers.celery_airflow import SETTINGS, TRIGGERERS, WORKERS

FILE = airflow_home.ROOT / "plugins" / "muster" / "deploy" / "values.yaml"
NAMED = {"type": "object", "required": ["name"]}
TEXT = {"type": "string"}
COUNT = {"type": "integer"}
FLAG = {"type": "boolean"}


def closed(**properties: Any) -> dict[str, Any]:
    """An object with these properties and no others."""
    return {"type": "object", "properties": properties, "additionalProperties": False}


CHART = closed(
    airflowVersion=TEXT,
    images=closed(airflow=closed(repository=TEXT, tag=TEXT)),
    executor=TEXT,
    workers=closed(replicas=COUNT, terminationGracePeriodSeconds=COUNT),
    triggerer=closed(replicas=COUNT),
    migrateDatabaseJob=closed(args={"type": "array", "items": TEXT}),
    databaseCleanup=closed(enabled=FLAG, retentionDays=COUNT, skipArchive=FLAG),
    createUserJob=closed(defaultUser=closed(enabled=FLAG)),
    apiServer=closed(
        env={"type": "array", "items": closed(name=TEXT, value=TEXT)},
        args={"type": "array", "items": TEXT},
        extraVolumes={"type": "array", "items": closed(name=TEXT, secret=closed(secretName=TEXT, defaultMode=COUNT))},
        extraVolumeMounts={"type": "array", "items": closed(name=TEXT, mountPath=TEXT, readOnly=FLAG)},
    ),
    logs=closed(persistence=closed(enabled=FLAG)),
    postgresql=closed(enabled=FLAG),
    redis=closed(enabled=FLAG),
    data=closed(metadataSecretName=TEXT, brokerUrlSecretName=TEXT),
    fernetKeySecretName=TEXT,
    apiSecretKeySecretName=TEXT,
    jwtSecretName=TEXT,
    # Goes into airflow.cfg: words like "True" are quoted in the chart's own values.
    config={"type": "object", "additionalProperties": {"additionalProperties": {"type": ["string", "integer"]}}},
    env={"type": "array", "items": closed(name=TEXT, value=TEXT) | {"required": ["name", "value"]}},
    secret={
        "type": "array",
        "items": closed(envName=TEXT, secretName=TEXT, secretKey=TEXT) | {"required": ["envName", "secretName"]},
    },
    volumes={
        "type": "array",
        "items": closed(
            name=TEXT,
            secret=closed(secretName=TEXT, defaultMode=COUNT),
            persistentVolumeClaim=closed(claimName=TEXT),
        ),
    },
    volumeMounts={"type": "array", "items": closed(name=TEXT, mountPath=TEXT, readOnly=FLAG)},
)


@pytest.fixture(scope="module")
def values() -> dict[str, Any]:
    loaded = yaml.safe_load(FILE.read_text())
    assert isinstance(loaded, dict)
    return loaded


def test_the_chart_knows_every_value(values: dict[str, Any]) -> None:
    jsonschema.validate(values, CHART)
    if schema := os.environ.get("AIRFLOW_CHART_SCHEMA"):
        jsonschema.validate(values, json.loads(Path(schema).read_text()))


def test_a_value_that_the_chart_does_not_know_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**values, "replicas": 2}, CHART)
    workers = {**values["workers"], "replica": 2}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**values, "workers": workers}, CHART)


def test_airflow_knows_every_option(values: dict[str, Any]) -> None:
    from airflow.configuration import conf

    for section, options in values["config"].items():
        assert set(options) <= set(conf.configuration_description[section]["options"]), section


def test_muster_knows_every_variable(values: dict[str, Any]) -> None:
    names = {each["name"] for each in (*values["env"], *values["apiServer"]["env"])}
    names |= {each["envName"] for each in values["secret"]}
    known = {f"MUSTER_{name.upper()}" for name in Settings.model_fields}
    assert {name for name in names if name.startswith("MUSTER_")} <= known
    connections = {name for name in names if not name.startswith("MUSTER_")} - {"FORWARDED_ALLOW_IPS"}
    settings = {each["name"]: each["value"] for each in values["env"]}
    assert connections == {f"AIRFLOW_CONN_{settings[f'MUSTER_{which}_CONN_ID'].upper()}" for which in ("SSH", "SMTP")}


def test_keys_and_reports_are_where_muster_looks_for_them(values: dict[str, Any]) -> None:
    settings = {each["name"]: each["value"] for each in values["env"]}
    names = {Path(each["mountPath"]): each["name"] for each in values["volumeMounts"]}
    volumes = {each["name"]: each for each in values["volumes"]}
    assert sorted(names.values()) == sorted(volumes)
    ssh = json.loads(settings["AIRFLOW_CONN_MUSTER_SSH"])["extra"]["key_file"]
    for key in map(Path, (ssh, settings["MUSTER_CERTIFICATE_KEY_FILE"])):
        secret = volumes[names[key.parent]]["secret"]["secretName"]
        assert f"{secret} --from-file={key.name}" in FILE.read_text()
    assert "persistentVolumeClaim" in volumes[names[Path(settings["MUSTER_ARCHIVE"])]]


def test_the_api_server_alone_has_the_token_of_the_metrics(values: dict[str, Any]) -> None:
    server = values["apiServer"]
    (setting,) = (each for each in server["env"] if each["name"].startswith("MUSTER_"))
    (mount,) = (
        each for each in server["extraVolumeMounts"] if Path(each["mountPath"]) == Path(setting["value"]).parent
    )
    (volume,) = (each["secret"] for each in server["extraVolumes"] if each["name"] == mount["name"])
    made = f"{volume['secretName']} --from-literal={Path(setting['value']).name}="
    assert (setting["name"], made in FILE.read_text()) == ("MUSTER_METRICS_TOKEN_FILE", True)


def test_the_image_is_of_this_version_and_one_address_leads_to_it(values: dict[str, Any]) -> None:
    version = tomllib.loads((airflow_home.ROOT / "pyproject.toml").read_text())["project"]["version"]
    settings = {each["name"]: each["value"] for each in values["env"]}
    assert values["images"]["airflow"]["tag"] == version
    assert settings["MUSTER_AIRFLOW_URL"] == values["config"]["api"]["base_url"]


def test_both_databases_are_migrated(values: dict[str, Any]) -> None:
    """Airflow's migration is last: the chart's pods wait for it."""
    assert values["migrateDatabaseJob"]["args"][-1].split(" && ") == ["muster db upgrade", "exec airflow db migrate"]


def test_the_users_are_those_of_the_values(values: dict[str, Any]) -> None:
    """The chart's own values name FAB's auth manager, and make an account admin with the password admin."""
    from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

    core, server = values["config"]["core"], values["apiServer"]
    assert core["auth_manager"] == f"{SimpleAuthManager.__module__}.{SimpleAuthManager.__name__}"
    assert values["createUserJob"]["defaultUser"]["enabled"] is False
    logins = [user.partition(":")[0] for user in core["simple_auth_manager_users"].split(",")]
    assert {each["value"] for each in values["env"] if each["name"] == "MUSTER_AIRFLOW_USERNAME"} <= set(logins)
    (folder,) = (each["mountPath"] for each in server["extraVolumeMounts"] if each["name"] == "muster-users")
    copied = f"{folder}/passwords.json {core['simple_auth_manager_passwords_file']} "
    assert copied in server["args"][-1]
    assert server["args"][-1].endswith("exec airflow api-server --proxy-headers")
    variables = {each["name"] for each in server["env"]}
    assert "FORWARDED_ALLOW_IPS" in variables
    (passwords,) = re.findall(r"passwords\.json: (\{.*\})", FILE.read_text())
    assert sorted(json.loads(passwords)) == sorted(logins)


def test_how_to_make_every_secret_is_stated(values: dict[str, Any]) -> None:
    text = FILE.read_text()
    wanted = {each["secretName"] for each in values["secret"]} | {
        each["secret"]["secretName"]
        for each in (*values["volumes"], *values["apiServer"]["extraVolumes"])
        if "secret" in each
    }
    wanted |= set(values["data"].values())
    wanted |= {values[name] for name in ("fernetKeySecretName", "apiSecretKeySecretName", "jwtSecretName")}
    for name in wanted:
        assert f"kubectl create secret generic {name} " in text
    for each in values["secret"]:
        assert f"--from-literal={each['secretKey']}=" in text


def test_what_was_tested_is_what_is_deployed(values: dict[str, Any]) -> None:
    """The deployment sets whatever the tested stack sets; only how long and how many is the fleet's own choice."""
    env = {each["name"] for each in values["env"]}
    deployed = {
        f"AIRFLOW__{section.upper()}__{option.upper()}"
        for section, options in values["config"].items()
        for option in options
    }
    hurried = {  # how often the scheduler looks, which the defaults of 10 s and 120 s do well for a fleet
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL",
        "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT_CHECK_INTERVAL",
    }
    tested = {*SETTINGS, "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL"}
    assert tested - hurried <= deployed | env | {"AIRFLOW__CORE__EXECUTOR"}
    assert values["executor"] == SETTINGS["AIRFLOW__CORE__EXECUTOR"]
    assert values["triggerer"]["replicas"] == len(TRIGGERERS)
    assert values["workers"]["replicas"] == len(WORKERS)


def test_no_more_tasks_are_under_way_than_workers_run(values: dict[str, Any]) -> None:
    config = values["config"]
    assert config["core"]["parallelism"] <= values["workers"]["replicas"] * config["celery"]["worker_concurrency"]

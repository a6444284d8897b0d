"""What is shown of a text that may hold a secret."""

from __future__ import annotations

from typing import Any

import pytest

from muster import redaction, store
from muster.cli.controller.settings import shown
from muster.settings import settings
from tests.muster import fleet

MASK = redaction.MASK


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("postgresql://muster:s3cr#t@db.example/muster", "postgresql://db.example/…"),
        ("postgresql://muster:s3cr/t?@db.example:5432/muster", "postgresql://db.example:5432/…"),
        ("postgresql://muster:s3@r#t@db.example/muster", "postgresql://db.example/…"),
        ("https://ada:pw@hooks.example/T0/k", "https://hooks.example/…"),
        ("https://hooks.example/T0/x@y/z", "https://hooks.example/…"),
        ("https://ada:p#w@hooks.example/T0", "https://…"),
        ("http://proxy.example:3128", "http://proxy.example:3128"),
    ],
)
def test_an_address_keeps_its_place_alone(address: str, expected: str) -> None:
    assert redaction.of_text(f"cannot connect to {address} now") == f"cannot connect to {expected} now"


def test_of_a_path_without_its_host_nothing_is_shown() -> None:
    """As urllib3 and requests name the address that they could not reach, also within JSON."""
    pool, why = "HTTPSConnectionPool(host='hooks.example', port=443): Max retries exceeded", "(Caused by TimeoutError)"
    assert redaction.of_text(f"{pool} with url: /T0/it's?k=1 {why}") == f"{pool} with url: /… {why}"
    assert redaction.of_text('["with url: /T0/k","node n1"]') == '["with url: /…","node n1"]'


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["-e", "NGC_API_KEY=s3cret"], ["-e", f"NGC_API_KEY={MASK}"]),
        (["--env=HF_TOKEN=s3cret"], [f"--env=HF_TOKEN={MASK}"]),
        (["--env HF_TOKEN=s3cret"], [f"--env HF_TOKEN={MASK}"]),
        (["-eHF_TOKEN=s3cret"], [f"-eHF_TOKEN={MASK}"]),
        (["--api-key=s3cret"], [f"--api-key={MASK}"]),
        (["--api-key", "s3cret", "image"], ["--api-key", MASK, "image"]),
        (["--registry-auth", "s3cret"], ["--registry-auth", MASK]),
        (["bash", "-c", "export HF_TOKEN=s3cret; run"], ["bash", "-c", f"export HF_TOKEN={MASK} run"]),
        (["--mount", "type=bind,source=/etc"], ["--mount", "type=bind,source=/etc"]),
        (["--security-opt", "seccomp=unconfined", "--label=rack=r1"],) * 2,
        (["--shm-size=8g", "--net=host", "-v", "/a:/b"], ["--shm-size=8g", "--net=host", "-v", "/a:/b"]),
    ],
)
@pytest.mark.usefixtures("sqlite_db")
def test_the_history_holds_no_secret_of_a_containers_options(options: list[str], expected: list[str]) -> None:
    assert redaction.of_value({"options": options}) == {"options": expected}
    launch = {"kind": "podman", "image": "torch"}
    store.nodes.add(fleet.new_node(launch=launch))
    store.nodes.add(fleet.new_node(launch={**launch, "options": options}))
    event = store.nodes.events("gpu-0001")[-1]
    assert "s3cret" not in f"{event.reason} {event.evidence}"


@pytest.mark.parametrize(
    "name",
    [
        "secret_key",
        "routing_key",
        "integration_key",
        "bearerToken",
        "apiKey",
        "clientSecret",
        "passwd",
        "tokens",
        "aws_access_key_id",
    ],
)
def test_the_name_of_a_secret_masks_its_value(name: str) -> None:
    assert redaction.of_value({name: "s3cret"}) == {name: MASK}


@pytest.mark.parametrize(
    "name", ["host_key", "hostKey", "public_key", "pubkey", "key_file", "attempts", "keyboard", "conn_id"]
)
def test_other_names_mask_nothing(name: str) -> None:
    given: dict[str, Any] = {name: "shown", "list": [{name: "shown"}]}
    assert redaction.of_value(given) == given


def test_a_password_in_the_query_of_the_records_address_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_DATABASE_URL", "postgresql://db/fleet?user=muster&password=s3cret")
    values = {name: value for name, value, _ in shown(settings())}
    assert values["MUSTER_DATABASE_URL"] == f"postgresql://db/fleet?user=muster&password={MASK}"

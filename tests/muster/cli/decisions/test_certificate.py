"""``muster certificate``: verified with the public key and nothing else of Muster's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import inspect, select

from muster import store
from muster.model.states import State
from muster.rules.lifecycle import certificate
from muster.store.database.decisions import CertificateRow
from muster.store.database.engine import writing
from tests.muster import fleet
from tests.support import lives

Muster = Callable[..., "tuple[int, str, str]"]


def test_a_certificate_is_verified_by_the_public_key_alone(
    muster: Muster, sqlite_db: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.nodes.add(fleet.new_node("a"))
    assert muster("certificate", "show", "a")[0] == 1
    lives.in_production("a")
    document, public = tmp_path / "a.json", tmp_path / "key.pub"
    document.write_text(muster("certificate", "show", "a")[1])
    public.write_text(muster("certificate", "key")[1])
    store.engine.dispose()
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path / "elsewhere"))
    status, out, _ = muster("certificate", "verify", str(document), "--key", str(public), "--json")
    assert (status, json.loads(out)["node"]) == (0, "a")
    assert json.loads(out)["revocation"].startswith("not asked"), "there are no records here"
    document.write_text(document.read_text().replace('"node": "a"', '"node": "b"'))
    assert muster("certificate", "verify", str(document), "--key", str(public))[0] == 1
    for missing in ((str(tmp_path / "x"), str(public)), (str(document), str(tmp_path / "x"))):
        assert muster("certificate", "verify", missing[0], "--key", missing[1])[0] == 1


def test_one_of_an_earlier_key_is_verified_by_records_that_were_restored(
    muster: Muster, sqlite_db: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.nodes.add(fleet.new_node("a"))
    lives.in_production("a")
    document, public = tmp_path / "a.json", tmp_path / "key.pub"
    document.write_text(muster("certificate", "show", "a")[1])
    store.signing.key_path().unlink()
    store.signing.replace_key("Ada", "it was lost")
    store.backup.save(tmp_path / "saved")
    store.engine.dispose()
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path / "elsewhere"))
    store.backup.restore(tmp_path / "saved")
    public.write_text(muster("certificate", "key")[1])
    assert muster("certificate", "verify", str(document), "--key", str(public))[0] == 1
    assert muster("certificate", "verify", str(document))[0] == 0
    document.write_text(document.read_text().replace('"node": "a"', '"node": "b"'))
    assert muster("certificate", "verify", str(document))[0] == 1
    document.write_text("{}")
    assert muster("certificate", "verify", str(document))[0] == 1


@pytest.mark.parametrize(
    ("change", "by_key"),
    [({"node": "b"}, 1), ({"simulated": 0}, 1), ({"node": "b", "id": "another"}, 0)],
    ids=["another node", "equal to Python", "another id"],
)
def test_what_a_stolen_key_signed_is_not_valid_where_the_records_are(
    change: dict[str, object], by_key: int, muster: Muster, sqlite_db: str, tmp_path: Path
) -> None:
    store.nodes.add(fleet.new_node("a"))
    lives.in_production("a")
    issued = json.loads(muster("certificate", "show", "a")[1])
    stolen = store.signing.signing_key(create=False)
    store.signing.key_path().unlink()
    store.signing.replace_key("Ada", "it was stolen")
    document, public = tmp_path / "a.json", tmp_path / "key.pub"
    public.write_text(store.signing.public_text(stolen))
    document.write_text(json.dumps(issued))
    assert muster("certificate", "verify", str(document))[0] == 0
    document.write_text(certificate.sign(issued["certificate"] | change, stolen))
    assert muster("certificate", "verify", str(document))[0] == 1
    assert muster("certificate", "verify", str(document), "--key", str(public))[0] == by_key


@pytest.mark.parametrize("simulated", [True, False])
def test_the_first_line_says_that_a_node_is_simulated(
    simulated: bool, muster: Muster, sqlite_db: str, tmp_path: Path
) -> None:
    store.nodes.add(fleet.new_node("a", simulated=simulated))
    lives.in_production("a")
    document, public = tmp_path / "a.json", tmp_path / "key.pub"
    document.write_text(muster("certificate", "show", "a")[1])
    public.write_text(muster("certificate", "key")[1])
    status, out, _ = muster("certificate", "verify", str(document), "--key", str(public))
    assert (status, "simulated" in out.splitlines()[0]) == (0, simulated)


def test_where_the_records_are_a_revoked_certificate_is_not_valid(
    muster: Muster, sqlite_db: str, tmp_path: Path
) -> None:
    store.nodes.add(fleet.new_node("a"))
    lives.in_production("a")
    document, public = tmp_path / "a.json", tmp_path / "key.pub"
    document.write_text(muster("certificate", "show", "a")[1])
    public.write_text(muster("certificate", "key")[1])
    verify = ("certificate", "verify", str(document), "--key", str(public), "--json")
    status, out, _ = muster(*verify)
    assert (status, json.loads(out)["revocation"].split(",")[0]) == (0, "no")
    store.nodes.move("a", State.QUARANTINE, "Ada", "smoke")
    status, out, _ = muster(*verify)
    assert (status, set(json.loads(out))) == (1, {"error", "kind"})
    with writing() as session:
        old = session.scalars(select(CertificateRow)).one()
        columns = {each.key: getattr(old, each.key) for each in inspect(CertificateRow).columns}
        session.add_all(CertificateRow(**columns | {"id": f"c{n}", "number": n}) for n in range(2, 103))
    assert muster(*verify)[0] == 1

"""Inventories: what is read, and one sentence for each line that cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from muster.enrolment import inventory
from muster.errors import BadInventory, MusterError
from tests.muster import fleet

SKUS = ("cpu-generic", "h100-sxm-8")

GOOD_YAML = """
nodes:
  - name: gpu-0001
    host: 10.0.0.1
    sku: h100-sxm-8
    port: 2222
    rack: 12
    labels: {team: training, row: 3}
    launch: {kind: venv, path: /opt/venv}
  - {name: gpu-0002, host: 10.0.0.2, sku: cpu-generic}
"""

GOOD_CSV = """\
name,host,sku,port,rack,labels,launch
gpu-0001,10.0.0.1,h100-sxm-8,2222,12,team=training;row=3,"{""kind"": ""venv"", ""path"": ""/opt/venv""}"

gpu-0002, 10.0.0.2, cpu-generic,,,,
"""


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(("name", "text"), [("fleet.yaml", GOOD_YAML), ("fleet.csv", GOOD_CSV)])
def test_yaml_and_csv_say_the_same(tmp_path: Path, name: str, text: str) -> None:
    first, second = (node for _, node in inventory.load(written(tmp_path, name, text), SKUS))
    assert (first.name, first.host, first.port, first.rack) == ("gpu-0001", "10.0.0.1", 2222, "12")
    assert first.labels == {"team": "training", "row": "3"}
    assert first.launch == {"kind": "venv", "path": "/opt/venv"}
    assert (second.name, second.host, second.port, second.launch) == ("gpu-0002", "10.0.0.2", 22, {})


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{name: a, host: h, sku: cpu-generi}", "unknown SKU 'cpu-generi'; did you mean 'cpu-generic'?"),
        ("{name: a, host: h}", "sku is missing; give one of those in `muster sku list`"),
        ("{name: a__b, host: h, sku: cpu-generic}", "name 'a__b' cannot be used; use up to 63 letters"),
        ("{name: a, host: root@h, sku: cpu-generic}", "host 'root@h' cannot be used; give a host name or an address"),
        ("{name: a, host: h, sku: cpu-generic, port: 0}", "port 0 cannot be used; give a number from 1 to 65535"),
        ("{name: a, host: h, sku: cpu-generic, port: ssh}", "port 'ssh' cannot be used"),
        ("{name: a, host: h, sku: cpu-generic, rak: 1}", "unknown key 'rak'; did you mean 'rack'?"),
        ("{name: a, host: h, sku: cpu-generic, host_key: x}", "host_key 'x' cannot be used; give 'TYPE BASE64'"),
        ("{name: a, host: h, sku: cpu-generic, launch: {kind: vm}}", "the node's launch settings cannot be used"),
        ("{name: a, host: h, sku: cpu-generic, labels: [x]}", "labels ['x'] cannot be used; give names with texts"),
        ("{name: a, name: b, host: h, sku: cpu-generic}", "name is given twice; keep one"),
        ("just a host", "this is no node; write `- name: …` with host and sku"),
        ("{name: !!python/object:os.system x, host: h}", "this cannot be used"),
    ],
)
def test_a_bad_line_is_one_sentence_with_its_place(tmp_path: Path, line: str, sentence: str) -> None:
    path = written(tmp_path, "fleet.yaml", f"nodes:\n  - {{name: good, host: g, sku: cpu-generic}}\n  - {line}\n")
    with pytest.raises(BadInventory) as refused:
        inventory.load(path, SKUS)
    (problem,) = refused.value.problems
    assert problem.startswith(f"{path}:3: {sentence}")


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("f.yaml", "nodes: [", ":1: this is not YAML"),
        ("f.yaml", "- name: a", ":1: there is no list `nodes`"),
        ("f.yaml", "nodes: []", ":1: there are no nodes in it"),
        ("f.csv", "name,host,sku\n", ":1: there are no nodes in it"),
        ("f.csv", f"name,host,sku\na,{'h' * 200_000},cpu-generic\n", ":1: this is not CSV"),
        ("f.csv", "name,host,sku,user\na,h,cpu-generic,-oProxyCommand=id\n", ":2: user '-oProxyCommand=id'"),
        ("f.yaml", 'nodes: [{name: a, host: h, sku: cpu-generic, rack: "r\\e[2J"}]', ":1: rack has control"),
        ("f.csv", "name,host,sku\na,h,cpu-generic,surplus\n", ":2: there are more cells than the header names"),
        ("f.csv", "name,host,sku,labels\na,h,cpu-generic,team\n", ":2: labels 'team' cannot be read"),
        ("f.csv", "name,host,sku,launch\na,h,cpu-generic,{bad\n", ":2: launch '{bad' is not JSON"),
    ],
)
def test_a_bad_file_is_one_sentence(tmp_path: Path, name: str, text: str, sentence: str) -> None:
    with pytest.raises(BadInventory) as refused:
        inventory.load(written(tmp_path, name, text), SKUS)
    assert sentence in refused.value.problems[0]
    assert len(refused.value.problems) == 1


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(MusterError, match="cannot be read: No such file"):
        inventory.load(tmp_path / "none.yaml")


def test_a_cell_that_cannot_be_read_hides_no_other_problem_of_its_line(tmp_path: Path) -> None:
    text = "name,host,sku,port,labels,launch\na,h,nope,99999,team,{bad\n"
    with pytest.raises(BadInventory) as refused:
        inventory.load(written(tmp_path, "f.csv", text), SKUS)
    assert {problem.split(" ")[1] for problem in refused.value.problems} == {"labels", "launch", "port", "unknown"}


def test_a_line_that_cannot_be_used_hides_no_repeated_name(tmp_path: Path) -> None:
    with pytest.raises(BadInventory) as refused:
        inventory.load(written(tmp_path, "f.csv", "name,host,sku,port\na,h,cpu-generic,\na,g,cpu-generic,0\n"), SKUS)
    assert {problem.split(" ")[1] for problem in refused.value.problems} == {"port", "the"}


def test_all_bad_lines_are_reported_at_once_in_their_order(tmp_path: Path) -> None:
    lines = [f"n{number},h{number},{'nope' if number % 2 else 'cpu-generic'}" for number in range(10)]
    with pytest.raises(BadInventory) as refused:
        inventory.load(written(tmp_path, "f.csv", "name,host,sku\n" + "\n".join(lines)), SKUS)
    assert [int(problem.split(":")[1]) for problem in refused.value.problems] == [3, 5, 7, 9, 11]


@pytest.mark.parametrize(
    ("second", "what"),
    [
        ("a,other,cpu-generic,", "the name a is already at"),
        ("b,h,cpu-generic,", "the address h:22 is already at"),
        (f"b,other,cpu-generic,{fleet.host_key('x')}", "the host key ssh-ed25519"),
    ],
)
def test_a_node_that_stands_there_twice_is_refused(tmp_path: Path, second: str, what: str) -> None:
    text = f"name,host,sku,host_key\na,h,cpu-generic,{fleet.host_key('x')}\n{second}\n"
    with pytest.raises(BadInventory, match=f":3: {what}"):
        inventory.load(written(tmp_path, "f.csv", text), SKUS)


def test_host_keys_are_scanned_where_none_is_given(tmp_path: Path) -> None:
    def scan(host: str, port: int) -> str:
        if host == "down":
            raise MusterError(f"{host}:{port} cannot be reached")
        return fleet.host_key(host)

    text = f"name,host,sku,host_key\na,up,cpu-generic,\nb,down,cpu-generic,{fleet.host_key('b')}\n"
    pinned = inventory.pin(inventory.load(written(tmp_path, "f.csv", text), SKUS), scan)
    assert [node.host_key for _, node in pinned] == [fleet.host_key("up"), fleet.host_key("b")]
    path = written(tmp_path, "g.csv", "name,host,sku\na,up,cpu-generic\nb,down,cpu-generic\n")
    with pytest.raises(BadInventory) as refused:
        inventory.pin(inventory.load(path, SKUS), scan)
    assert refused.value.problems == (f"{path}:3: down:22 cannot be reached",)


def test_a_bmc_is_read_from_yaml_and_from_csv_alike(tmp_path: Path) -> None:
    bmc = {"url": "https://10.0.1.1", "user": "root", "password_env": "MUSTER_BMC_PASSWORD", "verify": False}
    line = "{name: a, host: 10.0.0.1, sku: cpu-generic, bmc: {url: https://10.0.1.1, user: root, "
    yaml = f"nodes:\n  - {line}password_env: MUSTER_BMC_PASSWORD, verify: false}}}}\n"
    csv = 'name,host,sku,bmc\na,10.0.0.1,cpu-generic,"{}"\n'.format(json.dumps(bmc).replace('"', '""'))
    for name, text in (("fleet.yaml", yaml), ("fleet.csv", csv)):
        ((_, node),) = inventory.load(written(tmp_path, name, text))
        assert node.pinned(fleet.host_key("a")).bmc == bmc


@pytest.mark.parametrize(
    ("bmc", "sentence"),
    [
        ('{"url": "https://root:calvin@b"}', "secrets are not kept here"),
        ('{"url": "https://b", "password": "calvin"}', "password: Extra inputs are not permitted"),
        ('{"url": "https://b", "user": "u", "password_env": "HOME"}', "begins with MUSTER_BMC_"),
        ("https://b", "is not JSON"),
        ("[1]", "give its url"),
    ],
)
def test_a_bmc_that_cannot_be_asked_is_refused_without_repeating_a_secret(bmc: str, sentence: str) -> None:
    with pytest.raises(BadInventory, match=sentence) as refused:
        inventory.one({"name": "a", "host": "10.0.0.1", "sku": "cpu-generic", "bmc": bmc})
    assert "calvin" not in str(refused.value)

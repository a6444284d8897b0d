"""Inventories: what is read, and one sentence for each line that cannot be."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from muster import ownership
from muster.enrolment import inventory
from muster.errors import BadInventory, MusterError
from tests.muster import fleet
from tests.support.wording import refused

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
    "change",
    [
        lambda text: f"\ufeff{text}".replace("\n", "\r\n"),
        lambda text: text.replace("gpu-0001,10.0.0.1,h100-sxm-8", '"gpu-0001";10.0.0.1;h100-sxm-8 ').replace(",", ";"),
        lambda text: text.replace(",", "\t"),
        lambda text: f"\n# the fleet, in one file\n{text.replace('name,host,sku', 'Name,Host,SKU')}",
        lambda text: f"sep=;\n{text}".replace(",", ";"),
        lambda text: text.replace("gpu-0001,10.0.0.1", '"gpu-0001" ,"10.0.0.1"  ').replace("22\n", '"22" \n'),
        lambda text: text.replace("port\n", "port,notes\n").replace("22\n", "22,\n"),
    ],
    ids=[
        "byte order mark and ends of lines",
        "semicolons",
        "tabs",
        "comments and capitals",
        "separator of Excel",
        "blanks after quotes",
        "an empty column of their own",
    ],
)
def test_what_spreadsheets_write_is_csv(tmp_path: Path, change: Callable[[str], str]) -> None:
    text = "name,host,sku,port\ngpu-0001,10.0.0.1,h100-sxm-8,22\ngpu-0002,10.0.0.2,cpu-generic,\n"
    first, second = inventory.load(written(tmp_path, "fleet.csv", text), SKUS)
    found = inventory.load(written(tmp_path, "fleet.csv", change(text)), SKUS)
    assert [node for _, node in found] == [first[1], second[1]]


@pytest.mark.parametrize("rack", ["#12", "sep=;"])
def test_below_the_header_no_line_is_a_comment(tmp_path: Path, rack: str) -> None:
    text = f"rack,name,host,sku\n{rack},a,h,cpu-generic\nR2,b,g,cpu-generic\n"
    found = inventory.load(written(tmp_path, "f.csv", text), SKUS)
    assert [(node.name, node.rack) for _, node in found] == [("a", rack), ("b", "R2")]


def test_a_file_in_another_is_refused_at_its_line(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    path.write_bytes("name,host,sku,rack\na,h,cpu-generic,Süd\n".encode("latin-1"))
    with pytest.raises(MusterError, match=f"^{path}:2: "):
        inventory.load(path, SKUS)


BAD_LINES = (
    "{name: a, host: h, sku: cpu-generi}",
    "{name: a, host: h}",
    "{name: a__b, host: h, sku: cpu-generic}",
    "{name: a, host: root@h, sku: cpu-generic}",
    "{name: a, host: h, sku: cpu-generic, port: 0}",
    "{name: a, host: h, sku: cpu-generic, port: ssh}",
    "{name: a, host: h, sku: cpu-generic, rak: 1}",
    f"{{name: a, host: h, sku: cpu-generic, pool: {'p' * 257}}}",
    "{name: a, host: h, sku: cpu-generic, host_key: x}",
    "{name: a, host: h, sku: cpu-generic, launch: {kind: vm}}",
    "{name: a, host: h, sku: cpu-generic, labels: [x]}",
    "{name: a, name: b, host: h, sku: cpu-generic}",
    "just a host",
    "{name: !!python/object:os.system x, host: h}",
    "{name: a, host: h, sku: cpu-generic, labels: {spare: true}}",
    "{{ x }}: 1",
    "[a, b]: 1",
    "{name: a, host: h, sku: cpu-generic, labels: {[a, b]: c}}",
    "{name: a, host: h, sku: cpu-generic, launch: {kind: 0b_}}",
    "{name: a, host: h, sku: cpu-generic, bmc: {verify: !!bool x}}",
    "{name: a, host: h, sku: cpu-generic, simulated: !!int ''}",
    "{name: a, host: h, sku: cpu-generic, bmc: {url: !!timestamp x}}",
    "{name: a, host: h, sku: cpu-generic, bmc: {url: 2026-13-45}}",
)
BAD_FILES = (
    ("f.yaml", "nodes: [", 1),
    ("f.yaml", "- name: a", 1),
    ("f.yaml", "nodes: []", 1),
    ("f.csv", "name,host,sku\n", 1),
    ("f.csv", f"name,host,sku\na,{'h' * 200_000},cpu-generic\n", 2),
    ("f.csv", "name,host,sku,user\na,h,cpu-generic,-oProxyCommand=id\n", 2),
    ("f.yaml", 'nodes: [{name: a, host: h, sku: cpu-generic, rack: "r\\e[2J"}]', 1),
    ("f.csv", "name,host,sku\na,h,cpu-generic,surplus\n", 2),
    ("f.csv", "name,host,sku,labels\na,h,cpu-generic,team\n", 2),
    ("f.csv", "name,host,sku,launch\na,h,cpu-generic,{bad\n", 2),
    ("f.csv", "name,hostname,sku\na,h,cpu-generic\nb,g,cpu-generic\n", 1),
    ("f.csv", "name,host\na,h\nb,g\n", 1),
    ("f.csv", "name,host,sku,notes\na,h,cpu-generic,\nb,g,cpu-generic,spare\nc,f,cpu-generic,spare\n", 3),
    ("f.csv", "name,host,sku\na,h,cpu-generic\n#gpu-0003,10.0.0.3,cpu-generic\n", 3),
    ("f.csv", "rack,name,host,sku\n1,a,h,cpu-generic\n# rack 2\n", 3),
    ("f.csv", 'name,host,sku,rack\na,h,cpu-generic,"R1\nb,g,cpu-generic,"R2"\n', 2),
    ("f.csv", 'name,host,sku\na,h,cpu-generic\n"b,g,cpu-generic\nc,f,cpu-generic\n', 3),
    ("f.csv", 'name,host,sku,launch\na,h,cpu-generic,{"kind": "venv", "path": "/opt"}\n', 2),
    ("f.yaml", "nodes:\n\t- name: a\n", 2),
)
SECOND_NODES = ("a,other,cpu-generic,", "b,h,cpu-generic,", f"b,other,cpu-generic,{fleet.host_key('x')}")
BAD_BMCS = (
    '{"url": "https://root:calvin@b"}',
    '{"url": "https://b", "password": "calvin"}',
    '{"url": "https://b", "user": "u", "password_env": "HOME"}',
    "https://b",
    "[1]",
)


def problem_of(path: Path) -> str:
    """The one problem for which the inventory is refused."""
    with pytest.raises(BadInventory) as refused:
        inventory.load(path, SKUS)
    (problem,) = refused.value.problems
    return problem


def test_wording_of_an_inventory_that_cannot_be_used(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """Each bad line or file is one sentence, which begins with its place."""
    files = [
        ("fleet.yaml", f"nodes:\n  - {{name: g, host: g, sku: cpu-generic}}\n  - {line}\n", 3) for line in BAD_LINES
    ]
    files += BAD_FILES
    header = f"name,host,sku,host_key\na,h,cpu-generic,{fleet.host_key('x')}\n"
    files += [("f.csv", f"{header}{second}\n", 3) for second in SECOND_NODES]
    problems = []
    for name, text, line in files:
        path = written(tmp_path, name, text)
        problem = problem_of(path)
        assert problem.startswith(f"{path}:{line}: ")
        problems.append(problem.replace(str(path), name))
    node = {"name": "a", "host": "10.0.0.1", "sku": "cpu-generic"}
    problems += [refused(inventory.one, {**node, "bmc": bmc}) for bmc in BAD_BMCS]
    assert "\n".join(problems) == snapshot
    assert "calvin" not in "\n".join(problems)


def test_a_file_that_cannot_be_read_is_one_sentence_with_the_user_who_reads(tmp_path: Path) -> None:
    with pytest.raises(MusterError) as refused:
        inventory.load(tmp_path / "none.yaml")
    assert f" {ownership.me()}: " in str(refused.value)


@pytest.mark.parametrize("text", [GOOD_YAML, GOOD_CSV], ids=["yaml", "csv"])
def test_standard_input_is_read_in_place_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    given = [node for _, node in inventory.load(Path("-"), SKUS)]
    assert given == [node for _, node in inventory.load(written(tmp_path, "fleet.yaml", GOOD_YAML), SKUS)]


@pytest.mark.parametrize(
    "text",
    [
        "USER=z,name,host,sku\0PASSWORD=\nCALVIN,n,h,cpu-generic\0",
        '{"muster": "CALVIN", "ada": "x",\n"bob": "CALVIN"}',
        "CALVIN,CALVIN\na,b",
    ],
    ids=["environ", "passwords", "columns"],
)
def test_what_is_no_inventory_is_not_quoted(tmp_path: Path, text: str) -> None:
    with pytest.raises(MusterError) as refused:
        inventory.load(written(tmp_path, "f.csv", text), SKUS)
    assert "CALVIN" not in str(refused.value)


def test_a_cell_that_cannot_be_read_hides_no_other_problem_of_its_line(tmp_path: Path) -> None:
    text = "name,host,sku,port,labels,launch\na,h,nope,99999,team,{bad\n"
    with pytest.raises(BadInventory) as refused:
        inventory.load(written(tmp_path, "f.csv", text), SKUS)
    assert {problem.split(" ")[1] for problem in refused.value.problems} == {"labels", "launch", "port", "unknown"}


def test_a_column_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    lines = "name,host,sku,rack, host\na,h,cpu-generic,12,g\n"
    assert problem_of(written(tmp_path, "f.csv", lines)).startswith(f"{tmp_path / 'f.csv'}:1: ")
    (found,) = inventory.load(written(tmp_path, "f.csv", "name,host,sku,,\na,h,cpu-generic,,\n"), SKUS)
    assert found[1].host == "h", "columns that a spreadsheet leaves empty"


def test_a_line_that_cannot_be_used_hides_no_repeated_name(tmp_path: Path) -> None:
    with pytest.raises(BadInventory) as refused:
        inventory.load(written(tmp_path, "f.csv", "name,host,sku,port\na,h,cpu-generic,\na,g,cpu-generic,0\n"), SKUS)
    assert {problem.split(" ")[1] for problem in refused.value.problems} == {"port", "the"}


def test_one_bmc_is_no_two_nodes(tmp_path: Path) -> None:
    """As of a line that was copied: its node would be judged by the other's fans."""
    urls = ("https://10.0.0.7", "https://10.0.0.7/", "https://10.0.0.8")
    lines = [f"- {{name: n{at}, host: h{at}, sku: cpu-generic, bmc: {{url: '{url}'}}}}" for at, url in enumerate(urls)]
    twice, once = ("\n".join(["nodes:", *listed]) for listed in (lines, lines[1:]))
    assert "BMC https://10.0.0.7 is already at" in problem_of(written(tmp_path, "f.yaml", twice))
    assert len(inventory.load(written(tmp_path, "f.yaml", once), SKUS)) == 2


def test_all_bad_lines_are_reported_at_once_in_their_order(tmp_path: Path) -> None:
    lines = [f"n{number},h{number},{'nope' if number % 2 else 'cpu-generic'}" for number in range(10)]
    with pytest.raises(BadInventory) as refused:
        inventory.load(written(tmp_path, "f.csv", "name,host,sku\n" + "\n".join(lines)), SKUS)
    assert [int(problem.split(":")[1]) for problem in refused.value.problems] == [3, 5, 7, 9, 11]


def test_host_keys_are_scanned_where_none_is_given(tmp_path: Path) -> None:
    def scan(node: inventory.InventoryNode) -> str:
        if node.host == "down":
            raise MusterError(f"{node.host}:{node.port} cannot be reached")
        return fleet.host_key(node.host)

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


@pytest.mark.parametrize("field", ["name", "host", "sku", "user", "rack", "pool", "work_dir", "label leaf"])
@pytest.mark.parametrize("nothing", ["None", "null", "undefined"])
def test_what_a_template_writes_for_nothing_is_no_value(field: str, nothing: str) -> None:
    """A template of an inventory system writes None where a device has no name; nodes without a rack would share it."""
    cell = {"labels": f"row=3;leaf={nothing}"} if field == "label leaf" else {field: nothing}
    with pytest.raises(BadInventory) as refused:
        inventory.one({"name": "gpu-0001", "host": "10.0.0.1", "sku": "h100-sxm-8", **cell})
    assert f"{field} {nothing!r}" in str(refused.value)


@pytest.mark.parametrize(
    "text", ["0010", "12:30", "1.10", "1_000", "0x1F", "12", "0b_", "no", "yes", "On", "2026-01-02", "2026-13-45"]
)
def test_a_value_is_the_text_that_the_file_has(tmp_path: Path, text: str) -> None:
    """YAML 1.1 reads another number into most of them (yaml/pyyaml#107, wireviz/WireViz#213)."""
    path = tmp_path / "fleet.yaml"
    path.write_text(f"nodes: [{{name: a, host: h, sku: cpu-generic, port: 0022, rack: {text}, labels: {{u: {text}}}}}]")
    ((_, node),) = inventory.load(path, SKUS)
    assert (node.rack, node.labels, node.port) == (text, {"u": text}, 22)


@pytest.mark.parametrize(("text", "means"), [("true", True), ("yes", True), ("off", False), ("False", False)])
def test_a_setting_that_is_true_or_false_takes_each_form_of_yaml(tmp_path: Path, text: str, means: bool) -> None:
    path = written(tmp_path, "f.yaml", f"nodes: [{{name: no, host: h, sku: cpu-generic, simulated: {text}}}]")
    ((_, node),) = inventory.load(path, SKUS)
    assert (node.name, node.simulated) == ("no", means)


@pytest.mark.parametrize("short", ["10.0.0.010", "10.1", "1234", "0x0a.1.2.3", "10.0.0.0x8", "10.0.0.8.", "node.10"])
def test_a_number_that_the_resolver_takes_for_another_address_is_no_host(short: str) -> None:
    """It reads 10.0.0.010 as 10.0.0.8: another machine would be tested under this name."""
    cells = {"name": "a", "sku": "cpu-generic"}
    for more in ({"host": short}, {"host": "h", "bmc": f'{{"url": "https://{short}/"}}'}):
        with pytest.raises(BadInventory):
            inventory.one({**cells, **more})


@pytest.mark.parametrize("host", ["10.0.0.8", "fd00::8", "gpu-0001", "gpu-10.r1", "10.0.0.8.example.org.", "1a"])
def test_names_and_addresses_in_full_are_hosts(host: str) -> None:
    ((_, node),) = inventory.one({"name": "a", "sku": "cpu-generic", "host": host})
    assert node.host == host

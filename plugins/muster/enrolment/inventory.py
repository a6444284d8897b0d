"""Reads inventories in YAML or CSV, all nodes or none, with one message per invalid line."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import pydantic
import yaml
from pydantic_core import PydanticCustomError

from muster import ownership
from muster.errors import BadInventory, ControllerFault, MusterError, at
from muster.model.dags import POOL_CHARACTERS
from muster.model.names import HOST_KEY, NODE_NAME, OWN_KEYS, is_host
from muster.model.nodes import NewNode
from muster.remote.bmc.bmc import BadBmc, parse_bmc
from muster_criteria import yaml_file
from muster_criteria.text import QUOTED_MAX, closest, one_line, refusal
from muster_criteria.yaml_file import BadYaml

BYTES_MAX = 16 * 1024 * 1024
"""Room for 30,000 nodes with all their settings."""
_ABOVE = re.compile(r"\s*(#|sep=.$|$)", re.IGNORECASE)
_NO_TEXT = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")

NOTHING = frozenset({"none", "null", "nil", "nan", "undefined"})
"""What other systems' templates write for a device without a name or rack (NetBox requires neither)."""

SCANS = 32
"""Host keys scanned at a time; few enough not to trigger a firewall."""


class _Bad(str):
    """The message on a line or a cell that cannot be parsed."""


def _matching(matches: Callable[[str], object]) -> pydantic.AfterValidator:
    def check(text: str) -> str:
        if not matches(text):
            raise PydanticCustomError("pattern", "does not look like one")
        return text

    return pydantic.AfterValidator(check)


class InventoryNode(pydantic.BaseModel):
    """One node of an inventory. An empty ``host_key``: pin the key that the host presents at enrolment."""

    model_config = pydantic.ConfigDict(
        extra="forbid", frozen=True, str_strip_whitespace=True, coerce_numbers_to_str=True
    )

    name: Annotated[str, _matching(NODE_NAME.fullmatch)]
    host: Annotated[str, _matching(is_host)]
    sku: Annotated[str, pydantic.Field(min_length=1)]
    port: Annotated[int, pydantic.Field(ge=1, le=65535)] = 22
    user: Annotated[str, pydantic.Field(pattern=r"^([^\s-]\S*)?$")] = ""
    host_key: Annotated[str, _matching(HOST_KEY.fullmatch)] = ""
    rack: str = ""
    pool: Annotated[str, pydantic.Field(max_length=POOL_CHARACTERS)] = ""
    work_dir: Annotated[str, pydantic.Field(min_length=1)] = "~/.muster"
    launch: dict[str, Any] = pydantic.Field(default_factory=dict)
    labels: dict[str, str] = pydantic.Field(default_factory=dict)
    bmc: dict[str, Any] = pydantic.Field(default_factory=dict)
    simulated: bool = False

    @pydantic.model_validator(mode="after")
    def _printable(self) -> InventoryNode:
        for name, value in self.model_dump().items():
            if any(one_line(text) != text for text in _texts(value)):
                raise ValueError(f"{name} has control or invisible characters; write it in plain text")
        return self

    @pydantic.field_validator("name", "host", "sku", "user", "rack", "pool", "work_dir", "labels")
    @classmethod
    def _given(cls, value: Any, info: pydantic.ValidationInfo) -> Any:
        field = str(info.field_name)
        texts = {f"label {name}": text for name, text in value.items()} if field == "labels" else {field: value}
        for name, text in texts.items():
            if text.lower() in NOTHING:
                what = f"a node needs a {field}" if cls.model_fields[field].is_required() else "leave it out"
                raise ValueError(f"{name} {text!r} is what templates write for a missing one; {what}")
        return value

    @pydantic.field_validator("launch")
    @classmethod
    def _launchable(cls, launch: dict[str, Any]) -> dict[str, Any]:
        from muster.remote.job.launch import parse_launch

        try:
            parse_launch(launch)
        except MusterError as error:
            raise ValueError(str(error)) from None
        return launch

    @pydantic.field_validator("bmc")
    @classmethod
    def _askable(cls, bmc: dict[str, Any]) -> dict[str, Any]:
        try:
            parse_bmc(bmc)
        except BadBmc as error:
            raise ValueError(str(error)) from None
        return bmc

    def pinned(self, host_key: str) -> NewNode:
        """Returns the node to enrol with this host key."""
        return NewNode(**{**self.model_dump(), "host_key": host_key}, named=frozenset(self.model_fields_set))


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for each in value.items() if isinstance(value, Mapping) else value:
            yield from _texts(each)


_JSON = {"launch": '{"kind": "venv", "path": "/opt/venv"}', "bmc": '{"url": "https://10.0.0.7", "connection": "bmc"}'}
"""Cells of CSV that hold JSON, each with an example."""

_TEXT, _BOOLEAN = "tag:yaml.org,2002:str", "tag:yaml.org,2002:bool"
_NUMBERS, _TIME = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float"), "tag:yaml.org,2002:timestamp"

_WHAT_TO_DO = {
    "name": "use up to 63 letters, digits, '.', '-' and single '_', beginning with a letter or digit",
    "host": "give a host name, or an address in full (10.0.0.8), without user, port, brackets or blanks",
    "port": "give a number from 1 to 65535",
    "sku": "give one of those in `muster sku list`",
    "user": "give a login name, or leave it out for the SSH connection's",
    "host_key": "give 'TYPE BASE64' as in known_hosts, or leave it out to pin the one that answers",
    "pool": f"give the name of an Airflow pool, of {POOL_CHARACTERS} characters at most",
    "launch": "see docs/deploying.md on how the node side is started",
    "labels": 'give names with texts, in quotes where YAML reads another value: {team: training, spare: "true"}',
    "bmc": "give its url, and its connection or a user with password_env: {url: https://10.0.0.7, connection: bmc}",
    "simulated": "give true or false",
}


def load(path: Path, known_skus: Collection[str] | None = None) -> list[tuple[str, InventoryNode]]:
    """Returns the nodes of an inventory, each with its place ("fleet.yaml:12").

    ``*.csv`` is CSV with a header line; anything else YAML with a list ``nodes``. ``known_skus``, if given, are those
    that may be named. "-" is standard input, read as CSV if its first line has a delimiter and no colon. Raises
    BadInventory with one sentence per bad line, and MusterError if the file cannot be read.
    """
    content = ownership.read(path, BYTES_MAX + 1)
    if len(content) > BYTES_MAX:
        raise MusterError(f"the inventory {path} is larger than {BYTES_MAX >> 20} MiB; split it")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise MusterError(f"{path}:{line}: this is not UTF-8; save it as YAML, or CSV UTF-8 in a spreadsheet") from None
    # Messages quote lines, and by sudo this user reads what the caller may not, as /proc/self/environ under a link.
    if _NO_TEXT.search(text):
        raise MusterError(f"the inventory {path} has control characters; give a YAML or CSV file in UTF-8")
    _, first = _header(text.splitlines())
    looks_so = any(each in first for each in ",;\t") and ":" not in first
    is_csv = path.suffix.lower() == ".csv" or (str(path) == ownership.STDIN and looks_so)
    lines = _from_csv(path, text) if is_csv else _from_yaml(path, text)
    nodes = _checked(lines, known_skus)
    if not nodes:
        raise BadInventory([f"{path}:1: there are no nodes in it; list them under `nodes:`, or one per line of CSV"])
    return nodes


def one(cells: Mapping[str, Any], known_skus: Collection[str] | None = None) -> list[tuple[str, InventoryNode]]:
    """Returns a single node from the command line; like ``load``. Cells as in CSV; None: not given; "": none."""
    return _checked([("", {key: _cell(key, value) for key, value in cells.items() if value is not None})], known_skus)


def described(line: Mapping[str, Any], known_skus: Collection[str] | None = None) -> list[tuple[str, InventoryNode]]:
    """Returns a single node from a program, with typed values; like ``load``."""
    return _checked([("", dict(line))], known_skus)


def _checked(lines: Iterable[tuple[str, Any]], known_skus: Collection[str] | None) -> list[tuple[str, InventoryNode]]:
    problems: list[str] = []
    nodes: list[tuple[str, InventoryNode]] = []
    read: list[tuple[str, Mapping[str, Any]]] = []
    for where, raw in lines:
        if isinstance(raw, _Bad):
            problems.append(at(where, raw))
            continue
        problems.extend(at(where, value) for value in raw.values() if isinstance(value, _Bad))
        readable = {key: value for key, value in raw.items() if not isinstance(value, _Bad)}
        read.append((where, readable))
        try:
            nodes.append((where, InventoryNode.model_validate(readable)))
        except pydantic.ValidationError as error:
            problems.extend(at(where, sentence) for sentence in _sentences(error))
        sku = str(raw.get("sku", "")).strip()
        if sku and known_skus is not None and sku not in known_skus:
            problems.append(at(where, f"unknown SKU {_quoted(sku)}{closest(sku, known_skus)}"))
    problems.extend(_clashes(read))
    if problems:
        raise BadInventory(sorted(problems, key=_line_of))
    return nodes


def pin(nodes: Iterable[tuple[str, InventoryNode]], scan: Callable[[InventoryNode], str]) -> list[tuple[str, NewNode]]:
    """Returns the nodes with host keys: their own, or the result of ``scan``.

    Raises BadInventory with one message per host that cannot be scanned, and ControllerFault.
    """
    listed = list(nodes)

    def scanned(node: InventoryNode) -> str | MusterError:
        try:
            return node.host_key or scan(node)
        except ControllerFault:
            raise
        except MusterError as error:
            return error

    with ThreadPoolExecutor(max_workers=SCANS) as workers:
        keys = list(workers.map(scanned, [node for _, node in listed]))
    found = zip(listed, keys, strict=True)
    problems = [at(where, str(key)) for (where, _), key in found if isinstance(key, MusterError)]
    if problems:
        raise BadInventory(problems)
    return [(where, node.pinned(str(key))) for (where, node), key in zip(listed, keys, strict=True)]


def _from_yaml(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    try:
        root = yaml_file.compose(text, BYTES_MAX)
    except BadYaml as error:
        line = text.splitlines()[error.line - 1 : error.line] if error.line else []
        tab = "; YAML indents with spaces, not tabs" if "\t" in "".join(line) else ""
        what = f"this is not YAML ({error.problem}); correct it there or just above{tab}"
        raise BadInventory([f"{path}:{error.line or 1}: {what}"]) from None
    listed = _entry(root, "nodes")
    if not isinstance(listed, yaml.SequenceNode):
        what = "there is no list `nodes`; write `nodes:` and one `- name: …` for each, or name a CSV file *.csv"
        raise BadInventory([f"{path}:1: {what}"])
    for node in listed.value:
        where = f"{path}:{node.start_mark.line + 1}"
        if not isinstance(node, yaml.MappingNode):
            yield where, _Bad("this is no node; write `- name: …` with host and sku")
            continue
        if not all(isinstance(key, yaml.ScalarNode) for key, _ in node.value):
            yield where, _Bad("the name of a setting is a list or a map; write plain names, and templates in quotes")
            continue
        keys = [key.value for key, _ in node.value]
        twice = sorted({str(key) for key in keys if keys.count(key) > 1})
        if twice:
            yield where, _Bad(f"{twice[0]} is given twice; keep one")
            continue
        try:
            for key, value in node.value:
                if key.value not in _JSON:  # their values have types of their own
                    _keep_as_written(value)
            yield where, yaml_file.construct(node)
        except BadYaml as error:
            yield where, _Bad(f"this cannot be used ({error.problem}); write plain values")


def _keep_as_written(node: yaml.Node) -> None:
    """Read a value as text, also in maps, if YAML 1.1 would change it.

    A rack or a name is text, but YAML 1.1 reads 0010 as 8, 12:30 as 750, 1.10 as 1.1 and no as false.
    """
    if isinstance(node, yaml.MappingNode):
        for pair in node.value:
            for each in pair:
                _keep_as_written(each)
    elif not _reads_as_written(node):
        node.tag = _TEXT


def _reads_as_written(node: yaml.Node) -> bool:
    if node.tag == _BOOLEAN:
        return node.value.lower() in ("true", "false")
    if node.tag not in _NUMBERS:
        return node.tag != _TIME
    try:
        return str(yaml_file.construct(node)) == str(node.value)
    except BadYaml:
        return False


def _entry(root: yaml.Node | None, name: str) -> yaml.Node | None:
    if not isinstance(root, yaml.MappingNode):
        return None
    return next((value for key, value in root.value if key.value == name), None)


def _header(lines: Sequence[str]) -> tuple[int, str]:
    """Returns (place, text) of the first line that is not blank, a comment or a spreadsheet's ``sep=;``."""
    return next(((place, line) for place, line in enumerate(lines) if not _ABOVE.match(line)), (0, ""))


def _from_csv(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    """Spreadsheets write semicolons or tabs in some languages. Below the header, # is text, as in a rack `#12`."""
    start, header = _header(lines := text.splitlines())
    between = next((each for each in ";\t" if each in header and "," not in header), ",")
    # Strict, or a quote that is not closed takes the next node as text of a cell; it refuses a blank after a quote too.
    lines = [""] * start + [re.sub(rf'" +(?={between}|$)', '"', line) for line in lines[start:]]
    reader = csv.reader(lines, delimiter=between, skipinitialspace=True, strict=True)
    columns: list[str] = []
    number = 1  # of the line where the row begins: an open quote takes in all that follows
    try:
        for cells in reader:
            where = f"{path}:{number}"
            row = {key: value for key, value in zip(columns, map(str.strip, cells), strict=False) if value}
            if not any(map(str.strip, cells)):
                pass
            elif not columns:
                columns = [cell.strip().lower() for cell in cells]
                if wrong := _of_columns(columns):
                    yield where, _Bad(wrong)
                    return
            elif cells[0].startswith("#") and row.get("name", "#").startswith("#"):
                yield where, _Bad("no name begins with '#', and comments stand above the header; remove this line")
            elif len(cells) > len(columns):
                yield where, _Bad(f"there are more cells than the header names; quote those with {between!r} in them")
            elif unknown := next((key for key in row if key and key not in InventoryNode.model_fields), ""):
                yield where, _Bad(f"unknown column {_quoted(unknown)}{closest(unknown, InventoryNode.model_fields)}")
                return
            else:
                yield where, {key: _cell(key, value) for key, value in row.items()}
            number = reader.line_num + 1
    except csv.Error as error:
        yield f"{path}:{number}", _Bad(f"this is not CSV ({error}); correct its quotes")


def _of_columns(columns: Collection[str]) -> str:
    """Returns what is wrong with a header line, "" if nothing is."""
    if "name" not in columns:  # it may be no inventory: nothing of it is quoted
        return "the first line has no column `name`; write name,host,sku and what else you give"
    named = [name for name in columns if name]
    if twice := sorted({name for name in named if named.count(name) > 1}):
        return f"there are two columns {twice[0]}; keep one"
    lacking = [name for name, field in InventoryNode.model_fields.items() if field.is_required() and name not in named]
    return f"there is no column {lacking[0]}; {_WHAT_TO_DO[lacking[0]]}" if lacking else ""


def _cell(key: str, value: Any) -> Any:
    if key == "labels":
        pairs = [pair.partition("=") for pair in value.split(";") if pair.strip()]
        if not all(equals for _, equals, _ in pairs):
            return _Bad(f"labels {_quoted(value)} cannot be read; write team=training;row=3")
        return {name.strip(): text.strip() for name, _, text in pairs}
    if key in _JSON:
        try:
            return json.loads(value or "{}")
        except (ValueError, RecursionError):
            return _Bad(f"{key} {_quoted(value)} is not JSON; write {_JSON[key]}")
    return value


def _sentences(error: pydantic.ValidationError) -> Iterator[str]:
    for problem in error.errors():
        field = str(problem["loc"][0]) if problem["loc"] else ""
        if problem["type"] == "missing":
            yield f"{field} is missing; {_WHAT_TO_DO.get(field, 'add it')}"
        elif problem["type"] == "extra_forbidden":
            yield f"unknown key {_quoted(field)}{closest(field, InventoryNode.model_fields)}"
        elif problem["type"] == "value_error":
            yield refusal(problem["msg"])
        else:
            advice = _WHAT_TO_DO.get(field) or f"it {refusal(problem['msg'])}"
            where = one_line(" ".join(str(part) for part in problem["loc"]))[:QUOTED_MAX]
            yield f"{where} {_quoted(problem['input'])} cannot be used; {advice}"


def _quoted(value: object) -> str:
    text = repr(value)
    return text if len(text) <= QUOTED_MAX else f"{text[: QUOTED_MAX - 1]}…"


def _clashes(lines: Iterable[tuple[str, Mapping[str, Any]]]) -> Iterator[str]:
    """Yields a message for each line, usable or not, that repeats a name, an address, a host key or a BMC."""
    seen: dict[tuple[str, ...], str] = {}
    for where, line in lines:
        name, host, host_key = (str(line.get(key) or "").strip() for key in ("name", "host", "host_key"))
        address = f"{host}:{str(line.get('port', 22)).strip()}" if host else ""
        bmc = line.get("bmc")
        url = str(bmc.get("url") or "").strip().rstrip("/") if isinstance(bmc, Mapping) else ""
        for kind, value in (("name", name), ("address", address), ("host key", host_key), ("BMC", url)):
            if not value:
                continue
            first = seen.setdefault((kind, value), where)
            if first != where:
                also = f"; {OWN_KEYS}" if kind == "host key" else ""
                yield f"{where}: the {kind} {value} is already at {first}; remove one of them{also}"
                break


def _line_of(problem: str) -> tuple[str, int]:
    path, _, _ = problem.partition(": ")
    file, _, line = path.rpartition(":")
    return file, int(line) if line.isdigit() else 0

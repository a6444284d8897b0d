"""Loading SKU files: one YAML per hardware model, read strictly, with its programme, families and learned floors.

``load_sku`` returns a Sku or raises SkuError with one sentence; ``lint_sku`` lists everything that is wrong.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import hashlib
import pickle
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from muster_criteria import policy_file, yaml_file
from muster_criteria.device_events.policy import KERNEL, EventPolicy
from muster_criteria.policy_file import BadPolicy
from muster_criteria.sku_files.learned import BadCalibration, in_force
from muster_criteria.sku_files.limits import BadValue
from muster_criteria.sku_files.lint import problems_of
from muster_criteria.sku_files.model import BlockProgramme, Problem, Programme, Sku, SkuError
from muster_criteria.sku_files.shown import Shows, both, with_shown
from muster_criteria.sku_files.versions import BadVersions, with_versions
from muster_criteria.text import refusal
from muster_criteria.yaml_file import BadYaml

SHIPPED = Path(__file__).resolve().parents[2] / "skus"
"""The SKU files that come with Muster; a fleet's own folders are searched first."""

FAMILY_KEYS = ("policies", "sensors", "inventory", "peaks", "figures", "limits", "block_limits", "versions", "absent")
"""The keys that models may share; a family also has ``shows`` (``shown``)."""

YAML_BYTES_MAX = 200_000
NAME_MAX = 80
_FILE_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")


def _folders(search: Sequence[Path]) -> list[Path]:
    return [*(Path(folder) for folder in search), SHIPPED]


def list_skus(search: Sequence[Path] = ()) -> list[str]:
    """Names of all SKUs there are, sorted: those in the folders of ``search``, and those shipped."""
    return sorted({path.stem for folder in _folders(search) if folder.is_dir() for path in folder.glob("*.yaml")})


def find_sku(name: str, search: Sequence[Path]) -> Path:
    """The file of a SKU, ``search`` first. Raises SkuError that lists the known SKUs and suggests the nearest."""
    known = list_skus(search)
    if name not in known:
        near = difflib.get_close_matches(name[:NAME_MAX], known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}? " if near else ""
        raise SkuError(f"there is no SKU {name!r}: {hint}Known are {', '.join(known)}.")
    return next(path for folder in _folders(search) if (path := folder / f"{name}.yaml").is_file())


def changed(search: Sequence[Path] = ()) -> tuple[tuple[str, int], ...]:
    """Every file that may belong to a SKU, with the time (ns) of its last change: a key for a cache of SKUs."""
    files = (path for folder in _folders(search) for where in ("*.yaml", "*/*.yaml") for path in folder.glob(where))
    return tuple((str(path), _changed_at(path)) for path in files)


def _changed_at(path: Path) -> int:
    try:
        return path.stat().st_ctime_ns  # a copy may keep the other time
    except OSError:  # removed meanwhile, or a link to nothing
        return 0


def load_sku(name: str, search: Sequence[Path] = ()) -> Sku:
    """Loads a SKU by name and checks all of it. Raises SkuError, in one sentence, for the first problem."""
    path = find_sku(name, search)
    sku, problems = read_sku(path, search)
    if sku is not None and not problems:
        problems = problems_of(sku)
    if sku is None or problems:
        more = f" ({len(problems) - 1} more: run `muster sku lint`)" if len(problems) > 1 else ""
        raise SkuError(f"{str(problems[0])[:-1]}{more}.")
    return sku


def current_sku(name: str, search: tuple[Path, ...]) -> Sku:
    """A SKU as its files are now, for long-running servers; reads only changed ones again. Raises SkuError."""
    return _as_changed(name, search, changed(search))


@functools.lru_cache(maxsize=256)
def _as_changed(name: str, search: tuple[Path, ...], _changed: tuple[tuple[str, int], ...]) -> Sku:
    return load_sku(name, search)


def lint_sku(sku: str | Path, search: Sequence[Path] = ()) -> list[Problem]:
    """Everything that is wrong with a SKU, given by name or as a file. Raises SkuError if there is no such SKU."""
    path, search = (sku, (sku.parent, *search)) if isinstance(sku, Path) else (find_sku(sku, search), search)
    read, problems = read_sku(path, search)
    return problems if read is None else problems_of(read)


def read_sku(path: Path, search: Sequence[Path]) -> tuple[Sku | None, list[Problem]]:
    """Read a SKU file and its programme, checking form only: (sku, no problems) or (None, problems)."""
    try:
        return _read(path, search), []
    except _Refused as refused:
        return None, refused.problems


class _Refused(Exception):
    """The form of a SKU file, or of a file that it names, is wrong."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__(*problems)
        self.problems = list(problems)


@contextlib.contextmanager
def _refusing(file: str, key: str = "file", code: str = "unreadable") -> Iterator[None]:
    """Raises _Refused for any error of reading in the block."""
    try:
        yield
    except (SkuError, BadPolicy, BadCalibration, BadVersions) as error:
        raise _Refused(Problem(file, key, code, str(error).removesuffix("."))) from None
    except ValidationError as error:
        raise _Refused(*_problems(file, error)) from None


def _read(path: Path, search: Sequence[Path]) -> Sku:
    with _refusing(path.name):
        text, raw = _read_yaml(path)
    if not isinstance(named := raw.get("programme"), str):
        raise _Refused(Problem(path.name, "programme", "no-programme", "names no programme (such as gpu-node)"))
    with _refusing(path.name, "includes", "bad-family"):
        family_text, raw, shows = _with_families(raw, search)
    programme_text, programme = _read_programme(path, named, search)
    block_text, block = _read_programme(path, "block", search)
    with _refusing("programmes/block.yaml"):
        block = _with_own_limits(block, raw)
    programmes: dict[str, Programme | BlockProgramme] = {}
    with _refusing(f"programmes/{named}.yaml"):
        programmes["programme"] = Programme.model_validate(with_shown(programme, shows))
    with _refusing("programmes/block.yaml"):
        programmes["block"] = BlockProgramme.model_validate(with_shown(block, shows))
    with _refusing(path.name, "policies", "bad-policy"):
        policy_text, policies = _read_policies(_listed(raw, "policies"), search)
    with _refusing(path.name, "learned", "bad-calibration"):
        learned_text, learned = in_force(search, path.stem)
    with _refusing(path.name, "versions", "bad-versions"):
        versions_text, raw = with_versions(raw, path.stem, search)
    read = (text, programme_text, block_text, policy_text, family_text, learned_text, versions_text)
    raw.pop("policies", None)
    digest = hashlib.sha256(b"".join(read)).hexdigest()
    given = {"event_policies": policies, "learned": learned, "file": path.name, "digest": digest}
    with _refusing(path.name):
        sku = Sku.model_validate(raw | programmes | given)
    if sku.name != path.stem:
        what = f"is {sku.name}, but the file is named {path.stem}"
        raise _Refused(Problem(path.name, "sku", "wrong-name", what))
    return sku


def _read_programme(path: Path, name: str, search: Sequence[Path]) -> tuple[bytes, dict[str, Any]]:
    file = _find(search, "programmes", name)
    if file is None:
        why = f"there is no programme {name[:NAME_MAX]!r} in programmes/"
        raise _Refused(Problem(path.name, "programme", "no-programme", why))
    with _refusing(f"programmes/{file.name}"):
        return _read_yaml(file)


def _with_own_limits(block: dict[str, Any], raw: dict[str, Any]) -> dict[str, Any]:
    """The programme of a block with the SKU's own ``block_limits``, which are taken out of ``raw``."""
    own = [each for each in _listed(raw, "block_limits") if isinstance(each, dict)]
    raw.pop("block_limits", None)

    def key(limit: Any) -> tuple[str, ...]:
        limit = limit if isinstance(limit, dict) else {}
        return (str(limit.get("metric")), str(limit.get("breach", "fail")), str(limit.get("labels") or {}))

    replaced = {key(each) for each in own}
    return block | {"limits": [*(each for each in _listed(block, "limits") if key(each) not in replaced), *own]}


def _with_families(raw: dict[str, Any], search: Sequence[Path]) -> tuple[bytes, dict[str, Any], Shows]:
    """Returns the families' bytes, the SKU with their entries after its own, and what they show. Raises SkuError."""
    read, whole, shows = b"", dict(raw), dict[str, dict[str, list[Any]]]()
    for name in _listed(raw, "includes"):
        path = _find(search, "families", str(name))
        if path is None:
            raise SkuError(f"there is no family {str(name)[:NAME_MAX]!r} in families/")
        text, family = _read_yaml(path)
        allowed = (*FAMILY_KEYS, "shows")
        if unknown := sorted(set(family) - set(allowed)):
            raise SkuError(f"family {name} may have {', '.join(allowed)}, but has {', '.join(map(str, unknown))}")
        read += text
        try:
            shows = both(shows, family.get("shows") or {})
        except ValueError as error:
            raise SkuError(f"family {name}: {error}") from None
        for key in FAMILY_KEYS:
            whole[key] = [*_listed(whole, key), *_listed(family, key)]
    return read, whole, shows


def _find(search: Sequence[Path], folder: str, name: str) -> Path | None:
    """Returns the first ``folder/name.yaml`` on the search path; None if there is none or ``name`` is no file name."""
    if not _FILE_NAME.fullmatch(name):
        return None
    return next((file for each in _folders(search) if (file := each / folder / f"{name}.yaml").is_file()), None)


def _listed(raw: dict[str, Any], key: str) -> list[Any]:
    """Returns the list under ``key``; a missing one is empty, a single text a list of one. Raises SkuError."""
    value = raw.get(key) or []
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise SkuError(f"{key} is not a list")
    return value


def _read_policies(named: Sequence[object], search: Sequence[Path]) -> tuple[bytes, tuple[EventPolicy, ...]]:
    """The policies for device events by name, with their bytes; ``KERNEL`` comes last. Raises BadPolicy.

    The first policy for a kind judges it, so the SKU's own come before those of its families.
    """
    read, found = b"", list[EventPolicy]()
    for name in dict.fromkeys([*map(str, named), KERNEL]):
        path = policy_file.find(EventPolicy, name, _folders(search))
        text = path.read_bytes()
        policy = _parsed_policy(text, f"policies/{path.name}")
        if not {kind for each in found for kind in each.kinds}.issuperset(policy.kinds):
            read, found = read + text, [*found, policy]
    return read, tuple(found)


@functools.lru_cache(maxsize=32)
def _parsed_policy(text: bytes, where: str) -> EventPolicy:
    return policy_file.parse(EventPolicy, text, where)


@functools.lru_cache(maxsize=128)
def _values(text: bytes) -> bytes:
    """The values of a file's text, pickled, so that each reader gets its own copy. Raises BadYaml.

    Parsing takes two thirds of the time to load a SKU, which each task of a node does.
    """
    return pickle.dumps(yaml_file.load(text, YAML_BYTES_MAX))


def _read_yaml(path: Path) -> tuple[bytes, dict[str, Any]]:
    text = path.read_bytes()
    try:
        raw = pickle.loads(_values(text))
    except BadYaml as error:
        raise SkuError(str(error)) from None
    if not isinstance(raw, dict):
        raise SkuError("is not a map of keys to values")
    return text, raw


def _problems(file: str, error: ValidationError) -> list[Problem]:
    found = []
    for item in error.errors(include_url=False):
        parts = [part for part in item["loc"] if part not in ("constrained-str", "Times", "float")]
        inner = item.get("ctx", {}).get("error")
        parts += [inner.key] if isinstance(inner, BadValue) else []
        key = ".".join(str(part) for part in parts) or "file"
        message = inner.problem if isinstance(inner, BadValue) else refusal(item["msg"])
        if item["type"] == "missing" and parts and parts[-1] in ("unit", "source", "date"):
            message += "; every number needs a unit, a source and a date"
        code = {"missing": "missing-key", "extra_forbidden": "unknown-key"}.get(item["type"], "bad-value")
        found.append(Problem(file, key, code, message[0].lower() + message[1:]))
    return found

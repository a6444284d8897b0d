"""SKU files: what a hardware model must be, and which programme tests it. One YAML a model, read strictly.

``load_sku`` gives a Sku or raises SkuError with one sentence; ``lint_sku`` lists everything that is wrong.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import yaml
from pydantic import BeforeValidator, Field, FiniteFloat, PrivateAttr, ValidationError, model_validator

from muster_criteria.fleet.comparisons import Comparison, Derivation
from muster_criteria.sku_files.figures import Absent, Figure
from muster_criteria.sku_files.limits import Limit, Written, as_tuple
from muster_criteria.sku_files.peaks import peaks_of
from muster_criteria.xid.policy import BadPolicy, XidPolicy, find_policy, parse_policy

if TYPE_CHECKING:
    from muster_criteria.sku_files.declarations import Declared

SHIPPED = Path(__file__).resolve().parents[2] / "skus"
"""The SKU files that come with Muster; a fleet's own folders are searched first."""

Stage = Literal["intake", "burn_in", "integrity", "performance", "thermal"]
STAGES: tuple[Stage, ...] = get_args(Stage)
Level = Literal["demo", "short", "standard", "long"]
LEVELS: tuple[Level, ...] = get_args(Level)

FAMILY_KEYS = ("sensors", "inventory", "limits", "absent")
"""What models may share: the rest is each model's own."""

YAML_BYTES_MAX = 200_000
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where libyaml is there


class BadLesson(Exception):
    """A file of learned floors that cannot be used; the message is one sentence."""


class SkuError(Exception):
    """A SKU file that cannot be used, or a SKU that is not there; the message is one sentence that says what to do."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """One thing that is wrong in a SKU file: where (file, key), and a sentence."""

    file: str
    key: str
    message: str

    def __str__(self) -> str:
        return f"{self.file}: {self.key}: {self.message}."


def _choices(value: object) -> object:
    return (value,) if isinstance(value, str) else as_tuple(value)


Choices = Annotated[tuple[str, ...], BeforeValidator(_choices)]


class Requirement(Written):
    """A metric that a stage must have measured before it may pass.

    ``devices``: "each gpu", "each cpu", "each core" (one logical CPU for each physical core), or one device's name.
    A label with several values means one measurement for each of them. ``judged: false`` is for what is only told
    (a serial number): measured is enough. ``where_readable`` is for counters that not every machine offers: the probe
    must have tried, and an honest "not readable here" is noted instead of missed. ``levels`` limits it to some levels.
    """

    metric: str
    devices: Annotated[str, Field(pattern=r"^(each (gpu|cpu|core)|[a-z]+[0-9]*(:[A-Za-z0-9_.-]+)?)$")]
    labels: dict[str, Choices] = Field(default_factory=dict)
    judged: bool = True
    where_readable: bool = False
    levels: Annotated[tuple[Level, ...], BeforeValidator(as_tuple)] = LEVELS


class Sensor(Requirement):
    """A sensor that the SKU promises, and the probe and stage that read it; a node without it misses a measurement."""

    stage: Stage
    probe: str


PerLevel = dict[Level, Any]


class ProbeUse(Written):
    """How a stage uses one probe. A value that depends on the level is a map with an entry for each of ``LEVELS``.

    ``sequential``: it takes minutes and fails now and then on sound hardware, so its runs are weighed (``sequential``).
    ``retest``: levels at which it is short enough to be run once more where the fleet asks for that (``retests``).
    """

    timeout_s: Annotated[FiniteFloat, Field(gt=0)] | dict[Level, Annotated[FiniteFloat, Field(gt=0)]]
    params: dict[str, Any] = Field(default_factory=dict)
    levels: Annotated[tuple[Level, ...], BeforeValidator(as_tuple)] = LEVELS
    require: Annotated[tuple[Requirement, ...], BeforeValidator(as_tuple)] = ()
    sequential: bool = False
    retest: Annotated[tuple[Level, ...], BeforeValidator(as_tuple)] = ()

    @model_validator(mode="after")
    def _every_level(self) -> ProbeUse:
        for name, value in [("timeout_s", self.timeout_s), *self.params.items()]:
            if is_per_level(value):
                absent = [level for level in self.levels if level not in value]
                if absent:
                    raise ValueError(f"{name} says nothing for level {', '.join(absent)}")
        return self

    def timeout_at(self, level: str) -> float:
        """Seconds that the probe may take at ``level``."""
        return float(at_level(self.timeout_s, level))

    def params_at(self, level: str) -> dict[str, Any]:
        """The probe's parameters at ``level``."""
        return {name: at_level(value, level) for name, value in self.params.items()}


class StagePlan(Written):
    """One stage: whether its FAIL stops the burn, and its probes in the order they run."""

    blocking: bool = False
    probes: dict[str, ProbeUse]


class Programme(Written):
    """What is run on a class of machines, stage by stage; SKU files share it.

    ``compare``: the metrics that a fleet of them may judge, by siblings, peers and history; ``derive``: those that are
    made of others for it.
    """

    programme: str
    title: str
    stages: dict[Stage, StagePlan]
    derive: Annotated[tuple[Derivation, ...], BeforeValidator(as_tuple)] = ()
    compare: Annotated[tuple[Comparison, ...], BeforeValidator(as_tuple)] = ()


class Sku(Written):
    """One hardware model. ``devices`` says how many of a kind: a number, or "inventory" where the machine itself tells.

    ``names``: what sources call the model. ``includes``: the families whose sensors and limits it shares.
    ``version`` is what people wrote; ``revision`` is that plus a digest of all files read, and is what verdicts cite.
    """

    sku: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,62}$")]
    version: str
    title: str
    programme: Programme
    names: Annotated[tuple[str, ...], BeforeValidator(as_tuple)] = ()
    includes: Annotated[tuple[str, ...], BeforeValidator(as_tuple)] = ()
    xid_policy: XidPolicy | None = None
    devices: dict[Literal["gpu", "cpu", "core"], Annotated[int, Field(ge=0)] | Literal["inventory"]]
    sensors: Annotated[tuple[Sensor, ...], BeforeValidator(as_tuple)] = ()
    inventory: Annotated[tuple[Limit, ...], BeforeValidator(as_tuple)] = ()
    limits: Annotated[tuple[Limit, ...], BeforeValidator(as_tuple)] = ()
    figures: Annotated[tuple[Figure, ...], BeforeValidator(as_tuple)] = ()
    absent: Annotated[tuple[Absent, ...], BeforeValidator(as_tuple)] = ()
    file: str
    digest: str
    _peaks: tuple[Limit, ...] = PrivateAttr(())

    @model_validator(mode="after")
    def _with_peaks(self) -> Sku:
        self._peaks = peaks_of(self.figures, self.inventory, self.limits)
        return self

    @property
    def name(self) -> str:
        """The SKU's name, as nodes carry it."""
        return self.sku

    @property
    def revision(self) -> str:
        """What a verdict cites: the written version and the first eight digits of the files' digest."""
        return f"{self.version}+{self.digest[:8]}"

    @property
    def all_limits(self) -> tuple[Limit, ...]:
        """Inventory expectations, limits, and what physics allows beside them."""
        return self.inventory + self.limits + self.peaks

    @property
    def peaks(self) -> tuple[Limit, ...]:
        """The void ceilings that follow from what the file says (see ``peaks``)."""
        return self._peaks

    def stage(self, stage: str) -> StagePlan:
        """The programme's plan of a stage. Raises SkuError where it has none."""
        plan = self.programme.stages.get(stage)  # type: ignore[call-overload]
        if plan is None:
            known = ", ".join(self.programme.stages)
            raise SkuError(
                f"programme {self.programme.programme} of SKU {self.name} has no stage {stage} (it has {known})."
            )
        return plan  # type: ignore[no-any-return]


def is_per_level(value: object) -> bool:
    """Whether a YAML value is a map from levels to values."""
    return isinstance(value, dict) and bool(value) and set(value) <= set(LEVELS)


def at_level(value: Any, level: str) -> Any:
    """``value`` itself, or its entry for ``level`` where it is a map from levels to values."""
    return value[level] if is_per_level(value) else value


def _folders(search: Sequence[Path]) -> list[Path]:
    return [*(Path(folder) for folder in search), SHIPPED]


def list_skus(search: Sequence[Path] = ()) -> list[str]:
    """Names of all SKUs there are, sorted: those in the folders of ``search``, and those shipped."""
    return sorted({path.stem for folder in _folders(search) if folder.is_dir() for path in folder.glob("*.yaml")})


def find_sku(name: str, search: Sequence[Path] = ()) -> Path:
    """The file of a SKU, ``search`` first. Raises SkuError that lists those there are and suggests the nearest."""
    known = list_skus(search)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}? " if near else ""
        raise SkuError(f"there is no SKU {name!r}: {hint}Known are {', '.join(known)}.")
    return next(path for folder in _folders(search) if (path := folder / f"{name}.yaml").is_file())


def load_sku(name: str, search: Sequence[Path] = ()) -> Sku:
    """Load a SKU by name and check it wholly. Raises SkuError, in one sentence, for the first thing that is wrong."""
    from muster_criteria.sku_files.lint import problems_of

    path = find_sku(name, search)
    sku, problems = read_sku(path, search)
    if sku is not None and not problems:
        problems = problems_of(sku)
    if sku is None or problems:
        more = f" ({len(problems) - 1} more: run `muster sku lint`)" if len(problems) > 1 else ""
        raise SkuError(f"{str(problems[0])[:-1]}{more}.")
    return sku


def lint_sku(
    sku: str | Path, search: Sequence[Path] = (), declared: Mapping[str, Declared] | None = None
) -> list[Problem]:
    """Everything that is wrong with a SKU, given by name or as a file. Raises SkuError if there is no such SKU.

    ``declared``: the probes there are (default: those shipped).
    """
    from muster_criteria.sku_files.lint import problems_of

    path = sku if isinstance(sku, Path) else find_sku(sku, search)
    read, problems = read_sku(path, (*search, path.parent))
    return problems if read is None else problems_of(read, declared)


def read_sku(path: Path, search: Sequence[Path] = ()) -> tuple[Sku | None, list[Problem]]:
    """Read a SKU file and its programme, checking form only: (sku, no problems) or (None, problems)."""
    try:
        text, raw = _read_yaml(path)
    except SkuError as error:
        return None, [Problem(path.name, "file", str(error))]
    named = raw.get("programme")
    if not isinstance(named, str):
        return None, [Problem(path.name, "programme", "names no programme (such as gpu-node)")]
    programme_path = next(
        (file for folder in _folders(search) if (file := folder / "programmes" / f"{named}.yaml").is_file()), None
    )
    if programme_path is None:
        return None, [Problem(path.name, "programme", f"there is no programme {named!r} in programmes/")]
    try:
        programme_text, programme_raw = _read_yaml(programme_path)
        programme = Programme.model_validate(programme_raw)
    except SkuError as error:
        return None, [Problem(f"programmes/{programme_path.name}", "file", str(error))]
    except ValidationError as error:
        return None, _problems(f"programmes/{programme_path.name}", error)
    try:
        policy_text, policy = _read_policy(raw.get("xid_policy"), search)
        family_text, raw = _with_families(raw, search)
        learned_text, raw = _with_learned(raw, path, search)
    except BadPolicy as error:
        return None, [Problem(path.name, "xid_policy", str(error)[:-1])]
    except SkuError as error:
        return None, [Problem(path.name, "includes", str(error))]
    except BadLesson as error:
        return None, [Problem(path.name, "learned", str(error))]
    digest = hashlib.sha256(text + programme_text + policy_text + family_text + learned_text).hexdigest()
    try:
        sku = Sku.model_validate(
            raw | {"programme": programme, "xid_policy": policy, "file": path.name, "digest": digest}
        )
    except ValidationError as error:
        return None, _problems(path.name, error)
    if sku.name != path.stem:
        return None, [Problem(path.name, "sku", f"says {sku.name}, but the file's name says {path.stem}")]
    return sku, []


def _with_families(raw: dict[str, Any], search: Sequence[Path]) -> tuple[bytes, dict[str, Any]]:
    """The SKU with what its families say after its own, and the families' bytes. Raises SkuError."""
    read, whole = b"", dict(raw)
    for name in raw.get("includes") or ():
        path = next(
            (file for folder in _folders(search) if (file := folder / "families" / f"{name}.yaml").is_file()), None
        )
        if path is None:
            raise SkuError(f"there is no family {name!r} in families/")
        text, family = _read_yaml(path)
        if odd := sorted(set(family) - set(FAMILY_KEYS)):
            raise SkuError(f"family {name} may have {', '.join(FAMILY_KEYS)}, but has {', '.join(map(str, odd))}")
        read += text
        for key in FAMILY_KEYS:
            whole[key] = [*(whole.get(key) or ()), *(family.get(key) or ())]
    return read, whole


def _with_learned(raw: dict[str, Any], path: Path, search: Sequence[Path]) -> tuple[bytes, dict[str, Any]]:
    """The SKU with the floors that this fleet has learned for it, and their bytes. Raises BadLesson."""
    from muster_criteria.sku_files.learned import newest, read_learned, with_learned

    lesson = newest(search, path.stem)
    if lesson is None:
        return b"", raw
    text, file = read_learned(lesson, path.stem)
    return text, {**raw, "limits": with_learned(raw.get("limits") or (), file)}


def _read_policy(named: object, search: Sequence[Path]) -> tuple[bytes, XidPolicy | None]:
    """The XID policy that a SKU names, if it names one, with its bytes. Raises BadPolicy."""
    if named is None:
        return b"", None
    path = find_policy(str(named), _folders(search))
    text = path.read_bytes()
    return text, parse_policy(text, f"policies/{path.name}")


def _read_yaml(path: Path) -> tuple[bytes, dict[str, Any]]:
    text = path.read_bytes()
    if len(text) > YAML_BYTES_MAX:
        raise SkuError(f"is larger than {YAML_BYTES_MAX} bytes")
    try:
        raw = yaml.load(text, Loader=_LOADER)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark is not None else ""
        raise SkuError(f"is not YAML{where}: {getattr(error, 'problem', None) or 'cannot be read'}") from None
    if not isinstance(raw, dict):
        raise SkuError("is not a map of keys to values")
    return text, raw


def _problems(file: str, error: ValidationError) -> list[Problem]:
    found = []
    for item in error.errors(include_url=False):
        parts = [part for part in item["loc"] if part not in ("constrained-str", "Times", "float")]
        key = ".".join(str(part) for part in parts) or "file"
        message = {
            "missing": "is missing; every number needs a unit, a source and a date"
            if _is_evidence(parts)
            else "is missing",
            "extra_forbidden": "is not a key that is known here",
        }.get(item["type"], item["msg"].removeprefix("Value error, "))
        found.append(Problem(file, key, message[0].lower() + message[1:]))
    return found


def _is_evidence(parts: list[Any]) -> bool:
    return bool(parts) and parts[-1] in ("unit", "source", "date")

"""Profiles of evidence: which commands, files and Redfish documents one vendor's support asks for. Read strictly.

A profile is a file ``evidence/NAME.yaml`` of a SKU folder. It names what is taken; what a node lacks is a line of the
manifest, so that a profile may name tools that only some nodes have.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from muster_criteria import policy_file
from muster_criteria.policy_file import BadPolicy, Source
from muster_criteria.written import Written

STEP_LIMIT_S_MAX = 1200.0
STEP_BYTES_MAX = 64 * 1024 * 1024

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
Words = Annotated[tuple[str, ...], Field(min_length=1)]


class Step(Written):
    """One piece: the output of ``command`` on the node, or its ``file``. ``name``: the file's name in the bundle.

    ``root``: through sudo if the node's sudoers allows exactly this command, else without.
    ``if_missing``: only if the step of that name gave nothing, or hung. ``needs``: only if one of the steps of these
    names, which write the file, succeeded; otherwise the file may be an earlier report.
    """

    name: Name
    command: tuple[str, ...] = ()
    file: str = ""
    root: bool = False
    limit_s: Annotated[float, Field(gt=0, le=STEP_LIMIT_S_MAX)] = 30.0
    bytes_max: Annotated[int, Field(gt=0, le=STEP_BYTES_MAX)] = 4 * 1024 * 1024
    if_missing: str = ""
    needs: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _one_of_both(self) -> Step:
        if bool(self.command) == bool(self.file):
            raise ValueError(f"{self.name} needs a command or a file, and one of them only")
        return self

    @property
    def words(self) -> tuple[str, ...]:
        """The command, or the file's path."""
        return self.command or (self.file,)


class Profile(Written):
    """What one vendor's support asks for. It applies to nodes with every label of ``labels`` and a SKU like one of
    ``skus`` (patterns with ``*``); without both to all nodes. ``redfish``: documents of the BMC, each with what it
    links to as members and logs.
    """

    profile: Name
    version: str
    title: str
    labels: dict[str, str] = Field(default_factory=dict)
    skus: tuple[str, ...] = ()
    sources: dict[str, Source]
    steps: tuple[Step, ...] = ()
    redfish: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _names(self) -> Profile:
        before: set[str] = set()
        for step in self.steps:
            if step.name in before:
                raise ValueError(f"two steps are named {step.name}")
            if step.if_missing and step.if_missing not in before:
                raise ValueError(f"{step.name} stands in for {step.if_missing}, which is no step before it")
            if unknown := next((name for name in step.needs if name not in before), None):
                raise ValueError(f"{step.name} needs {unknown}, which is no step before it")
            before.add(step.name)
        if bad := next((path for path in self.redfish if not path.startswith("/redfish/v1/")), None):
            raise ValueError(f"{bad} is no path below /redfish/v1/")
        return self

    @property
    def cited(self) -> str:
        """As a manifest cites it: "nvidia 2026.1"."""
        return f"{self.profile} {self.version}"

    def applies(self, sku: str, labels: Mapping[str, str]) -> bool:
        """Whether it is for a node of that SKU with those labels."""
        like = not self.skus or any(fnmatch.fnmatchcase(sku, each) for each in self.skus)
        return like and all(labels.get(name) == value for name, value in self.labels.items())


def load(folders: Sequence[Path]) -> list[Profile]:
    """Returns all profiles, sorted by name; of two with one name, that of the first folder. Raises BadPolicy."""
    found: dict[str, Profile] = {}
    for folder in folders:
        for path in sorted((Path(folder) / "evidence").glob("*.yaml")):
            if path.stem in found:
                continue
            try:
                text = path.read_bytes()
            except OSError as error:
                raise BadPolicy(f"evidence/{path.name} cannot be read: {error.strerror}.") from None
            found[path.stem] = policy_file.parse(Profile, text, f"evidence/{path.name}")
    return [found[name] for name in sorted(found)]

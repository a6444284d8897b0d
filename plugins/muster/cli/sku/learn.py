"""``muster sku learn``: floors calibrated from this fleet's own healthy nodes, written as a new revision."""

from __future__ import annotations

import contextlib
import datetime
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from muster import ownership
from muster.cli.airflow.start import existing
from muster.cli.terminal import show
from muster.cli.terminal.dry import DryRun
from muster.cli.terminal.messages import messages
from muster.errors import MusterError, of_sku_files
from muster.settings import settings

if TYPE_CHECKING:
    from muster_criteria.sku_files.learned import Calibration, LearnedFloor
    from muster_criteria.sku_files.model import Sku


@messages
def learn(
    name: Annotated[str, typer.Argument(help="The SKU.")],
    level: Annotated[str, typer.Option(help="Learn from measurements of this level.")] = "standard",
    stack: Annotated[str, typer.Option(help="Firmware, driver and libraries; default: those most nodes run.")] = "",
    into: Annotated[Path | None, typer.Option(help="Folder of SKU files; default: MUSTER_SKU_PATH's first.")] = None,
    dry_run: DryRun = False,
) -> None:
    """Derive floors from measured healthy nodes (16 at least), robustly, and write them as the next revision."""
    from muster import store
    from muster_criteria.sku_files.learned import FOLDER, as_file, in_force
    from muster_criteria.sku_files.skus import load_sku
    from muster_criteria.sku_files.work import outdated_notes, sku_work

    existing(level)
    folder = into or next(iter(settings().sku_folders), None)
    if folder is None:
        raise MusterError("nowhere to write to: name a folder with --into, or set MUSTER_SKU_PATH")
    search = [folder, *settings().sku_folders]
    with of_sku_files():
        sku = load_sku(name, search)
    if sku.learned and not in_force([folder], name)[1]:
        raise MusterError(
            f"floors learned in {folder} would switch off those of {name} in another folder of MUSTER_SKU_PATH: "
            "name that one with --into"
        )
    for note in outdated_notes(sku, level):
        typer.echo(note)
    calibration = _calibrated(sku, level, stack)
    if calibration.refused:
        raise MusterError(f"nothing is learned for {name} at level {level}: {calibration.refused}")
    _show(calibration)
    revision = sku.learned[0].revision + 1 if sku.learned else 1
    path = folder / FOLDER / f"{name}-{revision:04d}.yaml"
    if dry_run:
        typer.echo(f"dry run: {path} was not written")
        return
    today = datetime.datetime.now(datetime.UTC).date()
    text = as_file(name, calibration, level, revision, today, sku.limits, sku_work(sku, level))
    with _checked(path, text, name, search) as part:
        store.audit.command(
            f"floors of {name} were learned at level {level}, as revision {revision}",
            {"sku": name, "level": level, "revision": revision, "file": str(path)},
        )
        ownership.give_name(part, path)  # after its event
    if in_force([folder], name)[1][0] not in load_sku(name, settings().sku_folders).learned:
        typer.echo(f"{path} is not in force: add {folder} to MUSTER_SKU_PATH, first")
        return
    where = f"nodes on {calibration.stack or 'an unknown stack'} at level {level}"
    typer.echo(f"{path} is in force from now on for {where}; delete it to go back to the revision before")


def _calibrated(sku: Sku, level: str, stack: str) -> Calibration:
    from muster import store
    from muster_criteria.sku_files import learn as learning
    from muster_criteria.sku_files.learned import without
    from muster_criteria.sku_files.work import outdated, sku_work

    metrics = learning.rates(sku)
    if not metrics:
        units = ", ".join(learning.RATE_UNITS)
        raise MusterError(f"nothing is learned for {sku.name}: it limits, requires and compares no rate ({units})")
    readings = store.measured.fleet_readings(sku.name, level, metrics, sku_work(sku, level), simulated=False, visits=1)
    suspects = store.measured.excluded_from_peers(sku.name, simulated=False)
    readings = readings[~readings["node"].isin(list(suspects))]
    before = [without(each, outdated(sku, each)) for each in sku.learned if each.level == level]
    return learning.learn(readings, before, stack, sku.limits)


def _show(calibration: Calibration) -> None:
    state = (
        "a canary, since most nodes run another stack: floors only warn"
        if calibration.canary
        else "floors that fail a node"
    )
    typer.echo(f"{calibration.nodes} healthy nodes on {calibration.stack or 'an unknown stack'}: {state}")
    show.table(
        ["metric", "on", "floor", "warns below", "median", "spread", "devices", "nodes"],
        [_row(each) for each in calibration.learned],
        empty="no rate was measured on enough nodes",
    )
    if calibration.left_out:
        typer.echo(f"left out, since they stand out below the others: {', '.join(calibration.left_out)}")
    for note in calibration.notes:
        typer.echo(note)


def _row(each: LearnedFloor) -> list[object]:
    return [
        each.name, each.kind, f"{each.fail:g} {each.unit}", f"{each.warn:g} {each.unit}", f"{each.basis.median:.5g}",
        f"{100 * each.basis.spread:.2g} %", each.basis.devices, each.basis.nodes,
    ]  # fmt: skip


@contextlib.contextmanager
def _checked(path: Path, text: str, name: str, search: list[Path]) -> Iterator[Path]:
    """Yields a temporary file next to ``path``, checked together with the SKU, to be linked to ``path``; it is deleted
    afterwards. Raises MusterError.
    """
    from muster_criteria.sku_files.learned import FOLDER
    from muster_criteria.sku_files.skus import lint_sku

    try:
        ownership.folder(path.parent)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".") as own:
            part = Path(own) / FOLDER / path.name
            part.parent.mkdir()
            part.write_text(text, encoding="utf-8")
            ownership.give(part)
            if problems := lint_sku(name, [Path(own), *search]):
                raise MusterError(f"the floors do not hold together, so nothing was kept: {problems[0]}")
            yield part
    except FileExistsError:
        raise MusterError(
            f"{path} exists already and is not overwritten: another calibration was written meanwhile"
        ) from None
    except OSError as error:
        raise MusterError(f"{path} cannot be written, so nothing was kept: {error.strerror}") from None

"""``muster sku``: list, show and check hardware models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from muster.cli.sku import learn
from muster.cli.terminal import show
from muster.cli.terminal.options import AsJson
from muster.errors import MusterError, of_sku_files
from muster.settings import settings

app = typer.Typer()
app.command("learn")(learn.learn)


@app.command("list")
def sku_list(json: AsJson = False) -> None:
    """List the hardware models that can be tested."""
    from muster_criteria.sku_files.model import SkuError
    from muster_criteria.sku_files.skus import list_skus, load_sku

    rows: list[dict[str, str]] = []
    for name in list_skus(settings().sku_folders):
        try:
            sku = load_sku(name, settings().sku_folders)
            rows.append({"sku": name, "version": sku.version, "title": sku.title})
        except SkuError as error:
            rows.append({"sku": name, "version": "", "title": f"cannot be used: {error}"})
    listed = (list(row.values()) for row in rows)
    show.answer(rows, ["sku", "version", "title"], listed, json=json, empty="there are no SKU files")


@app.command("show")
def sku_show(name: Annotated[str, typer.Argument(help="The SKU.")], json: AsJson = False) -> None:
    """Show a hardware model's file."""
    from muster_criteria.sku_files.skus import find_sku

    with of_sku_files():
        path = find_sku(name, settings().sku_folders)
    if json:
        show.as_json({"path": str(path), "text": path.read_text(encoding="utf-8")})
        return
    typer.echo(f"# {path}")
    typer.echo(path.read_text(encoding="utf-8"))


@app.command("lint")
def sku_lint(
    names: Annotated[list[str] | None, typer.Argument(help="SKUs or files; default: all.")] = None,
    json: AsJson = False,
) -> None:
    """Check SKU files: limits, units, sources, contradictions. Ends with status 1 if something is wrong."""
    from muster_criteria.sku_files.skus import lint_sku, list_skus, load_sku
    from muster_criteria.sku_files.work import outdated_notes

    found: list[str] = []
    notes: list[str] = []
    listed = names or list_skus(settings().sku_folders)
    for name in listed:
        is_file = name.endswith((".yaml", ".yml")) or "/" in name
        if is_file and not Path(name).is_file():
            raise MusterError(f"there is no file {name}; give a SKU's name, or the path of its file")
        with of_sku_files():
            problems = lint_sku(Path(name) if is_file else name, settings().sku_folders)
        found += map(str, problems)
        if not problems and not is_file:
            notes += outdated_notes(load_sku(name, settings().sku_folders))
    if json:
        show.as_json({"checked": listed, "problems": found, "notes": notes})
    for note in () if json else notes:
        typer.echo(note)
    for problem in () if json else found:
        typer.echo(problem, err=True)
    if found:
        raise typer.Exit(1)
    if not json:
        typer.echo(f"{len(listed)} SKU file{'s are' if len(listed) != 1 else ' is'} well")

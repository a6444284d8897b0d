"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Name = Annotated[str, typer.Argument(help="The node's name.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of a table or sentences.")]
AsWho = Annotated[str, typer.Option("--as", help="Who decides; default: MUSTER_PERSON, else your login name.")]
OfNode = Annotated[str, typer.Option("--node", help="Which node, if the run tests several.")]

"""``muster certificate``: show, list and verify the certificates of admission, and their key."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from json import loads
from pathlib import Path
from typing import Annotated, Any

import typer

from muster.cli.terminal import show
from muster.cli.terminal.options import AsJson, AsWho, Name, given
from muster.errors import BadCertificate, MusterError

app = typer.Typer()


@app.command("show")
def show_(name: Name, json: AsJson = False) -> None:
    """Print a node's newest certificate, JSON as it was signed. Ends with status 1 if it holds no longer."""
    from muster import store
    from muster.rules.lifecycle import certificate

    found = store.certificates.newest(name)
    if found is None:
        raise MusterError(f"{name} has no certificate: it gets one when it is admitted")
    typer.echo(found.document)
    if why := certificate.why_invalid(found.revoked, found.expires_at, store.clock.now()):
        typer.echo(f"muster: the certificate of {name} holds no longer: {why}", err=True)
        raise typer.Exit(1)


@app.command("list")
def list_(json: AsJson = False) -> None:
    """List the nodes in production without a valid certificate, and why: they are tested again when idle."""
    from muster import store

    found = store.certificates.uncertified()
    show.answer(found, ["node", "why"], found.items(), json=json, empty="every verified node in production has one")


@app.command("verify")
def verify(
    file: Annotated[Path, typer.Argument(help="What `muster certificate show` printed.")],
    key: Annotated[
        Path | None,
        typer.Option(help="The public key: what `muster certificate key` printed. By default as the records have it."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Check a certificate's signature and expiry by the public key; whether it was revoked, where the records are."""
    from muster import ownership, store
    from muster.rules.lifecycle import certificate

    document = ownership.read(file)
    try:
        public = store.signing.read_public(key) if key else store.certificates.key_of(certificate.signed_by(document))
        content = certificate.verify(document, public, datetime.datetime.now(datetime.UTC))
        revocation = _revocation(content, theirs=key is None)
    except BadCertificate as error:
        raise BadCertificate(f"{file} is not valid: {error}") from None
    if json:
        show.as_json({**content, "revocation": revocation})
        return
    passed = ", ".join(f"{each['stage']} {each['verdict']} at {each['level']}" for each in content["stages"])
    facts = {name: content[name] for name in ("node", "id", "verdict", "admitted_by", "sku", "expires_at")}
    of = ", of a simulated node: it says nothing of any hardware" if content["simulated"] else ""
    show.facts({"certificate": f"valid by its signature{of}", "revoked": revocation, **facts, "stages": passed})


def _revocation(content: Mapping[str, Any], *, theirs: bool) -> str:
    """Returns what the records that are reachable from here say about its revocation. Raises BadCertificate if it was
    revoked, or if they did not issue it although its key is ``theirs``: the key may be stolen.
    """
    from muster import store
    from muster.rules.lifecycle import certificate

    try:
        found = store.certificates.get(str(content.get("id")))
    except MusterError as error:
        return f"not asked, and it may be: {error}"
    if found is None and theirs:
        raise BadCertificate(
            "these records hold its key and did not issue it: it is forged, unless they came back from an older "
            "back-up; in that case --key checks its signature alone"
        )
    if found is None:
        return "not asked, and it may be: the records that are reachable from here do not hold it"
    # Compared as it was signed, since to Python True equals 1.
    if certificate.canonical(loads(found.document)["certificate"]) != certificate.canonical(content):
        raise BadCertificate("it is forged: these records issued another one under its id")
    if found.revoked:
        raise BadCertificate(f"it was revoked {show.when(found.revoked_at)}: {found.revoked}")
    return "no, by the records"


@app.command("key")
def key(
    new: Annotated[bool, typer.Option("--new", help="Make a key first; the file must not exist.")] = False,
    reason: Annotated[str, typer.Option(help="Why a key is made; it is recorded.")] = "",
    who: AsWho = "",
    json: AsJson = False,
) -> None:
    """Print the public key that verifies this controller's certificates."""
    from muster import store

    if new:
        store.signing.replace_key(show.person(who), given(reason))
    public = store.signing.public_text(store.signing.signing_key(create=False))
    if json:
        show.as_json({"public_key": public})
    else:
        typer.echo(public, nl=False)

"""Deterministic DAG run ids: the same node and reason give the same run id, which Airflow accepts only once."""

from __future__ import annotations

import hashlib
import re
import unicodedata

ASKED_BY = "__asked-by-"
"""Follows the node's name in the run id of a test that a person requested in an answer."""

SLUG_CHARS = 60
"""Longer reasons are cut and get a hash, to stay readable and within Airflow's limit of 250 characters."""


def slug(reason: str, *, exact: bool = False) -> str:
    """Returns ``reason`` in lower-case words joined by "-", with the characters that Airflow allows in a run id.

    Different reasons may share a slug only if they differ in case, punctuation or white space, and with ``exact`` only
    in case; a reason that loses more, has no usable character or is too long gets a hash.
    """
    plain = unicodedata.normalize("NFKD", reason).encode("ascii", "ignore").decode()
    words = re.sub(r"[^a-z0-9.]+", "-", plain.lower()).strip("-.")
    foreign = any(character.isalnum() and not character.isascii() for character in reason)
    whole = not foreign and (not exact or words == reason.lower())
    if words and len(words) <= SLUG_CHARS and whole:
        return words
    distinct = reason if exact else " ".join(reason.split())
    digest = hashlib.sha256(distinct.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{words[:SLUG_CHARS].rstrip('-.')}-{digest}".lstrip("-")


def asked_by(node: str, question: str) -> str:
    """Returns the DAG run id of the test that the answer to the question of run ``question`` starts.

    The DAGs that ask build the same id with a template.
    """
    return f"{node}{ASKED_BY}{question.replace('+', '-').replace(':', '-')}"


def of_pick(node: str, why: str, pick: str) -> str:
    """Returns the DAG run id of the test of ``node`` that run ``pick`` of idle_revalidation starts: "n1__idle__…"."""
    return f"{node}__{why}__{slug(pick)}"


def is_of_pick(run_id: str, node: str) -> bool:
    """Whether idle_revalidation started that run of ``node``: no reason of a person has "__" in its slug."""
    return re.fullmatch(re.escape(node) + "__[a-z]+__.*", run_id) is not None


def of_delivery(node: str, delivery: str) -> str:
    """Returns the DAG run id of ``node``'s test for ``delivery``, one for each: "n1__delivery-po-4711"."""
    return f"{node}__delivery-{slug(delivery, exact=True)}"


def run_id(node: str, reason: str) -> str:
    """Returns the DAG run id of ``node`` and ``reason``: "gpu-0001__new-hardware"."""
    return f"{node}__{slug(reason)}"

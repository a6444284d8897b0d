"""The rules as a Great Expectations suite over the frame: one expectation for each rule with a negative margin, and one
for all others together, whatever the number of rows.

Great Expectations takes seconds to import, so it is imported where it is used; a worker that preloads it pays once.
"""

from __future__ import annotations

import functools
import gc
import logging
import os
from collections.abc import Sequence
from typing import Any

import pandas as pd

from muster_criteria.stage.rules import SEVERITY, Rule, Violations

os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
# At INFO its import alone writes hundreds of lines about its own registration into every task's log.
logging.getLogger("great_expectations").setLevel(logging.WARNING)


class SuiteError(Exception):
    """Great Expectations could not judge; the message is one sentence. Nothing may pass on this."""


LEAST = "least"
"""The column of each row's least margin."""


def build_suite(rules: Sequence[Rule], *, least: bool = False) -> Any:
    """The suite of these rules: for each, that its column of margins has no negative number; the ``LEAST`` column's
    too."""
    import great_expectations as gx
    from great_expectations import expectations as gxe

    columns: list[dict[str, Any]] = [
        {
            "column": rule.column,
            "severity": SEVERITY[rule.breach].value,
            "meta": {"rule": rule.kind, "breach": rule.breach, "claim": rule.claim},
        }
        for rule in rules
    ]
    expected: list[Any] = [gxe.ExpectColumnValuesToBeBetween(min_value=0.0, **each) for each in columns]
    # Of a minimum it computes no metric for each row, which costs half.
    expected += [gxe.ExpectColumnMinToBeBetween(column=LEAST, min_value=0.0)] * least
    return gx.ExpectationSuite(name="muster", expectations=expected)


@functools.cache
def _frames() -> Any:
    """Returns the batch definition for frames. Costs a third of a verdict's time, so it is cached."""
    import great_expectations as gx

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    asset = context.data_sources.add_pandas("muster").add_dataframe_asset("frame")
    whole = asset.add_batch_definition_whole_dataframe("whole")
    gc.freeze()  # what was imported lives as long as the process: no collection needs to look at it again
    return whole


def unexpected_rows(frame: pd.DataFrame, rules: Sequence[Rule]) -> Violations:
    """Let Great Expectations validate the frame; rows that break each rule. Raises SuiteError where it cannot.

    An expectation costs its time whatever the rows, and most rules are broken by none: those without a negative margin
    are expected to hold together, by the least margin of each row.
    """
    suspected = [rule for rule in rules if (frame[rule.column] < 0.0).any()]
    found: dict[str, list[int]] = {rule.column: [] for rule in rules}
    columns = [rule.column for rule in suspected]
    others = [column for column in found if column not in columns]
    asked = frame[columns].assign(**{LEAST: frame[others].min(axis=1)} if others else {})
    if not len(asked.columns):
        return found
    # Which rows break a rule costs as much again as whether any does.
    answers = _results(asked, build_suite(suspected, least=bool(others)), "COMPLETE" if columns else "BOOLEAN_ONLY")
    if others and not answers[LEAST].success:
        why = _exception(answers[LEAST])
        raise SuiteError(f"Great Expectations does not confirm that the other rules hold: {why}.")
    return found | {column: _rows(column, answers[column]) for column in columns}


def _results(frame: pd.DataFrame, suite: Any, result_format: str) -> dict[str, Any]:
    """{column: Great Expectations' result} of each column of the frame. Raises SuiteError if one is missing."""
    batch = _frames().get_batch(batch_parameters={"dataframe": frame})
    outcome = batch.validate(suite, result_format=result_format)
    found = {result.expectation_config.kwargs["column"]: result for result in outcome.results}
    unanswered = [column for column in frame.columns if column not in found]
    if unanswered:
        raise SuiteError(f"Great Expectations gave no answer for {', '.join(unanswered)}.")
    return found


def _rows(column: str, result: Any) -> list[int]:
    rows = result.result.get("unexpected_index_list") if result.result else None
    if not rows:
        raise SuiteError(f"Great Expectations could not evaluate {column}: {_exception(result)}.")
    return [int(row) for row in rows]


def _exception(result: Any) -> str:
    info = result.exception_info or {}
    entries = [info] if "exception_message" in info else [entry for entry in info.values() if isinstance(entry, dict)]
    messages = [str(entry["exception_message"]) for entry in entries if entry.get("exception_message")]
    return messages[0].splitlines()[0][:200] if messages else "no reason given"

"""The rules as a Great Expectations suite over the frame: one expectation per rule, whatever the number of rows. Before
it, one for all of them: most frames break none.

Great Expectations takes seconds to import, so it is imported where it is used; a worker that preloads it pays once.
"""

from __future__ import annotations

import functools
import gc
import logging
import os
from collections.abc import Mapping, Sequence
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


def build_suite(rules: Sequence[Rule]) -> Any:
    """The suite of these rules: for each, that its column of margins has no negative number."""
    return _suite(
        [
            {
                "column": rule.column,
                "severity": SEVERITY[rule.breach].value,
                "meta": {"rule": rule.kind, "breach": rule.breach, "claim": rule.claim},
            }
            for rule in rules
        ],
    )


def _suite(columns: Sequence[Mapping[str, Any]], expectation: str = "ExpectColumnValuesToBeBetween") -> Any:
    """The suite that expects no negative number in any of these columns."""
    import great_expectations as gx
    from great_expectations import expectations as gxe

    expected = [getattr(gxe, expectation)(min_value=0.0, **each) for each in columns]
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
    """Let Great Expectations validate the frame; rows that break each rule. Raises SuiteError where it cannot."""
    columns = [rule.column for rule in rules]
    if not columns:
        return {}
    least = frame[columns].min(axis=1).to_frame(LEAST)
    # An expectation costs its time whatever the rows, and most frames break no rule. One of the minimum costs half.
    whole = _suite([{"column": LEAST}], "ExpectColumnMinToBeBetween")
    if _results(least, whole, "BOOLEAN_ONLY")[LEAST].success:
        return {column: [] for column in columns}
    # Which rows break a rule costs as much again as whether any does.
    answers = _results(frame[columns], build_suite(rules), "BOOLEAN_ONLY")
    broken = [rule for rule in rules if not answers[rule.column].success]
    if not broken:
        raise SuiteError("Great Expectations says that a margin is negative, and of no rule that it is broken.")
    found = _results(frame[[rule.column for rule in broken]], build_suite(broken), "COMPLETE")
    return {column: _rows(column, found[column]) if column in found else [] for column in columns}


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

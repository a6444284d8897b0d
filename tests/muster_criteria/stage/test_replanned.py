"""A result of other parameters than the SKU file's: it passes nothing, and fails by what depends on no parameter."""

from __future__ import annotations

import pytest

from muster_criteria.model import Lack, Severity, Verdict
from tests.muster_criteria.nodes import MakeCase


@pytest.mark.parametrize(
    ("stage", "figure", "value", "fails", "verdict"),
    [
        ("integrity", ("gemm_mismatches", "gpu5"), 0.0, False, Verdict.INCONCLUSIVE),
        ("integrity", ("gemm_mismatches", "gpu5"), 4.0, True, Verdict.FAIL),
        ("performance", ("gemm_rate", "gpu5"), 9.0, True, Verdict.INCONCLUSIVE),
        ("burn_in", ("ecc_uncorrected_delta", "gpu5"), 40.0, True, Verdict.FAIL),
    ],
)
def test_what_other_parameters_measured_fails_by_no_limit_of_these(
    case: MakeCase, stage: str, figure: tuple[str, str], value: float, fails: bool, verdict: Verdict
) -> None:
    labels = {"dtype": "bf16"} if figure[0].startswith("gemm") else {}
    made = case(stage).set(*figure, value=value, **labels)
    before = made.judge()
    assert (before.verdict is Verdict.FAIL) is fails
    judgement = made.judge(replanned="the file changed")
    assert (judgement.verdict, judgement.replanned) == (verdict, "the file changed")
    assert judgement.coverage.missing[0].code is Lack.REPLANNED
    assert len(judgement.findings) == len(before.findings)
    of_limits = [each.severity for each in judgement.findings if each.rule == "floor"]
    assert of_limits == [Severity.INFO] * len(of_limits)
    assert not judgement.repeat

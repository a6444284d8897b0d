"""The training of a block: scaling, regular steps, each node alone, and the paths between neighbours.

A finding on the block as a whole is a warning on all members: no node fails for it, and a person decides.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping

from muster_criteria.cluster.domains import domain_of
from muster_criteria.cluster.model import (
    TRAINING,
    BlockFindings,
    Earlier,
    Measurements,
    low_rates,
    number_of,
    of_limit,
    values_of,
)
from muster_criteria.cluster.storage import judge_path, judge_rates, judge_resume
from muster_criteria.measured import StageResult
from muster_criteria.model import Extent, Lack, Observation
from muster_criteria.sku_files.figures import in_base_units
from muster_criteria.sku_files.limits import Limit
from muster_criteria.sku_files.model import BlockProgramme
from muster_criteria.words import against, figure, listed

EARLIER_MIN = 3
"""Fewest earlier blocks to compare a block with."""

PATH_TIMES_MAX = 100.0
"""How many times slower a path may make a block, chosen here: 1 Gb/s of a management network in place of 100 Gb/s. Only
the path's receiver reports how slow it is."""

EXPLAINING = frozenset({"straggler", "slow_alone"})
"""Rules of findings that explain why a block does not scale (as far as the member is slower) or steps irregularly (as
far as the member's compute is irregular)."""


def judge_training(
    programme: BlockProgramme, simulated: bool, earlier: Earlier | None, members: Mapping[str, Measurements],
    block: BlockFindings,
) -> None:  # fmt: skip
    """Judges what the training measured besides its pace; no times of ``simulated`` members, which are a host's."""
    devices = values_of(members, "training_devices")
    if len(devices) == len(members):  # those of a member that sent no result are in the block's rate
        block.training_devices = sum(devices.values())
    judge_path(members, block)
    judge_resume(members, block)
    if simulated:
        if any(measured.rows(TRAINING, "scaling") for measured in members.values()):
            block.note("Scaling, regularity and paths are not judged: with simulated GPUs, the network is this host's.")
        return
    _judge_alone(programme.limit("alone_drop", "warn"), members, block)
    slow_path = _judge_paths(programme.limit("path_drop", "warn"), members, block)
    _judge_scaling(programme.limit("scaling", "warn"), slow_path, members, block)
    _judge_regularity(programme.limit("step_p95_to_p50", "warn"), members, block)
    _judge_earlier(programme.limit("earlier_drop", "warn"), earlier, slow_path, members, block)
    judge_rates(programme, earlier, members, block)


def recipe_of(results: Iterable[StageResult | None]) -> tuple[str, float]:
    """(what the members trained, as they name it, "" if none trained or they differ; on how many devices)."""
    sent = [Measurements(each) for each in results]
    recipes = {text for each in sent if (text := each.text(TRAINING, "training_recipe"))}
    devices = sum(each.value(TRAINING, "training_devices") or 0.0 for each in sent)
    return recipes.pop() if len(recipes) == 1 else "", devices


def dense_peaks(limits: Iterable[Limit]) -> dict[str, tuple[float, str]]:
    """A SKU's peaks of a GPU in FLOP/s with their sources, by PyTorch's name of the number format."""
    names = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
    return {
        names[dtype]: (in_base_units(each.number, each.unit), each.source)
        for each in limits
        if (each.metric, each.device, each.breach) == ("gemm_rate", "gpu", "invalid") and each.number
        if (dtype := each.labels.get("dtype", "")) in names
    }


def mfu_of(measured: Measurements, peaks: Mapping[str, tuple[float, str]], of_block: float) -> tuple[Observation, ...]:
    """MFU = tokens/s of a device × FLOP per token ÷ dense peak of the number format, alone and together, in %.

    ``of_block``: how many devices train together, 0 if not known. The formula of PaLM (Chowdhery et al. 2022,
    arXiv:2204.02311, appendix B); its terms are in the note. Empty if no peak is known for the format.
    """
    flop, recipe = measured.value(TRAINING, "flop_per_token"), measured.text(TRAINING, "training_recipe")
    dtype = next((name for name in peaks if name in (recipe or "").split(", ")), "")
    if flop is None or not dtype:
        return ()
    peak, source = peaks[dtype]
    found = []
    for scope, devices in (("node", measured.value(TRAINING, "training_devices")), ("block", of_block)):
        together = measured.value(TRAINING, "tokens_per_s", scope=scope)
        if together and devices:
            rate = together / devices
            note = (
                f"{figure(rate, 'tokens/s')} a device × {flop:.4g} FLOP ÷ {peak / 1e12:g} TFLOPS ({source}); {recipe}"
            )
            found.append(Observation(
                probe=TRAINING, metric="mfu", device="node", unit="%", value=100.0 * rate * flop / peak, text=None,
                labels=(("scope", scope),), samples=1, spread=None, floor=None, ceiling=None, source=source, ok=True,
                note=note,
            ))  # fmt: skip
    return tuple(found)


def _explained(members: Mapping[str, Measurements], block: BlockFindings, times: float, slow_path: float) -> str:
    """Members that explain why a block is ``times`` slower than its limit allows; "" if there are none.

    All wait for the slowest: one that is slower by a tenth costs the block a tenth. A path that is ``slow_path`` times
    slower than the others costs up to that factor, which it reaches if a step is nothing but communication.
    """
    if times <= slow_path:
        return listed(block.with_rule(frozenset({"slow_path"})))
    return listed(_slow(block)) if times <= _slowest(members) else ""


def _slow(block: BlockFindings) -> list[str]:
    return sorted({*block.with_rule(EXPLAINING), *block.slower})


def _slowest(members: Mapping[str, Measurements]) -> float:
    """How many times slower the slowest member is than the median, by its compute in a step or its rate alone."""
    compute = [value for each in members.values() if (value := each.value(TRAINING, "step_compute"))]
    alone = [value for each in members.values() if (value := each.value(TRAINING, "tokens_per_s", scope="node"))]
    times = [max(compute) / statistics.median(compute)] if compute else []
    times += [statistics.median(alone) / min(alone)] if alone else []
    return max(times, default=1.0)


def _judge_scaling(limit: Limit, slow_path: float, members: Mapping[str, Measurements], block: BlockFindings) -> None:
    values = values_of(members, "scaling")
    if not values or min(values.values()) >= number_of(limit):
        return
    value = min(values.values())
    shown, least = against(value, number_of(limit), "")
    observed = f"{shown} of its nodes' own throughput together"
    culprits = _explained(members, block, number_of(limit) / value if value > 0 else math.inf, slow_path)
    _warn_all(limit, "scaling", values, observed, f"≥ {least}", "The block scales badly", culprits, block)


def _judge_regularity(limit: Limit, members: Mapping[str, Measurements], block: BlockFindings) -> None:
    values = values_of(members, "step_p95_to_p50")
    if not values or max(values.values()) <= number_of(limit):
        return
    shown, most = against(max(values.values()), number_of(limit), "")
    observed, expected = f"the p95 of its steps is {shown} times their median", f"≤ {most} times"
    # A constant slowness moves p95 and median alike, so only an equally irregular member explains it.
    times = max(values.values()) / number_of(limit)
    culprits = listed([name for name in _slow(block) if 1.0 + _irregular(members[name]) >= times])
    _warn_all(limit, "step_p95_to_p50", values, observed, expected, "The block's steps are irregular", culprits, block)


def _irregular(measured: Measurements) -> float:
    """The widest spread of its devices' compute from step to step, as a share of the median."""
    return max((row.spread or 0.0 for row in measured.rows(TRAINING, "step_compute")), default=0.0)


def _judge_earlier(
    limit: Limit, earlier: Earlier | None, slow_path: float, members: Mapping[str, Measurements], block: BlockFindings
) -> None:
    """Compares the block with earlier ones, since a cause that slows all members alike shows in no comparison of
    them."""
    together = values_of(members, "tokens_per_s", scope="block")
    devices = block.training_devices
    if earlier is None or earlier.blocks < EARLIER_MIN or not together or not devices:
        return
    rate = statistics.median(together.values()) / devices
    least = earlier.tokens_per_s * (1.0 - number_of(limit) / 100.0)
    if rate >= least:
        return
    drop = 100.0 * (1.0 - rate / earlier.tokens_per_s)
    shown, at_least = against(rate, least, "tokens/s")
    observed = (
        f"{shown} a device, {drop:.0f} % less than the median of {earlier.blocks} earlier blocks with this recipe"
    )
    culprits = _explained(members, block, least / rate if rate > 0 else math.inf, slow_path)
    what = "The block trains more slowly than earlier ones"
    _warn_all(limit, "tokens_per_s", together, observed, f"≥ {at_least}", what, culprits, block)


def _warn_all(
    limit: Limit, metric: str, names: Iterable[str], observed: str, expected: str, what: str, culprits: str,
    block: BlockFindings,
) -> None:  # fmt: skip
    """Warns all members of a figure of the block, since ranks step together; ``culprits`` are named as its cause."""
    if culprits:
        block.note(f"{what} ({observed}), which what was found on {culprits} explains.")
        return
    summary = f"{what}: {observed}, and no member was found that explains it."
    for name in names:
        block.add(name, of_limit(limit, metric, metric, observed, expected, summary))


def _judge_alone(limit: Limit, members: Mapping[str, Measurements], block: BlockFindings) -> None:
    """Compares each node's throughput alone with the others that have the same devices and libraries."""
    keys = {name: measured.texts(TRAINING, "pace_key") for name, measured in members.items()}
    for name, low in low_rates(limit, values_of(members, "tokens_per_s", scope="node"), keys).items():
        if any(each.rule == "straggler" for each in block.findings.get(name, ())):
            continue
        rate, least = against(low.rate, low.least, "tokens/s")
        observed, expected = f"{rate} alone, {low.drop:.1f} % less than the others", f"≥ {least}"
        summary = f"The node {limit.meaning}: it trains {observed}."
        extent = Extent(low.rate / low.usual, "share", "lower")  # of the same model's rate, which a recipe changes
        block.add(name, of_limit(limit, "slow_alone", "tokens_per_s", observed, expected, summary, extent=extent))


def _judge_paths(limit: Limit, members: Mapping[str, Measurements], block: BlockFindings) -> float:
    """Messages between neighbours, all at once, rank by rank: a path slower than the others is named by its ends.

    Paths over the NVLinks of a domain are compared with each other, and paths over the network with each other. Returns
    how many times slower than the others the slowest named path is, ``PATH_TIMES_MAX`` at most; 1 without any.
    """
    domains = {name: domain_of(measured) for name, measured in members.items()}
    rates = _path_rates(members, block)
    kinds = {path: _kind_of(domains[path[0]], domains[path[1]], any(domains.values())) for path in rates}
    known = {path: rate for path, rate in rates.items() if kinds[path]}
    slow = low_rates(limit, known, kinds)
    for (sender, receiver, device), low in slow.items():
        rate, least = against(low.rate, low.least, "GB/s")
        observed = f"{rate} from {sender} to {device} of {receiver}, {low.drop:.0f} % less than other paths"
        expected = f"≥ {least}"
        summary = f"The path from {sender} to {receiver} {limit.meaning}: {observed}. Either end, or what lies between."
        extent = Extent(low.rate, "GB/s", "lower")
        for name in sorted({sender, receiver}):
            block.add(name, of_limit(limit, "slow_path", "path_rate", observed, expected, summary, extent=extent))
    return min(PATH_TIMES_MAX, max((low.usual / low.rate for low in slow.values()), default=1.0))


def _path_rates(members: Mapping[str, Measurements], block: BlockFindings) -> dict[tuple[str, str, str], float]:
    """Rates by (sender, receiver, receiver's device). In a ring each node has one sender, so a member that names
    several, or more devices than most do, is a suspect and does not count for others; nor does a sender with a rate of
    zero."""
    known = {
        name: [
            (row.labels.get("sender", ""), row.device, row.value)
            for row in measured.rows(TRAINING, "path_rate")
            if row.value is not None
        ]
        for name, measured in members.items()
    }
    devices = {name: len({device for _, device, _ in rows}) for name, rows in known.items() if rows}
    rates: dict[tuple[str, str, str], float] = {}
    for name, most in devices.items():
        senders = {sender for sender, _, _ in known[name]}
        if len(senders) > 1 or most > statistics.median_high(devices.values()):
            why = f"it names {len(senders)} nodes that send to it, and {most} devices that receive (path_rate)"
            block.suspect([name], Lack.REFUSED, why)
        elif any(rate <= 0.0 for _, _, rate in known[name]):
            block.suspect([name], Lack.REFUSED, "it sent a path_rate that is not above zero")
        else:
            rates |= {(sender, name, device): rate for sender, device, rate in known[name] if sender in members}
    return rates


def _kind_of(sender: str, receiver: str, of_domains: bool) -> str:
    """What lies between two nodes of these NVLink domains; "" if it is not known in a block that has domains."""
    if sender and sender == receiver:
        return "NVLink"
    return "network" if (sender and receiver) or not of_domains else ""

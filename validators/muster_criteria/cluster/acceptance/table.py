"""Makes a block's training table from what was judged of its members. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from muster_criteria.cluster.acceptance.causes import stragglers
from muster_criteria.cluster.acceptance.lines import Figures, checkpoint_lines, performance_lines
from muster_criteria.cluster.acceptance.values import Comparisons, Member, Rank, Training
from muster_criteria.cluster.goodput import ASSUMED_RESTART, ASSUMED_SAVE, PUBLISHED, Input, Inputs, forecast
from muster_criteria.cluster.model import TRAINING
from muster_criteria.devices import natural
from muster_criteria.words import figure, listed

OTHERS_MIN = 4
"""Fewest members for which each has three others to be compared with."""
TITAN = "torchtitan, benchmarks/llama3_h100_202412"
BRIDGE = "NVIDIA Megatron-Bridge performance summary 25.11"
CVS = "ROCm CVS floors"
FIGURES = (
    ("h100", f"Llama 3.1 8B bf16, FSDP, s 8,192: 5,762 tokens/s a GPU on 8 H100 and 5,605 on 128, scaling 97 %, "
             f"MFU 33 to 39 % ({TITAN})"),
    ("h100", f"Llama 3 8B fp8 on 8 H100: 744 TFLOPS and 14,451 tokens/s a GPU ({BRIDGE})"),
    ("b200", f"Llama 3 8B fp8 on 8 B200: 1,576 TFLOPS a GPU ({BRIDGE})"),
    ("gb200", f"Llama 3 8B fp8 on 8 GB200: 1,622 TFLOPS a GPU ({BRIDGE})"),
    ("mi300x", f"Llama 3.3 70B by MaxText: at least 260 to 300 TFLOPS a GPU ({CVS})"),
)  # fmt: skip
"""Published training figures, each with a prefix of the SKUs' names that it is for."""
MANY = "MFU of large jobs: 38 to 43 % (Llama 3 405B, arXiv:2407.21783), 55 % on 12,288 GPUs (MegaScale)"


def training_of(members: Sequence[Member], compared: Comparisons) -> Training | None:
    """The training table of a block; None if no member trained."""
    trained = [member for member in members if any(each.probe == TRAINING for each in member.observations)]
    if not trained:
        return None
    figures, found = Figures(trained), tuple(stragglers(trained))
    inputs = inputs_of(figures, compared)
    return Training(
        headline=_headline(figures, [f"{device} of {member.name}" if device != "node" else member.name
                                     for member, device, _, _ in found]),
        recipe=figures.text("training_recipe"),
        lines=tuple(performance_lines(figures, compared)),
        checkpoints=checkpoint_lines(figures, compared),
        ranks=_ranks(trained, {(member.name, device): why for member, device, _, why in found}),
        stragglers=tuple(
            f"{device if device != 'node' else 'All devices'} of {member.name} held the others up: {observed}. "
            f"Cause: {why}." for member, device, observed, why in found
        ),
        inputs=inputs, forecast=forecast(inputs),
        published=(*_published(trained[0].sku), *PUBLISHED),
        not_covered=tuple(_not_covered(figures, members, trained)),
        differences=compared.differences,
        simulated=any(member.simulated for member in members),
    )  # fmt: skip


def inputs_of(figures: Figures, compared: Comparisons) -> Inputs:
    """The inputs of the forecast: measured in this block, else in an earlier one, else assumed."""
    host = ", on simulated nodes" if figures.simulated else ""
    save, restart = figures.value("checkpoint_save", stat="p50"), figures.value("fault_restart")
    earlier = compared.earlier.get("checkpoint_save")
    if save is not None:
        saved = Input(save, True, f"the median save of this block{host}")
    else:
        saved = Input(earlier[0], True, f"the median of {earlier[1]} earlier blocks{host}") if earlier else ASSUMED_SAVE
    restarted = compared.restart
    if restart is not None:
        restarted = Input(restart, True, f"from a rank's death to the next step in this block{host}")
    together, devices = figures.together(), figures.devices()
    each = together / devices if together and devices else compared.earlier.get("tokens_per_s", (None, 0))[0]
    restarting = _with_load(restarted, figures, compared) if restarted else ASSUMED_RESTART
    return Inputs(saved, restarting, compared.rate, compared.gpus_a_node, each)


def _with_load(restart: Input, figures: Figures, compared: Comparisons) -> Input:
    """Adds the time to load the block's own checkpoint: a fault run trains a small model, whatever the block trains."""
    load, of = figures.value("checkpoint_load", stat="p50"), "this block"
    if load is None and "checkpoint_load" in compared.earlier:
        load, blocks = compared.earlier["checkpoint_load"]
        of = f"{blocks} earlier blocks"
    loaded = "no load of a checkpoint was measured"
    if load is not None:
        loaded = f"plus the median load of {of}, {figure(load, 's')}"
    source = f"{restart.source}, of a small model and without a queue; {loaded}"
    return Input(restart.value + (load or 0.0), load is not None, source)


def _headline(figures: Figures, slow: Sequence[str]) -> str:
    nodes, devices, together = len(figures.members), figures.devices(), figures.together()
    if together is None:
        return f"{nodes} nodes began to train, and no figure of all of them together came back."
    said = f"{nodes} nodes with {devices:g} devices train {together:,.0f} tokens/s together"
    scaling, mfu = figures.value("scaling"), figures.value("mfu", scope="block")
    if scaling is not None:
        gate = next((100 * row.floor for _, row in figures.rows("scaling") if row.floor is not None), None)
        said += f", {figure(100 * scaling, '%', gate, 2)} of what they train one by one"
    if mfu is not None:
        said += f", at {mfu:.1f} % MFU"
    return f"{said}. {listed(list(slow))} held the others up." if slow else f"{said}. No rank held the others up."


def _ranks(members: Sequence[Member], slow: dict[tuple[str, str], str]) -> tuple[Rank, ...]:
    found = []
    for member in members:
        rows = [each for each in member.observations if each.probe == TRAINING and each.device != "node"]
        for device in sorted({each.device for each in rows if each.metric == "step_compute"}, key=natural):
            by = {each.metric: each.value for each in rows if each.device == device}
            why = slow.get((member.name, device), slow.get((member.name, "node")))
            found.append(Rank(
                member.name, device, by.get("step_compute"), by.get("step_wait"), by.get("step_input"),
                by.get("checkpoint_own"), why is not None, why or "",
            ))  # fmt: skip
    return tuple(sorted(found, key=lambda each: (not each.straggler, -(each.compute or 0.0))))


def _not_covered(figures: Figures, members: Sequence[Member], trained: Sequence[Member]) -> Iterator[str]:
    if left := [member.name for member in members if member not in trained]:
        yield f"{listed(left)} trained nothing that could be judged."
    if figures.simulated:
        yield "Scaling, regularity and paths are not judged: with simulated GPUs, the network is this host's."
    elif len(trained) < OTHERS_MIN:
        yield f"With {len(trained)} members none has three others to be compared with, so no node alone is called slow."
    if figures.value("mfu", scope="node") is None:
        yield "MFU is not counted: no published dense peak is known for this device and number format."
    for note in dict.fromkeys(figures.notes("shared_path")):
        yield f"Checkpoints: {note}."
    if figures.value("fault_restart") is None:
        why = next(iter(figures.notes("fault_run")), "it is done at level long, or with fault_run")
        yield f"No rank was killed on purpose ({why}), so detection and restart were not measured in this block."
    some = " on some nodes" if figures.values("shared_fio") else ""
    for note in dict.fromkeys(figures.notes("shared_fio")):
        yield f"The shared path was not measured by fio{some}: {note}."


def _published(sku: str) -> tuple[str, ...]:
    """Sentences with published figures for the hardware of this SKU; none for CPUs. They are no limits."""
    found = tuple(sentence for model, sentence in FIGURES if sku.startswith(model))
    return (*found, MANY) if found else ()

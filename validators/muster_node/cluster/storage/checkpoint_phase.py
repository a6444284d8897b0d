"""The last phase of the training acceptance in one rank: the path that all nodes share, and checkpoints through it."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from muster_node.cluster.storage.checkpoint import ANSWER_S, Checkpoints, PathTrouble, Saved, answers
from muster_node.cluster.storage.shared_path import SharedPath
from muster_node.cluster.storage.together import OVER, PATIENCE_S, Together
from muster_node.hardware.seam import RealClock
from muster_node.workloads.common import FORMATS, MIB, median, quantile, spread

if TYPE_CHECKING:
    from muster_node.cluster.rendezvous.rank import RankGroup
    from muster_node.cluster.training.trainer import Trainer

_CLOCK = RealClock()


def checkpoint_phase(torch: Any, group: RankGroup, trainer: Trainer, params: Mapping[str, Any]) -> None:
    """Emits ``shared_path`` in any case: with a note where nothing could be measured.

    Does not return where the path stands still or is too slow: the rank has then done its work.
    """
    path, limit_s = params["shared_path"], float(params["path_s"])
    if not path:
        if group.local == 0:
            group.emit("shared_path", "node", note="no shared path is named, so checkpoints were not tested")
        return
    fp32 = FORMATS["fp32"].bits // 8
    together = Together(group, functools.partial(_give_up, group, path), PATIENCE_S)
    checkpoints = Checkpoints(torch, group, trainer, path, group.block.session, together)
    parameters = sum(each.numel() for each in trainer.model.parameters())
    mib = max(1, int(params["shared_mib"]))
    troubles = checkpoints.check(max(3 * fp32 * parameters, len(group.names) * int(mib * MIB)))
    until = _CLOCK.now() + limit_s
    try:
        if not troubles:
            saved = checkpoints.run(max(1, params["checkpoints"]), limit_s)
            group.emit("checkpoint_own", group.device.id, value=median(saved.own), samples=len(saved.own))
            if group.local == 0:
                _emit_saved(group, saved, limit_s)
            files = SharedPath(group, pathlib.Path(path), checkpoints.folder, mib, together, until)
            for rate in files.measure():
                group.emit(rate.metric, "node", value=rate.value, labels=rate.labels, note=rate.note)
    except PathTrouble as trouble:
        troubles = trouble.found
    if group.local == 0:
        own = troubles.get(group.block.name, "")
        others = "; ".join(f"{name}: {why}" for name, why in troubles.items() if name != group.block.name)
        note = own or (f"not tested, since it does not work on others ({others})" if others else "")
        if own or not others:
            group.emit("shared_path", "node", value=float(not own), note=note[:400])
        else:
            group.emit("shared_path", "node", note=note[:400])


def _give_up(group: RankGroup, path: str, why: str, what: str, within_s: float) -> NoReturn:
    """Ends the phase and the rank: another thread of it is in a call that may not return.

    The storage hangs or is slow, which is not the fault of a device or node that waits for it. All ranks of a save wait
    for the slowest; a small file shows whether this node's own access hangs.
    """
    if group.local == 0:
        own = answers(pathlib.Path(path))
        sentence = f"the shared path {path} has not answered for {PATIENCE_S:.0f} s ({what})"
        if why == OVER:
            sentence = f"the shared path {path} is slow: {what} did not end within {within_s:.0f} s"
        if not own:
            sentence += f", and a small file cannot be written there within {ANSWER_S:.0f} s either"
        group.emit("shared_path", "node", value=0.0, note=sentence[:400], labels={"answers": "yes" if own else "no"})
    group.gather()
    group.leave()


def _emit_saved(group: RankGroup, saved: Saved, limit_s: float) -> None:
    for direction, seconds in (("save", saved.saves), ("load", saved.loads)):
        count, note = len(seconds), ""
        if count < saved.wanted:
            note = f"{count} of {saved.wanted}: more could take saves and loads longer than {limit_s:.0f} s"
        for stat, value in (("p50", median(seconds)), ("p95", quantile(seconds, 0.95))):
            group.emit(
                f"checkpoint_{direction}", "node", value=value, labels={"stat": stat}, samples=count,
                spread=spread(seconds), note=note,
            )  # fmt: skip
        rate = saved.size_bytes / max(median(seconds), 1e-9) / 1e9
        group.emit("checkpoint_rate", "node", value=rate, labels={"direction": direction}, samples=count)
    group.emit("checkpoint_bytes", "node", value=saved.size_bytes)
    group.emit(
        "resume_equal", saved.on, value=float(not saved.difference), samples=len(saved.loads), note=saved.difference
    )

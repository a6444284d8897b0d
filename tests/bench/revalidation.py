"""``python -m tests.bench.revalidation --nodes N --seed S``: how well idle nodes are chosen for a test, and how fast.

Plans a day of N nodes. Then simulates a year of at most 2,000 nodes with the code that is shipped: defects arise with
hazards that the planner does not know, repairs fail at times, nodes are idle at random, and each strategy has the same
minutes of test; the planner never more than the least of the others used. A defect shows itself in a job after a while,
and a stage that misses one misses it again. Compares hidden defect-hours, and node-hours
lost meanwhile, with those of testing the stalest first and of testing at random, whole tests each.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from muster.model.failures import Failure
from muster.model.nodes import Node
from muster.model.states import State
from muster.rules.idle import hazard, worth
from muster.rules.idle.capacity import Limits
from muster.rules.idle.forecast import forecast
from muster.rules.idle.history import GROUPS, Faults, Flags, History, Numbers, Units, Whole
from muster.rules.idle.past import Learned, risk_of
from muster.rules.idle.selection import Idle, Known
from muster.settings import Settings
from muster_criteria.stages import STAGES
from tests.bench import bars

COST = worth.cost_of(worth.usual_minutes())
YEAR_H, STEP_H = 24 * 365, 2
SIMULATED_MAX = 2_000
SHIPPED = Settings.model_fields
MINUTES = float(SHIPPED["revalidation_minutes"].default)
SHARE = float(SHIPPED["revalidation_share"].default)
WHOLE_AFTER_H = 24.0 * float(SHIPPED["revalidation_whole_days"].default)
REST_H = float(SHIPPED["revalidation_after_hours"].default)
SHARES = (0.001, 0.002, 0.004, 0.01, 0.02, 0.05, 0.1)
IDLE_SHARE = 0.12
"""Of the nodes, in any step."""
RELEARN = 24 * 14 // STEP_H
"""Steps after which the planner's model is learned again from the fleet's history."""
RACK = 8
IMAGES = 6
BATCHES = 4
RELAPSES, RELAPSE_H = 0.25, 24 * 10
"""The share of repairs after which the same group breaks again, and after how long on average; the 400-server record
has 31 % within a week."""
FAILED = 0.02
"""Of the nodes of the plan that is timed, how many failed in the year before."""
NOW = datetime.datetime(2026, 6, 1, tzinfo=datetime.UTC)


def plan_seconds(nodes: int, seed: int) -> tuple[float, float]:
    """CPU seconds to plan the next day of so many nodes, most of them idle; and to learn, once a day, from failures."""
    rng = np.random.default_rng(seed)
    came = NOW - datetime.timedelta(days=400)
    fleet = [
        Node(f"n{number:06d}", "h", 22, "", "", "sku", State.PRODUCTION, {}, "~", f"r{number // RACK}", "", {},
             False, came, machine_since=came)
        for number in range(nodes)
    ]  # fmt: skip
    idle = {node.name: Idle(bool(free)) for node, free in zip(fleet, rng.random(nodes) < 0.8, strict=True)}
    passes = {
        node.name: dict.fromkeys(STAGES, NOW - datetime.timedelta(hours=float(hours)))
        for node, hours in zip(fleet, rng.uniform(0, 200, nodes), strict=True)
    }
    failures = [
        Failure(node.name, GROUPS[int(group)], at := NOW - datetime.timedelta(days=float(days)),
                at + datetime.timedelta(days=1))
        for node, days, group, failed in zip(fleet, rng.uniform(1, 390, nodes), rng.integers(0, len(GROUPS), nodes),
                                             rng.random(nodes) < FAILED, strict=True) if failed
    ]  # fmt: skip
    began = time.process_time()
    _, learned = risk_of(fleet, dict.fromkeys(passes, came), failures, NOW)
    learning = time.process_time() - began
    began = time.process_time()
    risk, _ = risk_of(fleet, dict.fromkeys(passes, came), failures, NOW, Learned.from_json(learned.to_json()))
    limits = Limits(share=SHARE, minutes=MINUTES)
    tests, passed_over = forecast(Known(fleet, NOW, idle, passes, limits, risk=risk))
    took = time.process_time() - began
    assert len(tests) + len(passed_over) == nodes
    return took, learning


def true_chances(rng: np.random.Generator) -> Numbers:
    """By group and stage: the chance to find a defect, off from what the planner takes it for."""
    chances = worth.chances()
    return np.clip(chances * np.exp(rng.normal(0.0, 0.3, chances.shape)), 0.0, 1.0)


class World:
    """A fleet over a year. What the planner sees: passes, failures and repairs, batches. What it does not: frailty,
    images, defects, true hazards and chances.
    """

    def __init__(self, rng: np.random.Generator, nodes: int) -> None:
        self.rng, self.nodes = rng, nodes
        # A few nodes break often (peers report lemons); hazards differ from the planner's by a factor of up to three.
        self.frailty = rng.gamma(0.5, 2.0, nodes)
        prior = hazard.public_prior().model.base
        self.hazards = prior * (worth.chances().max(axis=1) > 0.0) * np.exp(rng.normal(0.0, 0.6, len(GROUPS)))
        self.chances = true_chances(rng)
        self.age_h = rng.uniform(0.0, 3 * YEAR_H, nodes)
        self.since = rng.uniform(0.0, 7 * 24.0, nodes)[:, None] * np.ones(len(STAGES))
        self.defects = np.zeros((nodes, len(GROUPS)), dtype=bool)
        self.luck = rng.random((nodes, len(GROUPS), len(STAGES)))  # a stage misses a defect again that it missed
        self.shows_after_h = worth.SHOWS_AFTER_H * np.exp(rng.normal(0.0, 0.6, len(GROUPS)))
        self.weak = np.zeros((nodes, len(GROUPS)), dtype=bool)  # repaired, and the fault will come again
        self.image_hazard = np.exp(rng.normal(0.0, 0.5, IMAGES))[rng.integers(0, IMAGES, nodes)]
        self.batch = rng.integers(0, BATCHES, nodes)
        self.batch_hazard = np.exp(rng.normal(0.0, 0.5, BATCHES))[self.batch]
        self.failed: list[tuple[int, int, float]] = []  # node, group, hour
        self.step = -1  # until the first hours have passed
        self.hidden_h = self.harm_h = self.minutes = self.scored = 0.0

    def advance(self) -> None:
        """Let time pass: defects arise, more in young and frail nodes, and again where a repair failed."""
        young = 1.0 + 2.0 * np.exp(-self.age_h / (24.0 * 60))
        often = self.frailty * young * self.image_hazard * self.batch_hazard
        rate = often[:, None] * self.hazards * STEP_H
        arises, again = (self.rng.random(self.defects.shape) < -np.expm1(-each) for each in (rate, STEP_H / RELAPSE_H))
        again &= self.weak
        self.weak &= ~again
        new = (arises | again) & ~self.defects
        self.luck[new] = self.rng.random((int(new.sum()), len(STAGES)))
        self.defects |= new
        self.hidden_h += float(self.defects.any(axis=1).sum()) * STEP_H
        self.harm_h += float((self.defects * worth.HARM).sum()) * STEP_H
        self.since += STEP_H
        self.age_h += STEP_H
        self.step += 1
        shown = self.defects & (self.rng.random(self.defects.shape) < STEP_H / self.shows_after_h)
        for node in np.flatnonzero(shown.any(axis=1)).tolist():
            self._repair(node, shown[node])

    def _repair(self, node: int, found: Flags) -> None:
        """Every defect of the node ends; of some that were found, the fault will come again. Then it is tested."""
        self.weak[node] |= found & (self.rng.random(len(GROUPS)) < RELAPSES)
        self.failed += [(node, int(group), float(self.step * STEP_H)) for group in np.flatnonzero(found)]
        self.defects[node] = False
        self.since[node] = 0.0

    def test(self, node: int, stages: int) -> None:
        """Test one node: each stage finds the defects that it can see; a node with a finding is repaired."""
        for stage in worth.subsets()[stages]:
            place = STAGES.index(stage)
            found = self.defects[node] & (self.luck[node, :, place] < self.chances[:, place])
            self.since[node, place] = 0.0
            if found.any():
                self._repair(node, found)
        self.minutes += float(COST[stages])


Ranked = tuple[Whole, Whole, np.ndarray[tuple[int], np.dtype[np.bool_]]]
"""Places among the idle nodes in their order; by place the set of stages, and whether it is an overdue whole test."""


class Planner:
    """The code that is shipped, on a world's nodes."""

    def __init__(self) -> None:
        self.model = hazard.public_prior().model
        self.history: History | None = None

    def learn(self, world: World, step: int) -> None:
        """Learn again from what failed until this step."""
        hour, nodes = float(step * STEP_H) + 1e-3, np.arange(world.nodes)
        units = Units(np.zeros(world.nodes), np.full(world.nodes, hour), nodes, nodes, nodes // RACK,
                      world.batch[:, None])  # fmt: skip
        unit, group, at = np.array(world.failed, dtype=np.float64).reshape(-1, 3).T
        unit = unit.astype(np.int64)
        faults = Faults(unit, group.astype(np.int64), at, at + 1e-3, unit, unit, unit // RACK)
        self.history = History(units, faults)
        if step % RELEARN == 0 and step:
            cuts = np.append(np.arange(0.0, hour - 1.0, float(RELEARN * STEP_H)), hour)
            self.model = hazard.followed(self.history, hazard.public_prior(), cuts)[0][-1]

    def rank(self, world: World, idle: Whole, minutes: float, step: int) -> Ranked:
        """The product's order."""
        self.learn(world, step)
        assert self.history is not None
        clocks = self.history.clocks(idle, np.full(len(idle), float(step * STEP_H) + 1e-3))
        facts = worth.Facts(world.since[idle], clocks)
        value = worth.worth(facts, self.model, COST <= MINUTES).value
        oldest = facts.hours_since.max(axis=1)
        turn = worth.in_turn(value, COST, oldest, oldest >= WHOLE_AFTER_H, minutes)
        return turn.order, turn.stages, turn.late


def stalest(world: World, idle: Whole, step: int) -> Ranked:
    """The longest untested first, whole tests."""
    whole = np.zeros(len(idle), dtype=np.int64)
    return np.argsort(-world.since[idle].max(axis=1), kind="stable"), whole, whole == 0


def at_random(world: World, idle: Whole, step: int) -> Ranked:
    """Any idle node, whole tests."""
    whole = np.zeros(len(idle), dtype=np.int64)
    return world.rng.permutation(len(idle)), whole, whole == 0


def year(nodes: int, seed: int, share: float, name: str, allowed: Numbers) -> tuple[World, Numbers]:
    """One year under a strategy, and the minutes used up to each step; the same seed draws the same fleet.

    ``allowed``: minutes up to each step. What is left over is used in the next.
    """
    world, planner = World(np.random.default_rng(seed), nodes), Planner()
    idling = np.random.default_rng([seed, 1])
    used = np.zeros(len(allowed))
    for step in range(len(allowed)):
        world.advance()
        idle = np.flatnonzero(idling.random(nodes) < IDLE_SHARE)
        left = min(allowed[step] - world.minutes, 2.0 * share * nodes * STEP_H * 60.0)
        rested = idle[world.since[idle].min(axis=1) >= REST_H]
        if name == "worth":
            order, stages, late = planner.rank(world, rested, left, step)
        else:
            order, stages, late = {"stalest": stalest, "random": at_random}[name](world, rested, step)
        for place in order.tolist():
            cost = float(COST[stages[place]])
            if cost > left:
                break
            left -= cost
            world.scored += 0.0 if late[place] else cost
            world.test(int(rested[place]), int(stages[place]))
        used[step] = world.minutes
    return world, used


def compare(nodes: int, seed: int, share: float) -> dict[str, World]:
    """Returns the year under each strategy; the planner may use what the thriftier of the others had used by then."""
    allowed = np.cumsum(np.full(YEAR_H // STEP_H, share * nodes * STEP_H * 60.0))
    found, least = {}, allowed
    for name in ("stalest", "random", "worth"):
        found[name], used = year(nodes, seed, share, name, least if name == "worth" else allowed)
        least = np.minimum(least, used)
    return found


def main() -> int:
    """Print the table and the figures; returns 1 if a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.revalidation", description=__doc__)
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--share", type=float, default=SHARE, help="of the nodes that may be tested at a time")
    parser.add_argument("--shares", nargs="*", type=float, metavar="SHARE",
                        help=f"also these; without any, {', '.join(map(str, SHARES))}")  # fmt: skip
    given = parser.parse_args()
    took, learned = plan_seconds(given.nodes, given.seed)
    few = min(given.nodes, SIMULATED_MAX)
    print(f"{given.nodes} nodes planned in {took:.2f} CPU s, learned from in {learned:.2f} CPU s; a year of {few} "
          f"nodes, simulated, seed {given.seed}\n")  # fmt: skip
    print("| share | strategy | hidden defect-hours | node-hours lost | test minutes | by the score |")
    print("|--:|---|--:|--:|--:|--:|")
    by_share = {}
    for share in dict.fromkeys((given.share, *(SHARES if given.shares == [] else given.shares or ()))):
        worlds = compare(few, given.seed, share)
        for name, world in worlds.items():
            scored = f"{world.scored / max(world.minutes, 1e-9):.0%}" if name == "worth" else ""
            figures = " | ".join(f"{each:,.0f}" for each in (world.hidden_h, world.harm_h, world.minutes))
            print(f"| {share:g} | {name} | {figures} | {scored} |", flush=True)
        by_share[share] = {
            "hidden_defect_hours_ratio": _ratios({name: each.hidden_h for name, each in worlds.items()}),
            "harm_ratio": _ratios({name: each.harm_h for name, each in worlds.items()}),
            "minutes_ratio": _ratios({name: each.minutes for name, each in worlds.items()}),
            "score_decided": round(worlds["worth"].scored / max(worlds["worth"].minutes, 1e-9), 3),
            "harm_h": {name: round(each.harm_h) for name, each in worlds.items()},
        }
    timed = {"nodes": given.nodes, "plan_seconds": round(took, 2), "learn_seconds": round(learned, 2)}
    print(json.dumps(timed | {"share": given.share} | by_share[given.share] | {"by_share": by_share}))
    return bars.status(*barred(timed, by_share, given.share))


def barred(
    timed: Mapping[str, float], by_share: Mapping[float, Mapping[str, Any]], share: float
) -> tuple[dict[str, float], bars.Bars]:
    """What has a bar, and the bars: seconds, the worst ratio at ``share``, and at shares with a bar of their own."""
    shares = {each: bar for each, bar in ({share: bars.HIDDEN} | bars.THRIFTY).items() if each in by_share}
    worst = {f"at {each:g}": max(by_share[each]["hidden_defect_hours_ratio"].values()) for each in shares}
    return {**timed, **worst}, bars.REVALIDATION | {f"at {each:g}": bar for each, bar in shares.items()}


def _ratios(values: dict[str, float]) -> dict[str, float]:
    return {f"to_{name}": round(values["worth"] / max(values[name], 1e-9), 3) for name in ("stalest", "random")}


if __name__ == "__main__":
    sys.exit(main())

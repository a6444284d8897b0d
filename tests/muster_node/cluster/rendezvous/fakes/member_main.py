"""One member of a block as a process of its own, with phases that only sleep: what the rendezvous does, without torch.

Takes one JSON argument: {"params": …, "phases": [[name, seconds], …]} and, each naming a phase, what it does there:
"fails" or "collective_fails". "agrees" is what it must have in common with the others. Prints its progress and its end.
"""

import json
import sys
import time

from muster_node.cluster.rendezvous.block import PARAMS, block_of
from muster_node.cluster.rendezvous.member import Member, PeerGroup
from muster_node.hardware.seam import RealClock
from muster_node.probe import Probe, resolve_params


class Fake(Probe):
    name = "fake"
    params = PARAMS


def main() -> None:
    task = json.loads(sys.argv[1])
    block = block_of("fake", resolve_params(Fake, task["params"]), 7)
    member = Member(block, "fake", RealClock(), lambda text: print(json.dumps({"message": text}), flush=True))
    met = []

    def work(group: PeerGroup) -> None:
        for name, seconds in task["phases"]:
            group.begin(name)
            if "agrees" in task:
                group.agree(task["agrees"])
            if name == task.get("fails"):
                raise ValueError("this one is broken")
            if name == task.get("collective_fails"):
                with group.waiting("a collective"):
                    raise RuntimeError("the network is broken")
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                group.mark("sleeping")
                time.sleep(0.01)
            met.append(group.gather({"rank": block.rank}))

    started = time.monotonic()
    exit_status = member.run(work)
    end = {
        "seconds": time.monotonic() - started,
        "phase": exit_status.phase,
        "missing": {lost.name: lost.why for lost in exit_status.missing},
        "intact": exit_status.intact,
        "broken": exit_status.broken,
        "error": str(exit_status.error) if exit_status.error else "",
        "met": met,
        "join_lag": member.group.join_lag_s,
    }
    print(json.dumps({"end": end}), flush=True)


if __name__ == "__main__":
    main()

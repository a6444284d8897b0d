"""Two days of telemetry as fast as they can be taken; prints what they cost and what they came to, as JSON."""

import json
import math
import os
import random
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[3] / "validators"))

from muster_node.agent.telemetry import Recorder  # noqa: E402
from muster_node.hardware.seam import Sample  # noqa: E402

HOURS = 48
START = 1_800_000_000.0


def rss_kb():
    """What is resident now: the maximum would be that of the process which started this one."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def reading(second, dice):
    hour = second / 3600
    temperature = round(60 + 0.1 * hour + 2 * math.sin(2 * math.pi * hour / 24) + dice.gauss(0, 0.5))
    throttled = second % 3600 < 60
    return [
        Sample("temperature", "gpu0", "°C", float(temperature)),
        Sample("power", "gpu0", "W", round(690 + dice.gauss(0, 4), 1)),
        Sample("clock", "gpu0", "MHz", 1200.0 if throttled else 15.0 * round(100 + dice.random() * 20)),
        Sample("throttle", "gpu0", "state", state="hw_thermal" if throttled else "none"),
        Sample("inlet_temperature", "node", "°C", round(22 + dice.gauss(0, 0.1), 1)),
    ]


def main(folder):
    recorder = Recorder(folder / "telemetry.jsonl.gz", hold_max_s=3.0)
    dice = random.Random(1)
    after_2h = 0
    for second in range(HOURS * 3600):
        samples = reading(second, dice)
        recorder.add(START + second, samples)
        if second == 2 * 3600:
            after_2h = rss_kb()
    at_end = rss_kb()
    throttled = recorder.throttled(START + HOURS * 3600)["gpu0"]
    file = recorder.close()
    report = {
        "rss_after_2h_kb": after_2h,
        "rss_end_kb": at_end,
        "rows": file.rows,
        "file_bytes": file.bytes,
        "inlet": recorder.inlet(),
        "time_in_state": throttled,
    }
    print(json.dumps(report))


main(Path(sys.argv[1]))

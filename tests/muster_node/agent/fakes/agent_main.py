"""The agent as ``python -m muster_node`` starts it, with a fake machine and the fake probes beside this file."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[3] / "validators")]

from fake_machine import open_fake  # noqa: E402

from muster_node.cli import main  # noqa: E402

main(sys.argv[1:], (sys.executable, str(Path(__file__).resolve())), open_fake, ("fake_probes", "watching"))

"""``python -m muster_node``: the same as ``python muster.pyz``."""

import sys

from muster_node.cli import main

main(sys.argv[1:], (sys.executable, "-m", "muster_node"))

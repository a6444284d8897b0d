"""The fixture of the tests of repairs."""

from __future__ import annotations

from tests.muster.operators.lifecycle.repairs import bench as bench

"""How good the judge is: faults with known severity in generated fleets, found or not, beside three simpler tests.

``python -m tests.bench.accuracy --seed S``. The generator (``draws``, ``devices``, ``metrics``, ``physics``,
``faults``, ``fleet``) knows nothing of the judge; ``muster_judge`` is the one module that does.
"""

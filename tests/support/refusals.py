"""The refusal of a move, asserted by its code."""

from __future__ import annotations

import pytest
from _pytest.raises import RaisesExc

from muster.errors import IllegalMove, Refusal


def illegal(code: Refusal) -> RaisesExc[IllegalMove]:
    """A context in which a move or a change must be refused for this reason."""
    return pytest.raises(IllegalMove, check=lambda error: error.code is code)


def caused(raised: type[Exception], cause: type[Exception]) -> RaisesExc[Exception]:
    """A context in which a task must end with ``raised``, for an error of class ``cause``."""
    return pytest.raises(raised, check=lambda error: isinstance(error.__context__, cause))

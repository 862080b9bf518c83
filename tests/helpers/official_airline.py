"""tau2-bench in tests: with TAU2_DATA_DIR=<tau2-bench>/data on the official data, else on the stand-in of them."""

import os
from pathlib import Path

import pytest

from rtpo.envs.airline.package import installed_version
from rtpo.errors import MachineError

STAND_IN = Path(__file__).parents[1] / "fixtures" / "airline"
FOLDER = Path(os.environ.setdefault("TAU2_DATA_DIR", str(STAND_IN))) / "tau2" / "domains" / "airline"
"""of the domain's data; the package reads the variable when it is imported"""

try:
    installed_version()
    MISSING = ""
except MachineError as missing:
    MISSING = str(missing)

needs_tau2 = pytest.mark.skipif(bool(MISSING), reason=MISSING)

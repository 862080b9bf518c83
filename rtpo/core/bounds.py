"""Types of settings with bounds, which `rtpo.run.building.build` checks."""

from typing import Annotated

from annotated_types import Ge, Gt, Le, MinLen

Count = Annotated[int, Ge(1)]
UpToMillion = Annotated[int, Ge(1), Le(1_000_000)]
"""a number of tasks or rollouts, which are all in memory at once"""
Natural = Annotated[int, Ge(0)]
Positive = Annotated[float, Gt(0)]
Text = Annotated[str, MinLen(1)]
"""a name or path; refuses the empty text that an unset shell variable leaves"""

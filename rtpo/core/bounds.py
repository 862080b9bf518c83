"""Types of settings with bounds, which `rtpo.run.config.build` checks."""

from typing import Annotated

from annotated_types import Ge, Gt, Le, MinLen

Count = Annotated[int, Ge(1)]
Million = Annotated[int, Ge(1), Le(1_000_000)]
"""how many tasks or rollouts are held in memory at once"""
Natural = Annotated[int, Ge(0)]
Positive = Annotated[float, Gt(0)]
Text = Annotated[str, MinLen(1)]
"""a name or a path, which an unset variable of a shell would leave empty"""

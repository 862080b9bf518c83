"""Types of settings with bounds, which `rtpo.run.config.build` checks."""

from typing import Annotated

from pydantic import Field

Count = Annotated[int, Field(ge=1)]
Million = Annotated[int, Field(ge=1, le=1_000_000)]
"""how many tasks or rollouts are held in memory at once"""
Natural = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]

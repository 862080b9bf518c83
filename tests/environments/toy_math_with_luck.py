from environments.toy_math import REPLIES as REPLIES
from environments.toy_math import TASK as TASK

from rtpo.envs.toy.luck import Luck, ToySettings

ENVIRONMENT = "toy_math"
SETTINGS = ToySettings(Luck((0, 2), 3.0))

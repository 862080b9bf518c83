"""Errors, named by the boundary they were met at. Every message names the field or thing and what to do."""


class RTPOError(Exception):
    """Base of the errors below: shown to the user as one sentence, without a traceback."""


class ConfigError(RTPOError):
    """A configuration value, or a combination of them, that cannot be."""


class DataError(RTPOError):
    """A missing or malformed data file, line or checkpoint."""


class Held(RTPOError):
    """Another process is at work on the run."""


class MachineError(RTPOError):
    """The machine lacks something: processors, disk, memory."""


class AlgorithmError(RTPOError):
    """An algorithm recorded or kept what cannot be."""


class BudgetExceeded(RTPOError):
    """An algorithm asked for more rollouts than its step reserved."""


class StaleEngine(RTPOError):
    """The rollout engine does not hold the weights it should."""


class TreeMismatch(RTPOError):
    """Log-probs on prefix trees are not those of the rows."""


class NonFinite(RTPOError):
    """NaN or infinity in log-probs, loss or gradient."""


class InfrastructureError(RTPOError):
    """A tool or an engine failed for a reason that is not the policy's."""


class Stopped(RTPOError):
    """The run was asked to stop, saved its state and can be resumed."""

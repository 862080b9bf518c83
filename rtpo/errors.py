"""The project's errors. A message names the field or thing at fault and, where that helps, what to do."""


class RTPOError(Exception):
    """Base of the errors below. The user sees the message, without a traceback."""


class ConfigError(RTPOError):
    """An invalid configuration value, or an invalid combination of values."""


class DataError(RTPOError):
    """A missing or malformed data file, line or checkpoint."""


class FolderInUse(RTPOError):
    """Another process has locked the run's folder."""


class MachineError(RTPOError):
    """The machine lacks something, such as processors, disk, memory, a package, or a server that answers."""


class AlgorithmError(RTPOError):
    """An algorithm logged an invalid name or number, or put an invalid value into its state. Or it asked for a
    reference policy that the run does not keep."""


class BudgetExceeded(RTPOError):
    """An algorithm asked for more rollouts than its step reserved."""


class StaleEngine(RTPOError):
    """The rollout engine does not hold the expected weights."""


class TreeMismatch(RTPOError):
    """Log-probs computed on prefix trees differ from those of single rows."""


class NonFinite(RTPOError):
    """NaN or infinity in log-probs, loss or gradient."""


class InfrastructureError(RTPOError):
    """A tool or an engine failed, and the policy is not at fault. status: the HTTP status of a server that refused."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class Stopped(RTPOError):
    """The run was asked to stop, saved its state and can be resumed."""

"""The supplement's airline tables, as functions of recorded episodes.

Training and trunk tables: Tables "Online training success rate", "Aggregate trunk outcomes" and "Evolution of failure
modes". Test tables: "Held-out evaluation" and "Tool-execution quality". Beside them stand what the paper leaves out:
the score on tasks that need a write, and what part of the successes are on tasks that need none.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rtpo.evaluation.estimators import count_samples, pass_at_k, pass_hat_k
from rtpo.types import Rollout, StopReason, Termination, ToolOutcome

EARLY_TURNS = (1, 2, 3, 5)
"""turns within which failures are counted"""
SAMPLES = 4
"""episodes a test task; k of Pass@k and Pass^k"""
TOO_MANY_ERRORS = "too many errors"
"""detail of the grade of an episode that the environment broke off: nobody ended it"""


@dataclass(frozen=True, slots=True)
class Episode:
    """One recorded episode.

    task: its id. success: whether the reward is 1. turns: assistant messages. ended: whether the agent or the user
    ended the dialogue (a terminal signal of the environment). cut: whether a turn was cut at its token limit, or the
    dialogue at the limit of its tokens. tokens: sampled in all turns. executed, failed: tool calls that ran, and that
    could not be read, were refused or gave an error. writes: calls of a tool that writes, whether they ran or not.
    """

    task: str
    success: bool
    turns: int
    ended: bool
    cut: bool
    tokens: int
    executed: int
    failed: int
    writes: int

    @property
    def attempted(self) -> int:
        return self.executed + self.failed


def episode_of(rollout: Rollout, task: str, writes: frozenset[str]) -> Episode:
    """The record of a graded rollout. writes: the names of the tools that write. Raises ValueError for a rollout
    without a reward: it is not a failure."""
    calls = [call for turn in rollout.turns for call in turn.calls]
    ran = [call for call in calls if call.outcome is ToolOutcome.OK]
    is_cut = any(turn.stop is StopReason.LENGTH for turn in rollout.turns)
    return Episode(
        task=task,
        success=rollout.reward == 1,
        turns=len(rollout.turns),
        ended=rollout.termination is Termination.ANSWERED and rollout.grade.detail != TOO_MANY_ERRORS,
        cut=is_cut or rollout.termination is Termination.CONTEXT_LIMIT,
        tokens=sum(len(turn.output_ids) for turn in rollout.turns),
        executed=len(ran),
        failed=len(calls) - len(ran),
        writes=sum(call.tool in writes for call in calls),
    )


@dataclass(frozen=True, slots=True)
class Trunks:
    """One column of the failure table, or the table of all trunks. Shares are of all episodes.

    ended_failure: the dialogue was ended and the reward is 0. no_signal: nobody ended it. failed_within: of episodes
    without success and of at most so many turns. Turns are means, None over no episode.
    """

    episodes: int
    success: float
    ended_failure: float
    no_signal: float
    failed_within: Mapping[int, float]
    turns: float
    success_turns: float | None
    failure_turns: float | None


def trunks(episodes: Sequence[Episode]) -> Trunks:
    """Raises ValueError without an episode."""
    failures = [episode for episode in episodes if not episode.success]
    return Trunks(
        episodes=len(episodes),
        success=_share(episodes, lambda episode: episode.success),
        ended_failure=_share(episodes, lambda episode: episode.ended and not episode.success),
        no_signal=_share(episodes, lambda episode: not episode.ended),
        failed_within={k: sum(episode.turns <= k for episode in failures) / len(episodes) for k in EARLY_TURNS},
        turns=_mean([episode.turns for episode in episodes]) or 0.0,
        success_turns=_mean([episode.turns for episode in episodes if episode.success]),
        failure_turns=_mean([episode.turns for episode in failures]),
    )


@dataclass(frozen=True, slots=True)
class HeldOut:
    """One row of the test table. Shares and means are over episodes; passes are means over tasks."""

    pass_at_1: float
    pass_at_k: float
    pass_hat_k: float
    ended: float
    cut: float
    tokens: float


def held_out(episodes: Sequence[Episode], k: int = SAMPLES) -> HeldOut:
    """Pass@k and Pass^k are those of `rtpo.evaluation.estimators`.

    Raises ValueError without an episode, and DataError for a task with fewer than k.
    """
    _some(episodes)
    rewards: dict[str, list[float]] = {}
    for episode in episodes:
        rewards.setdefault(episode.task, []).append(float(episode.success))
    counts = count_samples(rewards)
    return HeldOut(
        pass_at_1=pass_at_k(counts, 1).mean,
        pass_at_k=pass_at_k(counts, k).mean,
        pass_hat_k=pass_hat_k(counts, k).mean,
        ended=_share(episodes, lambda episode: episode.ended),
        cut=_share(episodes, lambda episode: episode.cut),
        tokens=sum(episode.tokens for episode in episodes) / len(episodes),
    )


@dataclass(frozen=True, slots=True)
class ToolUse:
    """One row of the tables of tool use and tokens. What is a share or mean of nothing is None."""

    attempted: int
    executed: int
    failed: int
    execution: float | None
    calls_per_episode: float
    tokens_per_success: float | None
    successes_per_1k_tokens: float | None


def tool_use(episodes: Sequence[Episode]) -> ToolUse:
    """Raises ValueError without an episode."""
    _some(episodes)
    executed, failed = sum(e.executed for e in episodes), sum(e.failed for e in episodes)
    tokens, successes = sum(e.tokens for e in episodes), sum(e.success for e in episodes)
    return ToolUse(
        attempted=executed + failed,
        executed=executed,
        failed=failed,
        execution=executed / (executed + failed) if executed + failed else None,
        calls_per_episode=(executed + failed) / len(episodes),
        tokens_per_success=tokens / successes if successes else None,
        successes_per_1k_tokens=1000 * successes / tokens if tokens else None,
    )


@dataclass(frozen=True, slots=True)
class Writing:
    """What the reward hides: see the module. None where there is nothing to take the share of.

    no_op: Pass@1 of the agent that does nothing, on these tasks. success: over all episodes. write_required,
    no_op_tasks: over the episodes of tasks with a gold write, and of tasks on which doing nothing scores.
    successes_by_no_op: the share of the successes that are on the latter. writes_per_episode: attempted.
    """

    no_op: float
    success: float
    write_required: float | None
    no_op_tasks: float | None
    successes_by_no_op: float | None
    writes_per_episode: float


def writing(episodes: Sequence[Episode], needs_write: frozenset[str], no_op_scores: frozenset[str]) -> Writing:
    """needs_write, no_op_scores: the ids of such tasks. Raises ValueError without an episode."""
    _some(episodes)
    tasks = {episode.task for episode in episodes}
    wins = [episode for episode in episodes if episode.success]
    return Writing(
        no_op=len(tasks & no_op_scores) / len(tasks),
        success=len(wins) / len(episodes),
        write_required=_mean([float(e.success) for e in episodes if e.task in needs_write]),
        no_op_tasks=_mean([float(e.success) for e in episodes if e.task in no_op_scores]),
        successes_by_no_op=_mean([float(e.task in no_op_scores) for e in wins]),
        writes_per_episode=sum(e.writes for e in episodes) / len(episodes),
    )


def _share(episodes: Sequence[Episode], holds: Callable[[Episode], bool]) -> float:
    _some(episodes)
    return sum(holds(episode) for episode in episodes) / len(episodes)


def _some(episodes: Sequence[Episode]) -> None:
    if not episodes:
        raise ValueError("there are no episodes to make a table of")


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return sum(found) / len(found) if found else None

"""The columns of the four frames of analysis/load.py: a class per frame, a field per column.

Fields with a default are missing in some older records. Frames also have columns whose names depend on the run:

    runs      seconds_<phase>, and the other numbers of the ledger (docs/results/metrics.md)
    steps     seconds_<phase>, up to the end of the step; algorithm/<name>, logged by the algorithm
              kl_<k>, kl_context_<k>, kl_engine_<k>, ties_<k> of turn k
    answers   qa_<score>, on benchmarks
"""

from dataclasses import MISSING, dataclass, fields


@dataclass(frozen=True, kw_only=True)
class ManifestFields:
    """What `runs` copies from a run's manifest. A run that has not ended has only experiment, label, seed, profile and
    steps; the others are None."""

    experiment: str
    label: str  # the configuration's name in tables
    algorithm: str
    task: str
    seed: int
    profile: str
    rollout_context: str
    training_context: str
    model: str
    model_sha256: str  # JSON: checksum by file; null before the end
    steps: int  # data steps
    policy_version: int  # updates with an optimizer step
    wall_seconds: float  # training and evaluation
    commit: str | None = None
    dirty: bool | None = None  # whether the work tree differed from the commit
    code_sha256: str | None = None  # separated by commas, if processes of other code ran it, too
    started: str | None = None  # UTC
    ended: str | None = None
    ended_by: str | None = None  # the limit of the budget that ended the run


@dataclass(frozen=True, kw_only=True)
class RunRow(ManifestFields):
    """A run."""

    run: str  # <experiment>/<name>, such as toy_math/rtpo-seed10: the key of all frames
    name: str  # of the run's folder
    folder: str  # empty for runs kept as Parquet
    is_finished: bool
    rollouts: int  # charged to the budget
    budget: int  # rollouts
    learning_rate: float | None
    training_seconds: float | None  # wall_seconds without evaluation
    logical_cpus: int | None
    config: str  # JSON


@dataclass(frozen=True, kw_only=True)
class StepRow:
    """The columns of a step. All rows of its updates repeat them. Totals run to the end of the step."""

    run: str
    step: int  # from 1
    tasks: int
    success: float | None  # share of `success_rollouts` with reward 1
    mean_reward: float | None
    rollouts: int  # total
    generated_tokens: int  # total
    wall_seconds: float  # total
    seconds_evaluate: float  # total
    sampled_rollouts: int | None  # in this step, like the next two; each piece of a path counts
    sampled_turns: int | None
    sampled_tokens: int | None
    success_rollouts: int | None = None  # graded rollouts among the step's first paths


@dataclass(frozen=True, kw_only=True)
class UpdateRow:
    """The columns of an update. A step without updates has one row, with NaN here."""

    update: int  # from 0, within the step
    rows: int
    trained_tokens: int
    tied_rows: int | None  # rows whose advantages are all 0
    optimizer_steps: int | None
    lr: float | None  # of the last optimizer step
    grad_norm: float | None  # before clipping
    clip_fraction: float | None  # share of tokens where the clip acts
    entropy: float | None  # nats a token
    residual: float | None  # of REFUEL's regression
    ties: float | None  # share of groups whose advantages are all 0
    kl: float | None  # training against rollout policy, k1 in nats a token; the sum of the next two
    kl_context: float | None  # from different contexts
    kl_engine: float | None  # from different programs, and from updates since the tokens were sampled
    measured_tokens: int | None = None  # those that kl and engine_* were measured on
    engine_k3: float | None = None  # of the engine's part, k3 in nats a token
    engine_quantile_999: float | None = None  # of its absolute value by token, nats
    engine_largest: float | None = None  # nats


@dataclass(frozen=True, kw_only=True)
class AnswerRow:
    """A sample of a question, in a run's own evaluation or on a benchmark."""

    run: str
    benchmark: str | None  # None in a run's own evaluation
    when: str | None  # before, during or after training
    mode: str | None  # sampled, paper or greedy decoding
    step: int | None
    split: str | None
    question: str
    sample: int | None  # from 0
    grade: str  # graded or ungradable
    reward: float | None  # NaN unless graded
    termination: str
    turns: int
    generated_tokens: int
    attempted: int  # tool calls, like executed, ok and writes
    executed: int
    ok: int
    writes: int  # calls that change the airline's data
    is_cut: bool  # whether a turn or the context met its limit
    is_ended: bool  # whether the policy or the user ended the episode
    tools: str | None = None  # JSON: calls by outcome
    audit: str | None = None  # JSON: facts about the calls
    meta: str | None = None  # JSON: facts about the question


@dataclass(frozen=True, kw_only=True)
class BenchmarkRow:
    """An evaluation of a run on a benchmark."""

    run: str
    benchmark: str
    folder: str
    of_run: str | None  # the evaluated checkpoint's run
    policy_version: int
    samples: int  # of a question
    questions: int
    rollout_context: str
    decoding: str  # JSON
    alike: str  # checksum of the fields in which compared evaluations must agree


def _needed(*rows: type) -> tuple[str, ...]:
    return tuple(field.name for row in rows for field in fields(row) if field.default is MISSING)


COLUMNS: dict[str, tuple[str, ...]] = {
    "runs": _needed(RunRow),
    "steps": _needed(StepRow, UpdateRow),
    "answers": _needed(AnswerRow),
    "benchmarks": _needed(BenchmarkRow),
}
"""columns that every frame and Parquet file must have, even without rows"""

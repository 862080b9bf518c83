"""A run: evaluate, train to the end of the budget, evaluate, and leave the records.

The loop is the same for every algorithm: take a step's tasks, or as many as the budget allows in the worst case;
synchronise the engine; let the algorithm do one step; write it down.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from tqdm import tqdm

from rtpo.core.chat import ChatFormat
from rtpo.core.files import sha256, utc_now
from rtpo.core.names import counted
from rtpo.engines.backend import Backend
from rtpo.engines.base import PAPER_DECODING, Sampling
from rtpo.envs.base import Env
from rtpo.envs.registry import environment_facts
from rtpo.errors import Stopped
from rtpo.harness.budget import Budget, Ledger, torn_end
from rtpo.harness.curves import evaluation_curves, step_curves
from rtpo.harness.diagnostics import call_counts, cut_turns, first_outcome
from rtpo.harness.durable import Done, DurableHarness
from rtpo.harness.episodes import EpisodeWorld
from rtpo.harness.harness import AgentHarness
from rtpo.harness.step_log import StepLog
from rtpo.rewards.alarm import grading_alarm
from rtpo.run.began import inputs_sha256
from rtpo.run.config import RunConfig, rollout_sampling
from rtpo.run.lines import TIED_STEPS, is_tied, model_sha256, percent, sample_line, tie_sentence
from rtpo.run.provenance import code_sha256, provenance
from rtpo.run.records import JOURNAL, LOG, SCHEMA, RunFolder
from rtpo.run.stopping import StopRequest
from rtpo.run.tasks import take
from rtpo.run.tracking import TableRow, Tracking
from rtpo.types import Grade, GradeOutcome, Group, Rollout, Task

H = TypeVar("H", bound=AgentHarness)
COUNTED = (
    *("rollouts", "generated_tokens", "context_tokens", "prefilled_tokens", "trained_tokens", "row_tokens"),
    *("computed_tokens", "scored_tokens", "optimizer_steps"),
)
"""counts of the ledger that a step's line has"""
SHOWN = 4
"""how many of an evaluation's questions are tracked as text, each with its first rollout"""
DECODED = {
    "sampled": "sampled at temperature 1",
    "paper": f"sampled at temperature {PAPER_DECODING.temperature} and top-p {PAPER_DECODING.top_p}",
    "greedy": "greedy",
}
"""by evaluation mode, how rollouts are decoded"""


@dataclass
class Progress:
    """The state of a run's loop, which is saved with it."""

    step: int = 0
    wall_seconds: float = 0.0
    started: str = field(default_factory=utc_now)
    resumed: int = 0  # number of resumes
    evaluated_before: bool = False  # whether the evaluation before training is done
    evaluated: int = 0  # charged rollouts // `evaluation.every_rollouts`, at the last evaluation during training
    began: float = 0.0  # `wall_seconds` at the start of the present step
    span: tuple[int, int] | None = None  # first task and number of tasks of an unfinished step
    tied_steps: int = 0  # number of last steps in a row in which all groups tied
    done: list[Done] = field(default_factory=list)  # verbs that the unfinished step has done
    model_sha256: dict[str, str] | None = None  # of the files of the model that the run began from
    inputs_sha256: dict[str, str] | None = None  # of its other files and of the tasks
    code_sha256: tuple[str, ...] = ()  # of the code of the processes that ran it, each once


def open_ledger(config: RunConfig, folder: RunFolder, state: dict[str, Any] | None) -> Ledger:
    """Open a new ledger, or the saved one; rollouts dispatched after the save count as lost. An incomplete last line of
    the journal is reported and counts nothing."""
    journal = folder.path / JOURNAL
    if torn := torn_end(journal):
        written = torn.decode(errors="replace")
        print(
            f"warning: the last line of {journal} is incomplete and is cut off: {written!r}. A charge is on disk "
            "before its rollouts are dispatched, so these were not, unless the file was changed later.",
            flush=True,
        )
    return Ledger.resume(state["ledger"] if state else Ledger(Budget(config.budget.rollouts)).as_dict(), journal)


def open_harness(
    config: RunConfig,
    backend: Backend,
    chat: ChatFormat,
    ledger: Ledger,
    kind: type[H],
    make_env: Callable[[], Env] | None = None,
) -> H:
    """A run's harness on an open backend. make_env: replaces the task's environment."""
    world = EpisodeWorld(
        backend.engine,
        chat,
        make_env or config.task.make_env,
        config.task.limits,
        config.algorithm_config.rollout_context,
        config.seed,
        lock_step=config.deterministic,
    )
    return kind(
        backend,
        world,
        rollout_sampling(config),
        ledger,
        engine_kl_limit=config.profile.engine_kl_limit,
        check_trees=config.profile.check_trees,
        scored_share=config.profile.scored_share,
        samples_per_rollout=config.samples_per_rollout,
        always_push=config.deterministic,
    )


@dataclass
class Run:
    """One run on a harness whose ledger came from `open_ledger`. state: of the save to resume from; None for a new run.
    Raises Stopped when asked to stop, after saving."""

    config: RunConfig
    folder: RunFolder
    harness: AgentHarness
    train_tasks: Sequence[Task]
    held_out: Sequence[Task]
    state: InitVar[dict[str, Any] | None]
    stop: StopRequest
    track: Tracking | None = None

    def __post_init__(self, state: dict[str, Any] | None) -> None:
        self._ledger = self.harness.ledger
        self._progress: Progress = state["progress"] if state else Progress()
        self._progress.resumed += state is not None
        if (code := code_sha256()) not in self._progress.code_sha256:
            self._progress.code_sha256 += (code,)
        if self._progress.model_sha256 is None:
            self._progress.model_sha256 = model_sha256(self.config.model.path)
        if self._progress.inputs_sha256 is None:
            self._progress.inputs_sha256 = inputs_sha256(self.config, self.train_tasks, self.held_out)
        self._saved = state["name"] if state else None
        self._clock = time.perf_counter()
        self._algorithm = self.config.descriptor
        self._algorithm_config = self.config.algorithm_config
        self._worst_case = self._algorithm.rollouts_per_task(self._algorithm_config, self.config.task.max_turns)

    def train(self) -> None:
        progress, ledger = self._progress, self._ledger
        total = ledger.budget.rollouts
        # None: show a bar only on a terminal
        with tqdm(total=total, initial=ledger.rollouts, unit="rollout", desc=self.config.label, disable=None) as bar:
            if not progress.evaluated_before:
                if self.config.evaluation.before:
                    self._evaluate("before")
                progress.evaluated_before = True
                self._stop_if_asked()
            elif not progress.span:
                self._evaluate_if_due()  # a stop came before this evaluation
                self._stop_if_asked()
            while progress.span or self._goes_on:
                metrics = self._step()
                bar.update(ledger.rollouts - bar.n)
                bar.set_postfix({"success": metrics["success"], "step": progress.step})
                self._stop_if_asked()
                self._evaluate_if_due()
                self._stop_if_asked()
                if self.config.save.every_steps and progress.step % self.config.save.every_steps == 0:
                    self._save()
        self._save()
        self._evaluate("after")
        self._ledger.check_journal()
        self.folder.finish(self._manifest(), self.config.save.keep)

    @property
    def _goes_on(self) -> bool:
        return self._limit is None and self._worst_case > 0 and self._tasks_that_fit > 0

    @property
    def _tasks_that_fit(self) -> int:
        return self._ledger.tasks_that_fit(self.config.budget.tasks_per_step, self._worst_case)

    @property
    def _limit(self) -> str | None:
        """The limit, besides rollouts, that the run has reached; None if it has reached none."""
        ledger = self._ledger
        used = {"generated_tokens": ledger.generated_tokens, "optimizer_steps": ledger.optimizer_steps}
        used |= {"tied_steps": self._progress.tied_steps, "steps": self._progress.step}
        for name, number in (used | {"seconds": ledger.training_seconds}).items():
            limit = getattr(self.config.budget, name)
            if limit is not None and number >= limit:
                return name
        return None

    def _step(self) -> dict[str, Any]:
        progress, ledger = self._progress, self._ledger
        if progress.span is None:
            progress.began = self._wall_seconds()
            count = self._tasks_that_fit
            progress.span = (ledger.tasks_seen, count)
            ledger.tasks_seen += count
            self.harness.begin_step(progress.step, count * self._worst_case)
            self.harness.sync()
        first, count = progress.span
        tasks = take(self.train_tasks, first, count, self.config.seed)
        durable = DurableHarness(self.harness, progress.done, self._between_phases)
        self._algorithm.step(durable, tasks, self._algorithm_config)
        progress.span, progress.done = None, []
        log = self.harness.end_step()
        progress.step += 1
        ledger.epochs = ledger.tasks_seen // len(self.train_tasks)
        return self._write(log, count)

    def _between_phases(self, done: list[Done]) -> None:
        self._progress.done = done
        self._stop_if_asked()
        every = self.config.save.every_phases
        if every and _phases(done) % every == 0:
            self._save()

    def _write(self, log: StepLog, tasks: int) -> dict[str, Any]:
        ledger = self._ledger
        line: dict[str, Any] = {
            "step": self._progress.step,
            "epoch": ledger.epochs,
            "tasks": tasks,
            "policy_version": self.harness.policy_version,
            **first_outcome(log.rollouts),
            **{name: getattr(ledger, name) for name in COUNTED},
            "seconds": dict(ledger.seconds),
            "wall_seconds": self._wall_seconds(),
            "rollout_calls": log.rollouts,
            "updates": log.updates,
            "algorithm": log.numbers,
            "retries": log.retries,
            "alarm": self._alarm(log.grades, f"step {self._progress.step}"),
        }
        self.folder.append("steps.jsonl", [line])
        samples = [sample_line(self._progress.step, sample, log.trained) for sample in log.samples]
        self.folder.append("rollouts.jsonl", samples)
        self.folder.append("paths.jsonl", log.paths)
        curves = step_curves(line)
        if self.track is not None:
            self.track.log(curves, self._ledger.rollouts)
        kl = f"{curves['train/kl']:z.5f}" if "train/kl" in curves else "unknown"
        self._log(
            f"step {self._progress.step}  rollouts {ledger.rollouts}/{ledger.budget.rollouts}  "
            f"success {percent(line['success'])} ({counted(tasks, 'task')}, "
            f"temperature {self.config.sampling.temperature:g})  "
            f"KL {kl}  {line['wall_seconds'] - self._progress.began:.1f} s"
        )
        self._note_ties(line)
        return line

    def _note_ties(self, line: dict[str, Any]) -> None:
        """Count tied steps in a row, and warn after TIED_STEPS of them."""
        progress = self._progress
        progress.tied_steps = progress.tied_steps + 1 if is_tied(line) else 0
        if progress.tied_steps == TIED_STEPS:
            self._log(f"warning: {tie_sentence(line)}", above_bar=True)

    def _log(self, text: str, *, above_bar: bool = False) -> None:
        """Write a line to the log. Print it if no bar is shown; with `above_bar`, print it above the bar too."""
        line = f"{datetime.now():%Y-%m-%d %H:%M:%S}  {text}"
        with (self.folder.path / LOG).open("a", encoding="utf-8") as log:
            log.write(f"{line}\n")
        if not sys.stderr.isatty():
            print(line, flush=True)
        elif above_bar:
            tqdm.write(line)

    def _alarm(self, grades: Sequence[Grade], where: str) -> str | None:
        """Log and return a warning if too many rewards are missing; None otherwise."""
        missing = [grade.detail for grade in grades if grade.outcome is GradeOutcome.UNGRADABLE]
        graded = sum(grade.outcome is GradeOutcome.GRADED for grade in grades)
        alarm = grading_alarm(graded, len(missing), missing)
        if alarm is not None:
            self._log(f"{where}: {alarm}", above_bar=True)
        return alarm

    def _evaluate_if_due(self) -> None:
        every = self.config.evaluation.every_rollouts
        passed = self._ledger.rollouts // every if every else 0
        if passed > self._progress.evaluated and self._goes_on:
            self._evaluate("during")
            self._progress.evaluated = passed

    def _evaluate(self, when: str) -> None:
        evaluation = self.config.evaluation
        modes = [("sampled", evaluation.samples, Sampling())]
        if evaluation.paper:
            modes.append(("paper", evaluation.samples, PAPER_DECODING))
        if evaluation.greedy and when != "during":
            modes.append(("greedy", 1, Sampling(temperature=0.0)))
        for mode, samples, decoding in modes:
            # all evaluations of a run draw alike, so that what changes is the policy, and not its luck; `after` keeps
            # the seeds with which kept runs were evaluated after training
            known = len(self.harness.step_log.retries)
            try:
                groups = self.harness.evaluate(self.held_out, samples, decoding, name=f"after.{mode}")
            finally:
                for sentence in self.harness.step_log.retries[known:]:
                    self._log(f"an episode of the evaluation began again: {sentence}", above_bar=True)
            self._alarm([rollout.grade for group in groups for rollout in group], f"evaluation {when} training")
            self.folder.append("evaluations.jsonl", self._evaluation_lines(when, mode, groups))
            curves = evaluation_curves(mode, groups)
            if self.track is not None:
                self.track.log(curves, self._ledger.rollouts)
                table: list[TableRow] = [self._shown(group[0]) for group in groups[:SHOWN]]
                self.track.show(f"evaluation/{mode}/rollouts", table, self._ledger.rollouts)
            success = percent(curves.get(f"evaluation/{mode}/success"))
            self._log(f"held-out tasks {when} training, {DECODED[mode]}: success {success}", above_bar=True)

    def _shown(self, rollout: Rollout) -> TableRow:
        """A rollout as a row of a tracked table."""
        return {
            "rollouts": self._ledger.rollouts,
            "task": rollout.task.uid,
            "reward": rollout.grade.reward,
            "ended": rollout.termination.value,
            "turns": len(rollout.turns),
            "text": self.harness.text(rollout),
        }

    def _evaluation_lines(self, when: str, mode: str, groups: Sequence[Group]) -> list[dict[str, Any]]:
        return [
            {
                "when": when,
                "step": self._progress.step,
                "rollouts": self._ledger.rollouts,
                "policy_version": self.harness.policy_version,
                "split": self.config.task.held_out.split,
                "mode": mode,
                "task": rollout.task.uid,
                "sample": sample,
                "grade": rollout.grade.outcome.value,
                "reward": rollout.grade.reward,
                "termination": rollout.termination.value,
                "turns": len(rollout.turns),
                "detail": rollout.grade.detail,
                "cut_turns": cut_turns(rollout),
                "generated_tokens": sum(len(turn.output_ids) for turn in rollout.turns),
                "tools": dict(Counter(use.outcome.value for turn in rollout.turns for use in turn.calls)),
                "calls": call_counts(rollout),
            }
            for group in groups
            for sample, rollout in enumerate(group)
        ]

    def _save(self) -> None:
        progress = self._progress
        progress.wall_seconds = self._wall_seconds()
        self._clock = time.perf_counter()
        phase = f"-phase{_phases(progress.done):03d}" if progress.done else ""
        name = f"step{progress.step:05d}{phase}"
        if name == self._saved:
            return
        self._saved = name
        self._log(f"saving {name}")
        self.folder.save(
            name,
            {"name": name, "progress": progress, "ledger": self._ledger.as_dict()},
            self.harness.save,
            self.config.save.keep,
        )

    def _stop_if_asked(self) -> None:
        if not self.stop.reason:
            return
        self._save()
        raise Stopped(
            f"stopped by {self.stop.reason} after {self._ledger.rollouts} of "
            f"{counted(self._ledger.budget.rollouts, 'rollout')} and saved in {self.folder.path}. Run the same "
            "command to go on."
        )

    def _wall_seconds(self) -> float:
        return self._progress.wall_seconds + time.perf_counter() - self._clock

    def _manifest(self) -> dict[str, Any]:
        config, algorithm = self.config, self._algorithm_config
        return {
            "schema": SCHEMA,
            "experiment": config.experiment_name,
            "run": self.folder.path.name,
            "label": config.label,
            "algorithm": algorithm.name,
            "task": config.task.name,
            "seed": config.seed,
            "profile": config.profile.name,
            "rollout_context": algorithm.rollout_context,
            "training_context": algorithm.training_context,
            "started": self._progress.started,
            "ended": utc_now(),
            "config_sha256": sha256(self.folder.path / "config.yaml"),
            "model": config.model.name,
            "model_sha256": self._progress.model_sha256,
            "inputs_sha256": self._progress.inputs_sha256,
            "environment": environment_facts(config.task.env, config.task.env_settings),
            **provenance(),
            "code_sha256": ", ".join(self._progress.code_sha256),
            "steps": self._progress.step,
            "policy_version": self.harness.policy_version,
            "resumed": self._progress.resumed,
            "ended_by": self._limit or "rollouts",
            "wall_seconds": self._wall_seconds(),
            "ledger": self._ledger.as_dict(),
        }


def _phases(done: Sequence[Done]) -> int:
    """Synchronisations of a step so far, plus the one that is due."""
    return 1 + sum(past.verb == "sync" for past in done)

"""A configuration trained, from its last save or from the start to its end, for the commands that train."""

from collections.abc import Sequence
from contextlib import closing

from rtpo.core.chat import ChatFormat
from rtpo.core.files import disk_errors
from rtpo.envs.registry import environment_facts
from rtpo.harness.harness import AgentHarness
from rtpo.run.config import RunConfig
from rtpo.run.model_folder import chat_format, check_model_of
from rtpo.run.records import RunFolder
from rtpo.run.run import Run, StopRequest, open_harness, open_ledger
from rtpo.run.tasks import check_prompts, check_splits, load_tasks, take
from rtpo.run.tracking import Tracking, check_backends
from rtpo.types import Task


def train(config: RunConfig, stop: StopRequest) -> RunFolder:
    """Run `config` from its last save, or from the start, to its end; a finished run is left as it is.

    Raises an RTPOError with a sentence for the user; Stopped when `stop` was heard and the run was saved.
    """
    folder = RunFolder(config.folder)
    if folder.is_finished:
        folder.open(config.as_dict())
        again = "Delete it, or choose" if folder.path.exists() else "It is packed; choose"
        print(f"{folder.path} is finished: nothing to train. {again} another experiment_name=<name> or seed.")
        return folder

    from rtpo.verl_harness.session import settings_of

    check_backends(config)
    check_model_of(config)
    train_tasks = load_tasks(config.task, config.task.train)
    held_out = load_tasks(config.task, config.task.held_out)
    check_splits(config.task.env, train_tasks, held_out, config.budget.tasks_per_step)
    chat = chat_format(config)
    environment_facts(config.task.env, config.task.env_settings)
    # a rollout at least for each task that is taken
    reach = take(train_tasks, 0, min(config.budget.rollouts, len(train_tasks)), config.seed)
    check_prompts([*reach, *held_out], config.task, chat)
    settings_of(config)
    with disk_errors(folder.path):
        folder.path.mkdir(parents=True, exist_ok=True)
    with folder.held():
        folder.begin(config.as_dict())
        if not folder.is_finished:  # by another process, since the first look
            _run(config, folder, chat, train_tasks, held_out, stop)
    return folder


def _run(
    config: RunConfig,
    folder: RunFolder,
    chat: ChatFormat,
    train_tasks: Sequence[Task],
    held_out: Sequence[Task],
    stop: StopRequest,
) -> None:
    from rtpo.verl_harness.session import open_backend, tracker

    with disk_errors(folder.path):
        save = folder.latest()
        ledger = open_ledger(config, folder, save.state if save else None)
    backend = open_backend(config)
    harness = open_harness(config, backend, chat, ledger, AgentHarness)
    if save:
        harness.load(save.folder, save.state["harness"])
        print(f"resuming {folder.path} after {harness.ledger.rollouts} rollouts")
    state = save.state if save else None
    # a step that was saved between two phases has not been tracked
    kept = ledger.rollouts - (state["progress"].span is not None) if state else None
    with closing(Tracking(config, folder, tracker, kept)) as track:
        with stop.listening(), disk_errors(folder.path):
            Run(config, folder, harness, train_tasks, held_out, state, stop, track).train()
        track.finish(folder.manifest)

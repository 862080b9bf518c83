"""Train a configuration, for the commands that train: check it, open its records, start the session, run."""

from collections.abc import Callable, Sequence
from contextlib import closing

from rtpo.core.chat import ChatFormat
from rtpo.core.files import disk_errors
from rtpo.core.names import counted
from rtpo.envs.registry import environment_facts
from rtpo.errors import ConfigError, RTPOError, Stopped
from rtpo.harness.harness import AgentHarness
from rtpo.run.began import check_began_with, inputs_sha256
from rtpo.run.beside import check_place
from rtpo.run.config import RunConfig
from rtpo.run.experiments import check_folders
from rtpo.run.kept import kept_run
from rtpo.run.model_folder import chat_format, check_contexts, check_run_model
from rtpo.run.records import RunFolder
from rtpo.run.run import Run, open_harness, open_ledger
from rtpo.run.stopping import StopRequest
from rtpo.run.tasks import check_prompts, check_splits, load_tasks, take, taken_tasks
from rtpo.run.tracking import Tracking, check_tracking
from rtpo.types import Task


def train(config: RunConfig, stop: StopRequest) -> RunFolder:
    """Run `config` from its last save, or from the start, to its end. A finished run stays as it is. Raises
    RTPOError; it is Stopped after a signal, even if the run reached its end first."""
    folder = RunFolder(config.folder)
    if folder.is_finished:
        folder.open(config.as_dict())
        print(f"{folder.path} is finished and stays as it is. For another run give another experiment_name or seed.")
        return folder
    if not folder.has_trained and (kept := kept_run(folder.path)) is not None:
        kept.check(config.as_dict())
        print(f"{kept.frames} keeps the finished run {kept.name}. To run it again give another folder: results=FOLDER.")
        return folder
    train_tasks, held_out, chat = check_and_load(config)
    print(taken_tasks(config.task, train_tasks, held_out), flush=True)
    from rtpo.verl_harness.session import closed_on_failure, open_backend, tracker

    with disk_errors(folder.path):
        folder.path.mkdir(parents=True, exist_ok=True)
    with folder.held():
        folder.begin(config.as_dict())
        if folder.is_finished:  # by another process, since the first check
            return folder
        with disk_errors(folder.path):
            save = folder.restore_latest()
            state = save.state if save else None
            if state:
                check_began_with(config, state, inputs_sha256(config, train_tasks, held_out))
            ledger = open_ledger(config, folder, state)
        with closed_on_failure():
            harness = open_harness(config, open_backend(config), chat, ledger, AgentHarness)
            if save:
                harness.load(save.folder, save.state["harness"])
                print(f"resuming {folder.path} after {counted(harness.ledger.rollouts, 'rollout')}")
            # tracking up to this count stays. An unfinished step (span) is tracked later, at the ledger's count or more
            resumed_at = ledger.rollouts - (state["progress"].span is not None) if state else None
            with closing(Tracking(config, folder, tracker, resumed_at)) as track:
                with stop.listening(config.save.grace), disk_errors(folder.path):
                    Run(config, folder, harness, train_tasks, held_out, state, stop, track).train()
                track.finish(folder.manifest)
    ledger = folder.manifest["ledger"]
    print(f"records: {folder.path}")
    print(
        f"rollouts: {ledger['rollouts']} of {ledger['budget']['rollouts']}; "
        f"optimizer steps: {ledger['optimizer_steps']}",
        flush=True,
    )
    if stop.reason:  # it came during the last evaluation
        raise Stopped(
            f"stopped by {stop.reason} when {folder.path} was finished. Run the same command for what is left."
        )
    return folder


def check_and_load(config: RunConfig) -> tuple[list[Task], list[Task], ChatFormat]:
    """Check all that a run needs. Returns its training tasks, its held-out tasks and the model's chat format. Starts
    nothing and writes nothing. Raises an RTPOError."""
    from rtpo.verl_harness.session import check_machine, check_trees, settings_of

    check_place(config)
    check_run_model(config)
    if not RunFolder(config.folder).has_trained:  # a run of an earlier version goes on with the limit that it has
        check_contexts(config)
    check_tracking(config)
    train_tasks = load_tasks(config.task, config.task.train)
    held_out = load_tasks(config.task, config.task.held_out)
    check_splits(config.task.env, train_tasks, held_out, config.budget.tasks_per_step)
    chat = chat_format(config)
    environment_facts(config.task.env, config.task.env_settings)
    # each task uses at least one rollout, so no other task can be reached
    reachable = take(train_tasks, 0, min(config.budget.rollouts, len(train_tasks)), config.seed)
    check_prompts([*reachable, *held_out], config.task, chat)
    check_machine(config)
    check_trees(config)
    settings_of(config)
    return train_tasks, held_out, chat


def check_all(runs: Sequence[RunConfig]) -> None:
    """Check all runs before the first one starts. Raises ConfigError if two share a folder, or one lacks something."""
    if len(runs) < 2:  # a single run checks itself
        return
    check_folders([run.folder for run in runs])
    faults: dict[str, None] = {}
    for run in runs:
        try:
            folder = RunFolder(run.folder)
            is_done = folder.is_finished or (not folder.has_trained and kept_run(run.folder) is not None)
            check: Callable[[RunConfig], object] = check_place if is_done else check_and_load
            check(run)
        except RTPOError as error:
            faults[f"{run.folder.name}: {error}"] = None
    if faults:
        raise ConfigError("\n".join(faults))

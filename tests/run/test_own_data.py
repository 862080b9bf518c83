"""A stranger's rows and a stranger's model: one run names both, and says that it learns nothing."""

import sys
from pathlib import Path

import pytest
from byte_tokenizer import byte_tokenizer
from conftest import compose_config
from small_models import small_model

from analysis import make_tables
from experiments import train
from rtpo.data.records import Record, write_records
from rtpo.run.records import RunFolder
from rtpo.run.tasks import load_tasks

pytestmark = pytest.mark.needs("bwrap")


def test_own_rows_and_an_own_model_are_named_and_a_run_that_learns_nothing_says_so(
    tmp_path: Path, plain_trainer: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, model = tmp_path / "mine.jsonl", tmp_path / "my_own_model"
    small_model(byte_tokenizer(), model, "qwen3", head_dim=16, max_position_embeddings=2048)
    write_records(rows, [Record(f"mine/{n}", f"What is {n} + {n}?", (str(2 * n),), {}) for n in range(50)])
    overrides = (
        *("task=math", f"data={rows}", f"model.path={model}", f"results={tmp_path / 'results'}"),
        *("algorithm=grpo_exact", "algorithm.chains=2", "budget.rollouts=24", "budget.tasks_per_step=1"),
        *("task.max_turns=1", "task.max_turn_tokens=2", "samples_per_rollout=0"),
    )
    monkeypatch.setattr(sys, "argv", ["train.py", f"hydra.run.dir={tmp_path}", *overrides])
    assert train.main() == 0
    first, *said = capsys.readouterr().out.splitlines()
    task = compose_config(*overrides).task
    taken = [len(load_tasks(task, part)) for part in (task.train, task.held_out)]
    assert min(taken) > 0
    assert all(f"{count} of 50 of {rows}" in first for count in taken)
    assert any("no group had an advantage" in line for line in said)
    assert said[-1].endswith("optimizer steps: 0")
    (path,) = (tmp_path / "results" / "default").iterdir()
    assert RunFolder(path).manifest["model"] == model.name
    monkeypatch.chdir(tmp_path)
    assert make_tables.main([str(path)]) == 0
    assert model.name in capsys.readouterr().out

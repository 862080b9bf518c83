"""The supplement's audits, on records whose answers are known by hand."""

import json
from pathlib import Path
from typing import Any

import pytest

from analysis import audit
from rtpo.airline.statistics import TOO_MANY_ERRORS

AIRLINE_TASKS = Path(__file__).parent / "fixtures" / "airline"


def path(reward: float | None, turns: int, **changes: Any) -> dict[str, Any]:
    return {
        "step": 1,
        "parent": None,
        "task": "q/0",
        "termination": "answered",
        "reward": reward,
        "detail": "",
        "turns": turns,
        "cut_turns": 0,
        "generated_tokens": 10 * turns,
        "calls": {},
    } | changes


def called(attempted: int, ok: int, tool: str = "python") -> dict[str, dict[str, int]]:
    return {tool: {"attempted": attempted, "executed": ok, "ok": ok, "failed": attempted - ok}}


def write(folder: Path, file: str, lines: list[dict[str, Any]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "manifest.json").write_text(json.dumps({"files": {file: "unread"}}))
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    paths = [
        path(1.0, 2, calls=called(4, 3)),
        path(0.0, 1),
        path(0.0, 4, termination="turn_limit"),
        path(0.0, 3, detail=TOO_MANY_ERRORS, calls=called(1, 0)),
        path(None, 9),
        path(1.0, 5, parent="0.0.0.0"),
    ]
    return write(tmp_path / "rtpo-seed0", "paths.jsonl", paths)


def cells(table: Any) -> dict[str, tuple[str, ...]]:
    return {row[0]: row[1:] for row in table.rows}


def test_trunks_are_the_graded_paths_that_began_at_a_task(run: Path) -> None:
    assert cells(audit.trunk_table(run)) == {
        "Paths": ("4",),
        "Task success, %": ("25.00",),
        "Failed within turn 1, %": ("25.00",),
        "Failed within 2 turns, %": ("25.00",),
        "Failed within 3 turns, %": ("50.00",),
        "Failed within 5 turns, %": ("75.00",),
        "No terminal signal, %": ("50.00",),
        "Length on average, turns": ("2.50",),
    }


def test_failures_are_told_by_part_of_the_training(run: Path) -> None:
    table = audit.failure_table(run, 2)
    assert table.header == ("", "1/2", "2/2")
    found = cells(table)
    assert found["Success, %"] == ("50.00", "0.00")
    assert found["Ended normally and failed, %"] == ("50.00", "0.00")
    assert found["No terminal signal, %"] == ("0.00", "100.00")
    assert found["Turns of a success on average"] == ("2.00", "—")
    assert found["Turns of a failure on average"] == ("1.00", "3.50")


def test_the_budget_is_told_by_part_of_the_training(run: Path) -> None:
    assert audit.budget_table(run, 2).rows == (
        ("1/2", "50.00", "2.00", "75.00", "15.0"),
        ("2/2", "0.00", "0.50", "0.00", "35.0"),
    )


def sample(position: int, reward: float, calls: int = 0, ok: int = 0, **audited: Any) -> dict[str, Any]:
    facts = {"repeated": 0, "programs": calls, "valid_programs": calls, "answer_first": False} | audited
    return {
        "position": position,
        "sample": 0,
        "reward": reward,
        "calls": called(calls, ok) if calls else {},
        "audit": facts if calls else None,
    }


def test_tool_calls_are_counted_over_the_first_questions(tmp_path: Path) -> None:
    lines = [
        sample(2, 1.0, calls=1, ok=1, answer_first=True),
        sample(0, 1.0),
        sample(1, 0.0, calls=2, ok=1, repeated=1, valid_programs=1),
        sample(1, 1.0, calls=9, ok=9) | {"sample": 1},
        sample(3, 1.0, calls=1, ok=1),
    ]
    folder = write(tmp_path / "gsm8k", "samples.jsonl", lines)
    assert cells(audit.tool_table(folder, 3)) == {
        "Trajectories audited": ("3",),
        "With a call, %": ("66.67",),
        "Calls a trajectory on average": ("1.00",),
        "Without a call": ("1",),
        "With one call": ("1",),
        "With two or more calls": ("1",),
        "Python programs that parse": ("2/3",),
        "Calls executed well": ("2/3",),
        "Right, of those with a call": ("1/2",),
        "Answer written before the first call": ("1/2",),
        "With a repeated call": ("1",),
    }


def test_the_airline_stands_beside_doing_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = next(file.parent for file in AIRLINE_TASKS.rglob("tasks.json"))
    tasks = json.loads((folder / "tasks.json").read_text())
    is_write = {
        f"tau3_airline/{task['id']}": any(
            action["name"] in audit.WRITES for action in task["evaluation_criteria"]["actions"] or []
        )
        for task in tasks
    }
    write_task = next(uid for uid, needs in is_write.items() if needs)
    other = next(uid for uid, needs in is_write.items() if not needs)
    lines = [
        path(float(place == 0), 2, task=uid, when="after", mode="sampled", calls=called(1, 1, "cancel_reservation"))
        for uid in (write_task, other)
        for place in range(4)
    ]
    run = write(tmp_path / "rtpo-seed0", "evaluations.jsonl", lines)
    found = cells(audit.airline_table(run, folder))
    assert found["Pass@1, %"] == ("25.00",)
    assert found["Pass@4, %"] == ("100.00",)
    assert found["Pass^4, %"] == ("0.00",)
    assert found["Pass@1 on tasks that need a write, %"] == ("25.00",)
    assert found["Writes attempted an episode"] == ("1.00",)
    assert audit.main(["airline", str(run), "--tasks", str(folder), "--format", "csv"]) == 0
    assert "Response tokens a success,80.0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["trunks", "{}/nowhere"], "has no manifest.json: give the folder of a finished run"),
        (["trunks", "{}/old"], "has no paths.jsonl: it was made before runs kept it"),
        (["failures", "{}/rtpo-seed0", "--points", "5"], "--points is 5 and there are 4 paths"),
        (["tools", "{}/rtpo-seed0"], "samples.jsonl cannot be read"),
        (["tools", "{}/short"], "has 1 questions and --first is 100"),
        (["tools", "{}/bare", "--first", "1"], "before evaluations kept an audit"),
        (["trunks", "{}/damaged"], "paths.jsonl line 2 is not JSON (2 damaged in all)"),
    ],
)
def test_what_cannot_be_audited_is_refused_in_a_sentence(
    run: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    write(run.parent / "old", "steps.jsonl", [])
    write(run.parent / "short", "samples.jsonl", [sample(0, 1.0)])
    bare = {key: value for key, value in sample(0, 1.0).items() if key != "audit"}
    write(run.parent / "bare", "samples.jsonl", [bare])
    damaged = write(run.parent / "damaged", "paths.jsonl", [path(1.0, 1)]) / "paths.jsonl"
    damaged.write_text(damaged.read_text() + "{\n[\n")
    assert audit.main([argument.format(run.parent) for argument in arguments]) == 1
    assert words in capsys.readouterr().err

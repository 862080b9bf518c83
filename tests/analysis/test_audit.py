"""The supplement's audits, on records whose answers are known by hand."""

import json
from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import episode, held_out, path, write_evaluation, write_run

from analysis import audit
from rtpo.envs.airline.tasks import TOO_MANY_ERRORS, WRITES

TASKS = next((Path(__file__).parents[1] / "fixtures" / "airline").rglob("tasks.json")).parent


def trunk(reward: float | None, turns: int, parent: str | None = None, **changes: Any) -> dict[str, Any]:
    return path(1, "q/0", episode(reward, turns=turns, tokens=10 * turns, **changes), parent)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    paths = [
        trunk(1.0, 2, calls=(4, 4, 3)),
        trunk(0.0, 1),
        trunk(0.0, 4, termination="turn_limit"),
        trunk(0.0, 3, detail=TOO_MANY_ERRORS, calls=(1, 1, 0)),
        trunk(None, 9),
        trunk(1.0, 5, parent="0.0.0.0"),
    ]
    return write_run(tmp_path, "rtpo", 0, [], [], paths=paths, experiment="main")


def cells(table: Any) -> dict[str, tuple[str, ...]]:
    return {row[0]: row[1:] for row in table.rows}


def test_trunks_are_the_graded_paths_that_began_at_a_task(run: Path) -> None:
    table = audit.trunk_table(run, 2)
    assert table.header == ("", "All", "1/2", "2/2")
    expected = {
        "Paths": ("4", "2", "2"),
        "Success, %": ("25.00", "50.00", "0.00"),
        "Ended normally and failed, %": ("25.00", "50.00", "0.00"),
        "No terminal signal, %": ("50.00", "0.00", "100.00"),
        "Failed within 3 turns, %": ("50.00", "50.00", "50.00"),
        "Length on average, turns": ("2.50", "1.50", "3.50"),
        "Turns of a success on average": ("2.00", "2.00", "—"),
        "Calls executed well, %": ("60.00", "75.00", "0.00"),
        "Tokens a path": ("25.0", "15.0", "35.0"),
    }
    assert expected.items() <= cells(table).items()


def sample(position: int, reward: float | None, calls: int = 0, ok: int = 0, **audited: Any) -> dict[str, Any]:
    facts = {"repeated": 0, "programs": calls, "valid_programs": calls, "answer_first": False} | audited
    of = episode(reward, calls=(calls, calls, ok))
    return {"position": position, "uid": f"q/{position}", "sample": 0, "audit": facts if calls else None, **of}


def test_tool_calls_are_counted_over_the_first_questions(run: Path) -> None:
    firsts = [
        sample(2, 1.0, calls=1, ok=1, answer_first=True),
        sample(0, None),
        sample(1, 0.0, calls=2, ok=1, repeated=1, valid_programs=1),
        sample(3, 1.0, calls=1, ok=1),
    ]
    later = [sample(each["position"], 1.0, calls=9, ok=9) | {"sample": 1} for each in firsts]
    table = cells(audit.tool_table(write_evaluation(run, "gsm8k", [*firsts, *later]), 3))
    values = [value for (value,) in table.values()]
    assert values == ["3", "66.67", "1.00", "1", "1", "1", "2/3", "2/3", "1/2", "1/2", "1"]


def test_the_airline_stands_beside_doing_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    needs_write = {
        f"tau3_airline/{task['id']}": any(a["name"] in WRITES for a in task["evaluation_criteria"]["actions"] or [])
        for task in json.loads((TASKS / "tasks.json").read_text())
    }
    tasks = sorted(needs_write, key=needs_write.__getitem__)
    calls = {"cancel_reservation": {"attempted": 1, "executed": 1, "ok": 1, "failed": 0}}
    lines = [
        held_out(uid, place, episode(float(place == 0), tokens=20) | {"calls": calls})
        for uid in (tasks[0], tasks[-1])
        for place in range(4)
    ]
    lines += [line | {"when": "before", "reward": 1.0} for line in lines] + [lines[0] | {"mode": "greedy"}]
    run = write_run(tmp_path, "rtpo", 0, [], lines)
    table = cells(audit.airline_table(run, TASKS))
    assert [table[f"{name}, %"][0] for name in ("Pass@1", "Pass@4", "Pass^4")] == ["25.00", "100.00", "0.00"]
    assert table["Pass@1 on tasks that need a write, %"] == ("25.00",)
    assert table["Writes attempted an episode"] == ("1.00",)
    assert audit.main(["airline", str(run), "--tasks", str(TASKS), "--format", "csv"]) == 0
    assert "Response tokens a success,80.0" in capsys.readouterr().out

"""The page of runs that collapsed, on made-up runs."""

from pathlib import Path
from typing import Any

from synthetic_runs import answers, step, update, write_run

from analysis.toy_study.collapse import RESULTS, page


def phase(rows: int, tied: int, norm: float, turn: int, entropy: float) -> dict[str, Any]:
    """An update; one without untied rows takes no step."""
    taken = {"optimizer_steps": 1, "grad_norm": norm, "clip_fraction": 0.01}
    left = {"optimizer_steps": 0, "grad_norm": None, "clip_fraction": None}
    told = {"tied_rows": tied, "entropy": entropy} | (taken if rows > tied else left)
    return update(10, 0.0, tied / rows, rows=rows, turns=(turn,)) | told


def call(role: str, start: int, turns: int, cut: int, success: float) -> dict[str, Any]:
    stops = {"stop": turns - cut, "length": cut}
    return {
        **{"role": role, "start_turns": {f"{start}": 4}, "success": success},
        **{"turns": turns, "stops": stops, "generated_tokens": 12 * turns},
    }


def test_on_how_much_a_step_rests_is_counted_over_the_steps_that_were_taken(tmp_path: Path) -> None:
    updates = [phase(8, 8, 0.0, 2, 0.3), phase(16, 12, 0.2, 1, 0.5), phase(20, 8, 0.4, 0, 0.1)]
    calls = [call("trunk", 0, 30, 0, 0.5), call("sibling", 1, 10, 2, 0.4), call("sibling", 0, 60, 3, 0.25)]
    one = step(1, 600, 0.5, updates) | {"rollout_calls": calls}
    evaluations = [
        *answers("before", "sampled", {"a": [1.0], "b": [0.0]}),
        *answers("during", "sampled", {"a": [1.0], "b": [0.0]}, 1),
        *answers("during", "sampled", {"a": [0.0], "b": [0.0]}, 2),
        *answers("after", "sampled", {"a": [1.0], "b": [1.0]}, 3),
    ]
    config = {"budget": {"rollouts": 600, "tasks_per_step": 16}}
    write_run(tmp_path / RESULTS, "rtpo", 3, [one], evaluations, config=config, experiment="toy_knowledge")
    text = page(tmp_path)
    assert (
        "| `toy_knowledge/rtpo-seed3` | 0.5 | 16 | 36 | 8 | 50 | 50 | 0 | 100 | not run | not run | 0.30 |"
        in text.splitlines()
    )
    assert (
        "| 1 | 600 | 50 | 25 | 2 | 4 to 12 | 0.20 to 0.40 | 1.0 | 1.000 | 0.10 | 0.40 | 5.0 | 12.0 |"
        in text.splitlines()
    )


def test_without_records_it_is_not_run(tmp_path: Path) -> None:
    assert page(tmp_path) == "not run\n"

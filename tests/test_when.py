"""The page on when RTPO pays: f_k, the rungs and what is said of them, from made-up runs."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic_runs import episode, path, write_answering

from analysis.pages import __main__ as pages
from analysis.plots import Panel, sheet
from analysis.records import RunGroup, load_run
from analysis.study import findings
from analysis.study.findings import Site
from analysis.study.plan import STUDIES
from analysis.study.records import load_study
from analysis.when import __main__ as when
from analysis.when import ladder
from analysis.when.answers import sentences
from analysis.when.beside import decodings_table, otherwise, room_table
from analysis.when.ladder import cost_table, rungs_table, worth_table
from analysis.when.shares import point, shares, shares_table
from rtpo.run.config import PROJECT
from rtpo.theory.regimes import break_even

WALK = "walk_even_toy_walk"
BESIDE = {
    "budget": {"rollouts": 2048},
    **{"rollouts": 2048, "free_rollouts": 9, "generated_tokens": 4000, "free_tokens": 5000, "optimizer_steps": 1},
    "seconds": {"evaluate": 1.0},
}


def tree(returns: dict[int, tuple[float, float]]) -> list[dict[str, Any]]:
    """The first step's paths: a chain of three turns that earns 1, one of two that earns 0, and of each boundary of
    turn k one path that went on from it."""
    chains = [path(1, "q", episode(reward, turns=turns)) for reward, turns in ((1.0, 3), (0.0, 2))]
    lines = [chain | {"rollout": f"0.0.0.{i}"} for i, chain in enumerate(chains)]
    for k, both in returns.items():
        for i, reward in enumerate(both[: 1 if k == 2 else 2]):
            fork = path(1, "q", episode(reward, turns=3), parent=f"0.0.0.{i}")
            lines.append(fork | {"rollout": f"0.{k}.{i}.0", "start_k": k})
    later = [path(2, "q", episode(reward)) | {"rollout": f"1.0.0.{i}"} for i, reward in enumerate((5.0, -5.0))]
    ungraded = path(1, "q", episode(None), parent="0.0.0.0") | {"rollout": "0.9.0.0", "start_k": 1}
    return [*lines, ungraded, *later]


def test_f_is_what_is_left_of_a_prompts_variance(tmp_path: Path) -> None:
    # chains: variance 1/2. Turn 1: none after the first, 1/2 after the second. Turn 2: the one boundary left, none
    write_answering(tmp_path, WALK, "vineppo", 10, paths=tree({1: (1.0, 1.0), 2: (1.0, 0.0)}))
    f, boundaries, reached = shares(runs(tmp_path))
    assert [one and one.mean for one in f] == pytest.approx([1, 0.5, 0])
    assert boundaries == [6, 6, 3]
    assert reached == pytest.approx([1, 1, 0.5])
    assert f[1]
    assert np.isnan(f[1].low)  # runs that are all alike have no interval


def test_f_is_of_the_chains_that_reach_the_turn(tmp_path: Path) -> None:
    # a second prompt of one run: deviations from its mean, 1, are 1, 1 and 4, times 3/2; only the last chain goes on
    both = tree({1: (1.0, 1.0), 2: (1.0, 0.0)})
    ends = [path(1, "p", episode(reward, turns=turns)) for reward, turns in ((0.0, 1), (0.0, 1), (3.0, 2))]
    second = [chain | {"rollout": f"0.0.1.{i}"} for i, chain in enumerate(ends)]
    fork = path(1, "p", episode(1.0, turns=2), parent="0.0.1.2") | {"rollout": "0.1.2.0", "start_k": 1}
    write_answering(tmp_path, WALK, "vineppo", 10, seeds=(10,), paths=[*both, *second, fork])
    write_answering(tmp_path, WALK, "vineppo", 10, seeds=(11,), paths=both)
    f, boundaries, reached = shares(runs(tmp_path))
    inner, outer = np.array([(0 + 1 / 2 + 2) / 3, 1 / 4]), np.array([(1 / 2 + 1 / 2 + 6) / 3, 1 / 2])
    assert f[1]
    assert f[1].mean == pytest.approx(inner.sum() / outer.sum())
    assert f[1].high - f[1].mean == pytest.approx(
        12.7062 * abs(inner[0] - f[1].mean * outer[0]) / outer.mean(), rel=1e-4
    )
    assert boundaries == [7, 5, 2]
    assert reached == pytest.approx([1, 0.8, 0.35])


def test_f_is_unknown_where_returns_do_not_differ(tmp_path: Path) -> None:
    alike = [line | {"reward": 1.0} for line in tree({1: (1.0, 1.0), 2: (1.0, 0.0)})]
    write_answering(tmp_path, WALK, "vineppo", 10, paths=alike)
    f, *_ = shares(runs(tmp_path))
    assert f[1:] == [None, None]


def test_a_command_reads_f_from_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_answering(tmp_path, WALK, "vineppo", 10, paths=tree({1: (1.0, 1.0), 2: (1.0, 0.0)}))
    one = tmp_path / WALK / "vineppo-seed10"
    assert when.main([str(one)]) == 0
    out = capsys.readouterr().out
    assert f"f* is {100 / 6:.3f} % at G = 3 and 2.50 turns a chain in the mean: f_k is below it at 1 of 3 turns" in out
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in out.splitlines() if line.startswith("|")]
    assert rows[2:] == [
        ["0", "100.0 [100.0, 100.0]", "2", "100.0"],
        ["1", "50.0", "2", "100.0"],
        ["2", "0.0", "1", "50.0"],
    ]
    assert when.main([str(one), "--group-size", "4"]) == 0
    assert f"f* is {200 / 8.5:.3f} % at G = 4" in capsys.readouterr().out


def test_runs_that_say_nothing_of_f_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for label in ("grpo", "vineppo"):
        write_answering(tmp_path, WALK, label, 10)
    other, forking = (tmp_path / WALK / f"{label}-seed10" for label in ("grpo", "vineppo"))
    (forking / "manifest.json").unlink()
    for folder, why in (
        (other, "is a run of grpo: f_k is read from runs of vineppo."),
        (forking, "has not ended: finish it by giving its training command again."),
        (tmp_path / WALK, "is no run's folder: give that of one of its runs"),
    ):
        assert when.main([str(folder)]) == 1
        assert f"{folder} {why}" in capsys.readouterr().err


def runs(results: Path) -> RunGroup:
    return RunGroup("vineppo", tuple(load_run(folder) for folder in sorted((results / WALK).iterdir())))


def test_a_task_is_placed_by_its_own_turns_and_groups(tmp_path: Path) -> None:
    for label, right in (("rtpo", 8), ("grpo_exact", 12)):
        write_answering(tmp_path, WALK, label, right)
    site = Site(load_study(tmp_path, STUDIES / "credit.yaml"), "walk_even")
    assert point(site) is None
    write_answering(tmp_path, WALK, "vineppo", 10, paths=tree({1: (1.0, 1.0), 2: (1.0, 0.0)}))
    one = point(Site(load_study(tmp_path, STUDIES / "credit.yaml"), "walk_even"))
    assert one is not None
    unit = break_even(2.5, 3)
    assert one.turns == 2.5
    assert one.excess == pytest.approx((1 + 0.5) / 2.5 / unit)
    assert one.later == pytest.approx(0.5 / 1.5 / unit)
    assert one.ratios == pytest.approx([1 / unit, 0.5 / unit, 0])
    assert one.difference.mean == pytest.approx(-0.2)


def test_rungs_that_have_no_runs_are_said_and_not_drawn(tmp_path: Path) -> None:
    write_answering(tmp_path, WALK, "grpo_exact", 10)
    write_answering(tmp_path, WALK, "grpo_state_values", 16, manifest={"ledger": BESIDE})
    records = load_study(tmp_path, STUDIES / "credit.yaml")
    sites = findings.sites([records])
    by_label = {row[1]: row[2:] for row in rungs_table(sites).rows}
    assert by_label["RTPO"] == ("not run",) * 3
    assert by_label["GRPO, exact contexts (control)"][1].startswith("50.0 [")
    worth = {row[0]: row[2] for row in worth_table(sites).rows}
    assert worth["Credit at its ceiling, c − b"].startswith("+30.0 [")
    assert worth["Credit at its ceiling, c − b"].endswith("], 3 of 6 pairs")
    assert worth["The charged plan, f − b"] == "not run"
    (order,) = (row for row in worth_table(sites).rows if row[0] == "Order, d − c")
    assert order[1:] == ("not planned", "not run", "not planned")
    said = sentences(sites, []).splitlines()
    assert said[2] == "3. Updating turn by turn in reverse adds to that: **not run on 1 of 1 tasks**."
    assert said[1].endswith("not run on 2 of 3 tasks**.")
    assert ": **above on 0 of 3 tasks, not run on 3**; " in said[6]
    (_, values) = cost_table(sites).rows
    assert values[3:8] == ("2,048", "9", "1", "4.0", "5.0")
    figure = ladder.draw(sites)
    (axes,) = figure.axes
    assert [label.get_text().split()[0] for label in axes.get_yticklabels()] == ["c", "b"]
    hollow = [line for line in axes.lines if line.get_markerfacecolor() == "white"]
    assert [list(np.asarray(line.get_ydata())) for line in hollow] == [[0]]


def test_rungs_with_free_rollouts_and_many_tasks_are_shown_once_they_have_runs(tmp_path: Path) -> None:
    right = {"grpo_exact": 8, "grpo_state_values": 12, "grpo_state_values_reverse": 16, "grpo_state_values_fresh": 10}
    for label, count in right.items():
        manifest = {} if label == "grpo_exact" else {"ledger": BESIDE}
        write_answering(tmp_path / "credit", WALK, label, count, manifest=manifest)
    for task in ("walk_early_toy_walk", "walk_late_toy_walk"):
        write_answering(tmp_path / "credit", task, "grpo_exact", 10)
    for task in ("math_luck_toy_math", "knowledge_luck_toy_knowledge", "walk_never_toy_walk"):
        write_answering(tmp_path / "anchors", task, "grpo_exact", 10, (20, 21, 22))
    of = findings.sites([load_study(tmp_path / name, STUDIES / f"{name}.yaml") for name in ("credit", "anchors")])
    worth = {row[0]: row[2] for row in worth_table(of).rows}
    assert worth["Credit at its ceiling, c − b"].startswith("+20.0 [")
    assert worth["Order, d − c"].startswith("+20.0 [")
    assert worth["Freshness, e − d"].startswith("-30.0 [".replace("-", "−"))
    assert [row[0] for row in shares_table(of, []).rows] == [site.title for site in of[:3]]
    chosen, said = "little shrunk", sentences(of, []).splitlines()
    assert chosen in said[6]
    assert chosen not in said[7]
    assert sentences(of[3:], []).splitlines()[7].endswith("**not planned**.")
    assert said[1].endswith("; not run on 2 of 3 tasks**.")
    figure = ladder.draw(of)
    assert len(figure.axes) == 6
    named = [place for place, axes in enumerate(figure.axes) if axes.get_yticklabels()[0].get_text()]
    assert named == [0, 3]


def test_another_decoding_that_decides_otherwise_is_said(tmp_path: Path) -> None:
    for label, right in (("grpo", 4), ("grpo_exact", 12), ("rtpo", 12)):
        write_answering(tmp_path, WALK, label, right)
    of = findings.sites([load_study(tmp_path, STUDIES / "credit.yaml")])
    # all answer alike at temperature 1; above GRPO on flattened history at the paper's decoding alone
    rows = decodings_table(of).rows
    assert [row[:2] for row in rows] == [
        (f"{one} less GRPO, flattened history (the paper's contexts)", "Toy walk, decided evenly")
        for one in ("GRPO, exact contexts (control)", "RTPO")
    ]
    assert rows[0][2].startswith("supported, +40.0 [")
    assert rows[0][3].startswith("undecided, ")
    assert otherwise(of) == (
        "2 of 3 verdicts are others at temperature 1, 0 turned round, and 0 of 0 verdicts are others greedily, 0 "
        "turned round."
    )


def test_how_far_a_task_lets_exact_grpo_come(tmp_path: Path) -> None:
    write_answering(tmp_path, WALK, "grpo_exact", 12)
    write_answering(tmp_path, f"{WALK}_1", "grpo_exact", 16)
    of = findings.sites([load_study(tmp_path, STUDIES / "credit.yaml")])
    assert room_table(of).rows == (("Toy walk, decided evenly", "none", "10.0 / 10.0", "60.0 / 80.0", "—"),)


def test_places_beyond_the_last_panel_are_empty_and_rows_before_it_full() -> None:
    panels = [Panel(f"task {place}", []) for place in range(7)]
    figure = sheet([panels[:4], panels[4:]], 1.0, "")
    assert [axes.axison for axes in figure.axes] == [True] * 7 + [False]
    with pytest.raises(ValueError, match=r"rows of \[3, 2, 2\] panels"):
        sheet([panels[:3], panels[3:5], panels[5:]], 1.0, "")


def test_the_page_is_made_and_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "docs" / "results" / "when.md"
    page.parent.mkdir(parents=True)
    page.write_text((PROJECT / "docs" / "results" / "when.md").read_text())
    given = ["when", "--project", str(tmp_path)]
    assert pages.main(given) == 1
    assert "predicted.jsonl does not exist: restore it" in capsys.readouterr().err
    shutil.copytree(PROJECT / "results" / "map", tmp_path / "results" / "map")
    assert pages.main(given) == pages.main(["--check", *given]) == 0
    text = page.read_text()
    assert "1. GRPO with exact contexts ends above GRPO on flattened history: **not run on 5 of 5 tasks**." in text
    assert not page.with_name("when_ladder.png").exists()

    results = tmp_path / "results" / "credit"
    for label, right in (("grpo", 4), ("grpo_exact", 12), ("rtpo", 8)):
        write_answering(results, WALK, label, right)
    write_answering(results, WALK, "vineppo", 10, paths=tree({1: (1.0, 1.0), 2: (1.0, 0.0)}))
    assert pages.main(["--check", *given]) == 1
    assert "python -m analysis.pages" in capsys.readouterr().err
    assert pages.main(given) == pages.main(["--check", *given]) == 0
    text = page.read_text()
    assert (
        "1. GRPO with exact contexts ends above GRPO on flattened history: **supported on toy walk decided evenly "
        "(3 pairs); not run on 4 of 5 tasks**." in text
    )
    assert (
        "at equal rollouts: **contradicted on toy walk decided evenly (3 pairs); not run on 4 of 5 tasks**; with as "
        "many generated tokens: **not run on 5 of 5 tasks**." in text
    )
    assert (
        "- Against GRPO with exact contexts RTPO ends above on 0 of 5 tasks, below on 1 (−20.0), not run on 4 at "
        "equal rollouts, and above on 0 of 5 tasks, not run on 5 with as many generated tokens." in text
    )
    assert "at 1 of 3 turns of toy walk, decided evenly, the first turn never among them" in text
    assert "](when_ladder.png)" in text
    assert "Toy math, luck" not in text
    write_answering(tmp_path / "results" / "anchors", "math_luck_toy_math", "grpo_exact", 12, (20, 21, 22))
    assert pages.main(given) == 0
    assert "| Toy math, luck " in page.read_text()
    assert page.with_name("when_map.png").exists()
    page.with_name("when_map.png").unlink()
    assert pages.main(["--check", *given]) == 1

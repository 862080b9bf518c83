"""The paper's figures: which runs they take, what they plot, what they say was not run."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import matplotlib.style
import numpy as np
import pandas as pd
import pytest
import yaml
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from paper_runs import calls, path, update, write_paper_run, write_whole_profile

from analysis import make_figures
from analysis.figures import curves
from analysis.figures import page as figure_page
from analysis.figures.paper_figures import FIGURES, select
from analysis.figures.shared import Rows
from analysis.figures.sources import EXPERIMENTS, PAPER, Source, sources
from analysis.looks import styles
from analysis.paper.quantities import RUN_QUANTITIES, run_cells
from analysis.plots import STYLE
from analysis.records import RunGroup, load_run
from rtpo.errors import DataError
from rtpo.run.config import PROJECT
from rtpo.run.experiments import load_experiment

TASKS = {
    "toy": {"math": "toy_math", "search": "toy_knowledge", "airline": "toy_knowledge"},
    PAPER: {"math": "math_paper", "search": "search_paper", "airline": "airline"},
}
SEEDS = "range over seeds"


def source(results: Path, profile: str = "toy") -> Source:
    return Source(profile, profile, results, TASKS.get(profile, TASKS[PAPER]))


def rows(results: Path, name: str) -> Rows:
    return select(FIGURES[name], source(results))


def drawn(of: Path | Source, name: str) -> Figure:
    """Of the toy profile where `of` is a folder."""
    given = of if isinstance(of, Source) else source(of)
    with matplotlib.style.context(STYLE):
        return FIGURES[name].draw(select(FIGURES[name], given), given)


def points(*pairs: tuple[float, float]) -> Any:
    return pytest.approx(np.array(pairs))


def plotted(axes: Axes, label: str) -> np.ndarray:
    """The points of a configuration's line, [points, 2]."""
    look = styles([label])[label]
    (line,) = (
        line
        for line in axes.lines
        if (line.get_color(), line.get_marker()) == (look.colour, look.marker) and line.get_markerfacecolor() != "none"
    )
    return np.asarray(line.get_xydata())


def heights(axes: Axes, label: str) -> list[float]:
    return plotted(axes, label)[:, 1].tolist()


def band_ends(axes: Axes, place: int = 0) -> np.ndarray:
    """Low and high at each x of a band."""
    corners = axes.collections[place].get_paths()[0].vertices
    ends = {float(x): [float(y) for at, y in corners if at == x] for x in sorted(set(corners[:, 0]))}
    return np.array([(min(found), max(found)) for found in ends.values()])


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def footnote(figure: Figure) -> str:
    return figure.get_supxlabel().replace("\n", " ")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Source]:
    """Runs of all experiments of two profiles, in one folder."""
    results = tmp_path_factory.mktemp("results")
    write_whole_profile(results, "toy", seeds=1)
    write_whole_profile(results, PAPER, seeds=2)
    return {profile: source(results, profile) for profile in TASKS}


def test_ratio_and_kl_are_means_over_seeds_of_each_step(tmp_path: Path) -> None:
    for seed, kl in ((0, (0.2, 0.1)), (1, (0.4, 0.3, 0.2))):
        write_paper_run(tmp_path, "main_table", "grpo", seed, updates=[[update(one)] for one in kl])
    figure = drawn(tmp_path, "consistency")
    ratio, kl_panel = figure.axes
    assert plotted(kl_panel, "grpo") == points((1, 0.3), (2, 0.2))
    assert heights(ratio, "grpo") == pytest.approx(
        [(np.exp(-0.2) + np.exp(-0.4)) / 2, (np.exp(-0.1) + np.exp(-0.3)) / 2]
    )
    assert band_ends(kl_panel) == points((0.2, 0.4), (0.1, 0.3))
    assert SEEDS in legend(figure)
    assert [panel.get_title(loc="left") for panel in figure.axes] == [
        "(a) Toy math: ratio",
        "(b) Toy math: KL, nats a token",
    ]


def test_one_run_of_one_step_is_a_mark_without_a_band(tmp_path: Path) -> None:
    write_paper_run(tmp_path, "main_table", "grpo", updates=[[update(0.2)]])
    figure = drawn(tmp_path, "consistency")
    (line,) = (line for line in figure.axes[1].lines if line.get_marker() != "None")
    assert line.get_xydata() == points((1, 0.2))
    assert line.get_markevery() == [0]
    assert SEEDS not in legend(figure)
    assert "seeds: 1." in footnote(figure)


def test_controls_are_thin_and_drawn_over_their_equals(tmp_path: Path) -> None:
    for label in ("rtpo", "grpo_exact"):
        write_paper_run(tmp_path, "main_table", label)
    figure = drawn(tmp_path, "consistency")
    rtpo, exact = (line for line in figure.axes[0].lines if line.get_marker() != "None")
    assert rtpo.get_linewidth() > exact.get_linewidth()
    assert rtpo.get_color() == styles(["rtpo"])["rtpo"].colour
    assert legend(figure) == ["RTPO", "GRPO, exact contexts (control)"]


def test_the_papers_readings_are_marked_at_its_own_scale_alone(tmp_path: Path) -> None:
    readings = {}
    for profile in ("toy", "a100x1", PAPER):
        for task in TASKS.get(profile, TASKS[PAPER])["math"], TASKS.get(profile, TASKS[PAPER])["search"]:
            for label in ("grpo", "seeupo_flat"):
                write_paper_run(tmp_path, "main_table", label, profile=profile, task=task)
        figure = drawn(source(tmp_path, profile), "consistency")
        readings[profile] = [
            sorted(
                (line.get_markeredgecolor(), *line.get_xydata()[0])
                for line in axes.lines
                if line.get_markerfacecolor() == "none"
            )
            for axes in figure.axes
        ]
        assert ("stated in the paper" in legend(figure)) == (profile == PAPER)
        assert ("readings" in footnote(figure)) == (profile != PAPER)
    grpo, seeupo = (styles([label])[label].colour for label in ("grpo", "seeupo_flat"))
    math, knowledge, *kl = readings[PAPER]
    assert math == [(grpo, 1, 0.89), (grpo, 30, 0.97)]
    assert knowledge == sorted([(grpo, 1, 0.80), (grpo, 14, 0.83), (seeupo, 1, 0.80), (seeupo, 14, 0.89)])
    assert [*kl, *readings["toy"], *readings["a100x1"]] == [[]] * 10


def test_the_mismatch_of_a_turn_is_the_sum_of_its_parts(tmp_path: Path) -> None:
    steps = [[update(0.3, (1,), context=0.1), update(0.0, (0,))], [update(0.5, (1,), context=0.3)]]
    write_paper_run(tmp_path, "main_table", "grpo", updates=steps)
    figure = drawn(tmp_path, "mismatch_by_turn")
    ratio, *kl = figure.axes
    assert [heights(panel, "grpo") for panel in kl] == [
        pytest.approx([0.0, 0.4]),
        pytest.approx([0.0, 0.2]),
        pytest.approx([0.0, 0.2]),
    ]
    assert plotted(ratio, "grpo") == points((0, 1.0), (1, np.exp(-0.4)))
    assert curves.ratio_of(pd.DataFrame({"mean": [0.2], "low": [0.1], "high": [0.5]})).loc[0].tolist() == pytest.approx(
        [np.exp(-0.2), np.exp(-0.5), np.exp(-0.1)]
    )
    assert len({panel.get_ylim() for panel in kl}) == 1


def test_success_stands_at_what_it_cost(tmp_path: Path) -> None:
    write_paper_run(tmp_path, "main_table", "rtpo", updates=[[update(0.0)]] * 5, rewards=(1.0, 1.0, 1.0, 0.0))
    rollouts, tokens, seconds = drawn(tmp_path, "success").axes
    assert plotted(rollouts, "rtpo") == points((0, 0), (50, 75))
    assert plotted(tokens, "rtpo") == points((0, 0), (2, 75))
    assert plotted(seconds, "rtpo") == points((0, 0), (0.5, 75))
    assert [panel.get_xlabel() for panel in (tokens, seconds)] == ["Generated tokens, k", "Training seconds"]


def test_large_runs_have_larger_units(whole: dict[str, Source]) -> None:
    panels = drawn(whole[PAPER], "success").axes
    assert [panel.get_xlabel() for panel in panels[1:3]] == ["Generated tokens, M", "Training hours"]


def test_zero_advantages_are_told_by_turn_and_step(tmp_path: Path) -> None:
    for seed, tied in ((0, 0.2), (1, 0.4)):
        steps = [[update(0.0, (1,), tied), update(0.0, (1,), 0.6), update(0.0, (0,), 0.1)], [update(0.0, (0,), 0.3)]]
        write_paper_run(tmp_path, "main_table", "rtpo", seed, updates=steps)
    write_paper_run(tmp_path, "main_table", "grpo", task="toy_knowledge")
    figure = drawn(tmp_path, "ties")
    math, without, absent, _ = figure.axes
    first, second = math.lines
    assert first.get_xydata().tolist() == [pytest.approx([0, 10]), pytest.approx([10, 30])]
    assert second.get_xydata().tolist() == [pytest.approx([0, 45])]
    assert legend(figure) == ["turn 0", "turn 1"]
    assert first.get_color() != second.get_color()
    assert first.get_marker() != second.get_marker()
    assert [[text.get_text() for text in panel.texts] for panel in (without, absent)] == [["not run"]] * 2


def test_zero_advantages_are_pooled_by_rows_as_in_the_tables(tmp_path: Path) -> None:
    large, small = (update(0.0, (1,), tied) | {"rows": rows} for tied, rows in ((0.2, 30), (0.6, 10)))
    for folder in (
        write_paper_run(tmp_path, "main_table", "rtpo", updates=[[large, small]]),
        write_paper_run(tmp_path, "main_table", "rtpo", 1, updates=[[large], [small]]),
    ):
        assert curves.zero_advantage(RunGroup("rtpo", (load_run(folder),))) == pytest.approx((0.3, 0.3, 0.3))
    one, other = (load_run(folder) for folder in sorted(tmp_path.glob("*/*")))
    assert curves.ties_over_training(RunGroup("rtpo", (one,)), 1)["mean"].tolist() == pytest.approx([0.3])
    write_paper_run(tmp_path, "main_table", "rtpo", 2, updates=[[small]])
    several = RunGroup("rtpo", (one, other, load_run(tmp_path / "main_table_toy_toy_math" / "rtpo-seed2")))
    cells = run_cells(RUN_QUANTITIES["zero_advantage"], several.runs)
    assert curves.zero_advantage(several) == pytest.approx((cells.above.sum() / cells.below.sum(), 0.3, 0.6))


def test_a_run_that_trained_nothing_has_no_zero_advantage_rate(tmp_path: Path) -> None:
    run = load_run(write_paper_run(tmp_path, "main_table", "rtpo", updates=()))
    assert np.isnan(curves.zero_advantage(RunGroup("rtpo", (run,)))).all()


def test_tokens_and_calls_are_those_of_first_paths_by_fifth(tmp_path: Path) -> None:
    paths = [
        *(path(1.0, 1 + place // 2, calls=calls(4, 4 - place // 2) if place < 8 else {}) for place in range(10)),
        path(None, 9),
        path(1.0, 9, parent="0.0.0.0"),
    ]
    write_paper_run(tmp_path, "main_table", "rtpo", 0, paths=paths)
    write_paper_run(tmp_path, "main_table", "rtpo", 1, paths=[path(0.0, 3)] * 10)
    tokens, each, well = drawn(tmp_path, "budget").axes
    assert heights(tokens, "rtpo") == pytest.approx([20, 25, 30, 35, 40])
    assert heights(each, "rtpo") == pytest.approx([2, 2, 2, 2, 0])
    # the second run has no calls to take a share of
    assert heights(well, "rtpo") == []
    assert band_ends(tokens) == points((10, 30), (20, 30), (30, 30), (30, 40), (30, 50))


def test_the_share_of_calls_executed_well_is_in_percent(tmp_path: Path) -> None:
    paths = [path(1.0, calls=calls(4, 4 - place)) for place in range(5)]
    write_paper_run(tmp_path, "airline", "rtpo", task="toy_knowledge", paths=paths)
    figure = drawn(tmp_path, "budget")
    well = figure.axes[-1]
    assert plotted(well, "rtpo") == points((1, 100), (2, 75), (3, 50), (4, 25), (5, 0))
    assert well.get_title(loc="left").startswith("(c) Airline (toy knowledge):")
    assert "Toy math, Toy knowledge." in footnote(figure)


def test_failures_are_shares_of_all_trunks_of_a_fifth(tmp_path: Path) -> None:
    fifth = [path(1.0), path(0.0, 1), path(0.0, 3), path(0.0, 5, termination="turn_limit")]
    write_paper_run(tmp_path, "main_table", "rtpo", paths=fifth * 4 + [path(1.0)] * 4)
    ends, early = drawn(tmp_path, "failures").axes
    shown = [line.get_ydata().tolist() for line in ends.lines]
    assert shown == [[25, 25, 25, 25, 100], [50, 50, 50, 50, 0], [25, 25, 25, 25, 0]]
    assert [line.get_ydata().tolist() for line in early.lines] == [[share] * 4 + [0] for share in (25, 25, 50, 75)]
    assert len({(line.get_color(), line.get_linestyle()) for line in early.lines}) == 4


@pytest.mark.parametrize("extra", [[], [path(None)], [path(1.0, parent="0.0.0.0")]])
def test_fewer_paths_than_fifths_are_not_drawn_and_named(
    tmp_path: Path, extra: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    write_paper_run(tmp_path, "main_table", "rtpo", 0, paths=[path(1.0)] * 4 + extra)
    found = rows(tmp_path, "failures")
    assert (found.drawn, found.short) == ({}, ["rtpo-seed0 (Toy math)"])
    why = "fewer than 5 graded first paths: rtpo-seed0 (Toy math)"
    assert make_figures.main(["--results", str(tmp_path), "--output", str(tmp_path / "figures")]) == 0
    assert f"failures, toy: {why}; not run: Toy knowledge, Airline (toy knowledge); " in capsys.readouterr().out
    write_paper_run(tmp_path, "main_table", "rtpo", 1, paths=[path(1.0)] * 5)
    figure = drawn(tmp_path, "failures")
    assert figure.axes[0].lines[0].get_ydata().tolist() == [100] * 5
    assert footnote(figure).startswith("Profile toy; seeds: 1.")
    assert f"Left out, {why}." in footnote(figure)


def test_group_sizes_are_set_side_by_side(tmp_path: Path) -> None:
    for seed, tokens in ((0, 3000), (1, 5000)):
        write_paper_run(tmp_path, "main_table", "rtpo", seed, ledger={"generated_tokens": tokens})
    write_paper_run(
        tmp_path, "ablations", "rtpo_g4", rewards=(1.0,) * 3 + (0.0,), group_size=4, updates=[[update(0.0, tied=0.2)]]
    )
    success, zero, tokens = drawn(tmp_path, "group_size").axes
    assert [*plotted(success, "rtpo"), *plotted(success, "rtpo_g4")] == [pytest.approx([3, 50]), pytest.approx([4, 75])]
    assert [*plotted(zero, "rtpo"), *plotted(zero, "rtpo_g4")] == [pytest.approx([3, 50]), pytest.approx([4, 20])]
    assert plotted(tokens, "rtpo") == points((3, 4.0))
    (low, high) = tokens.collections[0].get_segments()[0][:, 1]
    assert (low, high) == pytest.approx((3, 5))


def test_synchronisation_is_told_against_its_number_and_time(tmp_path: Path) -> None:
    for label, syncs, seconds in (("rtpo", 30, 110.0), ("rtpo_off", 10, 60.0)):
        write_paper_run(tmp_path, "sync", label, task="toy_knowledge", ledger={"syncs": syncs}, seconds=seconds)
    by_number, by_time = drawn(tmp_path, "synchronisation").axes
    assert plotted(by_number, "rtpo") == points((30, 50))
    assert plotted(by_number, "rtpo_off") == points((10, 50))
    assert plotted(by_time, "rtpo") == points((100, 50))
    assert plotted(by_time, "rtpo_off") == points((50, 50))


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_drawn_of_one_profile_which_it_states(whole: dict[str, Source], name: str) -> None:
    for profile in TASKS:
        found = select(FIGURES[name], whole[profile])
        assert found.missing == []
        assert {group.first.profile for row in found.drawn.values() for group in row.groups} == {profile}
        figure = drawn(whole[profile], name)
        assert footnote(figure).startswith(f"Profile {profile}; seeds: {1 if profile == 'toy' else 2}.")
        assert ("Toy-scale runs, not the paper's results." in footnote(figure)) == (profile == "toy")
        # something is plotted in every panel, and nothing lies outside
        for axes in figure.axes:
            assert any(len(line.get_xdata()) for line in axes.lines if line.get_marker() != "None")
            assert axes.get_ylim()[0] <= axes.dataLim.y0
            assert axes.dataLim.y1 <= axes.get_ylim()[1]


def test_a_trade_off_needs_two_configurations(tmp_path: Path) -> None:
    write_paper_run(tmp_path, "sync", "rtpo", task="toy_knowledge")
    found = rows(tmp_path, "synchronisation")
    assert (found.drawn, found.missing) == ({}, ["Toy knowledge"])


def test_runs_without_their_paths_are_not_run_for_what_needs_them(tmp_path: Path) -> None:
    write_paper_run(tmp_path, "main_table", "rtpo")
    assert list(rows(tmp_path, "consistency").drawn) == ["math"]
    assert rows(tmp_path, "budget").drawn == {}


def test_runs_without_a_manifest_are_in_no_figure(tmp_path: Path) -> None:
    (write_paper_run(tmp_path, "main_table", "rtpo") / "manifest.json").unlink()
    assert rows(tmp_path, "consistency").drawn == {}


@pytest.mark.parametrize(("key", "name"), [("profile", "a100x8"), ("task", "toy_knowledge"), ("label", "grpo")])
def test_a_run_in_the_folder_of_others_is_refused(tmp_path: Path, key: str, name: str) -> None:
    file = write_paper_run(tmp_path, "main_table", "rtpo") / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: name}))
    with pytest.raises(DataError, match=f"says {key} '{name}' and lies where runs of .* do: move the run"):
        rows(tmp_path, "consistency")


def test_what_was_not_run_is_said_with_its_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--results", str(tmp_path), "--output", str(tmp_path / "figures")]
    assert make_figures.main(command) == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == len(FIGURES) * 3
    assert "consistency, toy_study: not run" in printed
    assert "budget, toy_study: no runs that kept paths.jsonl" in printed
    assert (
        "consistency, toy: not run; `PROFILE=toy sbatch slurm/main_table.sh`, or without SLURM `python "
        "experiments/launch.py run main_table profile=toy`."
    ) in printed
    assert (
        "group_size, a100x8: not run; `sbatch slurm/main_table.sh` and `python experiments/launch.py submit "
        "ablate_group profile=a100x8` and `sbatch slurm/airline.sh`, or without SLURM `python experiments/launch.py "
        "run main_table profile=a100x8` and `python experiments/launch.py run ablate_group profile=a100x8` and `python "
        "experiments/launch.py run airline profile=a100x8`."
    ) in printed
    assert not (tmp_path / "figures").exists()
    assert make_figures.main([*command, "--figure", "consistency"]) == 1
    told = capsys.readouterr()
    assert (told.out, len(told.err.splitlines())) == ("", 3)


def test_one_figure_is_made_and_what_it_lacks_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_paper_run(tmp_path, "main_table", "grpo", updates=[[update(0.1)]] * 3)
    output = tmp_path / "figures"
    assert make_figures.main(["--results", str(tmp_path), "--output", str(output), "--figure", "consistency"]) == 0
    assert {file.name for file in output.iterdir()} == {"paper_consistency_toy.pdf", "paper_consistency_toy.png"}
    assert (
        "consistency, toy: not run: rtpo (Toy math), seeupo_flat (Toy math), grpo_exact (Toy math), seeupo (Toy math), "
        "Toy knowledge; `PROFILE=toy sbatch slurm/main_table.sh`, or without SLURM `python experiments/launch.py run "
        "main_table profile=toy`."
    ) in capsys.readouterr().out.splitlines()


def test_other_profiles_are_sources_once_they_have_runs(tmp_path: Path) -> None:
    assert [one.name for one in sources(tmp_path)] == ["toy_study", "toy", PAPER]
    write_paper_run(tmp_path, "main_table", "rtpo", profile="a100x1", task="math_paper")
    assert [one.name for one in sources(tmp_path)] == ["toy_study", "toy", PAPER, "a100x1"]
    assert [one.name for one in sources(tmp_path, kept=("toy",))] == ["toy_study", "toy", PAPER]
    assert {one.name: dict(one.tasks) for one in sources(tmp_path) if one.name in TASKS} == TASKS


def test_the_toy_study_is_its_first_warm_starts(tmp_path: Path) -> None:
    for folder in ("toy_math", "toy_math_1"):
        write_paper_run(tmp_path / "toy", "", "rtpo", folder=folder)
    study = sources(tmp_path)[0]
    (row,) = select(FIGURES["consistency"], study).drawn.values()
    assert [run.folder.parent.name for group in row.groups for run in group.runs] == ["toy_math"]


@pytest.mark.parametrize("first", EXPERIMENTS)
def test_folders_and_configurations_are_those_of_the_experiments(first: str) -> None:
    name, roles = EXPERIMENTS[first]
    elements = load_experiment(name, ["seed=0", "algorithm=rtpo"]).elements
    assert {element.run.experiment_name for element in elements} == {
        f"{first}_toy_{TASKS['toy'][role]}" for role in roles
    }
    file = yaml.safe_load((PROJECT / "configs" / "experiment" / f"{name}.yaml").read_text())
    swept = set(file["hydra"]["sweeper"]["params"]["algorithm"].split(","))
    shown = {
        label
        for figure in FIGURES.values()
        for parts in figure.rows.values()
        for part in parts
        if part.experiment == first and part.needed
        for label in part.labels
    }
    assert shown <= swept


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with kept records and their page."""
    (tmp_path / "docs" / "results").mkdir(parents=True)
    shutil.copy(PROJECT / figure_page.PAGE, tmp_path / figure_page.PAGE)
    write_paper_run(tmp_path / "results" / "toy", "", "grpo", folder="toy_math", updates=[[update(0.2)]])
    assert make_figures.main(["--page", "--project", str(tmp_path)]) == 0
    return tmp_path


def checked(project: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The names of what the check calls stale."""
    capsys.readouterr()
    status = make_figures.main(["--check", "--project", str(project)])
    told = [Path(line.split(" is not ")[0]).name for line in capsys.readouterr().err.splitlines()]
    assert status == bool(told)
    return told


PICTURES = [f"figure_{name}_toy_study.png" for name in ("consistency", "mismatch_by_turn", "success", "ties")]


def test_the_page_shows_what_the_kept_records_give(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (project / "docs" / "results" / "figures.md").read_text()
    assert sorted(file.name for file in (project / "docs" / "results").glob("*.png")) == sorted(PICTURES)
    assert re.findall(r"!\[.*Toy scale, not the paper's results\.\]\((.*)\)", text) == PICTURES
    assert (
        "| [consistency](#ratio-and-kl-over-training) | fig:two_results | drawn in part | not run | not run |" in text
    )
    assert "Toy math: `grpo` (1)." in text
    assert checked(project, capsys) == []
    # runs that are not kept change nothing
    write_paper_run(project / "results", "sync", "rtpo")
    assert checked(project, capsys) == []


def test_the_check_tells_stale_pictures_and_pages(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_paper_run(project / "results" / "toy", "", "rtpo", folder="toy_math")
    assert checked(project, capsys) == [*sorted(PICTURES), "figures.md"]
    page = project / figure_page.PAGE
    page.write_text(figure_page.page(project, figure_page.drawings(project / "results", kept=("toy",))))
    assert checked(project, capsys) == sorted(PICTURES)
    (project / "docs" / "results" / PICTURES[0]).unlink()
    (project / "docs" / "results" / "figure_left_over.png").write_bytes(
        (project / "docs" / "results" / PICTURES[1]).read_bytes()
    )
    assert checked(project, capsys) == sorted([*PICTURES, "figure_left_over.png"])
    assert make_figures.main(["--page", "--project", str(project)]) == 0
    assert checked(project, capsys) == []


def test_the_committed_page_is_what_the_records_give() -> None:
    assert figure_page.stale(PROJECT) == []


def test_what_the_page_shows_is_kept_in_the_repository() -> None:
    ignored = (PROJECT / ".gitignore").read_text().splitlines()
    assert [name for name in figure_page.KEPT if f"!/results/{name}/" not in ignored] == []

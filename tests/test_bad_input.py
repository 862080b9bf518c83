"""How commands end where their input is wrong or Ctrl-C comes: one sentence, and an exit status that is not 0."""

import ast
import importlib
import itertools
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from analysis import make_figures, make_tables
from analysis.toy_study import __main__ as toy_study
from rtpo.run.config import PROJECT

DAMAGED: dict[str, bytes | None] = {
    "missing": None,
    "empty": b"",
    "binary": bytes(range(256)),
    "utf16": '{"answer": "5"}\n'.encode("utf-16"),
    "cut": b'{"answer": "5", "question": "1 + ',
    "deep": b"[" * 100_000,
    "number": b"1" * 5_000,
    "surrogate": json.dumps({"uid": "a", "question": "\ud800", "answer": 5, "answers": ["5"]}).encode(),
}
"""contents of files that a command asks for"""
BELOW_A_FILE, NO_PLACE = "{}/file/below", "/proc/nowhere/below"
WORDS: dict[str, tuple[str, ...]] = {
    "FILE": tuple(f"{{}}/{name}" for name in DAMAGED),
    "FOLDER": ("{}/missing", "{}/file", "{}/nothing"),
    "OUT": (BELOW_A_FILE, NO_PLACE),
    "NAME": ("nosuch", "''", "\udcff"),
    "WHOLE": ("0", "-1", "1.5", "nan", "x", "1" + 30 * "0"),
    "NUMBER": ("nan", "inf", "-1", "x"),
}
"""what a word in capitals in a row stands for, one after another"""
RUN = PROJECT / "results" / "reference" / "rtpo-seed0"
WARM = PROJECT / "rtpo" / "toy" / "warm_start_math"
SMALL = "--name math --steps 1 --held-out 1"
ROWS: dict[str, tuple[str, ...]] = {
    "experiments.maintenance.airline_no_op": ("FOLDER", "{}/of_FILE"),
    "experiments.speed.bench": (
        *("NAME", "a --repeats WHOLE", "search --results OUT", "search nosuch=1", "search passages=WHOLE", "grading"),
        *("grading file=FILE", "grading file={}/answers seconds=NUMBER"),
        *("decoder model=FOLDER", "decoder model={}/of_FILE", "decoder vllm=FOLDER"),
    ),
    "experiments.build_index": ("FILE --output {}/index", "{}/passages --output OUT"),
    "experiments.maintenance.chat_example": ("--tokenizer FOLDER", "--tokenizer {}/of_FILE", "--template FILE"),
    "experiments.evaluate": (
        *("nosuch=1", f"checkpoint={WARM}", "checkpoint=FOLDER benchmarks=[math500]"),
        *("checkpoint={}/of_FILE benchmarks=[math500]", f"checkpoint={WARM} benchmarks=[nosuch]"),
        f"checkpoint={WARM} benchmarks=[math500] temperature=NUMBER",
    ),
    "experiments.export": (
        "FOLDER {}/out",
        f"{RUN} OUT",
        f"{RUN} {{}}/out --dtype NAME",
        f"{RUN} {{}}/out --push NAME",
    ),
    "experiments.launch": (
        *("NAME", "run NAME", "tables NAME", "submit NAME", "element main_table WHOLE profile=nosuch", "stop NAME"),
        *("stop seed=1", "stop FOLDER seed=1", "status seed=1"),
        *("run main_table profile=toy nosuch=1", "run main_table profile=toy seed=0 algorithm=rtpo results=OUT"),
    ),
    "experiments.map": (
        *("NAME", "run --processes WHOLE", "run --results OUT", "predict --results OUT"),
        *("missing --results {}/of_binary", "missing --results {}/of_utf16"),
    ),
    "experiments.maintenance.overfit": (
        *("nosuch=1", "task=math data=FILE", "task=math data={}/answers --steps WHOLE"),
        "task=toy_math model.path=OUT --steps 1",
    ),
    "experiments.maintenance.pack": ("FOLDER", "FOLDER --unpack"),
    "experiments.plan": ("", "NAME", "main_table --hardware nosuch"),
    "experiments.preflight": ("", "NAME", "main_table nosuch=1"),
    "experiments.prepare_data": (
        *("nosuch", "--from NAME", "--from nosuch=FILE", "--from gaia=FILE --folder {}/data"),
        *("--from gaia=FILE --accept-other --folder {}/data", "--from math_train=FILE --accept-other --folder {}/data"),
        "--folder OUT gaia",
    ),
    "experiments.probe": (
        *("NAME", "rtpo --task nosuch", "rtpo --batches WHOLE", "rtpo --override NAME", "rtpo --output OUT"),
        "rtpo --override nosuch=1",
    ),
    "experiments.quickstart": ("nosuch=1", "NAME", "task=nosuch", "results=OUT"),
    "experiments.rehearsal.__main__": ("NAME", "composition --results OUT"),
    "experiments.theory": ("NAME", "WHOLE", "1 --results OUT"),
    "experiments.study": (
        *(
            "NAME core",
            "toy NAME",
            "toy missing --task NAME",
            "toy missing --only nosuch",
            "toy missing --minutes NUMBER",
        ),
        *("toy freeze --task toy_math", "toy core --task NAME", "toy core --only nosuch", "toy core --minutes NUMBER"),
    ),
    "experiments.train": (
        *(
            "nosuch=1",
            "NAME",
            "task=nosuch",
            "task=null",
            "results=OUT",
            "data=FILE",
            "task=math data=FILE",
            "task=booking data=FILE",
        ),
        *("task=airline data=FILE", "model.path=FOLDER", "model.path={}/of_FILE", "seed=NUMBER", "budget.rollouts=x"),
    ),
    "experiments.maintenance.prompt_lengths": (
        f"--data FOLDER --tokenizer {WARM}",
        f"--data {{}}/nothing --tokenizer {WARM}",
        *("--data {} --tokenizer FOLDER", "--data {} --tokenizer {}/of_FILE"),
    ),
    "experiments.maintenance.qwen3_tokenizer": (
        *("--wheel FILE --output {}/out", "--template FILE --output {}/out --wheel {}/file", "--output OUT"),
        *("--output {}", "--layers WHOLE --output {}/out"),
    ),
    "experiments.maintenance.wandb_report": ("''", "a/b", "\udcff"),
    "experiments.maintenance.warm_start": (
        *("--name NAME --output {}/out", f"{SMALL} --output OUT", "--name math --output {}/out --steps WHOLE"),
        "--name math --output {}/out --learning-rate NUMBER",
    ),
    "analysis.audit": (
        *("NAME", "tools FOLDER", "trunks FOLDER", "airline FOLDER --tasks FILE"),
        *("tools FOLDER --first WHOLE", f"trunks {RUN} --points WHOLE"),
    ),
    "analysis.make_figures": (
        *(
            "--results {}/missing",
            "--results {}/file",
            "--figure NAME",
            "--experiment NAME",
            "--results {} --run FOLDER",
        ),
        *("--check --project FOLDER", "--page --project FOLDER"),
    ),
    "analysis.make_tables": (
        *("", "--results {}/missing", "--results {}/file", "--results {}/missing --check", "--table NAME"),
        *("--results {} --experiment nosuch", "--results {}/nothing --output OUT", "--results {}/nothing --page OUT"),
        *("FOLDER", "FOLDER --table supp_budget"),
    ),
    "analysis.paper.__main__": ("--page OUT", "--check --page OUT", "--check --page FILE"),
    "analysis.claims.__main__": ("--project FOLDER", "--check --project FOLDER"),
    "analysis.pages.__main__": ("--project FOLDER", "--check --project FOLDER", "NAME", "--check NAME"),
    "analysis.toy_study.__main__": (
        *("--results {}/missing", "--results {}/file", "--results {}/missing --check", "--study FILE"),
        "--results {}/nothing --output OUT",
    ),
    "analysis.view.__main__": ("FOLDER", f"{RUN} --step NUMBER", f"{RUN} --question nosuch", f"{RUN} --output OUT"),
    "analysis.when.__main__": ("FOLDER", f"{RUN} --group-size WHOLE", "{}/nothing --group-size 2"),
}
"""arguments of each command, in a folder without results; `{}` stands for that of the inputs"""


def cases() -> Iterator[tuple[str, list[str]]]:
    for command, rows in ROWS.items():
        for row in rows:
            capital = [word for word in WORDS if word in row]
            for chosen in itertools.product(*(WORDS[word] for word in capital)):
                line = row
                for word, one in zip(capital, chosen, strict=True):
                    line = line.replace(f"{{}}/of_{word}", one.replace("{}/", "{}/of_")).replace(word, one)
                yield command, ["" if part == "''" else part for part in line.split(" ") if part]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "nothing").mkdir()
    (folder / "file").write_text("a file\n")
    (folder / "answers").write_text('{"answer": "5"}\n')
    (folder / "passages").write_text('{"id": "1", "title": "One", "text": "Two."}\n')
    for name, content in DAMAGED.items():
        within = folder / f"of_{name}"
        within.mkdir()
        for file in (
            *("config.json", "tokenizer_config.json", "tasks.json", "split_tasks.json", "warm_start.json"),
            "map.partial.jsonl",
        ):
            if content is not None:
                (within / file).write_bytes(content)
                (folder / name).write_bytes(content)
    return folder


def commands() -> set[str]:
    """Every module that is run as a script."""
    return {
        ".".join(file.relative_to(PROJECT).with_suffix("").parts)
        for folder in ("experiments", "analysis")
        for file in (PROJECT / folder).rglob("*.py")
        if any(isinstance(node, ast.If) and "__main__" in ast.dump(node) for node in ast.parse(file.read_text()).body)
    }


def test_every_command_has_rows() -> None:
    assert set(ROWS) == commands()


@pytest.mark.parametrize(("command", "arguments"), list(cases()), ids=str)
def test_bad_input_is_one_sentence(
    command: str,
    arguments: list[str],
    inputs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    given = [part.replace("{}", str(inputs)) for part in arguments]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [command, *given])
    main: Callable[..., int] = importlib.import_module(command).main
    capfd.readouterr()
    try:
        status = main() if command in ("experiments.train", "experiments.evaluate") else main(given)
    except SystemExit as ended:
        status = int(ended.code or 0)
    said = capfd.readouterr().err.splitlines()
    assert status != 0
    assert said
    assert len(said) == 1


@pytest.mark.parametrize("command", ["experiments.train", "experiments.evaluate"])
def test_configurations_are_found_from_any_folder(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else these commands would refuse all rows above for want of them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [command, "--cfg", "job"])
    assert importlib.import_module(command).main() == 0


def test_tables_and_figures_of_other_records_leave_those_of_the_project_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a project's folder, with records elsewhere: an empty folder gives tables without any run."""
    kept = [
        tmp_path / "results/tables/paper/kept.md",
        tmp_path / "docs/results/tables.md",
        tmp_path / "results/figures/kept.pdf",
    ]
    for path in kept:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("kept\n")
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.chdir(tmp_path)
    for main in (make_tables.main, make_figures.main, toy_study.main):
        assert main(["--results", "other"]) == 0
    written = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert {path for path in written if not path.is_relative_to(other)} == set(kept)
    assert [path.read_text() for path in kept] == ["kept\n"] * 3
    assert other / "tables" / "paper.md" in written


def interrupted(command: str, is_time: Callable[[int], bool]) -> tuple[int, str]:
    """Exit status and complaints of a command that Ctrl-C came to when it `is_time`, which is asked with its id."""
    process = subprocess.Popen(
        [sys.executable, *command.split()], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=PROJECT
    )
    deadline = time.monotonic() + 120
    while not is_time(process.pid):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    said = process.communicate()[1]
    return process.returncode, said


def has_loaded(library: str) -> Callable[[int], bool]:
    return lambda process: library in Path(f"/proc/{process}/maps").read_text()


@pytest.mark.parametrize(
    ("command", "library"),
    [
        ("analysis/make_figures.py", "_multiarray_umath"),
        ("experiments/train.py results={}", "_multiarray_umath"),
        ("experiments/train.py results={}", "libtorch_python"),
        ("-m experiments.speed.bench decoder", "libtorch_python"),
    ],
)
def test_ctrl_c_while_modules_are_imported_is_one_line(command: str, library: str, tmp_path: Path) -> None:
    assert interrupted(command.format(tmp_path), has_loaded(library)) == (130, "stopped by Ctrl-C\n")


def test_ctrl_c_while_a_command_works_is_one_line(tmp_path: Path) -> None:
    """It makes its folder first, and works for minutes at this size."""
    output = tmp_path / "bench"
    at_work = interrupted(
        f"experiments/speed/bench.py search passages=10000000 --results {output}", lambda _: output.exists()
    )
    assert at_work == (130, "stopped by Ctrl-C\n")

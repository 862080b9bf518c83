"""How commands end where their input is wrong: one line, and an exit status that is not 0; and what they say of
themselves."""

import importlib
import itertools
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from experiments import launch
from rtpo.run.cli import composed
from rtpo.run.config import PROJECT, portable

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
WORDS: dict[str, tuple[str, ...]] = {
    "FILE": tuple(f"{{}}/{name}" for name in DAMAGED),
    "FOLDER": ("{}/missing", "{}/file", "{}/nothing", "{}/loop"),
    "OUT": ("{}/file/below", "/proc/nowhere/below"),
    "NAME": ("nosuch", "''", "\udcff"),
    "WHOLE": ("0", "-1", "1.5", "nan", "x", "1" + 30 * "0"),
    "NUMBER": ("nan", "inf", "-1", "x"),
    "RUN": (str(PROJECT / "results" / "reference" / "rtpo-seed0"),),
    "WARM": (str(PROJECT / "rtpo" / "toy" / "warm_start_math"),),
    "SMALL": ("--name math --steps 1 --held-out 1",),
    "NONE": ("",),
}
"""what a word in capitals stands for, one after another"""
TABLE = """
experiments.bench : NAME | decoder --repeats WHOLE | python --results OUT | grading | grading --file FILE
experiments.build_index : FILE --output {}/index | {}/pipe --output {}/index | {}/passages --output OUT
experiments.maintenance.chat_example : --tokenizer FOLDER | --tokenizer {}/of_FILE
experiments.evaluate : nosuch=1 | checkpoint=WARM | checkpoint=FOLDER benchmarks=[math500] |
    checkpoint={}/of_FILE benchmarks=[math500] | checkpoint=WARM benchmarks=[nosuch] |
    checkpoint=WARM benchmarks=[math500] temperature=NUMBER
experiments.export : FOLDER {}/out | RUN OUT | RUN {}/out --dtype NAME | RUN {}/out --push NAME
experiments.launch : NAME | run NAME | tables NAME | submit NAME | element main_table WHOLE profile=nosuch |
    stop NAME | stop seed=1 | stop FOLDER seed=1 | status seed=1 | run main_table profile=toy nosuch=1 |
    run main_table profile=toy seed=0 algorithm=rtpo results=OUT
experiments.map : NAME | run --results OUT | predict --results OUT |
    missing --results {}/of_binary | missing --results {}/of_utf16
experiments.maintenance.frames : FOLDER --output {}/out | {}/nothing --output OUT
experiments.check_gpu : NAME | --tiny NAME
experiments.plan : NONE | NAME | main_table profile=nosuch
experiments.preflight : NONE | NAME | main_table nosuch=1
experiments.prepare_data : nosuch | --from NAME | --from nosuch=FILE | --from gaia=FILE --folder {}/data |
    --from gaia=FILE --accept-other --folder {}/data | --from math_train=FILE --accept-other --folder {}/data |
    --folder OUT gaia | --from gaia={}/pipe --folder {}/data
experiments.quickstart : nosuch=1 | NAME | task=nosuch | results=OUT
experiments.theory : NAME | WHOLE | 1 --results OUT
experiments.study : NAME core | toy NAME | toy missing --task NAME | toy missing --only nosuch |
    toy missing --minutes NUMBER | toy freeze --task toy_math | toy core --task NAME | toy core --only nosuch |
    toy core --minutes NUMBER
experiments.train : nosuch=1 | NAME | task=nosuch | task=null | results=OUT | data=FILE | task=math data=FILE |
    task=booking data=FILE | task=airline data=FILE | model.path=FOLDER | model.path={}/of_FILE | seed=NUMBER |
    budget.rollouts=x | seed=true | algorithm.trunks=true | task.held_out.count=99999999999 | algorithm={a:1} |
    task=math data={}/pipe | task=airline data={}/pipe
experiments.maintenance.wandb_report : '' | a/b | NAME
experiments.maintenance.warm_start : --name NAME --output {}/out | SMALL --output OUT |
    --name math --output {}/out --steps WHOLE | --name math --output {}/out --learning-rate NUMBER
analysis.audit : NAME | tools FOLDER | trunks FOLDER | airline FOLDER --tasks FILE | tools FOLDER --first WHOLE |
    trunks RUN --points WHOLE
analysis.make_figures : --results {}/missing | --results {}/file | --figure NAME | --experiment NAME |
    --results {} --run FOLDER
analysis.make_tables : NONE | --results {}/missing | --results {}/file | --results {}/missing --check | --table NAME |
    --results {} --experiment nosuch | --results {}/nothing --output OUT | --results {}/nothing --page OUT | FOLDER |
    FOLDER --table supp_budget
analysis.pages.__main__ : NAME | --check NAME | FILE | --check FOLDER
analysis.view.__main__ : FOLDER | RUN --step NUMBER | RUN --question nosuch | RUN --output OUT
"""
"""arguments of each command, in a folder without results; `{}` stands for that of the inputs"""
OF_HYDRA = ("experiments.train", "experiments.evaluate")
ROWS = {
    command: [row.strip() for row in rows.split("|")]
    for command, _, rows in (line.partition(" :") for line in TABLE.replace("|\n    ", "|").strip().splitlines())
}


def cases() -> Iterator[tuple[str, list[str]]]:
    for command, rows in ROWS.items():
        for row in rows:
            capital = [word for word in WORDS if word in row]
            for chosen in itertools.product(*(WORDS[word] for word in capital)):
                line = row
                for word, value in zip(capital, chosen, strict=True):
                    line = line.replace(f"{{}}/of_{word}", value.replace("{}/", "{}/of_")).replace(word, value)
                yield command, ["" if part == "''" else part for part in line.split(" ") if part]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "nothing").mkdir()
    (folder / "rtpo,lr=0.0002-seed0").mkdir()
    (folder / "file").write_text("a file\n")
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe")
    (folder / "answers").write_text('{"answer": "5"}\n')
    (folder / "passages").write_text('{"id": "1", "title": "One", "text": "Two."}\n')
    asked = ("config.json", "tokenizer_config.json", "tasks.json", "split_tasks.json", "map.partial.jsonl")
    for name, content in DAMAGED.items():
        (folder / f"of_{name}").mkdir()
        for file in (*asked, "warm_start.json", f"../{name}") if content is not None else ():
            (folder / f"of_{name}" / file).write_bytes(content)
    return folder


def test_every_command_has_rows() -> None:
    files = [file for name in ("experiments", "analysis") for file in (PROJECT / name).rglob("*.py")]
    commands = [file for file in files if "\nif __name__ ==" in file.read_text()]
    assert set(ROWS) == {".".join(file.relative_to(PROJECT).with_suffix("").parts) for file in commands}


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The exit status of a command that runs in this process."""

    def run(command: str, *words: str) -> int:
        monkeypatch.setattr(sys, "argv", [command, *words])
        main: Callable[..., int] = importlib.import_module(command).main
        try:
            return main() if command in OF_HYDRA else main(list(words))
        except SystemExit as ended:
            return int(ended.code or 0)

    return run


@pytest.fixture
def refusal(
    inputs: Path,
    ended: Callable[..., int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Callable[..., str]:
    """The one line that a command ends with."""
    monkeypatch.chdir(tmp_path)

    def run(command: str, arguments: list[str]) -> str:
        assert ended(command, *(part.replace("{}", str(inputs)) for part in arguments)) != 0
        (sentence,) = capfd.readouterr().err.splitlines()
        return sentence

    return run


@pytest.mark.parametrize(("command", "arguments"), list(cases()), ids=str)
def test_bad_input_is_one_sentence(command: str, arguments: list[str], refusal: Callable[..., str]) -> None:
    refusal(command, arguments)


NAMED = f"""
train budget.rolouts=5 : budget.rollouts
train algorithm.group_size=2 : algorithm.group_size is 2
train --cgf job : --cgf
train model.path={PROJECT}/rtpo/toy/warm_start_mat : rtpo/toy/warm_start_math
train experiment=ablate_kl task=toy_math : algorithm.kl=0,0.001
evaluate benchmarks=[math50] : math500
evaluate checkpoint={{}}/rtpo,lr=0.0002-seed0 benchmarks=[toy_math] : /rtpo,lr=0.0002-seed0
export {PROJECT}/results/refrence x : results/reference
export {{}}/loop x : /loop
"""


@pytest.mark.parametrize("case", NAMED.strip().splitlines())
def test_what_is_wrong_is_named_with_the_nearest(case: str, refusal: Callable[..., str]) -> None:
    typed, _, words = case.partition(" : ")
    command, *arguments = typed.split()
    assert words in refusal(f"experiments.{command}", arguments)


@pytest.mark.parametrize("command", [*ROWS, *(f"experiments.launch {part}" for part in launch.COMMANDS)])
def test_help_fits_a_screen_and_its_defaults_are_those_of_the_configuration(
    command: str, ended: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert ended(*command.split(), "--help") == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) <= 40
    assert all((PROJECT / page).exists() for page in re.findall(r"(?:docs|results)/[a-z_/0-9]+\.md", text))
    if command in OF_HYDRA:
        tree = composed(command.removeprefix("experiments."), [])
        for field, value in re.findall(r"^    ([a-z_.]+)=(\S+)  +\S", text, re.MULTILINE):
            found = None if OmegaConf.is_missing(tree, field) else OmegaConf.select(tree, field)
            plain = portable(found.name if field in ("algorithm", "task", "profile") and found is not None else found)
            expected = "null" if plain is None else str(plain).removeprefix("${project:}/")
            assert value == expected or field == "checkpoint"

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
    "DATA": ("{}/missing", "{}/binary"),
    "FOLDER": ("{}/missing", "{}/file", "{}/nothing"),
    "OUT": ("{}/file/below",),
    "ANY": ("nosuch", "''", "\udcff"),
    "WHOLE": ("0", "x", "1" + 30 * "0"),
    "NUMBER": ("nan", "-1"),
    "RUN": (str(PROJECT / "results" / "reference" / "rtpo-seed0"),),
    "WARM": (str(PROJECT / "rtpo" / "toy" / "warm_start_math"),),
    "SMALL": ("--name math --steps 1 --held-out 1",),
    "HYDRA": ("hydra.sweeper", "hydra.launcher", "hydra.job", "hydra.hydra_logging.root"),
    "NONE": ("",),
}
"""what a word in capitals stands for, one after another"""
TABLE = """
experiments.bench : nosuch | decoder --repeats WHOLE | python --results OUT | grading --file FILE |
    lm --model FOLDER
experiments.build_index : DATA --output {}/index | {}/pipe --output {}/index | {}/passages --output OUT
experiments.evaluate : nosuch=1 | checkpoint=WARM | checkpoint=FOLDER benchmarks=[math500] |
    checkpoint={}/of_FILE benchmarks=[math500] | checkpoint=WARM benchmarks=[nosuch] |
    checkpoint=WARM benchmarks=[math500] decoding.temperature=NUMBER
experiments.export : FOLDER {}/out | RUN {}/out --dtype nosuch | RUN {}/out --push nosuch
experiments.launch : run ANY | element main_table WHOLE profile=nosuch | stop seed=1 | stop FOLDER seed=1 |
    status seed=1 | run main_table profile=toy nosuch=1 | run main_table profile=toy seed=0 algorithm=rtpo results=OUT
experiments.minimal : --method nosuch | --rollouts x | nosuch
experiments.maintenance.chat_example : --tokenizer FOLDER
experiments.maintenance.gradient_noise : --model FOLDER --output {}/out | --model WARM --output OUT |
    --model WARM --output {}/file | --model WARM --games WHOLE --output {}/out
experiments.maintenance.frames : FOLDER --output {}/out | RUN --output OUT
experiments.check_gpu : --tiny nosuch
experiments.plan : NONE | nosuch | main_table profile=nosuch
experiments.preflight : nosuch | main_table nosuch=1
experiments.prepare_data : nosuch | --from nosuch | --from nosuch=x | --from gaia=DATA --folder {}/data |
    --from gaia=DATA --accept-other --folder {}/data | --from math_train=FILE --accept-other --folder {}/data |
    --folder OUT gaia | --from gaia={}/pipe --folder {}/data | --from textworld=FILE --folder {}/data |
    textworld --games train=1 train=2 --folder {}/data
experiments.prepare_model : nosuch | --from FOLDER --output {}/out | --from a/b/c --output {}/out
experiments.quickstart : ANY | task=nosuch | results=OUT
experiments.theory : WHOLE | 1 --results OUT
experiments.study : nosuch core | turns missing --task nosuch | turns missing --only nosuch |
    turns missing --minutes NUMBER | turns freeze --task walk_luck | turns core --only nosuch
experiments.train : nosuch=1 | ANY | task=nosuch | task=null | results=OUT | data=FILE | task=math data=DATA |
    task=booking data=DATA | task=airline data=FILE | model.path=FOLDER | model.path={}/of_DATA | seed=NUMBER |
    results=/proc/nowhere/below | algorithm={a:1} | task=math data={}/pipe | HYDRA=3 | HYDRA=3 -m
experiments.maintenance.wandb_report : '' | a/b
experiments.maintenance.turns : --name nosuch --output {}/out | --name quests_0 --task nosuch --output {}/out |
    --name quests_0 --count WHOLE --output {}/out | --name quests_0 --output OUT | --name quests_0 --output {}/file
experiments.maintenance.warm_start : --name nosuch --output {}/out | SMALL --output OUT |
    --name math --output {}/out --learning-rate NUMBER
analysis.audit : tools FOLDER | airline RUN --tasks DATA | tools FOLDER --first WHOLE | trunks RUN --points WHOLE
analysis.make_figures : --results {}/file | --figure nosuch | --experiment nosuch | --results {} --run FOLDER
analysis.make_tables : NONE | --results {}/missing --check | --table nosuch | --results {} --experiment nosuch |
    --results {}/nothing --output OUT | FOLDER | FOLDER --table supp_budget |
    RUN --columns ANY
analysis.pages.__main__ : ANY | DATA | --check FOLDER
analysis.figures.game : FOLDER --output OUT | RUN --output OUT
analysis.view.__main__ : FOLDER | RUN --step NUMBER | RUN --question nosuch | RUN --output OUT
"""
"""arguments of each command, in a folder without results; `{}` stands for that of the inputs"""
NAMED = f"""
train budget.rolouts=5 : budget.rollouts
train --cgf job : --cgf
train hydra.sweeper=3 : hydra.sweeper is 3
train hydra.sweeper.params={{seed:"0,1"}} -m : as in seed=0,1 -m
train +hydra.sweeper.params.seed="0,1" -m : as in seed=0,1 -m
train hydra.sweeper.max_batch_size=0 -m : cannot be composed with hydra.sweeper.max_batch_size=0: assert
train algorithm=grpo algorithm.group=3 seed=0,1 -m : algorithm.group
train seed=0 -m seed=1 : seed=1 must stand before
train model=toy_knowledge_1 : task.env is toy_math
train model.path={PROJECT}/rtpo/toy/warm_start_mat : rtpo/toy/warm_start_math
train experiment=ablate_kl task=toy_math : algorithm.kl=0,0.001
evaluate benchmarks=[math50] : math500
evaluate checkpoint={{}}/rtpo,lr=0.0002-seed0 benchmarks=[toy_math] : /rtpo,lr=0.0002-seed0
export {PROJECT}/results/refrence x : results/reference
export {{}}/loop x : /loop
"""
"""arguments of commands of experiments, and what of the sentence names the mistake, or what is nearest to it"""
OF_HYDRA = ("experiments.train", "experiments.evaluate")
ROWS = {
    command: [row.strip() for row in rows.split("|")]
    for command, _, rows in (line.partition(" :") for line in TABLE.replace("|\n    ", "|").strip().splitlines())
}


def cases() -> Iterator[tuple[str, list[str], str]]:
    """Commands with their arguments, and what their sentence must have."""
    for command, rows in ROWS.items():
        for row in rows:
            capital = [word for word in WORDS if word in row]
            for chosen in itertools.product(*(WORDS[word] for word in capital)):
                line = row
                for word, value in zip(capital, chosen, strict=True):
                    line = line.replace(f"{{}}/of_{word}", value.replace("{}/", "{}/of_")).replace(word, value)
                yield command, ["" if part == "''" else part for part in line.split(" ") if part], ""
    for line in NAMED.strip().splitlines():
        typed, _, words = line.partition(" : ")
        command, *arguments = typed.split()
        yield f"experiments.{command}", arguments, words


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "nothing").mkdir()
    (folder / "rtpo,lr=0.0002-seed0").mkdir()
    (folder / "file").write_text("a file\n")
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe")
    (folder / "passages").write_text('{"id": "1", "title": "One", "text": "Two."}\n')
    for name, content in DAMAGED.items():
        (folder / f"of_{name}").mkdir()
        for file in ("config.json", f"../{name}") if content is not None else ():
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


@pytest.mark.parametrize(("command", "arguments", "words"), list(cases()), ids=str)
def test_bad_input_is_one_sentence(
    command: str,
    arguments: list[str],
    words: str,
    inputs: Path,
    ended: Callable[..., int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ended(command, *(part.replace("{}", str(inputs)) for part in arguments)) != 0
    (sentence,) = capfd.readouterr().err.splitlines()
    assert words in sentence


@pytest.mark.parametrize("command", [*ROWS, *(f"experiments.launch {part}" for part in launch.COMMANDS)])
def test_help_fits_a_screen_and_its_defaults_are_those_of_the_configuration(
    command: str, ended: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert ended(*command.split(), "--help") == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) <= 40
    if command in OF_HYDRA:
        tree = composed(command.removeprefix("experiments."), [])
        shown = dict(re.findall(r"^    ([a-z_.]+)=(\S+)  +\S", text, re.MULTILINE))
        assert len(shown) > 4
        for field in shown.keys() - {"algorithm", "task", "profile", "checkpoint"}:
            value = portable(OmegaConf.select(tree, field))
            assert shown[field] == ("null" if value is None else str(value).removeprefix("${project:}/"))

"""Packed runs are read as their folders are, come back byte for byte, and are never lost on the way."""

import gzip
import json
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import write_realistic_run

from analysis.evaluation import load_evaluation
from analysis.records import incomplete_runs, load_run, load_runs
from experiments.maintenance import pack as command
from experiments.maintenance.pack import main, pack, unpack
from rtpo.errors import DataError, Held
from rtpo.evaluation.panel import compose_evaluation
from rtpo.evaluation.policies import find_checkpoint
from rtpo.run import archives
from rtpo.run.composition import composed
from rtpo.run.config import PROJECT
from rtpo.run.records import RunFolder

COMMITTED = sorted(place.parent for place in (PROJECT / "results").glob(f"*/{archives.PACKED}"))


def files(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Two experiments, with three runs, below a folder."""
    for experiment, seed in (("one", 0), ("one", 1), ("two", 0)):
        write_realistic_run(tmp_path / "study", "rtpo", seed, questions=5, experiment=experiment)
    return tmp_path / "study"


def test_packed_runs_read_as_their_folders_and_come_back_byte_for_byte(
    study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, runs = files(study), load_runs(study)
    assert main([str(study)]) == 0
    assert capsys.readouterr().out == f"packed 3 runs and evaluations in {study}\n"
    assert {file.parent.name for file in study.rglob("*") if file.is_file()} == {"packed"}
    packed = load_runs(study)
    assert [run.folder for run in packed] == [run.folder for run in runs]
    for one, other in zip(packed, runs, strict=True):
        assert (one.manifest, one.config, one.steps) == (other.manifest, other.config, other.steps)
        assert one.evaluations.equals(other.evaluations)
    assert [run.folder for run in load_runs(study, "one")] == [run.folder for run in runs[:2]]
    assert archives.find(study / "two", "*/manifest.json") == [runs[2].folder / "manifest.json"]
    made = files(study)
    assert main([str(study), "--unpack"]) == 0
    assert files(study) == before
    pack(study)
    assert files(study) == made


def test_a_packed_run_is_a_run_to_evaluation() -> None:
    asked = composed("evaluate", [f"checkpoint={PROJECT}/results/reference/rtpo-seed0", "benchmarks=[toy_math]"])
    with pytest.raises(DataError, match="its saves were deleted"):
        find_checkpoint(compose_evaluation(asked))


def test_runs_that_come_later_are_packed_beside_the_others(study: Path) -> None:
    before = files(study)
    later = study / "two" / "rtpo-seed0"
    shutil.move(later, study.parent / "later")
    pack(study)
    shutil.move(study.parent / "later", later)
    assert len(load_runs(study)) == 3
    assert pack(study) == 1
    unpack(study)
    assert files(study) == before


def test_a_packed_run_is_finished_and_is_not_written_beside(study: Path) -> None:
    pack(study)
    folder = RunFolder(study / "one" / "rtpo-seed0")
    assert folder.is_finished
    with folder.held():
        folder.open(folder.config)
    with pytest.raises(DataError, match="holds a run with another configuration"):
        folder.open(folder.config | {"seed": 7})
    assert incomplete_runs(study) == []
    assert not folder.path.exists()


def _without_manifest(run: Path) -> None:
    (run / "manifest.json").unlink()


def _changed(run: Path) -> None:
    (run / "steps.jsonl").write_bytes(b"{}\n")


def _with_saves(run: Path) -> None:
    (run / "checkpoints").mkdir()


def _with_bytes(run: Path) -> None:
    (run / "picture.png").write_bytes(b"\xff")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (_without_manifest, "rtpo-seed1 is not finished: finish it"),
        (_changed, r"steps\.jsonl is not the file the run left"),
        (_with_saves, "checkpoints is not packed, being no record"),
        (_with_bytes, r"picture\.png is no text"),
    ],
)
def test_what_is_not_whole_is_refused_and_nothing_changes(
    study: Path, make: Callable[[Path], None], words: str
) -> None:
    make(study / "one" / "rtpo-seed1")
    before = files(study)
    with pytest.raises(DataError, match=words):
        pack(study)
    assert files(study) == before


def test_a_run_in_use_and_folders_without_runs_are_refused(study: Path) -> None:
    run = study / "one" / "rtpo-seed1"
    with RunFolder(run).held(), pytest.raises(Held, match="another process is running"):
        pack(study)
    with pytest.raises(DataError, match="is a run: give the folder that it lies in"):
        pack(run)
    with pytest.raises(DataError, match="holds no run that could be packed"):
        pack(study / "nothing")
    with pytest.raises(DataError, match="holds no packed runs"):
        unpack(study)


def test_another_run_of_a_packed_ones_name_is_refused(study: Path) -> None:
    run = study / "one" / "rtpo-seed0"
    pack(study)
    for file in ("config.yaml", "manifest.json"):
        write = archives.read(run / file)
        run.mkdir(parents=True, exist_ok=True)
        (run / file).write_bytes(write + b"\n")
    config = (run / "config.yaml").read_bytes()
    manifest = json.loads((run / "manifest.json").read_bytes())
    manifest["files"]["config.yaml"] = sha256(config).hexdigest()
    (run / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=r"config\.jsonl\.gz has another one/rtpo-seed0/config\.yaml"):
        pack(study)
    with pytest.raises(DataError, match="is there and differs from the packed one"):
        unpack(study)
    assert (run / "config.yaml").read_bytes() == config


@pytest.mark.parametrize("after", range(4))
@pytest.mark.parametrize("act", [pack, unpack])
@pytest.mark.parametrize(("place", "name"), [(command, "write_whole"), (Path, "unlink")])
def test_nothing_is_lost_when_it_is_cut_off(
    study: Path, monkeypatch: pytest.MonkeyPatch, place: Any, name: str, act: Callable[[Path], int], after: int
) -> None:
    """While files are written, and while those that were moved are deleted."""
    before, done, whole = files(study), [], getattr(place, name)

    def cut_off(*arguments: object) -> None:
        if len(done) == after:
            raise KeyboardInterrupt
        done.append(arguments)
        whole(*arguments)

    if act is unpack:
        pack(study)
    with monkeypatch.context() as patch:
        patch.setattr(place, name, cut_off)
        with pytest.raises(KeyboardInterrupt):
            act(study)
    assert len(load_runs(study)) == 3
    act(study)
    if act is pack:
        unpack(study)
    assert files(study) == before


def test_an_archive_that_is_not_what_was_packed_deletes_nothing(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = files(study)
    other = archives.line("one/rtpo-seed0/steps.jsonl", b"{}\n")
    monkeypatch.setattr(command, "write_whole", lambda file, data: file.write_bytes(other))
    with pytest.raises(DataError, match="nothing was deleted"):
        pack(study)
    assert before.items() <= files(study).items()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: data[:-20], r"steps\.jsonl\.gz is damaged \(.*\): restore it"),
        (lambda data: data[:40] + b"\0\0\0\0" + data[44:], r"steps\.jsonl\.gz is damaged"),
        (lambda data: b"half", r"steps\.jsonl\.gz is damaged"),
        (lambda data: gzip.compress(b"[]"), r"steps\.jsonl\.gz is damaged"),
        (lambda data: gzip.compress(b'{"run": "one"}'), r"steps\.jsonl\.gz is damaged \('file'\)"),
        (lambda data: archives.line("one/rtpo-seed0/steps.jsonl", b"{}"), r"steps\.jsonl is not the file the run left"),
        (lambda data: b"", r"steps\.jsonl is missing"),
    ],
)
def test_a_damaged_archive_is_refused(study: Path, damage: Callable[[bytes], bytes], words: str) -> None:
    pack(study)
    archive = study / archives.PACKED / "steps.jsonl.gz"
    archive.write_bytes(damage(archive.read_bytes()))
    with pytest.raises(DataError, match=words):
        load_run(study / "one" / "rtpo-seed0")


@pytest.mark.parametrize("folder", COMMITTED, ids=lambda folder: folder.name)
def test_the_committed_archives_hold_what_the_manifests_say(folder: Path) -> None:
    """Of every run and evaluation, each file; and the archives are what packing makes of them."""
    kinds = sorted((folder / archives.PACKED).iterdir())
    names = {name for kind in kinds for name in archives.members(kind)}
    manifests = [folder / name for name in names if name.endswith("/manifest.json")]
    assert {folder / name for name in names if name.endswith("/config.yaml")} == {
        file.with_name("config.yaml") for file in manifests
    }
    for manifest in manifests:
        for name, expected in json.loads(archives.read(manifest))["files"].items():
            assert sha256(archives.read(manifest.with_name(name))).hexdigest() == expected, manifest.with_name(name)
    for kind in kinds:
        places = archives.members(kind)
        assert list(places) == sorted(places)
        for name in list(places)[:2]:
            start, end = places[name]
            assert kind.read_bytes()[start:end] == archives.line(name, archives.member(kind, start, end))


def test_a_packed_evaluation_is_read() -> None:
    (config,) = archives.find(PROJECT / "results", "main_table_toy_toy_math/rtpo-seed0/*/config.yaml")
    evaluation = load_evaluation(config.parent)
    assert len(evaluation.samples) == evaluation.manifest["panel"]["questions"] * evaluation.manifest["samples"]

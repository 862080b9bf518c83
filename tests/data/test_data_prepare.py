"""Sets on their way to prepared files: downloads through Hugging Face's own libraries, registry, stand-ins, overlaps,
samples, and the command; with RTPO_DATA=<folder> the real files, too."""

import hashlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import datasets
import pytest
from data_server import COMMIT, Hub, point_to
from huggingface_hub import constants

from experiments import prepare_data as command
from rtpo.core.files import sha256
from rtpo.data.download import fetch
from rtpo.data.manifest import manifest_path
from rtpo.data.prepare import DataFolder, normalised, sample
from rtpo.data.records import Record, read_records
from rtpo.data.registry import REGISTRY, UNVERIFIED, DataSet
from rtpo.errors import DataError, MachineError
from rtpo.run.records import RunFolder

DATA = os.environ.get("RTPO_DATA")
FIXTURES = Path(__file__).parents[1] / "fixtures" / "data"
FILES = {path.stem: path for path in sorted(FIXTURES.iterdir())}
ON_HUB = "/datasets/DigitalLearningGmbH/MATH-lighteval/resolve/refs%2Fconvert%2Fparquet/default/train/0000.parquet"
CONTENT = bytes(range(256)) * 1000


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub() as running:
        point_to(running, tmp_path / "snapshots" / "cache", monkeypatch)
        monkeypatch.setattr(time, "sleep", lambda _: None)
        running.files[ON_HUB] = running.files["/file"] = running.files[f"/{COMMIT}/file"] = CONTENT
        yield running


def elsewhere(hub: Hub, path: str = "/file") -> DataSet:
    return replace(REGISTRY["gsm8k"], source=hub.url + path)


def test_a_file_is_of_a_revision_and_fetched_once(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = ((REGISTRY["math_train"], ON_HUB, COMMIT), (elsewhere(hub), "/file", UNVERIFIED))
    for known, path, revision in (*cases, (elsewhere(hub, f"/{COMMIT}/file"), f"/{COMMIT}/file", COMMIT)):
        file, named = fetch(known)
        assert (file.read_bytes(), named, fetch(known)[0]) == (CONTENT, revision, file)
        assert hub.fetched(path) == 1
    hub.commit, hub.files[ON_HUB] = "d" * 40, b"changed"
    file, named = fetch(REGISTRY["math_train"])
    assert (file.read_bytes(), named) == (b"changed", "d" * 40)
    # what is in the cache needs no network
    for module in (constants, datasets.config):
        monkeypatch.setattr(module, "HF_HUB_OFFLINE", True)
    asked = len(hub.seen)
    assert (fetch(REGISTRY["math_train"])[0], len(hub.seen)) == (file, asked)


def test_a_server_that_refuses_or_breaks_off_is_said_and_leaves_nothing(hub: Hub) -> None:
    for known, path in ((elsewhere(hub), "/file"), (REGISTRY["math_train"], ON_HUB)):
        for hub.files[path], hub.cut in ((404, None), (CONTENT, 1000)):
            with pytest.raises(DataError, match=rf"{known.name}: .*--from {known.name}=FILE"):
                fetch(known)
        hub.cut = None
        assert fetch(known)[0].read_bytes() == CONTENT


def test_the_token_goes_to_the_hub_alone_and_opens_its_gates(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    for known, sent in ((REGISTRY["math_train"], "Bearer secret"), (elsewhere(hub), None)):
        hub.seen.clear()
        fetch(known)
        assert {token for _, _, token in hub.seen} == {sent}
    gated = replace(elsewhere(hub, f"/{COMMIT}/file"), name="gaia", gate="gaia-benchmark/GAIA")
    for token in ("", "another"):
        monkeypatch.setenv("HF_TOKEN", token)
        with pytest.raises(DataError, match=r"gaia-benchmark/GAIA.*HF_TOKEN"):
            fetch(gated)
    assert hub.fetched(f"/{COMMIT}/file") == 0
    monkeypatch.setenv("HF_TOKEN", hub.let_in)
    assert fetch(gated)[0].read_bytes() == CONTENT


def served(hub: Hub, name: str, **changes: object) -> DataSet:
    """A set of the registry with its stand-in's rows and bytes, at a server of plain files."""
    content = FILES[name].read_bytes()
    hub.files[f"/{COMMIT}/{name}"] = content
    own = {"source": f"{hub.url}/{COMMIT}/{name}", "rows": content.count(b"\n"), "against": ()}
    checksum = hashlib.sha256(content).hexdigest()
    return replace(REGISTRY[name], **{**own, "sha256": checksum, **changes})  # type: ignore[arg-type]


def folder(path: Path, *sets: DataSet) -> DataFolder:
    return DataFolder(path / "data", {data_set.name: data_set for data_set in sets})


def stand_in(data: DataFolder, *names: str) -> None:
    for name in names:
        data.prepare(name, FILES[name], may_differ=True)


def dropped(data: DataFolder, name: str) -> list[tuple[str, str, str]]:
    lines = (data.path / f"{name}.dropped.jsonl").read_text().splitlines()
    return [tuple(json.loads(line).values()) for line in lines]  # type: ignore[misc]


def test_a_download_is_prepared_once_and_again_without_the_network_when_changed(hub: Hub, tmp_path: Path) -> None:
    data = folder(tmp_path, known := served(hub, "gsm8k"))
    assert data.status("gsm8k") == "missing"
    manifest = data.prepare("gsm8k")
    assert data.status("gsm8k") == "ready"
    assert manifest.rows == known.rows == len(read_records(data.file("gsm8k")))
    assert manifest.sha256 == sha256(data.file("gsm8k"))
    raw = manifest.raw
    assert (raw.sha256, raw.source, raw.revision) == (known.sha256, known.source, COMMIT)
    hub.files.clear()
    assert data.prepare("gsm8k") == manifest
    whole = data.file("gsm8k").read_bytes()
    data.file("gsm8k").write_bytes(whole[: len(whole) // 2])
    assert data.status("gsm8k") == "stale"
    data.prepare("gsm8k")
    assert data.file("gsm8k").read_bytes() == whole
    assert folder(tmp_path, replace(known, sha256="0" * 64)).status("gsm8k") == "stale"


def test_downloads_are_held_to_the_registry_and_later_ones_to_the_first(hub: Hub, tmp_path: Path) -> None:
    path = "/datasets/owner/set/resolve/refs%2Fconvert%2Fparquet/aime25"
    hub.files[path] = content = FILES["aime25"].read_bytes()
    source = "hf://datasets/owner/set@refs/convert/parquet/aime25"
    known = served(hub, "aime25", source=source, sha256=UNVERIFIED)
    data = folder(tmp_path, known)
    for changes, named in (
        ({"rows": 3}, "2 rows .* 3"),
        ({"sha256": "0" * 64}, f"{sha256(FILES['aime25'])}.*{'0' * 64}"),
    ):
        with pytest.raises(DataError, match=named):
            folder(tmp_path, replace(known, **changes)).prepare("aime25")  # type: ignore[arg-type]
        assert not data.path.exists()
    first = data.prepare("aime25").raw
    assert (first.sha256, first.revision) == (sha256(FILES["aime25"]), COMMIT)

    (data.path / "raw" / "aime25").unlink()
    hub.commit, hub.files[path] = "d" * 40, content.replace(b"16", b"17")
    assert data.status("aime25") == "stale"
    with pytest.raises(DataError, match=first.sha256):
        data.prepare("aime25")
    manifest_path(data.file("aime25")).unlink()
    assert data.prepare("aime25").raw.revision == "d" * 40


def test_a_disk_that_is_full_at_any_file_leaves_the_set_not_there(hub: Hub, tmp_path: Path) -> None:
    data = folder(tmp_path, served(hub, "aime25"))
    (data.path / "raw").mkdir(parents=True)
    for file in ("raw/aime25", "aime25.jsonl", "aime25.manifest.json"):
        full = data.path / f"{file}.partial"
        full.symlink_to("/dev/full")
        with pytest.raises(MachineError, match="No space left"):
            data.prepare("aime25")
        assert data.status("aime25") == "missing"
        full.unlink()
    assert data.prepare("aime25").rows == 2
    assert data.status("aime25") == "ready"


def test_a_stand_in_is_held_to_the_registry_and_leaves_what_was_there(hub: Hub, tmp_path: Path) -> None:
    data = DataFolder(tmp_path)
    for name, named in (("gsm8k", sha256(FILES["gsm8k"])), ("oe_math", "2 rows")):
        with pytest.raises(DataError, match=named):
            data.prepare(name, FILES[name])
    assert not list(tmp_path.rglob("*.jsonl"))
    stand_in(data, "gsm8k")
    (tmp_path / "other").write_text('{"question": "q"}\n')
    with pytest.raises(DataError, match=r"line 1 of .*other"):
        data.prepare("gsm8k", tmp_path / "other", may_differ=True)
    assert data.status("gsm8k") == "stand-in"
    # the set's own bytes need no word
    data = folder(tmp_path, served(hub, "gsm8k"))
    assert data.prepare("gsm8k", FILES["gsm8k"]).raw.revision == COMMIT
    assert (data.status("gsm8k"), hub.seen) == ("ready", [])


def test_training_questions_that_are_evaluation_questions_are_dropped(tmp_path: Path) -> None:
    data = DataFolder(tmp_path)
    with pytest.raises(DataError, match="hotpotqa"):
        stand_in(data, "hard_search")
    stand_in(data, "hotpotqa")
    manifest = data.prepare("hard_search", FILES["hard_search"], may_differ=True)
    assert (manifest.rows, manifest.overlaps, manifest.raw_rows) == (2, {"hotpotqa": 1}, 3)
    assert manifest.against == {"hotpotqa": sha256(data.file("hotpotqa"))}
    assert [task.uid for task in read_records(data.file("hard_search"))] == ["hard_search/0", "hard_search/2"]
    assert dropped(data, "hard_search") == [("hard_search/1", "overlap", "hotpotqa/2")]
    # whatever their case, compatibility forms, punctuation and white space
    assert normalised(" Who WROTE\u2028“Ａ, b”?! Straße") == "who wrote a b strasse"
    assert len({*map(normalised, ("$2+1$", "$2-1$", "$21$"))}) == 3
    for texts in (
        ("Find $x$.", "Find \\(x\\).", "Find \\[x\\]", "find $$x$$", "Find x"),
        ("$x - 1$", "x \u2212 1", "\\(x-1\\)", "x – 1"),
        ("Solve $y=-2$", "Solve \\( y=\u22122 \\)"),
    ):
        assert len({*map(normalised, texts)}) == 1


def test_a_new_evaluation_set_makes_training_sets_stale(tmp_path: Path) -> None:
    data = DataFolder(tmp_path / "data")
    stand_in(data, "math500", "math_train")
    before = [task.uid for task in read_records(data.file("math_train"))]
    assert before == ["math_train/2", "math_train/3", "math_train/4", "math_train/7"]
    (tmp_path / "own").write_text('{"question": "how many vertices has a CUBE", "answer": "8", "id": 1}\n')
    data.prepare("webwalker", tmp_path / "own", may_differ=True)
    assert data.status("math_train") == "stale"
    data.prepare("math_train")
    assert data.status("math_train") == "stand-in"
    assert [task.uid for task in read_records(data.file("math_train"))] == before[:-1]
    assert dropped(data, "math_train") == [
        ("math_train/5", "no answer", ""),
        ("math_train/6", "repeat", "math_train/3"),
        ("math_train/1", "overlap", "math500/1"),
        ("math_train/7", "overlap", "webwalker/1"),
    ]


def test_samples_are_seeded_and_hold_still(hub: Hub, tmp_path: Path) -> None:
    records = [Record(f"set/{i}", f"question {i}", ("1",)) for i in range(1000)]
    taken = sample(records, 500, 0)
    assert len(taken) == 500
    assert taken == [record for record in records if record in taken] == sample(records[::-1], 500, 0)[::-1]
    assert taken != sample(records, 500, 1)
    # those taken away are replaced, and no other is moved
    fewer = sample([record for record in records if record not in taken[:10]], 500, 0)
    assert set(map(id, taken[10:])) < set(map(id, fewer))
    known = served(hub, "math_train", sample=5)
    assert folder(tmp_path, known).prepare("math_train").rows == 5
    with pytest.raises(DataError, match="math_train"):
        folder(tmp_path / "other", replace(known, sample=6)).prepare("math_train")


def run(tmp_path: Path, *arguments: str) -> int:
    return command.main(["--folder", str(tmp_path), *arguments])


def test_the_command_prepares_what_it_can(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [f"--from={name}={FILES[name]}" for name in ("hard_search", "hotpotqa", "math_train")]
    assert run(tmp_path, "tau3_airline", "--accept-other", *files) == 1
    out, err = capsys.readouterr()
    assert [line.partition(":")[0] for line in out.splitlines()] == ["hotpotqa", "tau3_airline", "hard_search"]
    assert "math500" in err
    assert run(tmp_path, "hard_search", "hotpotqa") == 0
    with RunFolder(tmp_path).held():
        assert run(tmp_path, "--accept-other", f"--from=gsm8k={FILES['gsm8k']}") == 1
    assert not (tmp_path / "gsm8k.jsonl").exists()


def test_golds_that_no_answer_can_equal_are_counted_and_the_first_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a prepared file and again, of its manifest; a set without any says nothing."""
    rows = [
        {"question": f"{number} + {number} = ?", "answer": gold} for number, gold in enumerate(("2", "{", "4", "?"))
    ]
    (tmp_path / "raw.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for arguments in (("--accept-other", f"--from=amc23={tmp_path / 'raw.jsonl'}"), ("amc23",)):
        assert run(tmp_path, *arguments) == 0
        said = capsys.readouterr().err
        assert all(part in said for part in ("amc23.jsonl", "2 rows", "'{'", "line 2"))
    (tmp_path / "raw.jsonl").write_text(json.dumps(rows[0]) + "\n")
    assert run(tmp_path, "--accept-other", f"--from=amc23={tmp_path / 'raw.jsonl'}") == 0
    assert capsys.readouterr().err == ""


# the real files

MATHS = ("gsm8k", "math500", "aime24", "amc23")
REAL_FILES = {name: f"{name}.jsonl" for name in (*MATHS, "hotpotqa", "2wiki", "webwalker")}
REAL_FILES["hard_search"] = "hard_search_1k.parquet"
needs_real = pytest.mark.skipif(not DATA, reason="set RTPO_DATA to a folder of real files")


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> DataFolder:
    """All sets that RTPO_DATA has, held to the registry's rows and checksums."""
    data = DataFolder(tmp_path_factory.mktemp("real"))
    for name, file in REAL_FILES.items():
        data.prepare(name, Path(DATA or "") / file)
    return data


@needs_real
def test_real_files_are_the_registrys_and_hard_search_loses_the_fifteen_questions_of_hotpotqa(real: DataFolder) -> None:
    assert {real.status(name) for name in REAL_FILES} == {"ready"}
    manifest = json.loads(manifest_path(real.file("hard_search")).read_text())
    assert (manifest["overlaps"]["hotpotqa"], manifest["rows"]) == (15, 1056)
    train, panel = ({task.question for task in read_records(real.file(name))} for name in ("hard_search", "hotpotqa"))
    assert not train & panel

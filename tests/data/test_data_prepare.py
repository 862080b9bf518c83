"""Sets on their way to prepared files: registry, stand-ins, downloads, overlaps, samples, and the command.

Always on the stand-ins in tests/fixtures/data, which have the real files' schemas, and with RTPO_DATA=<folder> on the
real files too.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from data_server import COMMIT, Hub, point_to, serving

from experiments import prepare_data as command
from rtpo.core.files import sha256
from rtpo.data.overlaps import normalised
from rtpo.data.prepare import DataFolder, sample
from rtpo.data.records import Record, manifest_path, read_records
from rtpo.data.registry import REGISTRY, UNVERIFIED, DataSet
from rtpo.data.sources import parse_file
from rtpo.errors import DataError, MachineError
from rtpo.run.records import RunFolder

DATA = os.environ.get("RTPO_DATA")
FIXTURES = Path(__file__).parents[1] / "fixtures" / "data"
FILES = {path.stem: path for path in sorted(FIXTURES.iterdir())}
REAL = {
    "gsm8k": "gsm8k.jsonl",
    "math500": "math500.jsonl",
    "aime24": "aime24.jsonl",
    "amc23": "amc23.jsonl",
    "hotpotqa": "hotpotqa.jsonl",
    "2wiki": "2wiki.jsonl",
    "webwalker": "webwalker.jsonl",
    "hard_search": "hard_search_1k.parquet",
}
WITH_FILES = [name for name, known in REGISTRY.items() if known.parse is not None]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving() as running:
        point_to(running, tmp_path / "cache", monkeypatch)
        yield running


def served(hub: Hub, name: str, **changes: object) -> DataSet:
    """A set of the registry with its stand-in's rows and bytes, at a server of plain files."""
    content = FILES[name].read_bytes()
    hub.files[f"/{COMMIT}/{name}"] = content
    known = replace(
        REGISTRY[name],
        source=f"{hub.url}/{COMMIT}/{name}",
        rows=content.count(b"\n"),
        sha256=hashlib.sha256(content).hexdigest(),
        against=(),
    )
    return replace(known, **changes)  # type: ignore[arg-type]


def folder(path: Path, *sets: DataSet) -> DataFolder:
    return DataFolder(path / "data", {one.name: one for one in sets})


def stand_in(data: DataFolder, *names: str) -> None:
    for name in names:
        data.prepare(name, FILES[name], may_differ=True)


# the registry


@pytest.mark.parametrize("name", REGISTRY)
def test_every_entry_is_whole(name: str) -> None:
    known = REGISTRY[name]
    assert known.name == name
    assert known.source.startswith(("https://", "hf://datasets/"))
    assert known.licence
    assert known.rows > 0
    assert all(REGISTRY[other].role == "eval" for other in known.against)
    if known.parse is not None:
        assert (known.revision == UNVERIFIED) == (known.sha256 == UNVERIFIED)
        assert known.sha256 == UNVERIFIED or bytes.fromhex(known.sha256)


# a download


def test_a_download_is_prepared_once(hub: Hub, tmp_path: Path) -> None:
    data = folder(tmp_path, known := served(hub, "gsm8k"))
    assert data.status("gsm8k") == "missing"
    manifest = data.prepare("gsm8k")
    assert data.status("gsm8k") == "ready"
    assert manifest["rows"] == known.rows == len(read_records(data.file("gsm8k")))
    assert manifest["sha256"] == sha256(data.file("gsm8k"))
    assert manifest["raw"]["sha256"] == known.sha256
    assert (manifest["raw"]["source"], manifest["raw"]["revision"]) == (known.source, COMMIT)
    assert (manifest["licence"], manifest["dropped"], manifest["against"]) == (known.licence, {}, {})
    hub.files.clear()
    assert data.prepare("gsm8k") == manifest
    names = {"raw", "gsm8k", "gsm8k.dropped.jsonl", "gsm8k.jsonl", "gsm8k.manifest.json"}
    assert {path.name for path in data.path.rglob("*")} == names


def test_a_download_with_other_rows_or_bytes_stops_with_both_numbers(hub: Hub, tmp_path: Path) -> None:
    data = folder(tmp_path, known := served(hub, "gsm8k", rows=1319))
    with pytest.raises(DataError, match=r"gsm8k has 12 rows in http.*/gsm8k, and 1319 were expected"):
        data.prepare("gsm8k")
    data = folder(tmp_path, replace(known, sha256="0" * 64))
    with pytest.raises(DataError) as caught:
        data.prepare("gsm8k")
    assert f"has the sha256 {known.sha256}, and {'0' * 64} was expected: remove it to download it" in str(caught.value)
    assert data.status("gsm8k") == "missing"
    assert not data.path.exists()


def test_later_downloads_are_held_to_the_first(hub: Hub, tmp_path: Path) -> None:
    path = "/datasets/owner/set/resolve/refs%2Fconvert%2Fparquet/aime25"
    hub.files[path] = content = FILES["aime25"].read_bytes()
    source = "hf://datasets/owner/set@refs/convert/parquet/aime25"
    data = folder(tmp_path, served(hub, "aime25", source=source, sha256=UNVERIFIED))
    first = data.prepare("aime25")["raw"]
    assert (first["sha256"], first["bytes"]) == (sha256(FILES["aime25"]), len(content))
    assert (first["revision"], first["source"]) == (COMMIT, source)

    (data.path / "raw" / "aime25").unlink()
    hub.commit, hub.files[path] = "d" * 40, content.replace(b"16", b"17")
    assert data.status("aime25") == "stale"
    manifest = manifest_path(data.file("aime25"))
    with pytest.raises(
        DataError, match=rf"has the sha256 \w+, and {first['sha256']} was .*: remove {manifest} to take"
    ):
        data.prepare("aime25")
    manifest.unlink()
    assert data.prepare("aime25")["raw"]["revision"] == "d" * 40


def test_a_set_that_cannot_be_had_says_what_to_do(hub: Hub, tmp_path: Path) -> None:
    data = folder(tmp_path, served(hub, "gaia"), REGISTRY["tau3_airline"])
    with pytest.raises(DataError, match=r"^gaia: gaia-benchmark/GAIA is gated.*--from gaia=FILE$"):
        data.prepare("gaia")
    with pytest.raises(DataError, match="tau3_airline is no file but a part of a package: install"):
        data.prepare("tau3_airline")
    assert not data.path.exists()


@pytest.mark.parametrize("file", ["raw/aime25", "aime25.jsonl", "aime25.manifest.json"])
def test_a_disk_that_is_full_at_any_file_leaves_the_set_not_there(hub: Hub, tmp_path: Path, file: str) -> None:
    data = folder(tmp_path, served(hub, "aime25"))
    (data.path / "raw").mkdir(parents=True)
    full = data.path / f"{file}.partial"
    full.symlink_to("/dev/full")
    with pytest.raises(MachineError, match="No space left"):
        data.prepare("aime25")
    assert data.status("aime25") == "missing"
    full.unlink()
    assert data.prepare("aime25")["rows"] == 2
    assert data.status("aime25") == "ready"


# stand-ins


@pytest.mark.parametrize("name", WITH_FILES)
def test_a_local_file_stands_in_for_any_set(name: str, tmp_path: Path) -> None:
    data = DataFolder(tmp_path)
    stand_in(data, *REGISTRY[name].against)
    manifest = data.prepare(name, FILES[name], may_differ=True)
    tasks = read_records(data.file(name))
    assert 0 < len(tasks) == manifest["rows"]
    assert all(task.uid.startswith(f"{name}/") for task in tasks)
    assert all(isinstance(task.answer, tuple) and all(task.answer) for task in tasks)
    assert data.status(name) == "stand-in"
    assert manifest["raw"]["source"] == FILES[name].name
    assert manifest["raw"]["revision"] == UNVERIFIED
    assert manifest["raw"]["may_differ"]


def test_a_stand_in_is_held_to_the_registry(tmp_path: Path) -> None:
    data = DataFolder(tmp_path)
    with pytest.raises(DataError, match=rf"gsm8k: .* has the sha256 {sha256(FILES['gsm8k'])}, and 9f098df7\w+ was"):
        data.prepare("gsm8k", FILES["gsm8k"])
    with pytest.raises(DataError, match=r"oe_math has 2 rows in oe_math.jsonl, and 674 were .*add --accept-other"):
        data.prepare("oe_math", FILES["oe_math"])
    with pytest.raises(DataError, match=r"gsm8k: .*nowhere cannot be read \(No such file"):
        data.prepare("gsm8k", tmp_path / "nowhere")
    with pytest.raises(DataError, match="tau3_airline is no file"):
        data.prepare("tau3_airline", FILES["gsm8k"])
    assert not list(tmp_path.rglob("*.jsonl"))


def test_a_stand_in_that_is_refused_leaves_what_was_there(tmp_path: Path) -> None:
    data = DataFolder(tmp_path)
    stand_in(data, "gsm8k")
    with pytest.raises(DataError):
        data.prepare("gsm8k", FILES["aime24"])
    (tmp_path / "other").write_text('{"question": "q"}\n')
    with pytest.raises(DataError, match=r"line 1 of .*other has no answer"):
        data.prepare("gsm8k", tmp_path / "other", may_differ=True)
    assert data.status("gsm8k") == "stand-in"
    assert len(read_records(data.file("gsm8k"))) == 12


def test_the_sets_own_bytes_need_no_word(hub: Hub, tmp_path: Path) -> None:
    data = folder(tmp_path, served(hub, "gsm8k"))
    manifest = data.prepare("gsm8k", FILES["gsm8k"])
    assert data.status("gsm8k") == "ready"
    assert manifest["raw"]["revision"] == COMMIT
    assert hub.seen == []


# what is there


def test_what_was_changed_is_stale_and_made_again_without_the_network(hub: Hub, tmp_path: Path) -> None:
    data = folder(tmp_path, known := served(hub, "gsm8k"))
    data.prepare("gsm8k")
    hub.files.clear()
    whole_file = data.file("gsm8k").read_bytes()
    data.file("gsm8k").write_bytes(whole_file[: len(whole_file) // 2])
    assert data.status("gsm8k") == "stale"
    data.prepare("gsm8k")
    assert data.file("gsm8k").read_bytes() == whole_file
    data.file("gsm8k").unlink()
    assert data.status("gsm8k") == "stale"
    data.prepare("gsm8k")
    assert folder(tmp_path, replace(known, sha256="0" * 64)).status("gsm8k") == "stale"


# overlaps and samples


def test_normalised_questions() -> None:
    assert normalised(" Who WROTE\u2028“Ａ, b”?!") == "who wrote a b" == normalised("who wrote a b")
    assert normalised("$2+1$") != normalised("$2-1$") != normalised("$21$")
    assert normalised("Straße") == normalised("STRASSE")
    assert normalised("?!") == ""


def test_training_questions_that_are_evaluation_questions_are_dropped(tmp_path: Path) -> None:
    data = DataFolder(tmp_path)
    with pytest.raises(DataError, match="hard_search may share no question with hotpotqa, which is not ready"):
        data.prepare("hard_search", FILES["hard_search"], may_differ=True)
    stand_in(data, "hotpotqa")
    manifest = data.prepare("hard_search", FILES["hard_search"], may_differ=True)
    assert (manifest["rows"], manifest["overlaps"], manifest["raw_rows"]) == (2, {"hotpotqa": 1}, 3)
    assert manifest["against"] == {"hotpotqa": sha256(data.file("hotpotqa"))}
    assert [task.uid for task in read_records(data.file("hard_search"))] == ["hard_search/0", "hard_search/2"]
    assert dropped(data, "hard_search") == [("hard_search/1", "overlap", "hotpotqa/2")]


def dropped(data: DataFolder, name: str) -> list[tuple[str, str, str]]:
    lines = (data.path / f"{name}.dropped.jsonl").read_text().splitlines()
    return [tuple(json.loads(line).values()) for line in lines]  # type: ignore[misc]


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


def test_samples_are_seeded_and_hold_still() -> None:
    records = [Record(f"set/{i}", f"question {i}", ("1",)) for i in range(1000)]
    taken = sample(records, 500, 0)
    assert len(taken) == 500
    assert taken == [record for record in records if record in taken]
    assert sample(records[::-1], 500, 0) == taken[::-1]
    assert len({one.uid for one in taken} & {one.uid for one in sample(records, 500, 1)}) < 400
    # those taken away are replaced, and no other is moved
    fewer = sample([record for record in records if record not in taken[:10]], 500, 0)
    assert set(map(id, taken[10:])) < set(map(id, fewer))
    assert sample(records, 2000, 0) == records


def test_a_sample_of_too_few_is_refused(hub: Hub, tmp_path: Path) -> None:
    known = served(hub, "math_train", sample=5)
    data = folder(tmp_path, known)
    assert data.prepare("math_train")["rows"] == 5
    assert json.loads(manifest_path(data.file("math_train")).read_text())["sample_seed"] == 0
    with pytest.raises(DataError, match="math_train has 5 problems to take 6 of"):
        folder(tmp_path / "other", replace(known, sample=6)).prepare("math_train")


# the command


def run(tmp_path: Path, *arguments: str) -> int:
    return command.main(["--folder", str(tmp_path), *arguments])


def test_the_command_prepares_what_it_can(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [f"--from={name}={FILES[name]}" for name in ("hard_search", "hotpotqa", "math_train")]
    assert run(tmp_path, "tau3_airline", "--accept-other", *files) == 1
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "hotpotqa: stand-in, 3 rows",
        "tau3_airline: nothing to bring, it is a part of a package: install "
        f"{REGISTRY['tau3_airline'].source} (docs/run/tasks.md)",
        "hard_search: stand-in, 2 rows, 1 dropped (overlap)",
    ]
    assert err == "math_train may share no question with math500, which is not ready: prepare math500 too\n"
    assert run(tmp_path, "hard_search", "hotpotqa") == 0
    capsys.readouterr()
    assert run(tmp_path, "--accept-other", f"--from=2wiki={FILES['2wiki']}") == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["hard_search: stand-in, 2 rows, 1 dropped (overlap)"]


def test_the_command_lists_every_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path / "new", "--list") == 0
    assert not (tmp_path / "new").exists()
    stand_in(DataFolder(tmp_path), "gsm8k")
    capsys.readouterr()
    assert run(tmp_path, "--list") == 0
    head, *lines = capsys.readouterr().out.partition("\n\n")[0].splitlines()
    assert head.split() == list(command.COLUMNS)
    states = {line.split()[0]: line for line in lines}
    assert states.keys() == REGISTRY.keys()
    for name, words in [
        ("gsm8k", "stand-in"),
        ("aime24", "missing"),
        ("gaia", "missing"),
    ]:
        assert words in states[name]
    assert "5000" in states["math_train"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["gsm9k"], "no set is named gsm9k: there are math_train, "),
        (["--from", "gsm9k=file"], "no set is named gsm9k"),
    ],
)
def test_the_command_refuses_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert run(tmp_path, *arguments) == 1
    assert sentence in capsys.readouterr().err


def test_two_commands_do_not_meet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunFolder(tmp_path).held():
        assert run(tmp_path, "--accept-other", f"--from=gsm8k={FILES['gsm8k']}") == 1
    assert "another process" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


# real files


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> DataFolder:
    """All sets that RTPO_DATA has, held to the registry's rows and checksums."""
    data = DataFolder(tmp_path_factory.mktemp("real"))
    for name, file in REAL.items():
        data.prepare(name, Path(DATA or "") / file)
    return data


needs_real = pytest.mark.skipif(not DATA, reason="set RTPO_DATA to a folder of real files")


@needs_real
@pytest.mark.parametrize("name", REAL)
def test_real_files_are_those_of_the_registry(real: DataFolder, name: str) -> None:
    assert real.status(name) == "ready"
    known = REGISTRY[name]
    manifest = json.loads(manifest_path(real.file(name)).read_text())
    assert (manifest["raw_rows"], manifest["raw"]["sha256"]) == (known.rows, known.sha256)
    assert manifest["dropped"].keys() <= {"overlap"}
    assert len(read_records(real.file(name))) == known.rows - sum(manifest["dropped"].values())


@needs_real
def test_the_fifteen_questions_of_hotpotqa_are_dropped_from_hard_search(real: DataFolder) -> None:
    assert REGISTRY["hard_search"].parse is not None
    records, _ = parse_file("hard_search", Path(DATA or "") / REAL["hard_search"], REGISTRY["hard_search"].parse)
    panel = {task.question: task.uid for task in read_records(real.file("hotpotqa"))}
    same = [(one.uid, "overlap", panel[one.question]) for one in records if one.question in panel]
    assert len(same) == 15
    assert dropped(real, "hard_search") == same
    left = {task.question for task in read_records(real.file("hard_search"))}
    assert len(left) == 1056
    assert not left & panel.keys()

"""The folder of an evaluation's records, results/<experiment>/<label>/<benchmark>/ (docs/run/evaluation.md)."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rtpo.core.files import disk_errors, flush, sha256, write_whole
from rtpo.core.names import counted
from rtpo.errors import DataError
from rtpo.evaluation.panel import SAMPLES, SCHEMA
from rtpo.run.reading import json_object, read_manifest
from rtpo.run.records import RunFolder, indented_json

SUMMARY = "summary.json"


class EvaluationFolder(RunFolder):
    """The folder of one benchmark's evaluation. A stopped evaluation resumes after its complete questions."""

    other_files = (SUMMARY,)  # the manifest holds their checksums too
    label_field = "label"

    def __init__(self, path: Path) -> None:
        super().__init__(path, (SAMPLES,))
        self._samples = path / SAMPLES
        self._sums = self._samples.with_suffix(".sha256")

    def open(self, config: Mapping[str, Any]) -> None:
        """As a run's. The caller must hold the folder (`held`). If no answer was recorded yet, `config` replaces the
        folder's configuration."""
        if not self.is_finished and not (self._samples.exists() and self._samples.stat().st_size):
            (self.path / "config.yaml").unlink(missing_ok=True)
        super().open(config)

    def _remedy(self) -> str:
        return f"Delete {self.path} to start afresh."

    def append_durably(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Append lines to samples.jsonl and flush them to disk. samples.sha256 gets the length and checksum of all
        lines."""
        self.append(SAMPLES, lines)
        expected = self.expected(SAMPLES)
        with disk_errors(self._samples):
            flush(self._samples)
            write_whole(self._sums, f"{expected.size} {expected.sha256}\n".encode())

    def read_whole_questions(self, samples: int) -> list[dict[str, Any]]:
        """Read the lines of complete questions, `samples` each, in order. The lines of an incomplete question, which a
        killed process leaves, are cut off. Raises DataError for damaged lines, and if a question lacks a sample or has
        one twice."""
        remedy = f"delete {self.path} to start afresh."
        data = self._samples.read_bytes() if self._samples.exists() else b""
        if self._sums.exists():  # earlier versions wrote none
            size, _, digest = self._sums.read_text(encoding="utf-8").strip().partition(" ")
            if not size.isdigit() or not digest:
                raise DataError(f"{self._sums} is damaged: {remedy}")
            if hashlib.sha256(data[: int(size)]).hexdigest() != digest:
                raise DataError(f"{self._samples} is damaged in its first {counted(int(size), 'byte')}: {remedy}")
        whole = data.splitlines(keepends=True)
        whole = whole[: data.count(b"\n") // samples * samples]
        lines = [json_object(line, f"{self._samples} line {number}", ()) for number, line in enumerate(whole, start=1)]
        answers = [(line.get("position"), line.get("sample")) for line in lines]
        positions = list(dict.fromkeys(position for position, _ in answers))
        if answers != [(position, sample) for position in positions for sample in range(samples)]:
            raise DataError(f"{self._samples} has other lines than those of whole questions, each once: {remedy}")
        if (end := sum(map(len, whole))) < len(data):
            os.truncate(self._samples, end)
        return [dict(line) for line in lines]

    def finish_evaluation(self, manifest: Mapping[str, Any], summary: Mapping[str, Any]) -> None:
        """Write the summary, and the manifest last. Raises DataError for a changed file."""
        with disk_errors(self.path):
            write_whole(self.path / SUMMARY, indented_json(summary))
            self.finish(manifest)
            self._sums.unlink(missing_ok=True)

    def check_finished(self) -> None:
        """Raises DataError if the manifest is damaged or of another schema, or if a file differs from its checksum in
        the manifest."""
        for name, expected in read_manifest(self.path / "manifest.json", SCHEMA, ("files",))["files"].items():
            file = self.path / name
            if not file.exists() or sha256(file) != expected:
                raise DataError(f"{file} was changed since it was written: delete {self.path}.")

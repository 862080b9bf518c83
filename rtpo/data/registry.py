"""The registry: every set of the paper, where it comes from and what is known of it.

A commit or a checksum stands here only where the bytes were seen. Elsewhere it is `UNVERIFIED`: the manifest records
what the first download had, and later ones are compared with that (docs/run/data.md).
"""

import re
from dataclasses import dataclass
from typing import Final, Literal

from rtpo.data import sources
from rtpo.data.sources import Parser

UNVERIFIED: Final = "unverified"

_ARPO = "a95cd0894b53e97595845bd680ed7e85524a2244"
_QWEN = "a45202bd16f1ec06f433442dc1152d0074773465"
_XBENCH = "17c562192cc7e62215bfb98b65e9f8806fb95504"
_TAU2 = "a2c024725189473d2d7cea3a5cfdbcc67478e41f"

Role = Literal["train", "eval"]
Kind = Literal["math", "search", "airline"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """One set.

    source: URL of its raw file, hf:// for one of the Hub, or of where to get it from where it is no file (`parse` is
    None). sha256: of the raw file; it may be UNVERIFIED.
    rows: of the raw file.
    gate: the Hugging Face data set whose terms a user must have accepted; None where there is none.
    sample: how many of its problems are taken, in a seeded order; None for all.
    against: evaluation sets that must be there first, since their questions are not to be trained on.
    """

    name: str
    role: Role
    kind: Kind
    source: str
    licence: str
    rows: int
    sha256: str
    parse: Parser | None
    gate: str | None = None
    sample: int | None = None
    against: tuple[str, ...] = ()
    note: str = ""

    @property
    def revision(self) -> str:
        """The commit that the source names, or UNVERIFIED."""
        named = re.search(r"\b[0-9a-f]{40}\b", self.source)
        return named[0] if named else UNVERIFIED


def _github(repository: str, commit: str, path: str) -> str:
    return f"https://raw.githubusercontent.com/{repository}/{commit}/{path}"


def _arpo(path: str) -> str:
    return _github("RUC-NLPIR/ARPO", _ARPO, path)


def _qwen(path: str) -> str:
    return _github("QwenLM/Qwen2.5-Math", _QWEN, path)


def _converted(data_set: str, config: str, split: str) -> str:
    """Where the Hub puts the Parquet it makes of a data set."""
    return f"hf://datasets/{data_set}@refs/convert/parquet/{config}/{split}/0000.parquet"


_SETS = (
    DataSet(
        name="math_train",
        role="train",
        kind="math",
        source=_converted("DigitalLearningGmbH/MATH-lighteval", "default", "train"),
        licence="MIT (unverified)",
        rows=7500,
        sha256=UNVERIFIED,
        parse=sources.boxed,
        sample=5000,
        against=("math500",),
        note="Rows and fields as the data set's card says; the file was not seen.",
    ),
    DataSet(
        name="hard_search",
        role="train",
        kind="search",
        source=_arpo("ARPO/rl_datasets/hard_search_1k.parquet"),
        licence="none stated; fetched by the user, never redistributed",
        rows=1071,
        sha256="a569566769376eb605872c769c137ff201a335c9f9d43dc0233834473899d239",
        parse=sources.hard_search,
        against=("hotpotqa",),
        note="871 questions of SimpleDeepSearcher and 200 of WebSailor, one answer each.",
    ),
    DataSet(
        name="gsm8k",
        role="eval",
        kind="math",
        source=_qwen("evaluation/data/gsm8k/test.jsonl"),
        licence="MIT (unverified)",
        rows=1319,
        sha256="9f098df7ff4522078d6ccec27a5c38a454790fdb51131bedfaa0e490070d5394",
        parse=sources.gsm8k,
        note="The test set. ARPO's copy has the same bytes.",
    ),
    DataSet(
        name="math500",
        role="eval",
        kind="math",
        source=_arpo("evaluation/data/math500/test.jsonl"),
        licence="MIT (unverified)",
        rows=500,
        sha256="fba7f0faf5593e5c29028190115672e36fe4bed72f535cea8c71d393bd03ba0f",
        parse=sources.mathematics,
    ),
    DataSet(
        name="amc23",
        role="eval",
        kind="math",
        source=_qwen("evaluation/data/amc23/test.jsonl"),
        licence="none clear; the problems are the MAA's",
        rows=40,
        sha256="43707e1ca784602d8479de24ee8ce36609dbebc46dd152b0b12a46611aa898a4",
        parse=sources.mathematics,
    ),
    DataSet(
        name="aime24",
        role="eval",
        kind="math",
        source=_arpo("evaluation/data/aime24/test.jsonl"),
        licence="none clear; the problems are the MAA's",
        rows=30,
        sha256="af2b8bd2aa911b6333ad0df32f3ca05c7ae8ed10f1731f4372c8ae26990bf7ac",
        parse=sources.mathematics,
    ),
    DataSet(
        name="aime25",
        role="eval",
        kind="math",
        source=_arpo("evaluation/data/aime25/test.jsonl"),
        licence="none clear; the problems are the MAA's",
        rows=30,
        sha256="b4e273c02d3e7fe1b74b59eae768fc8230bfb0f79539890cb56f4361caac0331",
        parse=sources.mathematics,
    ),
    DataSet(
        name="oe_math",
        role="eval",
        kind="math",
        source=_converted("Hothan/OlympiadBench", "OE_TO_maths_en_COMP", "train"),
        licence="Apache-2.0",
        rows=674,
        sha256=UNVERIFIED,
        parse=sources.olympiad,
        note="OlympiadBench, open-ended, text only, English competitions; the file was not seen, and may have more "
        "fields. The copy in Qwen2.5-Math has 675 rows.",
    ),
    DataSet(
        name="hotpotqa",
        role="eval",
        kind="search",
        source=_arpo("evaluation/data/hotpotqa/test.jsonl"),
        licence="CC BY-SA 4.0 (unverified)",
        rows=200,
        sha256="072c04637a2736f355e92ee77649d1de89112f873b21b97e50171ac33497ad98",
        parse=sources.aliases,
    ),
    DataSet(
        name="2wiki",
        role="eval",
        kind="search",
        source=_arpo("evaluation/data/2wiki/test.jsonl"),
        licence="Apache-2.0 (unverified)",
        rows=200,
        sha256="f92e028caf038c0fd861111ce811f12a50fc17324933b9b723d169913dfa9884",
        parse=sources.aliases,
    ),
    DataSet(
        name="gaia",
        role="eval",
        kind="search",
        source=_arpo("evaluation/data/gaia/test.jsonl"),
        licence="gated; not to be reshared in a form that can be crawled",
        rows=103,
        sha256="4b631659cb2cd9957c865b0070958fc726c5705d1700c54e75c47359057959ca",
        parse=sources.gaia,
        gate="gaia-benchmark/GAIA",
        note="The 103 text-only validation questions: 39 of level 1, 52 of level 2, 12 of level 3.",
    ),
    DataSet(
        name="webwalker",
        role="eval",
        kind="search",
        source=_arpo("evaluation/data/webwalker/test.jsonl"),
        licence="Apache-2.0",
        rows=200,
        sha256="5aa737b433dfc1cfd882c4857c492490eba0cb7c990ab35c0f322c51c24db678",
        parse=sources.plain,
        note="200 of the 680 questions.",
    ),
    DataSet(
        name="hle",
        role="eval",
        kind="search",
        source=_arpo("evaluation/data/hle/top.json"),
        licence="MIT, with a canary (unverified)",
        rows=500,
        sha256="da8a4a88feebeb412a7df2e67c79133c484c47889653c9934743236c42c9ee77",
        parse=sources.hle,
        gate="cais/hle",
        note="ARPO's 500 text questions; the paper reports 2,096 by a filter that it does not name. Whether the Hub "
        "gates the original is asked of it.",
    ),
    DataSet(
        name="xbench",
        role="eval",
        kind="search",
        source=_github("xbench-ai/xbench-evals", _XBENCH, "data/DeepSearch-2505.csv"),
        licence="MIT (the repository's); decoded rows are not to be put online",
        rows=100,
        sha256="10bdb81321e3d919c052c2c9a7095868d8bc9036f719fb25d9223043aa28c118",
        parse=sources.xbench,
        note="DeepSearch of May 2025, in Chinese, released encrypted.",
    ),
    DataSet(
        name="tau3_airline",
        role="eval",
        kind="airline",
        source=f"https://github.com/sierra-research/tau2-bench/tree/{_TAU2}",
        licence="MIT",
        rows=50,
        sha256=UNVERIFIED,
        parse=None,
        note="30 training and 20 test tasks, a part of the package. The package index's project named tau2 is "
        "unrelated.",
    ),
)

REGISTRY: Final[dict[str, DataSet]] = {one.name: one for one in _SETS}
"""by name"""

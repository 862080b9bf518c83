"""Raw files, through Hugging Face's libraries: their cache, retries, token, mirror and offline mode.

HF_HOME, HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE are theirs. They are imported where they are used: they are slow to.
"""

from pathlib import Path

from rtpo.core.files import disk_errors
from rtpo.data.registry import UNVERIFIED, DataSet
from rtpo.errors import DataError


def fetch(known: DataSet) -> tuple[Path, str]:
    """A set's raw file in Hugging Face's cache, and the commit it is of. Raises DataError saying what to do."""
    import aiohttp
    import httpx
    from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError

    remedy = f"give a file you have with --from {known.name}=FILE"
    try:
        with disk_errors(Path("the cache of Hugging Face (HF_HOME)")):
            _check_gate(known)
            return _from_hub(known) if known.source.startswith("hf://") else _from_elsewhere(known)
    except RepositoryNotFoundError as error:
        if known.gate is None:
            raise DataError(f"{known.name}: the Hub has no {known.source}, or not for you; {remedy}") from error
        raise DataError(
            f"{known.name}: {known.gate} is gated; accept its terms at https://huggingface.co/datasets/{known.gate} "
            f"and put a token of yours into HF_TOKEN, or {remedy}"
        ) from error
    except (OSError, EntryNotFoundError, httpx.HTTPError, aiohttp.ClientError) as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{known.name}: {known.source} cannot be had ({said}); {remedy}") from error


def _check_gate(known: DataSet) -> None:
    """Ask the Hub whether the user may read a set that it gates, wherever its rows are."""
    from huggingface_hub import HfApi

    if known.gate is not None:
        HfApi().auth_check(known.gate, repo_type="dataset")


def _from_hub(known: DataSet) -> tuple[Path, str]:
    from huggingface_hub import hf_hub_download, parse_hf_uri

    uri = parse_hf_uri(known.source)
    file = Path(hf_hub_download(uri.id, uri.path_in_repo, repo_type=uri.type, revision=uri.revision))
    return file, file.parts[file.parts.index("snapshots") + 1]


def _from_elsewhere(known: DataSet) -> tuple[Path, str]:
    from datasets import DownloadConfig, DownloadManager

    # what a commit's URL gives does not change: what is in the cache needs no network
    settings = DownloadConfig(use_etag=known.revision == UNVERIFIED, disable_tqdm=True)
    return Path(DownloadManager(download_config=settings).download(known.source)), known.revision

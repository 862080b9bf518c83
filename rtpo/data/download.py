"""Downloads raw files with Hugging Face's libraries, which also cache and retry.

The libraries obey HF_HOME, HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE. They are imported inside functions because their
import is slow.
"""

from pathlib import Path

from rtpo.core.files import disk_errors
from rtpo.data.registry import UNVERIFIED, DataSet
from rtpo.errors import DataError


def fetch(dataset: DataSet) -> tuple[Path, str]:
    """Download a set's raw file; returns its path in Hugging Face's cache and its commit. Raises DataError."""
    import aiohttp
    import httpx
    from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError

    remedy = f"give a file you have with --from {dataset.name}=FILE"
    try:
        with disk_errors(Path("the cache of Hugging Face (HF_HOME)")):
            return _download(dataset)
    except (OSError, EntryNotFoundError, RepositoryNotFoundError, httpx.HTTPError, aiohttp.ClientError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        if dataset.gate is not None and isinstance(error, RepositoryNotFoundError):
            terms = f"https://huggingface.co/datasets/{dataset.gate}"
            remedy = f"accept the terms at {terms} and put a token of yours into HF_TOKEN, or {remedy}"
        raise DataError(f"{dataset.name}: cannot download {dataset.source} ({reason}); {remedy}") from error


def _download(dataset: DataSet) -> tuple[Path, str]:
    from datasets import DownloadConfig, DownloadManager
    from huggingface_hub import HfApi, hf_hub_download, parse_hf_uri

    if dataset.gate is not None:  # only who accepted the terms on the Hub may read the rows, even from GitHub's copy
        HfApi().auth_check(dataset.gate, repo_type="dataset")
    if dataset.source.startswith("hf://"):
        uri = parse_hf_uri(dataset.source)
        file = Path(hf_hub_download(uri.id, uri.path_in_repo, repo_type=uri.type, revision=uri.revision))
        # the cache has snapshots/COMMIT/PATH_IN_REPO
        return file, file.parts[-len(Path(uri.path_in_repo).parts) - 1]
    # a URL that names a commit always gives the same bytes: a cached file needs no network
    settings = DownloadConfig(use_etag=dataset.revision == UNVERIFIED, disable_tqdm=True)
    return Path(DownloadManager(download_config=settings).download(dataset.source)), dataset.revision

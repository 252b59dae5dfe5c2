"""Files of the Hugging Face hub: from its cache, else downloaded, else one sentence without a long wait."""

import urllib.error
import urllib.request
from pathlib import Path

from forerank.errors import InputError, require

PATIENCE = 5.0  # seconds to wait for the hub to answer before saying that it cannot be reached


def hub_file(repo: str, names: tuple[str, ...], advice: str) -> Path:
    """The first of `names` that the repository has, on this disk.

    Looks in the cache first and touches the network only for what is not there: one request with a short time
    limit before the hub's own client (which retries for the better part of a minute) may start.

    Args:
        repo: `owner/name` on the hub.
        names: file names in order of preference.
        advice: what the user can do by hand, the end of the error's sentence.

    Raises:
        InputError: the file is neither cached nor reachable; names the file and where to put it.
    """
    hub = require("huggingface_hub")
    for name in names:
        cached = hub.try_to_load_from_cache(repo, name)
        if isinstance(cached, str):
            return Path(cached)
    urls = {name: hub.hf_hub_url(repo, name) for name in names}
    reason = "the hub is switched off by HF_HUB_OFFLINE"
    if not hub.constants.HF_HUB_OFFLINE:
        reason = f"the hub has no file {' or '.join(names)} there"
        for name, url in urls.items():
            problem = _unreachable(url, hub.get_token())
            if problem is None:
                try:
                    return Path(hub.hf_hub_download(repo, name))
                except Exception as error:
                    raise InputError(f"downloading {url} failed ({error}); {advice}") from error
            if problem != "HTTP 404":
                reason = f"it cannot be downloaded ({problem})"
                break
    cache = Path(hub.constants.HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}"
    raise InputError(
        f"{next(iter(urls.values()))} is not on this machine and {reason}: "
        f"{advice}, or copy the cache folder {cache} from a machine that has it"
    )


def _unreachable(url: str, token: str | None) -> str | None:
    """Why a HEAD request for `url` fails, or None if it answers."""
    request = urllib.request.Request(url, method="HEAD")
    if token:
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE):
            return None
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            return f"HTTP {error.code}: accept the model's licence on its page and set HF_TOKEN"
        return f"HTTP {error.code}"
    except (OSError, TimeoutError) as error:
        return str(getattr(error, "reason", error))


def weight_file(path: str) -> Path:
    """A weights file that the user named; refused in one sentence if it is not there or of another kind."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise InputError(f"no weights file {path}")
    if file.suffix not in (".safetensors", ".pth", ".pt", ".bin"):
        raise InputError(f"{path} is not a weights file: expected .safetensors, .pth, .pt or .bin")
    return file

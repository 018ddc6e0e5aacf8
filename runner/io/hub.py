"""The hub: whether it is to be asked, whether it answers, and what of it is in the cache. Standard library only."""

import os
import re
import threading
from pathlib import Path

from runner.io.files import hub_home
from runner.io.secrets import hidden
from runner.io.visible import to_visible

HUB = "https://huggingface.co"
OFFLINE = "HF_HUB_OFFLINE"
MAX_SECONDS = 5.0  # that an answer may take, the search for the address included
QUIET_SECONDS = 1.0  # after which a line says that we wait
CLIENTS = ("httpx", "httpx2", "requests")  # libraries by which one version or another of the hub's asks it


def hub_address() -> str:
    """The address of the hub, to be read: without a password in it."""
    return to_visible(hidden(os.environ.get("HF_ENDPOINT") or HUB))


def is_offline() -> bool:
    """True where the user has forbidden to ask."""
    return os.environ.get(OFFLINE, "").lower() in ("1", "true", "yes", "on")


def hub_answer(seconds: float = MAX_SECONDS) -> tuple[bool, str]:
    """True and what the hub answers to one question, or False and why there is no answer."""
    import urllib.request

    address = re.sub("//[^/]*@", "//", os.environ.get("HF_ENDPOINT") or HUB)
    try:
        request = urllib.request.Request(address, method="HEAD", headers={"User-Agent": "runner"})
        with urllib.request.urlopen(request, timeout=seconds):
            return True, "is reachable"
    except urllib.request.HTTPError as error:  # of a redirect that has no end, or leads to what is no hub
        return error.code >= 400, f"answers {error.code}" + ", a redirect to nowhere" * (error.code < 400)
    except Exception as error:  # an address that is none has one of its own, and so has an answer
        return False, f"is not reachable ({getattr(error, 'reason', error)})"


def is_of_network(error: BaseException) -> bool:
    """True for an error of the connection, or of redirects, whichever library it is of."""
    return isinstance(error, ConnectionError) or type(error).__module__.partition(".")[0] in CLIENTS


def hub_silence() -> str:
    """Why the hub does not answer, empty where it does; of a longer wait a line says so, and Ctrl-C ends it."""
    answers: list[tuple[bool, str]] = []
    asking = threading.Thread(target=lambda: answers.append(hub_answer()), daemon=True)  # a name may take longer
    asking.start()
    asking.join(QUIET_SECONDS)
    if asking.is_alive():
        print(f"waiting   for {hub_address()}, at most {MAX_SECONDS:.0f} s", flush=True)
        asking.join(MAX_SECONDS - QUIET_SECONDS)
    answered, text = answers[0] if answers else (False, f"gives no answer in {MAX_SECONDS:.0f} s")
    return "" if answered else f"{hub_address()} {text}"


def is_cached(name: str, kind: str) -> bool:
    """True where something of a model or a dataset (``kind`` is models or datasets) of the hub is in the cache."""
    hub = Path(os.environ.get("HF_HUB_CACHE") or hub_home() / "hub").expanduser()
    rows = Path(os.environ.get("HF_DATASETS_CACHE") or hub_home() / "datasets").expanduser()
    prepared = kind == "datasets" and (rows / name.replace("/", "___").lower()).is_dir()
    return prepared or any((hub / f"{kind}--{name.replace('/', '--')}").glob("snapshots/*"))

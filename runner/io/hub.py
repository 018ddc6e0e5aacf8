"""The hub: where it is, whether it may be asked and answers, and what of it is in the cache.

It is asked by the standard library alone, because the hub's own takes long to import.
"""

import os
import re
import threading
from pathlib import Path
from typing import NamedTuple

from runner.io.files import hub_home
from runner.io.secrets import hidden
from runner.io.visible import to_visible

HUB = "https://huggingface.co"
OFFLINE = "HF_HUB_OFFLINE"
MAX_SECONDS = 5.0  # that an answer may take, the search for the address included
QUIET_SECONDS = 1.0  # after which a line says that we wait
# libraries by which one version or another of the hub's asks it
CLIENTS = ("httpx", "httpx2", "requests")


class HubAnswer(NamedTuple):
    """The answer of the hub to one question, or the reason why there is none."""

    is_there: bool
    text: str


def hub_address() -> str:
    """The address of the hub, to be read: without a password in it."""
    return to_visible(hidden(os.environ.get("HF_ENDPOINT") or HUB))


def is_offline() -> bool:
    """True where the user has forbidden to ask."""
    return os.environ.get(OFFLINE, "").lower() in ("1", "true", "yes", "on")


def hub_answer() -> HubAnswer:
    """The answer of the hub within ``MAX_SECONDS``."""
    import urllib.request

    address = re.sub("//[^/]*@", "//", os.environ.get("HF_ENDPOINT") or HUB)
    try:
        request = urllib.request.Request(address, method="HEAD", headers={"User-Agent": "runner"})
        with urllib.request.urlopen(request, timeout=MAX_SECONDS):
            return HubAnswer(True, "is reachable")
    except urllib.request.HTTPError as error:
        if error.code >= 400:  # a refusal is an answer
            return HubAnswer(True, f"answers {error.code}")
        # A redirect that has no end, or that leads to what is no hub.
        return HubAnswer(False, f"answers {error.code}, a redirect that leads nowhere")
    except Exception as error:  # a wrong address raises errors of its own, and so does an answer
        reason = getattr(error, "reason", error)
        return HubAnswer(False, f"is not reachable ({reason})")


def is_of_network(error: BaseException) -> bool:
    """True for an error of the connection, or of redirects, whichever library it is of."""
    library = type(error).__module__.partition(".")[0]
    return isinstance(error, ConnectionError) or library in CLIENTS


def hub_silence() -> str:
    """The reason why the hub does not answer; empty where it does.

    A line is printed where that takes longer, and Ctrl-C ends the wait.
    """
    answers: list[HubAnswer] = []
    # A thread, because looking up a name heeds no limit of time.
    asking = threading.Thread(target=lambda: answers.append(hub_answer()), daemon=True)
    asking.start()
    asking.join(QUIET_SECONDS)
    if asking.is_alive():
        print(f"waiting   for {hub_address()}, at most {MAX_SECONDS:.0f} s", flush=True)
        asking.join(MAX_SECONDS - QUIET_SECONDS)
    answer = HubAnswer(False, f"gives no answer in {MAX_SECONDS:.0f} s")
    if answers:
        answer = answers[0]
    if answer.is_there:
        return ""
    return f"{hub_address()} {answer.text}"


def is_cached(name: str, kind: str, files: str = "*") -> bool:
    """True where something of a model or a dataset of the hub is in the cache.

    ``kind`` is ``models`` or ``datasets``, ``files`` a pattern below a version of it.
    """
    if kind == "datasets":
        rows_cache = os.environ.get("HF_DATASETS_CACHE") or hub_home() / "datasets"
        folder_name = name.replace("/", "___").lower()
        if Path(rows_cache, folder_name).expanduser().is_dir():
            return True
    hub_cache = os.environ.get("HF_HUB_CACHE") or hub_home() / "hub"
    folder_name = name.replace("/", "--")
    folder = Path(hub_cache, f"{kind}--{folder_name}").expanduser()
    return any(folder.glob(f"snapshots/{files}"))

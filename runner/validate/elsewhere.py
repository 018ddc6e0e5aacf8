"""Addresses, paths and stores that may lead away from this machine, or out of a run."""

import re
from ipaddress import ip_address
from urllib.parse import urlsplit

HUB = "https://huggingface.co/"


def is_elsewhere(value: object) -> bool:
    """True for an address or a host that may be another machine's.

    So is all that clients read in several ways.
    """
    text = str(value or "")
    if not text or text.lower() == "localhost" or _is_loopback(text):
        return False
    if not text.isprintable() or "\\" in text:
        return True
    # Clients put http:// before all else, so that of evil.com://127.0.0.1 the first part is the
    # host.
    address = text if re.match("(?i)https?://", text) else f"//{text}"
    try:
        place = urlsplit(address).netloc.rpartition("@")[2]
    except ValueError:
        return True
    host = re.fullmatch(r"\[([^\[\]]+)\](?::\d*)?|([^\[\]:]+)(?::\d*)?", place)
    name = (host[1] or host[2]) if host else ""
    return name.lower() != "localhost" and not _is_loopback(name)


def _is_loopback(host: str) -> bool:
    try:
        address = ip_address(host)
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback or address.is_unspecified


def is_host_elsewhere(host: object) -> bool:
    """True for a host of another machine, or for more than a host.

    Clients put http:// before it, whatever it is.
    """
    return "/" in str(host or "") or is_elsewhere(host)


def is_page_elsewhere(value: object) -> bool:
    """True for the address of a file on another machine that is not the hub."""
    is_page = isinstance(value, str) and bool(re.match("(?i)(https?|ftp)://", value))
    return is_page and not str(value).startswith(HUB) and is_elsewhere(value)


def is_outside(path: object) -> bool:
    """True for a path that leads out of the folder from which it goes."""
    if not isinstance(path, str):
        return False
    if path.startswith(("/", "~")) or "://" in path:
        return True
    return ".." in path.split("/")


def leaves_the_run(store: object) -> bool:
    """True for a store of MLflow other than a database or folder below the working folder.

    One in ``{root}`` is below it, too.
    """
    local = re.fullmatch(r"(?:sqlite:///|file:|file://(?=\{))([^/].*)", str(store))
    return local is None or is_outside(local[1])

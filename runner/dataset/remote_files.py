"""Rows behind a URL, copied into the cache: s3://, gs://, hf://, https:// and what fsspec knows.

The copy is read as any file of this machine is, so that its bytes are looked at first. Its name in
the cache is a hash of the URL and of the version that the other side gives to each file; another
version is another copy. Nothing is fetched before a run loads its rows.
"""

import hashlib
import json
import os
import re
from glob import has_magic
from pathlib import Path

from runner.dataset.source_files import FILE_EXPECTED, PATH_FIX, READERS, Paths
from runner.errors import DataError, EnvironmentFault, Fault, describe
from runner.io.distribution import to_install
from runner.io.files import hub_home
from runner.io.filetype import suffix_of

URL = re.compile(r"(?!runner:)([a-z][a-z0-9+.-]+)://")
MISSING_PACKAGE = re.compile(r"(?i)\binstall (\S+)|\"(\w+)\" to be installed")


def check_remote(path: Paths) -> bool:
    """True for a URL, or a list with one.

    Raises EnvironmentFault where the library for it is missing, and DataError for an unknown
    protocol.
    """
    is_remote = False
    urls = [path] if isinstance(path, str) else path
    for url in urls:
        match = URL.match(url)
        if match:
            _check_protocol(match[1], url)
            is_remote = True
    return is_remote


def _check_protocol(protocol: str, url: str) -> None:
    """Raise for a protocol that fsspec does not know, or whose package is missing."""
    from fsspec import available_protocols, get_filesystem_class

    if protocol not in available_protocols():
        fault = Fault(
            where=url,
            found=f"{protocol}:// is unknown",
            expected="s3://, gs://, hf://, https:// ...",
            fix=PATH_FIX,
        )
        raise DataError(fault)
    try:
        get_filesystem_class(protocol)
    except ImportError as error:
        match = MISSING_PACKAGE.search(str(error))
        package = (match[1] or match[2]) if match else protocol
        fault = Fault(
            where="dataset.path",
            found=f"{url} needs {package}",
            expected=f"the package {package}",
            fix=to_install(package),
        )
        raise EnvironmentFault(fault) from None


def copy_here(path: Paths) -> Paths:
    """The path, or the paths of a list, with URLs copied into this machine's cache.

    Each version of a file is fetched once.
    """
    if not isinstance(path, str):
        return [str(copy_here(one_path)) for one_path in path]
    if not check_remote(path):
        return path
    try:
        return _copy(path)
    except (FileNotFoundError, DataError):
        fault = Fault(
            where="dataset.path",
            found=f"no rows at {path}",
            expected=FILE_EXPECTED,
            fix=PATH_FIX,
        )
        raise DataError(fault) from None
    except Exception as error:
        # Each library has errors of its own, for a missing key as for a missing network.
        fault = Fault(
            where="dataset.path",
            found=f"{path}: {describe(error)[:200]}",
            expected="an address that can be read from here",
            fix="the same command where it can be read, or dataset.path=<a copy here>",
        )
        raise EnvironmentFault(fault) from error


def _copy(url: str) -> str:
    """The copy of a file, or the folder with the copies of several.

    The URL may be that of a folder, or a pattern.
    """
    import fsspec

    remote, root = fsspec.url_to_fs(url)
    is_pattern = has_magic(root)
    is_file = not is_pattern and remote.isfile(root)
    if is_pattern:
        paths = remote.glob(root)
    elif is_file:
        paths = [root]
    else:
        paths = remote.find(root, maxdepth=2)
    names = sorted(name for name in paths if suffix_of(Path(name)) in READERS)
    if not names:
        raise FileNotFoundError(url)
    versions = [(name, remote.ukey(name)) for name in names]
    content = json.dumps([url, *versions])
    key = hashlib.sha256(content.encode()).hexdigest()[:16]
    folder = hub_home() / "runner" / "rows" / key
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names):
        file_name = name.rpartition("/")[2]
        if is_pattern:  # which may match two files of one name
            file_name = f"{number}-{file_name}"
        file = folder / file_name
        if file.exists():
            continue
        print(f"fetch     {name} from {url.partition('://')[0]}", flush=True)
        unique = os.urandom(8).hex()
        part = folder / f".{file.name}.{unique}"
        remote.get_file(name, str(part))
        os.replace(part, file)
    return str(file if is_file else folder)

"""Environments that cannot be had: an id that names no environment, a server that is not there."""

import re
import shlex
import shutil
import socket
from collections.abc import Collection, Iterator
from importlib.util import find_spec
from urllib.parse import urlsplit

from runner.errors import Fault
from runner.schema.did_you_mean import best_guess
from runner.schema.text import Config, Node
from runner.validate.context import ValidationContext
from runner.validate.elsewhere import is_elsewhere

VERIFIERS = "runner.generate.environment.verifiers.Verifiers"
OPENENV = "runner.generate.environment.openenv.OpenEnv"
SHIPPED = "runner.generate.environment.toy_sorting"
PYTHON = "python"  # a command that begins so is run by the Python of the run
# A requirement of a package, but not that of one of its extras, as ours is.
NEEDS_VERIFIERS = re.compile(r"verifiers(?![\w-])(?!.*;.*\bextra\b)")
# Environments of verifiers that need more than a Python process on this machine.
NOT_HERE = {
    "harbor": "each of its tasks is a container",
    "nemo_gym": "its server is made by uv, with packages from the network",
    "openenv": "environment=openenv asks the server itself",
}
SECONDS_TO_CONNECT = 2.0


def find_environment_id_faults(context: ValidationContext) -> Iterator[Fault]:
    """A fault for an ``environment.id`` that verifiers could not load, or that nobody has opened.

    The package imports the module of that name, so that it must be a package made for verifiers, or
    in ``allow``.
    """
    node = context.mapping("environment")
    name = node.get("id")
    if node.get("_target_") != VERIFIERS or not isinstance(name, str) or not find_spec("verifiers"):
        return
    module = name.rpartition("/")[2].partition("@")[0].replace("-", "_").lower()
    package = module.partition(".")[0]
    if module in NOT_HERE:
        yield Fault(
            where="environment.id",
            found=f"{name}: {NOT_HERE[module]}",
            expected="an environment that runs in this process",
            fix="environment=openenv environment.url=http://127.0.0.1:<port>, or another id",
        )
        return
    installed = _installed_environments()
    if module in installed or package in context.allow:
        return
    is_module = package.isidentifier() and find_spec(package)
    if is_module and package != "runner":
        found = f"{name}, a module that does not say that it is made for verifiers"
        fix = f"'allow=[{package}]'  (if you trust that package)"
    else:
        guess = best_guess(module, [*installed, *context.allow])
        found = f"{name}, which is not installed"
        fix = f"={guess}" if guess else "pip install <the environment's package>"
    names = ", ".join(sorted(installed)) or "none is installed"
    yield Fault(
        where="environment.id",
        found=found,
        expected=f"an installed environment of verifiers: {names}",
        fix=fix,
    )


def find_server_faults(cfg: Config) -> Iterator[Fault]:
    """A fault for an OpenEnv server on this machine that does not answer and cannot be started."""
    node = cfg.get("environment") or {}
    if node.get("_target_") != OPENENV:
        return
    words = _words_of(node)
    if words:
        if words[0] != PYTHON and not shutil.which(words[0]):
            yield Fault(
                where="environment.command",
                found=f"{words[0]}, which is no program",
                expected="the words that start a server, with --port PORT",
                fix="mend the command, or start the server yourself and environment.url=<URL>",
            )
        return
    url = node.get("url")
    if url is None:
        yield Fault(
            where="environment.url",
            found="null, and no command that starts a server",
            expected="the URL of an OpenEnv server, or what starts one",
            fix="=http://127.0.0.1:8000, or environment.command='<what starts it, with --port "
            "PORT>'",
        )
    elif not is_elsewhere(url) and not _is_open(str(url)):
        yield Fault(
            where="environment.url",
            found=f"{url}, where nothing answers",
            expected="a server that is up",
            fix="start it, or environment.command='<what starts it, with --port PORT>'",
        )


def _installed_environments() -> Collection[str]:
    """The names of installed packages that are made for verifiers, of those that it brings, and of
    the runner's own."""
    from importlib import metadata  # a twelfth of the time of a short command

    names = {"textarena", SHIPPED}
    for package in metadata.distributions():
        if any(map(NEEDS_VERIFIERS.match, package.requires or ())):
            names.add(package.name.replace("-", "_").lower())
    return names


def _words_of(node: Node) -> list[str]:
    command = node.get("command") or []
    return shlex.split(command) if isinstance(command, str) else list(map(str, command))


def _is_open(url: str) -> bool:
    """True where somebody listens at the port of a URL."""
    try:
        place = urlsplit(url)
        address = (place.hostname or "", place.port or 80)
        with socket.create_connection(address, timeout=SECONDS_TO_CONNECT):
            return True
    except (OSError, ValueError):
        return False

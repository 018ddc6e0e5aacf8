"""Prints what makes a shell complete commands, and at each press of the key the words that may stand there."""

# Called at every press of a key: only light rooms may be imported here, and Hydra only where a key is asked for.

import contextlib
import itertools
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from runner.command import VERBS, CommandLine, table_of
from runner.config import compose_unresolved
from runner.config.menu import read_menu
from runner.errors import ConfigError, Fault, RunnerError
from runner.io.files import PACKAGE, shipped
from runner.schema.read import Parameter, choices_compared, read_signature
from runner.schema.text import select

WITHOUT_RUN = ("train", "options", "doctor", "completion", "import", "rehearse")  # verbs that take none
COMPOSING = ("", "train", "evaluate", "predict", "preview", "rehearse", "why")  # that take what a training takes
FOLDER_FLAGS = ("--config-dir", "-cd")
PATHS = ("path", "to", "output_root", "name_or_path")
CALL = "PYTHONPATH={root} {python} -P -m runner.command.completion"
TABLE = table_of("completion")
SCRIPTS: dict[str, str] = TABLE["scripts"]  # by shell


def main(line: CommandLine) -> int:
    """Print the script of the shell that the command line names."""
    if len(line.runs) != 1 or line.runs[0] not in SCRIPTS:
        found = " ".join(line.runs) or "no shell"
        raise ConfigError(Fault("completion", found, ", ".join(SCRIPTS), 'eval "$(runner completion bash)"'))
    call = CALL.format(root=shlex.quote(str(PACKAGE.parent)), python=shlex.quote(sys.executable))
    print(SCRIPTS[line.runs[0]].format(call=call))
    return 0


def complete(text: str, point: int, shell: str = "bash", breaks: str = "") -> list[str]:
    """The words that may stand at a position in a command line, as the shell wants them.

    Bash replaces only what comes after the last of its ``breaks``, and is given the space that ends a finished word.
    """
    words = text[:point].split()
    with contextlib.suppress(ValueError):  # a quote that is still open counts as none
        words = shlex.split(text[:point])
    current = words.pop() if words and not text[point - 1].isspace() else ""
    found = sorted({entry for entry in _candidates(words[1:], current) if entry.startswith(current)})
    if shell != "bash":
        return found
    cut = max((current.rfind(mark) + 1 for mark in "=:" if mark in breaks), default=0)
    return [entry[cut:] + ("" if entry[-1] in "=./" else " ") for entry in found]


def _candidates(words: Sequence[str], current: str) -> Iterator[str]:
    """Whatever may be typed after some words, longer or other words among it."""
    plain = [word for word in words if "=" not in word and not word.startswith(("-", "~"))]
    verb = plain[0] if plain and plain[0] in VERBS else ""
    takes_key = verb == "why" and len(plain) == 1
    if words and words[-1] in FOLDER_FLAGS:
        yield from _paths(current, folders=True)
    elif current.startswith("-"):
        yield from TABLE["flags"]
    elif verb == "completion":
        yield from SCRIPTS
    elif verb == "options":
        yield from Chosen(words).menu
    elif "=" in current:
        yield from Chosen(words).values(current)
    else:
        yield from VERBS if not verb else ()
        if verb in COMPOSING:
            yield from Chosen(words).keys(current, end="" if takes_key else "=")
        if verb and not takes_key:
            yield from (f"{key}=" for key in table_of(verb)["options"])
        if verb and not takes_key and verb not in WITHOUT_RUN:
            roots = [word.partition("=")[2] for word in words if word.startswith("output_root=")]
            root = roots[-1] if roots else "outputs"
            yield from _paths(current if current.startswith((root, ".", "/", "~")) else f"{root}/", folders=True)


def _paths(text: str, folders: bool = False) -> Iterator[str]:
    """The paths that begin so; a folder ends with a slash, one with a run in it does not."""
    head, slash, tail = text.rpartition("/")
    folder = Path(shipped(head or slash or "."))
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.name.startswith(tail) and path.name[0] != "." and (path.is_dir() or not folders):
            is_open = path.is_dir() and not (folders and (path / "config.yaml").is_file())
            yield f"{head}{slash}{path.name}{'/' if is_open else ''}"


class Chosen:
    """The options that some words choose, and the keys and values that their configuration has room for."""

    def __init__(self, words: Sequence[str]):
        self.folders = [Path(word) for flag, word in itertools.pairwise(words) if flag in FOLDER_FLAGS]
        self.menu = read_menu(self.folders)
        pairs = [word.lstrip("+").partition("=") for word in words]
        self.choices = [f"{key}={option}" for key, _, option in pairs if option in self.menu.get(key, ())]

    def keys(self, current: str, end: str) -> Iterator[str]:
        """The next part of a key: with a dot where it goes on, with ``end`` where it may stop."""
        path = current.rpartition(".")[0]
        node = self._node(path)
        for name in dict.fromkeys([*node, *self._parameters(path)]):
            key = f"{path}.{name}".lstrip(".")
            goes_on = isinstance(node.get(name), Mapping) and bool(node[name])
            if goes_on:
                yield f"{key}."
            if not goes_on or not end or key in self.menu:
                yield f"{key}{end}"

    def values(self, current: str) -> Iterator[str]:
        """Options of a group, choices of a field, or paths, after the last comma of what is typed."""
        typed = current[: max(current.index("="), current.rfind(",")) + 1]
        key, _, value = current.lstrip("+").partition("=")
        path, _, name = key.rpartition(".")
        if key in self.menu:
            yield from (typed + option for option in self.menu[key])
        elif name in PATHS:
            yield from (typed + entry for entry in _paths(value))
        elif parameter := self._parameters(path).get(name):
            kinds = {kind.kind for kind in parameter.type.alternatives}
            choices = list(parameter.type.choices)
            trainer = self._node("trainer").get("_target_")
            if path == "trainer.args" and isinstance(trainer, str) and kinds & {"str", "list"}:
                choices += choices_compared(trainer, name)
            choices += ["true", "false"] if "bool" in kinds else []
            choices += ["null"] if "none" in kinds else []
            yield from (f"{typed}{choice}" for choice in choices)

    @cached_property
    def tree(self) -> dict[str, Any]:
        """The keys that the chosen files set, with their values; where they do not go together, the groups alone."""
        from omegaconf import OmegaConf

        tree: dict[str, Any] = dict.fromkeys(self.menu)
        with contextlib.suppress(RunnerError):
            tree |= OmegaConf.to_container(compose_unresolved(self.choices, self.folders)[0], resolve=False)
        return {key: entry for key, entry in tree.items() if key != "hydra"}

    def _node(self, path: str) -> Mapping[str, Any]:
        """The mapping at a dotted key, empty where there is none."""
        node = select(self.tree, path)
        return node if isinstance(node, Mapping) else {}

    def _parameters(self, path: str) -> Mapping[str, Parameter]:
        """The arguments of a node's target, by name; read from the installed source."""
        from runner.validate.context import keys_of

        target = self._node(path).get("_target_")
        signature = read_signature(target) if isinstance(target, str) else None
        return keys_of(path, signature) if signature else {}


if __name__ == "__main__":
    shell, point, text, *breaks = sys.argv[1:]
    print("\n".join(complete(text, int(point), shell, *breaks)))

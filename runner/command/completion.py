"""python -m runner completion bash|zsh|fish

Prints what makes the shell complete verbs, groups and their options, keys, values, run folders and flags after
`runner`, the command that the package installs. For this terminal, or in the shell's start file for all:

    eval "$(runner completion bash)"             in ~/.bashrc
    eval "$(runner completion zsh)"              in ~/.zshrc, after compinit
    runner completion fish | source              in ~/.config/fish/config.fish

Keys are read from conf/ and from the installed source of what the chosen trainer, model or adapter is, so that
`runner trainer=dpo trainer.args.lo<TAB>` knows the fields of DPOConfig, and a field's choices come after its `=`.
Folders that --config-dir names are looked into. Nothing heavy is imported.
"""

# Called at every press of a key: only light rooms may be imported here, and Hydra composes too slowly.

from __future__ import annotations

import ast
import contextlib
import itertools
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from runner.command import VERBS
from runner.config.limits import read_yaml
from runner.errors import ConfigError, Fault
from runner.io.files import MENU, PACKAGE

ALONE = ("train", "doctor", "completion", "import", "rehearse")  # verbs that take no run
SHELLS = ("bash", "zsh", "fish")
FLAGS = (
    *("--help", "--multirun", "--dry-run", "--debug", "--config-dir", "--cfg", "--info", "--resolve"),
    *("--package", "--hydra-help", "--version"),
)
PATHS = ("path", "to", "output_root", "name_or_path")
CALL = "PYTHONPATH={root} {python} -P -m runner.command.completion"
SCRIPTS = {
    "bash": """_runner_complete() {{
  local IFS=$'\\n'
  COMPREPLY=($({call} bash "$COMP_POINT" "$COMP_LINE" "$COMP_WORDBREAKS" 2>/dev/null))
}}
complete -o nospace -o default -F _runner_complete runner""",
    "zsh": """_runner() {{
  local -a found
  found=("${{(@f)$({call} zsh "$CURSOR" "$BUFFER" 2>/dev/null)}}")
  compadd -S '' -a found
}}
compdef _runner runner""",
    "fish": """complete -c runner -f -a \\
  '(env {call} fish (commandline -cp | string length) (commandline -cp) 2>/dev/null)'""",
}


def main(line: Any) -> int:
    """Print the script of the shell that the command line names."""
    if len(line.runs) != 1 or line.runs[0] not in SHELLS:
        found = " ".join(line.runs) or "no shell"
        raise ConfigError(Fault("completion", found, ", ".join(SHELLS), 'eval "$(runner completion bash)"'))
    call = CALL.format(root=shlex.quote(str(PACKAGE.parent)), python=shlex.quote(sys.executable))
    print(SCRIPTS[line.runs[0]].format(call=call))
    return 0


def complete(text: str, point: int, shell: str = "bash", breaks: str = "") -> list[str]:
    """The words that may stand at a place in a command line, as the shell wants them.

    Bash replaces only what comes after the last of its ``breaks``, and is given the space that ends a finished word.
    """
    *words, current = _split(text[:point])
    found = sorted(dict.fromkeys(entry for entry in _candidates(words[1:], current) if entry.startswith(current)))
    cut = max((current.rfind(mark) + 1 for mark in "=:" if mark in breaks), default=0)
    if shell == "bash":
        return [entry[cut:] + ("" if entry[-1] in "=./" else " ") for entry in found]
    return found


def _split(text: str) -> list[str]:
    """The words so far, the last being the one that is typed; a quote that is still open counts as none."""
    words = text.split()
    with contextlib.suppress(ValueError):
        words = shlex.split(text)
    return words if text and not text[-1].isspace() else [*words, ""]


def _candidates(words: Sequence[str], current: str) -> Iterator[str]:
    """Whatever may be typed here, longer or other words among it."""
    plain = [word for word in words if "=" not in word and not word.startswith(("-", "~"))]
    verb = plain[0] if plain and plain[0] in VERBS else ""
    if words and words[-1] in ("--config-dir", "-cd"):
        yield from _paths(current, folders=True)
    elif current.startswith("-"):
        yield from FLAGS
    elif verb == "completion":
        yield from SHELLS
    elif "=" in current:
        yield from _values(words, current)
    else:
        yield from [] if verb else VERBS
        if not verb or _composes(verb):
            yield from _keys(words, current, asks=verb == "why" and len(plain) == 1)
        if verb and not (verb == "why" and len(plain) == 1):
            yield from (f"{key}=" for key in _own_keys(verb))
            yield from [] if verb in ALONE else _run_folders(words, current)


def _keys(words: Sequence[str], current: str, asks: bool) -> Iterator[str]:
    """The next part of a key: with a dot where it goes on, with an equals sign where a value comes next."""
    layout = Layout(words)
    *above, _ = current.split(".")
    path = ".".join(above)
    node = layout.node(path)
    for name in dict.fromkeys([*node, *layout.parameters(path)]):
        key, inner = f"{path}.{name}".lstrip("."), node.get(name)
        goes_on = isinstance(inner, Mapping) and bool(inner)
        yield from [f"{key}."] if goes_on else []
        if asks:
            yield key
        elif not goes_on or (not above and name in layout.menu):
            yield f"{key}="


def _values(words: Sequence[str], current: str) -> Iterator[str]:
    """Options of a group, choices of a field, or paths, after the last comma of what is typed."""
    key, _, value = current.partition("=")
    key, kept = key.lstrip("+"), current[: current.rfind(",") + 1] or current[: current.index("=") + 1]
    layout, (path, _, name) = Layout(words), key.rpartition(".")
    if key in layout.menu:
        yield from (kept + option for option in layout.menu[key])
    elif name in PATHS:
        yield from (kept + entry for entry in _paths(value))
    elif (parameter := layout.parameters(path).get(name)) is not None:
        kinds = parameter.type.alternatives
        yield from (f"{kept}{text}" for kind in kinds if kind.kind == "bool" for text in ("true", "false"))
        compared = layout.compared(path, name) if any(kind.kind in ("str", "list") for kind in kinds) else ()
        yield from (f"{kept}{choice}" for choice in (*parameter.type.choices, *compared))
        yield from [f"{kept}null"] if any(kind.kind == "none" for kind in kinds) else []


class Layout:
    """A configuration as far as completion needs it: the chosen files laid over each other, in about their order."""

    def __init__(self, words: Sequence[str]):
        folders = [Path(word) for flag, word in itertools.pairwise(words) if flag in ("--config-dir", "-cd")]
        self.roots = [*folders, MENU]
        pairs = [word.lstrip("+").partition("=") for word in words if "=" in word]
        self.typed = {key: value for key, _, value in pairs}

    @cached_property
    def menu(self) -> dict[str, list[str]]:
        """Every group with its options."""
        files = [file for root in self.roots for file in root.glob("*/*.yaml")]
        groups = sorted({file.parent.name for file in files})
        return {group: sorted({file.stem for file in files if file.parent.name == group}) for group in groups}

    @cached_property
    def tree(self) -> dict[str, Any]:
        """The keys that the chosen files set, with their values."""
        top = self._read("config")
        usual = {group: str(option) for entry in top.pop("defaults", []) for group, option in _choice(entry)}
        asked = self._brought(f"experiment/{self.typed.get('experiment')}")
        asked |= {group: option for group, option in self.typed.items() if group in self.menu}
        chosen = usual | asked
        for group, option in list(chosen.items()):
            chosen |= self._brought(f"{group}/{option}") | asked
        top.pop("hydra", None)
        for group, option in chosen.items():
            _merge(top, self._laid(f"{group}/{option}"))
        return dict.fromkeys(self.menu) | top

    def node(self, path: str) -> Mapping[str, Any]:
        """The mapping at a dotted key, empty where there is none."""
        node: Any = self.tree
        for part in path.split(".") if path else ():
            node = node.get(part) if isinstance(node, Mapping) else None
        return node if isinstance(node, Mapping) else {}

    def parameters(self, path: str) -> Mapping[str, Any]:
        """The arguments of a node's target, by name; read from the installed source."""
        target = self.node(path).get("_target_")
        if not isinstance(target, str):
            return {}
        from runner.schema import read_signature
        from runner.validate.context import keys_of

        signature = read_signature(target)
        return keys_of(path, signature) if signature else {}

    def compared(self, path: str, name: str) -> Sequence[str]:
        """The texts that the trainer's source compares one of its fields with."""
        target = self.node("trainer").get("_target_")
        if path != "trainer.args" or not isinstance(target, str):
            return ()
        from runner.schema import choices_compared

        return choices_compared(target, name)

    def _brought(self, file: str) -> dict[str, str]:
        """The options of other groups that a file, or one that it builds on, chooses."""
        found: dict[str, str] = {}
        for entry in self._read(file).get("defaults", []):
            if isinstance(entry, str) and entry != "_self_":
                found |= self._brought(f"{file.partition('/')[0]}/{entry.partition('@')[0]}")
            found |= {group[1:]: str(option) for group, option in _choice(entry) if group.startswith("/")}
        return found

    def _laid(self, file: str) -> dict[str, Any]:
        """The keys that a file and those that it builds on set, at their places."""
        laid: dict[str, Any] = {}
        group = file.partition("/")[0]
        own = self._read(file)
        for entry in own.pop("defaults", []):
            if isinstance(entry, str) and entry != "_self_":
                name, _, place = entry.partition("@")
                built = self._read(f"{group}/{name}")
                built.pop("defaults", None)
                _merge(laid, {place: built} if place else self._laid(f"{group}/{name}"))
        _merge(laid, own if self._is_global(file) else {group: own} if own else {})
        return laid

    def _is_global(self, file: str) -> bool:
        path = self._path(file)
        return path is not None and path.read_text(encoding="utf-8").startswith("# @package _global_")

    def _read(self, file: str) -> dict[str, Any]:
        path = self._path(file)
        if path is None:
            return {}
        with contextlib.suppress(ConfigError):
            return read_yaml(path) or {}
        return {}

    def _path(self, file: str) -> Path | None:
        return next((path for root in self.roots if (path := root / f"{file}.yaml").is_file()), None)


def _choice(entry: Any) -> Iterator[tuple[str, Any]]:
    """The group and option of an entry of a defaults list."""
    if isinstance(entry, Mapping):
        yield from ((str(group).removeprefix("override "), option) for group, option in entry.items())


def _merge(into: dict[str, Any], more: Mapping[str, Any]) -> None:
    for key, entry in more.items():
        if isinstance(entry, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], entry)
        else:
            into[key] = dict(entry) if isinstance(entry, Mapping) else entry


def _composes(verb: str) -> bool:
    """True for a verb that takes what a training takes: then it imports what composes that."""
    found = [node for node in _source(verb).body if isinstance(node, ast.ImportFrom)]
    names = {node.module for node in found} | {alias.name for node in found for alias in node.names}
    return verb == "train" or bool({"stages", "runner.command._request"} & names)


def _source(verb: str) -> ast.Module:
    return ast.parse((PACKAGE / "command" / f"{verb}.py").read_text(encoding="utf-8"))


def _own_keys(verb: str) -> list[str]:
    """The keys of a verb, as its help lists them."""
    tree = _source(verb)
    return re.findall(r"^    (\w+)=", ast.get_docstring(tree, clean=False) or "", re.MULTILINE)


def _run_folders(words: Sequence[str], current: str) -> Iterator[str]:
    """Names under the folder of outputs, then the runs of the one that is typed; anything else as a path."""
    typed = [word.partition("=")[2] for word in words if word.startswith("output_root=")]
    root = typed[-1] if typed else "outputs"
    yield from _paths(current if current.startswith((root, ".", "/", "~")) else f"{root}/", folders=True)


def _paths(text: str, folders: bool = False) -> Iterator[str]:
    """The paths that begin so; a folder ends with a slash, one with a run in it does not."""
    head, _, tail = text.rpartition("/")
    place = Path(head or ("/" if text.startswith("/") else ".")).expanduser()
    for path in sorted(place.iterdir()) if place.is_dir() else ():
        if path.name.startswith(tail) and path.name[0] != "." and (path.is_dir() or not folders):
            name = f"{head}/{path.name}" if "/" in text else path.name
            yield name + ("/" if path.is_dir() and not (folders and (path / "config.yaml").is_file()) else "")


if __name__ == "__main__":
    shell, point, text, *breaks = sys.argv[1:]
    print("\n".join(complete(text, int(point), shell, *breaks)))

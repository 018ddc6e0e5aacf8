"""Targets that a configuration may run: the list, and what is offered in the place of one that is not there.

A configuration can come from anybody, so the list grows only by ``allow=[package]`` on the command line. A target is
judged by the name that is written and by the place that defines it, so that no re-export leads outside.
"""

import ast
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from runner.config.dialect import find_meanings
from runner.errors import Fault, fault, is_own
from runner.schema import source
from runner.schema.text import nearest, read_tables, short_text
from runner.validate.context import experimental_names

MAX_LETTERS = 300  # of a target
TABLES = read_tables(__file__)
ALLOWED = [re.sub(r"<(\w+)>", lambda part: TABLES["parts"][part[1]], text) for text in TABLES["allowed"]]
LAUNCHER = r"runner\.launch\.(\w+)\.(?i:\1)"  # the function of its module's name, or the class of a queue


def find_target_fault(path: str, target: object, allow: Collection[str] = ()) -> Fault | None:
    """The fault of a target that is no name, cannot be read, does not exist, or may not run; else None."""
    around, _, key = path.rpartition(".")
    own = around if key.isdigit() else f"{path}._target_"  # of a list nothing else can be typed
    if not isinstance(target, str) or len(target) > MAX_LETTERS:
        return Fault(own, short_text(target), "a dotted name", "=<module.name>")
    if unreadable := _find_unreadable(own, target):
        return unreadable
    package = target.partition(".")[0]
    refused = () if package in source.LIBRARY_PACKAGES else find_meanings(package, target)  # reading tables takes time
    if why := next((each.why for each in refused if each.final), ""):
        return Fault(own, target, why, "trainer=reward")
    found, is_launcher = source.find_definition(target), path == "launcher"
    if isinstance(found, source.Definition):
        outside = [name for name in (target, found.home) if not is_allowed(name, allow, is_launcher)]
        if not outside:
            return None
        package = outside[0].partition(".")[0]
        is_elsewhere = found.home.partition(".")[0] != target.partition(".")[0]
        is_offered = package.isidentifier() and package not in source.NOT_OF_THE_USER
        what = f"{target} may not run" + (f": it is {found.home}" if is_elsewhere else "")
        expected = "what the runner lists of trl, transformers, peft, torch.optim and itself"
        return Fault(own, what, expected, f"allow=[{package}]  (if you trust that package)" if is_offered else "")
    # Targets that may run and look like this one, of its module or of TRL's experimental and the runner's trainers.
    words = target.split(".")
    known = max((n for n in range(len(words)) if source.find_definition(".".join(words[:n]))), default=0)
    owner, name, rest = ".".join(words[:known]), words[known], words[known + 1 :]
    names = [f"{owner}.{each}" for each in source.public_names(owner, name)]
    if words[0] == "trl":
        names += [full for package in experimental_names() for full in package]
        names += [f"runner.ppo.{each}" for each in source.public_names("runner.ppo")]  # which TRL no longer has
    full = {each.rpartition(".")[2]: ".".join([each, *rest]) for each in reversed(names)}
    able = [key for key, path in full.items() if is_allowed(path, allow, is_launcher)]
    near = [full[each] for each in nearest(name, able, 0.75) if source.find_definition(full[each])]
    fix = f"={near[0] if near else '<module.name>'}"
    if found:
        return Fault(own, f"{target} is a module", near[0] if near else "a name in it", fix)
    if source.find_module(package) is None:
        if is_allowed(target):
            return None  # which package that is, the start tells
        beside = nearest(package, [file.stem for file in Path.cwd().glob("*.py")])
        fix = f"={target.replace(package, beside[0], 1)} 'allow=[{beside[0]}]'" if beside else fix
        return Fault(own, f"there is no module {package}", "an installed package, or a module in this folder", fix)
    return Fault(own, f"there is no {target}", near[0] if near else "a name that exists", fix)


def _find_unreadable(own: str, target: str) -> Fault | None:
    home = target.rpartition(".")[0]
    if home.partition(".")[0] in source.LIBRARY_PACKAGES:  # which parse; reading them again takes time
        return None
    module = source.find_module(home) if all(word.isidentifier() for word in home.split(".")) else None
    if module is None or module.file is None:
        return None
    try:
        ast.parse(module.file.read_bytes())
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        return fault("validate.unreadable", target=own, file=module.file, line=line, error=getattr(error, "msg", error))
    node = getattr(source.find_definition(target), "node", None)
    if isinstance(node, ast.Constant | ast.List | ast.Dict | ast.Set | ast.Tuple):
        return Fault(own, f"{target} is {ast.unparse(node)[:40]}", "a function or a class", f"={home}.<function>")
    return None


def is_allowed(target: str, allow: Collection[str] = (), launcher: bool = False) -> bool:
    """True for a dotted name that the list, or what the user allows besides, holds."""
    words = target.split(".")
    if any(word.startswith("__") or not word.isidentifier() for word in words):
        return False
    if any(target == prefix or target.startswith(f"{prefix}.") for prefix in allow):
        return True
    if words[0] == "runner" and any(word.startswith("_") for word in words):
        return False
    return any(re.fullmatch(pattern, target) for pattern in ((*ALLOWED, LAUNCHER) if launcher else ALLOWED))


def find_absent_imports(name: str, place: str = "", seen: set[str] | None = None) -> Iterator[tuple[str, str]]:
    """The place and the name of each module that files of the user's own import with this one, and that is not there.

    Under an ``if`` or a ``try`` it may be meant to be absent; a file that changes ``sys.path`` is believed.
    """
    seen, words = set() if seen is None else seen, name.split(".")
    for part in (".".join(words[:size]) for size in range(1, len(words) + 1)):
        module, is_new = source.find_module(part), part not in seen
        seen.add(part)
        if module is None and is_new and "sys.path" not in seen:
            yield place, part
        if module is None or not any(is_own(each) for each in (module.file, *module.folders) if each):
            return  # of another's package only the first name is known: it may make the others itself
        seen |= {"sys.path"} if "sys.path" in module.text else set()
        for node in module.tree.body if is_new else ():
            imports = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for each in [source.imported_module(node, module)] if isinstance(node, ast.ImportFrom) else imports:
                yield from find_absent_imports(each, f"{module.file}:{node.lineno}", seen)

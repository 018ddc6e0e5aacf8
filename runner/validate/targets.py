"""Targets that a configuration may run: the list, and what is offered in place of a missing one.

A configuration can come from anybody, so the list grows only by ``allow=[package]`` on the command
line. A target is judged by the name that is written and by the place that defines it, so that no
re-export leads outside.
"""

import ast
import re
from collections.abc import Collection
from pathlib import Path

from runner.config.dialect import find_meanings
from runner.errors import Fault
from runner.schema import source
from runner.schema.did_you_mean import best_guess, nearest
from runner.schema.text import short_text

MAX_LETTERS = 300  # of a target
MIN_LIKENESS = 0.75  # of a name that is offered in place of another

# Patterns of names, of which the list below is made.
ANY_SUBMODULE = r"(?:\.\w+)*"
MODEL = r"\w+(?:ForCausalLM|ForSequenceClassification)"
TOKENIZER = r"\w*(?:Tokenizer|TokenizerFast|Processor)"
# Rooms whose public functions are parts of a run.
ROOMS = "collator|dataset|loss|metric|model|optimizer|ppo|reward"
# Targets that may run without ``allow``, as patterns of their whole names.
ALLOWED = [
    rf"trl{ANY_SUBMODULE}\.\w+(?:Trainer|Config|Callback)",
    rf"trl{ANY_SUBMODULE}\.DataCollator\w+",
    r"trl\.rewards(?:\.\w+)?\.\w+",
    rf"transformers{ANY_SUBMODULE}\.(?:\w+(?:Callback|Config)|{MODEL}|{TOKENIZER})",
    rf"transformers{ANY_SUBMODULE}\.(?:DataCollator\w+|Adafactor|get_\w*schedule\w*)",
    rf"transformers{ANY_SUBMODULE}\.(?:Auto\w+|_BaseAuto\w+|\w+Config|{MODEL}|{TOKENIZER})"
    r"\.from_(?:pretrained|config)",
    r"transformers\.\w+\.(?:PreTrainedModel|PreTrainedTokenizerBase|ProcessorMixin)"
    r"\.from_pretrained",
    rf"peft{ANY_SUBMODULE}\.\w+Config",
    rf"torch\.optim{ANY_SUBMODULE}\.[A-Z]\w*",
    rf"torch\.nn{ANY_SUBMODULE}\.\w+Loss",
    rf"(?:bitsandbytes\.optim|galore_torch|apollo_torch|adam_mini){ANY_SUBMODULE}\.[A-Z]\w*",
    rf"accelerate{ANY_SUBMODULE}\.ParallelismConfig",
    rf"runner\.(?:{ROOMS}){ANY_SUBMODULE}\.(?!(?:write|save|copy|remove|push)_|main$)\w+",
    r"runner\.generate\.environment\.\w+\.[A-Za-z]\w+",
    # The other callbacks are the runner's own, and write to paths that they are given.
    r"runner\.training\.callback(?:\.anomaly)?\.Anomaly",
    r"runner\.training\.callback(?:\.samples)?\.Samples",
]
# A launcher: the function of its module's name, or the class of a queue.
LAUNCHER = r"runner\.launch\.(\w+)\.(?i:\1)"


def find_target_fault(path: str, target: object, allow: Collection[str] = ()) -> Fault | None:
    """The fault of a target that is no name, cannot be read, does not exist, or may not run."""
    owner, _, last = path.rpartition(".")
    where = owner if last.isdigit() else f"{path}._target_"  # a list is typed as a whole
    if not isinstance(target, str) or len(target) > MAX_LETTERS:
        return Fault(
            where=where,
            found=short_text(target),
            expected="a dotted name",
            fix="=<module.name>",
        )
    unreadable = _find_unreadable(where, target)
    if unreadable:
        return unreadable
    package = target.partition(".")[0]
    if package not in source.LIBRARY_PACKAGES:  # for these the tables need not be read
        for meaning in find_meanings(package, target):
            if meaning.final and meaning.why:
                return Fault(
                    where=where,
                    found=target,
                    expected=meaning.why,
                    fix="trainer=reward",
                )
    definition = source.find_definition(target)
    is_launcher = path == "launcher"
    if isinstance(definition, source.Definition):
        return _find_forbidden(where, target, definition, allow, is_launcher)
    similar = _find_similar(target, allow, is_launcher)
    if definition is not None:
        expected = similar or "a name in it"
        return Fault(
            where=where,
            found=f"{target} is a module",
            expected=expected,
            fix=f"={similar or '<module.name>'}",
        )
    if source.find_module(package) is None:
        return _find_missing_package(where, target, similar)
    expected = similar or "a name that exists"
    return Fault(
        where=where,
        found=f"there is no {target}",
        expected=expected,
        fix=f"={similar or '<module.name>'}",
    )


def _find_forbidden(
    where: str,
    target: str,
    definition: source.Definition,
    allow: Collection[str],
    is_launcher: bool,
) -> Fault | None:
    """The fault of a target that exists and may not run."""
    for name in (target, definition.home):
        if not is_allowed(name, allow, is_launcher):
            package = name.partition(".")[0]
            break
    else:
        return None
    found = f"{target} may not run"
    if definition.home.partition(".")[0] != target.partition(".")[0]:
        found += f": it is {definition.home}"
    fix = ""
    if package.isidentifier() and package not in source.NOT_OF_THE_USER:
        fix = f"allow=[{package}]  (if you trust that package)"
    return Fault(
        where=where,
        found=found,
        expected="what the runner lists of trl, transformers, peft, torch.optim and itself",
        fix=fix,
    )


def _find_similar(target: str, allow: Collection[str], is_launcher: bool) -> str:
    """A target that may run and looks like one that does not exist; empty without one.

    It is sought in the module that the target names, and for one of TRL among its experimental
    packages and the runner's own trainers, too, which TRL no longer has.
    """
    words = target.split(".")
    depth = 0  # of the words, so many lead to something
    for size in range(1, len(words)):
        if source.find_definition(".".join(words[:size])):
            depth = size
    owner = ".".join(words[:depth])
    name = words[depth]
    candidates = [f"{owner}.{public}" for public in source.public_names(owner, name)]
    if words[0] == "trl":
        for names in source.names_by_subpackage("trl.experimental"):
            candidates += names
        candidates += [f"runner.ppo.{public}" for public in source.public_names("runner.ppo")]
    full_names: dict[str, str] = {}  # by the last word; of two, the first one counts
    for candidate in candidates:
        full = ".".join([candidate, *words[depth + 1 :]])
        full_names.setdefault(candidate.rpartition(".")[2], full)
    able = [last for last, full in full_names.items() if is_allowed(full, allow, is_launcher)]
    for last in nearest(name, able, MIN_LIKENESS):
        if source.find_definition(full_names[last]):
            return full_names[last]
    return ""


def _find_missing_package(where: str, target: str, similar: str) -> Fault | None:
    """The fault of a package that is not installed, unless the start tells which one is needed."""
    if is_allowed(target):
        return None
    package = target.partition(".")[0]
    fix = f"={similar or '<module.name>'}"
    modules = [file.stem for file in Path.cwd().glob("*.py")]
    beside = best_guess(package, modules)
    if beside:
        fix = f"={target.replace(package, beside, 1)} 'allow=[{beside}]'"
    return Fault(
        where=where,
        found=f"there is no module {package}",
        expected="an installed package, or a module in this folder",
        fix=fix,
    )


def _find_unreadable(where: str, target: str) -> Fault | None:
    """The fault of a target in a module that is not Python, or that is a constant."""
    home = target.rpartition(".")[0]
    if home.partition(".")[0] in source.LIBRARY_PACKAGES:
        return None  # these can be read, and reading them again takes time
    is_dotted_name = all(word.isidentifier() for word in home.split("."))
    module = source.find_module(home) if is_dotted_name else None
    if module is None or module.file is None:
        return None
    try:
        ast.parse(module.file.read_bytes())
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        reason = getattr(error, "msg", error)
        return Fault(
            where=where,
            found=f"{module.file}:{line}: {reason}",
            expected="a module that Python can read",
            fix=f"mend line {line} of {module.file.name}",
        )
    node = getattr(source.find_definition(target), "node", None)
    if isinstance(node, ast.Constant | ast.List | ast.Dict | ast.Set | ast.Tuple):
        return Fault(
            where=where,
            found=f"{target} is {ast.unparse(node)[:40]}",
            expected="a function or a class",
            fix=f"={home}.<function>",
        )
    return None


def is_allowed(target: str, allow: Collection[str] = (), launcher: bool = False) -> bool:
    """True for a dotted name that the list, or what the user allows besides, holds."""
    words = target.split(".")
    for word in words:
        if word.startswith("__") or not word.isidentifier():
            return False
    for prefix in allow:
        if target == prefix or target.startswith(f"{prefix}."):
            return True
    if words[0] == "runner" and any(word.startswith("_") for word in words):
        return False
    patterns = [*ALLOWED, LAUNCHER] if launcher else ALLOWED
    return any(re.fullmatch(pattern, target) for pattern in patterns)

"""One node with a ``_target_``: that it may run, and its keys against what the target takes."""

import ast
from collections.abc import Iterator
from typing import Any

from runner.check.allow import LIBRARIES, find_target_fault
from runner.check.known import FROM_GROUP, OWN, Asked, Node, judges, keys_of, special_keys
from runner.check.place import find_unknown
from runner.check.value import misfit, shown
from runner.errors import Fault
from runner.signature import Parameter, Signature, choices_compared, find_definition, find_module

# What the train command gives to a part whose signature names it, so that no config needs to.
SERVED = {
    "trainer": {
        *FROM_GROUP,
        *("tokenizer", "ref_model", "teacher_model", "reward_model", "compute_metrics"),
        "reward_processing_classes",
    },
    "model": {"tokenizer", "head", "quantization_config"},
    "dataset": {"to", "keep", "seed"},
    "peft": {"model", "task_type"},
    "collator": {"tokenizer", "processing_class", "pad_token_id", "inner"},
    "optimizer": {"params", "model"},
    "optimizer.scheduler": {"optimizer", "num_training_steps"},
    "callback": {
        *("tokenizer", "processing_class", "folder", "train_dataset", "eval_dataset", "trainer"),
        *("generate", "prompts"),
    },
    "launcher": {"folder", "debug"},
}
NEEDED = {"trainer": ("form", "head", "args"), "model": ("tokenizer",)}
# Arguments of functions that are called with rows and what was made of them.
LATER = {"completions", "messages", "row"}
# Keys that hold a node themselves, so that what they misspell can be seen.
NODES = ("trainer.args", "trainer.teacher_model", "model.tokenizer")
# Fields that the runner sets whatever the config says; to set them would be in vain.
OURS = {
    "output_dir": ("nothing: the run folder is the runner's", "output_root=<folder>"),
    "resume_from_checkpoint": (
        "nothing: the same command resumes",
        "resume=<the run folder>, to go on from another run",
    ),
    "save_only_model": ("nothing: a run must be able to resume", "leave it out"),
    "seed": ("nothing: the runner's own seed goes everywhere", "seed=<number>"),
    "disable_tqdm": ("nothing: the progress bar is the runner's", "leave it out"),
}


def find_node_faults(asked: Asked, path: str, node: Node) -> Iterator[Fault]:
    """A fault for the target, or for each key that is unknown, in vain, missing or does not fit."""
    if fault := _no_python(path, node["_target_"]) or find_target_fault(path, node["_target_"], asked.allow):
        yield fault
        return
    signature = asked.signature(node)
    known = keys_of(path, signature) | special_keys()
    for key, value in node.items():
        if key not in known:
            yield from find_unknown(asked, path, node, str(key), signature)
        elif value != "???":
            own = f"{path}.{key}"
            found = _value(asked, own, value, known[key], signature)
            yield from found or _in_vain(asked, own, value, known[key].default)
    yield from _missing(path, node, signature)
    if path == "trainer":
        yield from _args_of_another(asked, node, signature)


def _no_python(path: str, target: Any) -> Fault | None:
    """The fault of a target in a file of the user's that does not parse, or that is a plain value."""
    home = target.rpartition(".")[0] if isinstance(target, str) else ""
    if home.partition(".")[0] in LIBRARIES:  # which parse; reading them again takes time
        return None
    module = find_module(home) if all(word.isidentifier() for word in home.split(".")) else None
    where = f"{path}._target_"
    try:
        ast.parse(module.text if module else "")
    except SyntaxError as error:
        cure = f"mend line {error.lineno} of {module.file.name}"
        return Fault(where, f"{module.file}:{error.lineno}: {error.msg}", "a module that Python can read", cure)
    found = find_definition(target) if module else None
    if isinstance(getattr(found, "node", None), ast.Constant | ast.List | ast.Dict | ast.Set | ast.Tuple):
        text = ast.unparse(found.node)[:40]
        return Fault(where, f"{target} is {text}", "a function or a class", f"{where}={home}.<function>")
    return None


def _in_vain(asked: Asked, path: str, value: Any, default: Any) -> list[Fault]:
    """A fault where the runner would replace a value by another one."""
    node, _, key = path.rpartition(".")
    if node == "trainer.args" and key in OURS and value not in (None, asked.cfg.get(key, default)):
        return [Fault(path, shown(value), *OURS[key])]
    group = FROM_GROUP.get(key) if node == "trainer" and value is not None else None
    if group in asked.groups:
        options = asked.options(group)
        cure = f"{group}={options[0]}" if options else f"{group}._target_=<module.name>"
        return [Fault(path, "a part that the runner serves", f"the group {group}", cure)]
    return []


def _value(asked: Asked, path: str, value: Any, parameter: Parameter, signature: Signature) -> list[Fault]:
    is_node = isinstance(value, dict) and "_target_" in value
    if path in NODES and value is not None and not is_node:
        cure = f"{path}._target_=<module.name>"
        return [Fault(path, shown(value), "keys with a _target_", cure)]
    choices = _choices(asked, path, value, parameter, signature)
    return misfit(asked.origin(path, value), value, parameter, signature, choices)


def _choices(asked: Asked, path: str, value: Any, parameter: Parameter, signature: Signature) -> tuple[str, ...]:
    """The texts that the trainer's source knows for a field, if its default is one of them."""
    trainer = asked.signature(asked.cfg.get("trainer"))
    texts = value if isinstance(value, list) else [value]
    is_text = any(isinstance(text, str) for text in texts)
    if not trainer or not is_text or not path.startswith("trainer.args."):
        return ()
    found = choices_compared(trainer.target, parameter.name)
    if not found or (isinstance(parameter.default, str) and parameter.default not in found):
        return ()
    return tuple(dict.fromkeys([*found, *choices_compared(signature.target, parameter.name, 1)]))


def _missing(path: str, node: Node, signature: Signature) -> Iterator[Fault]:
    """A fault for each argument that nobody gives. What is called later may wait for its rows."""
    group = path.partition(".")[0]
    inside = "model" if group in ("trainer", "model") else ""
    inside = group if group == "callback" and path.count(".") < 2 else inside
    served = SERVED.get(path if path in SERVED else inside, set())
    later = node.get("_partial_") is True or judges(path, signature) or bool(LATER & set(signature.parameters))
    later = later or (path == "loss" and not signature.lineage)  # what a loss is given, the trainer decides
    for name in () if later else signature.required:
        if name not in node and name not in served:
            kind = str(signature.parameters[name].type)
            if group in ("reward", "metric"):
                kind += ", or an argument called completions, by which it is asked to judge"
            yield _missing_key(f"{path}.{name}", signature.name, kind)
    for name in NEEDED.get(path, ()):
        if node.get(name) is None:
            kind = keys_of(path, signature)[name].type if name in OWN[path] else "keys"
            yield _missing_key(f"{path}.{name}", "the runner", str(kind))


def _missing_key(path: str, who: str, kind: str) -> Fault:
    return Fault(path, f"missing, and {who} needs it", kind, f"{path}=<value>")


def _args_of_another(asked: Asked, node: Node, trainer: Signature) -> Iterator[Fault]:
    """A fault where the args are the config of another trainer."""
    signature, parameter = asked.signature(node.get("args")), trainer.parameters.get("args")
    wanted = sorted(name for name in parameter.names if name.endswith("Config")) if parameter else []
    if signature and wanted and not set(wanted) & set(signature.lineage):
        package = trainer.target.rpartition(".")[0]
        yield Fault(
            "trainer.args._target_",
            signature.name,
            f"{' or '.join(wanted)}, which {trainer.name} takes",
            f"trainer.args._target_={package}.{wanted[0]}",
        )

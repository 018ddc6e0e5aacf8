"""The top level: its settings, and that each group holds parts."""

import re
from collections.abc import Iterator
from typing import Any

from runner.check.known import ALARMS, TOP, Asked
from runner.check.place import find_unknown_top
from runner.check.value import SETTINGS, misfit_choice, misfit_number, misfit_type, nearest, shown, typed
from runner.errors import Fault
from runner.signature import to_text
from runner.signature.type import expression, shortened, to_type

NEEDED = ("trainer", "model", "dataset")
READ = ("tracker", "launcher")  # where the key is there, there must be something in it
NAMED = ("reward", "weight", "metric", "callback")  # groups of parts that each have a name
# Groups that are read as they are, without anything to build.
PLAIN = {
    "tracker": {
        "report_to": "str | list[str]",
        "environment": "dict[str, str] | None",
        "tags": "list[str] | None",
    },
    # Silent faults of what is trained that a run may start with all the same, which are found in ``inspection``; and
    # the alarms of ``health``, switched off or with the steps in a row that they may last.
    "tolerate": {
        "truncated": "float",  # the share of rows that may be cut or left out
        **dict.fromkeys(("nothing_trained", "no_end", "doubled_bos", "other_template"), "bool"),
        **dict.fromkeys(ALARMS, "bool | int"),
        "random_head": "bool",  # of a reward model that was trained to do something else
        "beyond_positions": "bool",  # rows longer than the model's positions
        "versions": "bool",  # libraries that were not tried
    },
}


# The names that transformers knows trackers by.
LONGEST_PATH = 3500  # bytes; systems allow 4096, and a run's folders and files come on top
TRACKERS = ("none", "all", "tensorboard", "wandb", "trackio", "mlflow", "comet_ml", "clearml", "codecarbon", "dagshub")
TRACKERS += ("dvclive", "flyte", "kubeflow", "neptune", "swanlab", "azure_ml")


def find_top_faults(asked: Asked) -> Iterator[Fault]:
    """A fault for each key of the top level that is strange, missing, or holds the wrong thing."""
    for key, value in asked.cfg.items():
        if key in PLAIN and isinstance(value, dict):
            yield from _plain(key, value)
        elif key in TOP:
            yield from _setting(asked, key, value)
        elif key in asked.groups:
            yield from _group(asked, key, value)
        else:
            yield find_unknown_top(asked, str(key), value)
    for group in (*NEEDED, *(group for group in READ if group in asked.cfg)):
        if asked.cfg.get(group) in (None, {}):
            yield _nothing_chosen(asked, group, "nothing chosen")


def _setting(asked: Asked, key: str, value: Any) -> Iterator[Fault]:
    known = to_type(expression(TOP[key]), None)
    if value == "???":
        return
    if not known.accepts(value) or isinstance(value, dict):
        yield misfit_type(key, value, known)
    elif fault := misfit_number(key, value, SETTINGS.get(key)):
        yield fault
    elif key == "name" and value is not None and not is_folder_name(value):
        yield Fault(key, shown(value), "a plain folder name, up to 100 letters", "name=<word>")
    elif value == "":
        yield Fault(key, "nothing", "a folder", f"{key}=outputs")
    elif key == "output_root" and not _is_path(value):
        found = f"{shown(value)}: a path of {len(value.encode(errors='surrogateescape'))} bytes"
        yield Fault(key, found, f"at most {LONGEST_PATH}, and 255 in each folder's name", f"{key}=outputs")
    elif key == "allow" and (strange := sorted(set(value or ()) - set(asked.allow))):
        text = to_text(strange)
        yield Fault(key, f"{text} in a file", "allow on the command line only", f"allow={text}")


def is_folder_name(name: str) -> bool:
    """Whether a name is one part of a path on every system, and no hidden one."""
    size = len(name.encode(errors="surrogateescape"))
    return 0 < len(name) <= 100 and size <= 255 and name[0] not in ".-" and not re.search(r"[/\\\x00-\x1f\x7f]", name)


def _is_path(path: str) -> bool:
    parts = [part.encode(errors="surrogateescape") for part in path.split("/")]
    return sum(map(len, parts)) + len(parts) <= LONGEST_PATH and max(map(len, parts)) <= 255 and "\0" not in path


def _plain(group: str, node: dict[str, Any]) -> Iterator[Fault]:
    kinds = PLAIN[group]
    for key, value in node.items():
        path = f"{group}.{key}"
        if key not in kinds:
            near = [*nearest(str(key), kinds), *kinds][0]
            yield Fault(path, "no such key", near, typed(f"{group}.{near}", value))
        elif not (known := to_type(expression(kinds[key]), None)).accepts(value):
            yield misfit_type(path, value, known)
        elif (fault := misfit_number(path, value, SETTINGS.get(path))) or (
            path == "tracker.report_to" and (fault := misfit_choice(path, value, TRACKERS))
        ):
            yield fault


def _group(asked: Asked, group: str, node: Any) -> Iterator[Fault]:
    parts = {} if node in (None, {}) else {group: node}
    if group in NAMED and isinstance(node, dict) and "_target_" not in node:
        parts = {f"{group}.{name}": part for name, part in node.items() if part is not None}
    for path, part in parts.items():
        if not isinstance(part, dict) and path == group:
            yield _nothing_chosen(asked, group, shown(part))
        elif not isinstance(part, dict):
            yield Fault(path, shown(part), "keys with a _target_", f"{path}._target_=<module.name>")
        elif "_target_" not in part:
            found = f"no _target_ beside {shortened(list(map(str, part)), 40)}"
            example = f"{path}._target_=<module.name>"
            yield Fault(path, found, "what to build from these keys", example)


def _nothing_chosen(asked: Asked, group: str, found: str) -> Fault:
    options = asked.menu.get(group, [])
    near = [*nearest(found, options), *asked.options(group), "<option>"][0]
    expected = f"one of {shortened(options)}" if options else "keys with a _target_"
    return Fault(group, found, expected, f"{group}={near}")

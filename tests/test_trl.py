"""TRL exports against the menu: a trainer, a callback or a field of the next TRL without a place is a failure."""

import dataclasses
import importlib
import inspect
import os
import pkgutil
import re
from pathlib import Path

import pytest
import trl
from needs import TRAINERS, needed
from transformers import TrainerCallback, TrainingArguments

from runner.config import compose
from runner.config.menu import read_options
from runner.io.files import MENU
from runner.schema.read import read_signature

FOLDER = Path(trl.__file__).parent / "experimental"
MODULES = ["trl", *(f"trl.experimental.{module.name}" for module in pkgutil.iter_modules([str(FOLDER)]))]


def exported(*kinds):
    """The classes that TRL exports of a kind, by the name under which a configuration would name them."""
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    found = {}
    for module in map(importlib.import_module, MODULES):
        for name in dir(module):
            part = getattr(module, name)
            if inspect.isclass(part) and issubclass(part, kinds) and part.__module__.startswith("trl."):
                found[f"{module.__name__}.{name}"] = part
    return {name: part for name, part in found.items() if not name.rpartition(".")[2].startswith("_")}


def table():
    """What the table says of each name of TRL's."""
    text = (MENU / "README.md").read_text().partition("## TRL 1.16")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\S.*?) \| (.*?) \|$", text, re.MULTILINE)
    return {f"trl.{name}": says for names, says in rows for name in names.split(", ")}


def targets(group):
    """The option of each target that a group names."""
    options = read_options(group)
    nodes = {name: option.get(group) or option for name, option in options.items()}
    found = {name: node.get("_target_") or (node.get(name) or {}).get("_target_") for name, node in nodes.items()}
    return {target: name for name, target in found.items()}


@pytest.mark.parametrize(("group", "kind"), [("trainer", trl.SFTTrainer.__mro__[2]), ("callback", TrainerCallback)])
def test_whatever_trl_exports_has_an_option_or_a_reason(group, kind):
    says, known = table(), targets(group)
    names = [name for name, part in exported(kind).items() if name.endswith(group.capitalize())]
    assert len(names) > 6
    for name in names:
        assert name in says, f"{name} is new: an option of conf/{group}, and a line in conf/README.md"
        if name in known:
            assert f"`{group}={known[name]}`" in says[name]
        else:
            assert says[name].startswith(("no:", "old names"))


def test_every_field_of_every_config_can_be_set():
    configs = exported(TrainingArguments)
    assert len(configs) > 18
    for name, config in configs.items():
        fields = {field.name for field in dataclasses.fields(config) if field.init}
        assert fields <= set(read_signature(name).parameters), name


@pytest.mark.parametrize("option", sorted(TRAINERS))
def test_a_trainer_composes_with_what_it_must_be_given(option):
    assert compose([f"trainer={option}", *needed(option)]).cfg["trainer"]["args"]["_target_"].endswith("Config")

"""The names of TRL and transformers that we rely on stand in one module, and are still those of the installed ones."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
import yaml

from runner.io.files import MENU
from runner.schema import public_names, read_signature, upstream
from runner.validate.context import ValidationContext

PACKAGE = Path(upstream.__file__).parent.parent
CONFIGS = {
    "max_completion_length": ("trl.GRPOConfig", "trl.RLOOConfig"),
    "response_length": ("runner.ppo.PPOConfig",),  # as in TRL 1.12, whose PPO this one replaces
    "max_new_tokens": ("trl.experimental.online_dpo.OnlineDPOConfig", "trl.experimental.gkd.GKDConfig"),
}
# Words that upstream has as names of arguments, and that mean something of our own wherever they are not in a field.
WORDS = {
    *("args", "beta", "debug", "dtype", "eos_token", "epsilon", "eval_dataset", "learning_rate", "max_length", "model"),
    *("max_new_tokens", "pad_token", "peft_config", "quantization_config", "report_to", "seed", "temperature", "tools"),
    *("resume_from_checkpoint", "top_k", "top_p", "trust_remote_code", "vllm_server_base_url"),
}


@cache
def fields() -> set[str]:
    """The fields of all configs of TRL's trainers."""
    return {name for config in ValidationContext({}).others.values() for name in config.parameters}


@cache
def constructor_arguments() -> set[str]:
    trainers = ["transformers.Trainer", *(f"trl.{name}" for name in public_names("trl") if name.endswith("Trainer"))]
    return {name for trainer in trainers for name in read_signature(trainer).parameters}


def listed() -> set[str]:
    """The names in the tables of the module, whatever these say of them."""
    tree = ast.parse(Path(upstream.__file__).read_text(encoding="utf-8"))
    tables = [node for node in tree.body if isinstance(node, ast.Assign)]
    constants = (node.value for table in tables for node in ast.walk(table) if isinstance(node, ast.Constant))
    return {value for value in constants if isinstance(value, str)}


def texts() -> list[tuple[str, str]]:
    """Each text in our Python, without the key in front of a field, with its file and line; not those of importers."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if path == Path(upstream.__file__) or "importers" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                place = f"{path.relative_to(PACKAGE)}:{node.lineno}"
                found.append((node.value.removeprefix("trainer.args."), place))
    return found


@pytest.mark.parametrize("name", upstream.COMPLETION_LENGTHS)
def test_a_trainer_still_calls_the_length_of_completions_so(name):
    for config in CONFIGS[name]:
        assert name in read_signature(config).parameters, f"{config} has renamed {name}: see schema.upstream"


def test_no_trainer_of_the_menu_that_samples_has_another_name_for_it():
    """A new name would leave the length unknown, and an alarm and a table without a word of it."""
    for path in sorted((MENU / "trainer").glob("*.yaml")):
        node = yaml.safe_load(path.read_text(encoding="utf-8"))["trainer"]
        trainer, config = (read_signature(one["_target_"]).parameters for one in (node, node["args"]))
        if "reward_funcs" in trainer:
            assert set(upstream.COMPLETION_LENGTHS) & set(config), path.name


def test_every_name_is_one_of_the_installed_libraries():
    common = set(read_signature("transformers.TrainingArguments").parameters)
    numeric = {name for names in upstream.NUMERIC_FIELDS.values() for name in names}
    own = set(read_signature("runner.ppo.PPOConfig").parameters)
    gone = {*upstream.FIELDS} - common, {*upstream.FIELDS_OF_SOME} - fields(), numeric - fields() - own
    assert gone == (set(), set(), set()), "renamed: look for each in runner/, and in conf/"
    assert {*upstream.CONSTRUCTOR_ARGUMENTS} - constructor_arguments() == set()


def test_a_name_of_upstream_that_our_python_holds_is_listed():
    """So that the test above notices where it is renamed, wherever it stands."""
    known = (fields() | constructor_arguments()) - listed() - WORDS
    assert [f"{place} {text}" for text, place in texts() if text in known] == [], "list it in schema.upstream"


def test_names_of_upstream_elsewhere_become_fewer():
    """Each is written once, in the end: in schema.upstream, as what it means to us; the bound is only ever lowered."""
    found = [f"{place} {text}" for text, place in texts() if text in (fields() | constructor_arguments()) - WORDS]
    print(f"names of upstream outside of schema.upstream: {len(found)} (at most 360, to become 0)")
    assert len(found) <= 360, "\n".join(found)


def test_nothing_asks_for_the_class_name_of_a_trainer():
    classes = [
        place for text, place in texts() if re.fullmatch(r"[\w.]*[A-Za-z]Trainer", text) and text != "PPOTrainer"
    ]
    assert classes == []

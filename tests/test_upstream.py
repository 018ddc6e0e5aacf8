"""All names of TRL and transformers that we rely on stand in one module and still exist."""

import ast
import itertools
import re
from functools import cache
from pathlib import Path
from typing import get_args

import pytest
import yaml

from runner.io.files import MENU
from runner.schema import library_ranges, upstream
from runner.schema.read import read_signature
from runner.schema.source import public_names
from runner.schema.trainer_args import ConstructorArgument, TrainerArgs
from runner.schema.upstream.trackers import REPORT_TO
from runner.validate.context import ValidationContext

UPSTREAM = Path(upstream.__file__).parent
PACKAGE = UPSTREAM.parent.parent
NAMES = {*TrainerArgs.__annotations__, *get_args(ConstructorArgument)} - {"_target_"}
CONFIGS = {
    "max_completion_length": ("trl.GRPOConfig", "trl.RLOOConfig"),
    "response_length": ("runner.ppo.PPOConfig",),  # as in TRL 1.12, whose PPO this one replaces
    "max_new_tokens": (
        "trl.experimental.online_dpo.OnlineDPOConfig",
        "trl.experimental.gkd.GKDConfig",
    ),
}
# Words that are also names of upstream's arguments, but have a meaning of our own wherever they
# are not in a field.
WORDS = {
    *(
        "args",
        "beta",
        "debug",
        "dtype",
        "eos_token",
        "epsilon",
        "eval_dataset",
        "learning_rate",
        "max_length",
        "model",
    ),
    *(
        "max_new_tokens",
        "pad_token",
        "peft_config",
        "quantization_config",
        "report_to",
        "seed",
        "temperature",
        "tools",
    ),
    *(
        "resume_from_checkpoint",
        "top_k",
        "top_p",
        "min_p",
        "repetition_penalty",
        "trust_remote_code",
        "vllm_server_base_url",
    ),
    # Of status.json, of a row, of pyproject.toml, of peft, of torch, of a model's config.
    *("max_steps", "chat_template_kwargs", "project", "alpha", "weight_decay", "use_cache"),
}


@cache
def fields() -> set[str]:
    """The fields of all configs of TRL's trainers."""
    configs = ValidationContext({}).trainer_configs.values()
    return set().union(*(config.parameters for config in configs))


@cache
def constructor_arguments() -> set[str]:
    trainers = [
        "transformers.Trainer",
        *(f"trl.{name}" for name in public_names("trl") if name.endswith("Trainer")),
    ]
    return set().union(*(read_signature(trainer).parameters for trainer in trainers))


def texts() -> list[tuple[str, str]]:
    """Each text in our Python with its file and line, without docstrings and the texts of
    importers.
    """
    literals = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if (
            path.parent == UPSTREAM
            or path == Path(library_ranges.__file__)
            or "importers" in path.parts
        ):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
        docstrings = [
            ast.get_docstring(node, clean=False)
            for node in ast.walk(tree)
            if isinstance(node, documented)
        ]
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and node.value not in docstrings
            ):
                place = f"{path.relative_to(PACKAGE)}:{node.lineno}"
                literals.append((node.value, place))
    return literals


@pytest.mark.parametrize("name", upstream.COMPLETION_LENGTHS)
def test_a_trainer_still_calls_the_length_of_completions_so(name):
    for config in CONFIGS[name]:
        assert name in read_signature(config).parameters, (
            f"{config} has renamed {name}: see schema.upstream"
        )


def test_no_trainer_of_the_menu_that_samples_has_another_name_for_it():
    """With a new name, the length would be unknown, and an alarm and a table would silently be
    lost.
    """
    for path in sorted((MENU / "trainer").glob("*.yaml")):
        node = yaml.safe_load(path.read_text(encoding="utf-8"))["trainer"]
        trainer, config = (
            read_signature(mapping["_target_"]).parameters for mapping in (node, node["args"])
        )
        if "reward_funcs" in trainer:
            assert set(upstream.COMPLETION_LENGTHS) & set(config), path.name


def test_every_name_exists_in_the_installed_libraries():
    numeric = {*library_ranges.TRAINER}
    tables = {
        *upstream.EXTENDABLE,
        *upstream.MACHINE_DEFAULTS,
        *upstream.OWN_LOSS,
        *upstream.OWN_POLICY_LOSS,
        *upstream.UNWEIGHABLE,
    }
    tables |= {
        *upstream.ELSEWHERE,
        *upstream.ON_A_GPU,
        *upstream.WITHOUT_NOTE,
        *upstream.BESIDE_ROWS,
    }
    tables |= upstream.OF_LOG_PROBS
    ppo_fields = set(read_signature("runner.ppo.PPOConfig").parameters)  # kl_coef, response_length
    assert {*numeric, *tables, *NAMES} - fields() - constructor_arguments() - ppo_fields == set(), (
        "renamed"
    )
    trainer = set(read_signature("runner.ppo.PPOTrainer").parameters)  # policy_loss
    assert {*upstream.FROM_GROUP} - constructor_arguments() - trainer == set(), "renamed"
    assert {*upstream.FROM_TOP} - fields() - ppo_fields == set(), "renamed"


def test_each_declared_name_is_used():
    used = set()
    for path in PACKAGE.rglob("*.py"):
        if path.name != "trainer_args.py":  # which declares them
            used |= set(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    assert NAMES - used == set()


def test_the_trackers_are_those_of_transformers():
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    assert {*REPORT_TO} == {"none", "all", *INTEGRATION_TO_CALLBACK}


@pytest.mark.slow
def test_each_name_of_upstream_in_our_python_is_declared():
    """This lets the test above notice a renamed one."""
    undeclared = (fields() | constructor_arguments()) - WORDS - NAMES
    assert [f"{place} {text}" for text, place in texts() if text in undeclared] == [], (
        "goes in schema.trainer_args"
    )


def fields_in(text: str) -> list[tuple[str, int]]:
    """The fields of trainer arguments named in a source, with their lines.

    Read, typed, or a target.
    """
    named = re.finditer(r"(?:\btrainer\.args\.|\{ARGS\}|\bargs\.)([a-z]\w+)\b(?!\w*[(\\])", text)
    return [(match[1], text[: match.start()].count("\n") + 1) for match in named]


@pytest.mark.slow
def test_every_field_that_is_read_or_recommended_exists():
    """A renamed attribute, message, option of ``conf`` or target of an importer is listed here."""
    from transformers import TrainingArguments

    from runner.ppo import PPOConfig

    known_fields = {
        "get",
        "py",
        "yaml",
        "lo",
        *dir(TrainingArguments),
        *dir(PPOConfig),
        *read_signature("runner.ppo.PPOConfig").parameters,
        *fields(),
    }
    sources = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.yaml"), *MENU.rglob("*.yaml")]
    named = []
    for path in sources:
        named += [(path, *field) for field in fields_in(path.read_text(encoding="utf-8"))]
    assert len(named) > 300
    listed = [
        f"{path.relative_to(PACKAGE.parent)}:{line} {name}"
        for path, name, line in named
        if name not in known_fields
    ]
    assert listed == [], "renamed"


def test_the_arguments_in_the_menu_are_fields():
    ours = {"_target_", *read_signature("runner.ppo.PPOConfig").parameters}
    unknown = []
    for path in sorted(MENU.rglob("*.yaml")):
        node = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        args = (node.get("trainer") or {}).get("args") or {}
        unknown += [
            f"conf/{path.relative_to(MENU)} {name}" for name in args if name not in fields() | ours
        ]
    assert unknown == [], "renamed"


@pytest.mark.slow
def test_nothing_knows_a_trainer_by_its_name():
    """So a new trainer of TRL is a file in ``conf/trainer/`` and no Python."""
    pairs = itertools.product(ValidationContext({}).trainer_configs, ("", "Config", "Trainer"))
    names = {f"{name}{kind}" for name, kind in pairs}
    places = [place for text, place in texts() if text.rpartition(".")[2] in names]
    places += [
        place
        for text, place in texts()
        if re.fullmatch(r"[\w.]*[A-Za-z]Trainer", text) and text != "PPOTrainer"
    ]
    assert places == []

"""A file -> its keys and whose dialect it is: YAML, JSON, or a shell script with one training command.

What the keys mean is in the dialects.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from runner.bound import DIGITS, check_size, parse_yaml
from runner.errors import ConfigError, Fault

DIALECTS = {
    "axolotl": "Axolotl",
    "llama_factory": "LLaMA-Factory",
    "swift": "ms-swift",
    "trl": "TRL CLI",
}
# Keys that one of them has and the others do not.
MARKS = {
    "axolotl": """base_model micro_batch_size num_epochs sequence_len sample_packing val_set_size adapter rl_beta
        lora_target_linear train_on_inputs dataset_prepared_path saves_per_epoch evals_per_epoch flash_attention
        pad_to_sequence_len lr_scheduler optimizer special_tokens wandb_project load_in_8bit test_datasets rl""",
    "llama_factory": """stage finetuning_type cutoff_len dataset_dir do_train lora_target template pref_beta pref_loss
        quantization_bit val_size max_samples preprocessing_num_workers overwrite_cache plot_loss lora_rank eval_dataset
        freeze_trainable_layers flash_attn reward_model_type ppo_epochs""",
    "swift": """model tuner_type train_type rlhf_type split_dataset_ratio torch_dtype target_modules lora_rank
        loss_scale max_length external_plugins attn_impl val_dataset truncation_strategy quant_bits quant_method
        model_author model_name add_version use_hf reward_funcs reward_model_plugin num_generations teacher_model""",
    "trl": """model_name_or_path dataset_name dataset_config dataset_train_split dataset_test_split use_peft lora_r
        lora_target_modules attn_implementation load_in_4bit use_bnb_nested_quant test_split_size reward_funcs dtype
        reward_model_name_or_path max_completion_length packing num_generations assistant_only_loss env""",
}
# The word of a command that says whose it is, and which of its subcommands train.
COMMANDS = {
    "axolotl": ("axolotl", ("train", "preprocess")),
    "llamafactory-cli": ("llama_factory", ("train",)),
    "llamafactory": ("llama_factory", ("train",)),
    "swift": ("swift", ("sft", "pt", "rlhf")),
    "trl": ("trl", ("sft", "dpo", "grpo", "kto", "reward", "rloo", "distillation")),
}
SCRIPTS = {
    r"(?:^|/)swift/cli/(sft|pt|rlhf)\.py$": "swift",
    r"(?:^|/)(?:trl/scripts|examples/scripts|scripts)/(sft|dpo|grpo|kto|reward|rloo|distillation)(?:_\w+)?\.py$": "trl",
    r"(?:^|/)src/train(?:_bash)?\.py$": "llama_factory",
    r"^axolotl\.cli\.train$": "axolotl",
}
# A comment of bash begins a word; what stands in quotes, or behind a backslash, is none.
COMMENT = re.compile(r"""('[^']*'|"(?:\\.|[^"\\])*"|\\.)|(?:^|(?<=[\s;&|()]))#.*""")
COMMAND = re.compile(r"\$\((?:expr\s+([^()]*)|\(([^()]*)\)|[^()]*)\)")
# Keys of a file that trains nothing, or of a format of theirs that is not read here.
INFERENCE = "a file that trains nothing"
MEGATRON = "the keys of Megatron, which count rows and rates in another way"
V1 = "the format v1 of LLaMA-Factory, which is not read here"
STRANGE = {
    "llama_factory": dict.fromkeys(("do_predict", "export_dir", "infer_backend"), INFERENCE) | {"train_dataset": V1},
    "swift": dict.fromkeys(("sampler_engine", "sampler_type"), INFERENCE)
    | dict.fromkeys(("lr", "global_batch_size", "train_iters"), MEGATRON)
    | {"peft_config": V1},
}
# Flags of what starts the processes, by the number of devices that they say.
DEVICES = ("--num_processes", "--num-processes", "--nproc_per_node", "--nproc-per-node")


@dataclass
class Reading:
    """The keys of a file, whose they are and why, the subcommand if there is one, and on how many devices it ran."""

    path: Path
    keys: dict[str, Any]
    dialect: str = ""
    why: str = ""
    command: str = ""
    devices: int = 1
    variables: dict[str, str] = field(default_factory=dict)


def read_file(path: Path, dialect: str | None = None) -> Reading:
    """The keys of a configuration; ConfigError where it is none, or nobody's."""
    if dialect is not None and dialect not in DIALECTS:
        cure = f"dialect={next(iter(DIALECTS))}"
        raise ConfigError(Fault("dialect", dialect, f"one of {', '.join(DIALECTS)}", cure))
    try:
        check_size(path)
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(Fault(str(path), str(error), "a configuration", "python -m runner import <file>")) from None
    reading = _read_script(path, text) if _is_script(path, text) else Reading(path, _read_mapping(path, text))
    reading.keys = {key: plain(value) for key, value in reading.keys.items()}
    if dialect:
        reading.dialect, reading.why = dialect, "because you say so"
    elif not reading.dialect:
        reading.dialect, reading.why = find_dialect(path, reading.keys)
    strange = {key: why for key, why in STRANGE.get(reading.dialect, {}).items() if reading.keys.get(key)}
    if strange and not reading.keys.get("do_train"):
        expected = f"a training of {DIALECTS[reading.dialect]}"
        raise ConfigError(
            Fault(f"{path}: {key}", why, expected, "python -m runner import <another file>")
            for key, why in strange.items()
        )
    return reading


def find_dialect(path: Path, keys: Mapping[str, Any]) -> tuple[str, str]:
    """Whose keys these are, and the keys that say so; ConfigError where nobody's or several people's."""
    found = {name: [key for key in marks.split() if key in keys] for name, marks in MARKS.items()}
    best, second, *_ = sorted(found, key=lambda name: -len(found[name]))
    if not found[best] or len(found[best]) == len(found[second]):
        tied = [DIALECTS[name] for name in found if len(found[name]) == len(found[best])] if found[best] else []
        what = f"as much of {' as of '.join(tied)}" if tied else "no key that one of them has"
        cure = "dialect=<one of them>"
        raise ConfigError(Fault(str(path), what, f"a configuration of {', '.join(DIALECTS)}", cure))
    return best, ", ".join(found[best][:5])


def plain(value: Any) -> Any:
    """The value as it was meant: YAML reads 2e-5 as a text, and a shell everything.

    >>> plain("2e-5"), plain("true"), plain("a"), plain('{"min_lr": 1e-6}')
    (2e-05, True, 'a', {'min_lr': 1e-06})
    """
    if isinstance(value, list):
        return [plain(entry) for entry in value]
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if not isinstance(value, str):
        return value
    words = {"true": True, "false": False, "none": None, "null": None}
    if value.lower() in words and value != "none":  # a value of its own: scale_rewards, report_to
        return words[value.lower()]
    if re.fullmatch(r"[+-]?\d+", value) and len(value) <= DIGITS:
        return int(value)
    if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", value, re.I):
        return float(value)
    if value[:1] in "{[" and value[-1:] in "}]":
        try:
            return plain(json.loads(value))
        except (ValueError, RecursionError):
            return value
    return value


# --- Shell scripts --------------------------------------------------------------------------------


def _is_script(path: Path, text: str) -> bool:
    if path.suffix in (".sh", ".bash"):
        return True
    return path.suffix not in (".yaml", ".yml", ".json") and bool(re.search(r"(?m)^\s*--\w", text))


def _read_mapping(path: Path, text: str) -> dict[str, Any]:
    keys = parse_yaml(text, str(path))
    if not isinstance(keys, dict):
        raise ConfigError(Fault(str(path), f"a {type(keys).__name__}", "keys with values"))
    return {str(key): value for key, value in keys.items()}


def _read_script(path: Path, text: str) -> Reading:
    """The one training command of a script, its flags, and what stands in a file that it names."""
    reading = Reading(path, {})
    lines = list(_commands(text))
    for number, line in enumerate(lines):
        try:
            words = shlex.split(COMMAND.sub(lambda found: _answer(found, reading.variables), line))
        except ValueError:
            continue  # a line of the shell's own, such as half of a quotation
        words = [_expanded(word, reading.variables) for word in words]
        words = words[1:] if words[:1] == ["export"] else words
        while words and re.fullmatch(r"[A-Za-z_]\w*=.*", words[0], re.S):
            name, _, value = words.pop(0).partition("=")
            reading.variables[name] = value
        if words and (start := _training(words)):
            _check_end(path, lines[number + 1 :])
            return _with_flags(reading, words, *start)
    expected = "a line with one of " + ", ".join(COMMANDS)
    raise ConfigError(Fault(str(path), "no command that trains", expected))


def _commands(text: str) -> Iterator[str]:
    """The lines of a script as bash reads them: each without its comment, joined where one ends with a backslash."""
    parts = []
    for line in text.splitlines():
        line = COMMENT.sub(lambda found: found[1] or "", line)
        parts.append(line.removesuffix("\\"))
        if not line.endswith("\\"):
            yield " ".join(parts)
            parts = []
    yield " ".join(parts)


def _check_end(path: Path, below: Sequence[str]) -> None:
    """Raise ConfigError where flags stand below the command, which would be lost without a word."""
    flag = next(filter(str.strip, below), "").lstrip().partition(" ")[0]
    if flag.startswith("--"):
        found = f"{flag} is not part of the command: a comment, or no backslash, ends the line above it"
        cure = "move comments above the command, and end each of its lines but the last with a backslash"
        raise ConfigError(Fault(str(path), found, "all flags in one command", cure))


def _answer(found: re.Match[str], variables: Mapping[str, str]) -> str:
    """The number that a command in a command comes to, where it only multiplies and divides; else its name."""
    text = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", lambda name: variables.get(name[1], name[0]), found[1] or found[2] or "")
    first, *rest = re.findall(r"\d+|\S", text.replace("\\*", "*")) or [""]
    if len(text) > DIGITS or not re.fullmatch(r"\d+([*/][1-9]\d*)*", "".join([first, *rest])):
        return f"$({(re.findall(r'[A-Za-z_]+', found[0]) or ['command'])[0]})"
    number = int(first)
    for sign, other in zip(rest[::2], rest[1::2], strict=True):
        number = number * int(other) if sign == "*" else number // int(other)
    return str(number)


def _expanded(word: str, variables: Mapping[str, str]) -> str:
    """A word with the variables that the script itself sets; others stay as they are written."""

    def meaning(found: re.Match[str]) -> str:
        name, fallback = found[1] or found[3], found[2]
        return variables.get(name, fallback if fallback is not None else found[0])

    return re.sub(r"\$\{(\w+)(?::-([^}]*))?\}|\$(\w+)", meaning, word)


def _training(words: Sequence[str]) -> tuple[int, str, str] | None:
    """Where the flags begin, whose they are, and the subcommand; None for any other line."""
    for place, word in enumerate(words):
        after = words[place + 1] if place + 1 < len(words) else ""
        if word in COMMANDS and after in COMMANDS[word][1]:
            return place + 2, COMMANDS[word][0], after
        for pattern, dialect in SCRIPTS.items():
            if found := re.search(pattern, word):
                return place + 1, dialect, found[1] if found.groups() else "train"
    return None


def _with_flags(reading: Reading, words: Sequence[str], start: int, dialect: str, command: str) -> Reading:
    reading.dialect, reading.command = dialect, command
    reading.why = " ".join(words[start - 2 : start]) if words[start - 1] == command else words[start - 1]
    reading.devices = _devices(words[:start], reading.variables)
    files, flags = _flags(words[start:])
    named = files or [str(flags.pop(key)) for key in ("config", "config_file") if key in flags]
    for name in named[:1]:
        reading.keys |= _read_mapping(Path(name), _beside(reading.path, name))
    reading.keys |= flags
    return reading


def _beside(path: Path, name: str) -> str:
    """The text of a file that a script names, from here or from beside the script."""
    for place in (Path(name), path.parent / name, path.parent / Path(name).name):
        if place.is_file():
            check_size(place)
            return place.read_text(encoding="utf-8")
    raise ConfigError(Fault(str(path), f"it reads {name}, which is not there", "that file", f"import {name} itself"))


def _flags(words: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """The words before the first flag that are files, and each flag with its value, its values, or true."""
    files = [word for word in _until_flag(words) if word.endswith((".yaml", ".yml", ".json"))]
    flags: dict[str, Any] = {}
    for place, word in enumerate(words):
        if not word.startswith("--"):
            if "=" in word and not flags:  # key=value, as LLaMA-Factory takes it
                key, _, value = word.partition("=")
                flags[key] = value
            continue
        key, mark, value = word.removeprefix("--").partition("=")
        values = [value] if mark else list(_until_flag(words[place + 1 :]))
        key = key.replace("-", "_")
        if not values and key.startswith("no_"):
            flags[key.removeprefix("no_")] = False
        else:
            flags[key] = True if not values else values[0] if len(values) == 1 else values
    return files, flags


def _until_flag(words: Sequence[str]) -> Iterator[str]:
    for word in words:
        if word.startswith("--") or word in ("|", ">", ">>", "2>&1", "&", "&&", ";", "1>"):
            return
        yield word


def _devices(words: Sequence[str], variables: Mapping[str, str]) -> int:
    """On how many devices a script runs: as its launcher says, or its variables."""
    for flag, after in pairwise(words):
        name, mark, value = flag.partition("=")
        if name in DEVICES and (value if mark else after).isdigit():
            return int(value if mark else after)
    if variables.get("NPROC_PER_NODE", "").isdigit():
        return int(variables["NPROC_PER_NODE"])
    return 1

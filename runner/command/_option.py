"""The own options of a verb: ``key=value`` words of the command line -> checked values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.errors import ConfigError, Fault
from runner.schema.text import nearest
from runner.schema.type import Type
from runner.validate.values import Range, misfit_number, misfit_type


@dataclass(frozen=True)
class Option:
    """The values that an option of a verb takes: a kind, of numbers a range, of words all of them."""

    kind: str = "str"
    numbers: Range | None = None
    words: tuple[str, ...] = ()
    parts: str = ""  # such as org/name: so many words with slashes between

    def read(self, key: str, text: str) -> Any:
        """The value that a text stands for; raises ConfigError where it is none, as for a key of a configuration."""
        known, value = Type("choice", values=self.words) if self.words else Type(self.kind), text
        if self.kind != "str":
            import yaml
            from omegaconf import OmegaConf
            from omegaconf.errors import OmegaConfBaseException

            try:
                value = OmegaConf.from_dotlist([f"value={text}"])["value"]
            except (yaml.YAMLError, OmegaConfBaseException):  # such as an open bracket, or a reference to nothing
                value = text
        fault = misfit_number(key, value, self.numbers) if known.accepts(value) else misfit_type(key, value, known)
        if self.parts and not re.fullmatch(re.sub(r"\w+", "[^/]+", self.parts), text):
            fault = Fault(key, text, self.parts, f"{key}={self.parts}")
        if fault:
            raise ConfigError(fault)
        return value


def split_options(overrides: Sequence[str], own: Mapping[str, Option]) -> tuple[dict[str, Any], list[str], list[Fault]]:
    """The verb's own options among some overrides, the other overrides, and the faults of the options."""
    options, others, faults = {}, [], []
    for override in overrides:
        key, _, text = override.lstrip("+").partition("=")
        if key not in own:
            others.append(override)
            continue
        if re.fullmatch(r"'\w[\w.-]*\[[-\d:%]*\]'", text):  # quotes that make Hydra read a slice of rows as text
            text = text[1:-1]
        try:
            options[key] = own[key].read(key, text)
        except ConfigError as error:
            faults += error.faults
    return options, others, faults


def read_options(overrides: Sequence[str], own: Mapping[str, Option], verb: str) -> dict[str, Any]:
    """The options of a verb that takes no others; ConfigError with every key that it does not have, and bad values."""
    options, others, faults = split_options(overrides, own)
    for key in (other.lstrip("+").partition("=")[0] for other in others):
        near = nearest(key, own)
        fix = f"{near[0]}=<value>" if near else f"python -m runner {verb} --help"
        faults.append(Fault(key, f"{verb} has no such key", ", ".join(own), fix))
    ConfigError.refuse(faults)
    return options

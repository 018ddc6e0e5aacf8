"""Faults for what Hydra, OmegaConf and YAML raise while a configuration is composed or resolved."""

import contextlib
import re
from collections.abc import Iterator

from runner.config.limits import yaml_fault
from runner.errors import ConfigError, EnvironmentFault, Fault
from runner.schema.did_you_mean import best_guess

# Hydra's message on a defaults list, in a file or our own, that names what is not there.
MISSING_DEFAULT = re.compile(
    r"In '([^']+)': Could not find '([^']+)'"
    r"(?: Available options in '[^']+': (.*?))?(?: Config search.*)?$"
)
# The packages of Hydra's launchers and sweepers that an extra of ours brings.
PLUGIN_PACKAGES = {
    "optuna": "hydra-optuna-sweeper",
    "joblib": "hydra-joblib-launcher",
    "submitit_local": "hydra-submitit-launcher",
    "submitit_slurm": "hydra-submitit-launcher",
}


@contextlib.contextmanager
def as_config_errors() -> Iterator[None]:
    """Raise ConfigError in the place of what Hydra, OmegaConf and YAML raise inside."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        yield
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
        raise ConfigError(_to_fault(error)) from None
    except RecursionError:
        raise ConfigError(
            Fault(
                where="command line",
                found="a value with more levels than can be followed",
                expected="a few levels",
                fix="leave it out",
            )
        ) from None


def _to_fault(error: Exception) -> Fault:
    """The fault of an exception; raises EnvironmentFault for a plugin that is not installed."""
    mark = getattr(error, "problem_mark", None)
    if mark:
        return yaml_fault(error, mark.name)
    text = " ".join(str(error).split())
    key = re.search(r"full_key: (\S+)", text)
    where = key[1] if key else "command line"
    text = re.sub(r" full_key: .*", "", text)
    missing = MISSING_DEFAULT.search(text)
    if missing:
        file, name, options = missing.groups()
        return _missing_default(file, name, options or "")
    return _to_message_fault(where, text)


def _missing_default(file: str, name: str, options: str) -> Fault:
    """The fault of a defaults list in a file that names what is not there."""
    group, _, option = name.rpartition("/")
    package = PLUGIN_PACKAGES.get(option)
    if package:
        from runner.io.distribution import to_install

        raise EnvironmentFault(
            Fault(
                where=group,
                found=f"{package} is not installed",
                expected=f"the package {package}",
                fix=to_install(package),
            )
        )
    if group in ("hydra/launcher", "hydra/sweeper"):
        plugins = options.split()
        return Fault(
            where=group,
            found=f"no plugin {option!r} is installed",
            expected=f"one of {', '.join(plugins)}",
            fix=f"={best_guess(option, plugins, *plugins)}",
        )
    if file == "config":
        group = group.partition("/")[0]
        likeliest = best_guess(option, options.split(), "<one of them>")
        return Fault(
            where=group,
            found=f"there is no {name}",
            expected=f"one of {options or None}",
            fix=f"={likeliest}, or mend the defaults",
        )
    expected = "an existing group and option"
    if options:
        expected = f"one of {options}"
    return Fault(
        where=f"{file}.yaml",
        found=f"its defaults name {name}, which does not exist",
        expected=expected,
        fix=f"mend {file}.yaml",
    )


def _to_message_fault(where: str, text: str) -> Fault:
    """The fault of any other message at a key."""
    missing = re.search(r"Interpolation key '([^']+)' not found", text)
    if missing:
        return Fault(
            where=where,
            found=f"${{{missing[1]}}} refers to nothing",
            expected="a known key",
            fix=f"leave {where} out",
        )
    if "Recursive interpolation" in text:
        return Fault(
            where=where,
            found="it refers to itself",
            expected="references that end in a value",
            fix=f"leave {where} out",
        )
    resolver = re.search(r"interpolation type (\S+)", text)
    if resolver:
        return Fault(
            where=where,
            found=f"there is no resolver {resolver[1]}",
            expected="oc.env, run, a key",
            fix=f"leave {where} out",
        )
    deleted = re.search(r"Error merging override ~(\S+)", text)
    if deleted:
        return Fault(
            where=deleted[1],
            found="deleted, but other keys refer to it",
            expected="a value",
            fix=f"leave ~{deleted[1]} out",
        )
    unknown = re.search(r"Could not delete.*'([^']+)' does", text)
    if unknown:
        return Fault(
            where=f"~{unknown[1]}",
            found="there is no such key to delete",
            expected="a known key",
            fix="leave it out",
        )
    variable = re.search(r"Environment variable '([^']+)'", text)
    if variable:
        return Fault(
            where=where,
            found=f"the environment has no {variable[1]}",
            expected="one that is set",
            fix=f"export {variable[1]}=<value>",
        )
    experiment = re.search(
        r"In '(experiment/[^']+)': Could not override '[^'@]+@experiment[.]", text
    )
    if experiment:
        return not_global(experiment[1])
    return Fault(
        where=where,
        found=text,
        expected="a configuration that Hydra composes",
        fix="see python -m runner --help",
    )


def not_global(file: str) -> Fault:
    """The fault of an experiment's file that Hydra would merge below the key of its group."""
    return Fault(
        where=f"{file}.yaml",
        found="all that it sets would be below its group",
        expected="# @package _global_",
        fix="write # @package _global_ as its first line",
    )

"""The contract of environments: a source makes rows, and an episode for each completion.

A source is what ``environment._target_`` builds. An episode follows TRL's contract of environments
(``generate.agent``), with ``respond`` added. Whatever is marked as optional may be left out. An
episode's ``reset``, ``respond`` and ``get_reward`` may be coroutines; those of all episodes run
side by side.
"""

import atexit
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from runner.config.build import build, locate
from runner.config.experiment import EnvironmentPart
from runner.errors import ConfigError, Fault
from runner.io.files import JsonObject
from runner.io.turns import TurnDict
from runner.reward.isolation import undisturbed
from runner.run import installed_version
from runner.run.key import canonical_text
from runner.schema.did_you_mean import best_guess

# Of this process, by what they were built from.
_open_sources: dict[str, Any] = {}
_made_rows: dict[str, list[JsonObject]] = {}


class EnvironmentSource(Protocol):
    """The source of episodes: a package of tasks, a server, a class of the user's own."""

    def rows(self, count: int, seed: int, held_out: bool) -> list[JsonObject]:
        """At most ``count`` rows of JSON values, each with a ``prompt``, a list of turns.

        They are the same for the same arguments, and hold what ``reset`` needs. Those that are held
        out are not the rows of the training. A column ``reference``, if any, holds a right answer
        as a text, or None: SFT learns it with ``dataset.form=prompt_completion``.
        """

    def make(self) -> object:
        """An episode that has not begun."""

    # Optional:
    #   rewards: Sequence[str] | Mapping[str, float]
    #       The names of its rewards, perhaps with weights.
    #   single_turn: bool
    #       True where one turn of the model is a whole episode, and ``reset`` returns nothing.
    #   calls_tools: bool
    #       True where its episodes have ``schemas``.
    #   packages: Sequence[str]
    #       The installed packages that its rows and rewards come from. Runs record their versions.
    #   close(self) -> None
    #       Ends what it started. It may be called twice.


class EpisodeOfSource(Protocol):
    """One completion's side of an environment. Its further public methods are tools."""

    def reset(self, **row: object) -> str | list[TurnDict] | None:
        """Begin the episode of a row.

        A text is added to the prompt, turns take its place.
        """

    # Optional:
    #   schemas: Sequence[JsonObject]
    #       Tools as JSON schemas, once it is reset. A turn that calls one goes to ``respond``.
    #   respond(self, message: TurnDict) -> Sequence[TurnDict] | None
    #       Called after each turn of the model that calls no method, also after the last one. It
    #       gives the turns (of the user, or of tools) that come next, or None: the episode is over.
    #       After a turn that was cut off nothing can follow, whatever it gives.
    #   get_reward(self) -> float | Mapping[str, float | None] | None
    #       Called once, when the episode is over. Of named rewards, one that is None or left out
    #       does not apply.


def reward_weights(
    rewards: Sequence[str] | Mapping[str, float], weights: Mapping[str, float] | None
) -> dict[str, float]:
    """The weight of each reward of an environment: as the user set it, as its source did, or 1.

    Raises ConfigError for a weight of a reward that there is not.
    """
    if not isinstance(rewards, Mapping):
        rewards = dict.fromkeys(rewards, 1.0)
    chosen = weights or {}
    unknown = [name for name in chosen if name not in rewards]
    if unknown:
        likeliest = best_guess(unknown[0], rewards, *rewards, "<name>")
        raise ConfigError(
            Fault(
                where=f"environment.weights.{unknown[0]}",
                found="no such reward",
                expected=f"one of {', '.join(rewards)}" if rewards else "an environment that pays",
                fix=f"environment.weights.{likeliest}={chosen[unknown[0]]}",
            )
        )
    return {name: float(chosen.get(name, weight)) for name, weight in rewards.items()}


def is_source(part: EnvironmentPart) -> bool:
    """True for a source; False for a class whose objects are the episodes themselves."""
    return hasattr(locate(part.target), "make")


def open_environment(part: EnvironmentPart) -> Any:
    """The source of a configuration, which is built once: it may have started a server."""
    node = part.arguments
    key = canonical_text(node)
    if key not in _open_sources:
        with undisturbed("environment", []):
            _open_sources[key] = build(node)
    return _open_sources[key]


def remembered_rows(
    part: EnvironmentPart, count: int, seed: int, *, held_out: bool
) -> list[JsonObject]:
    """The rows of the source of a configuration, which is asked once."""
    key = canonical_text([part.arguments, count, seed, held_out])
    if key not in _made_rows:
        source = open_environment(part)
        with undisturbed("environment", [seed, held_out]):
            _made_rows[key] = source.rows(count, seed, held_out)
    return _made_rows[key]


def episode_maker(part: EnvironmentPart) -> Callable[[], object]:
    """The maker of the episodes of a configuration."""
    if is_source(part):
        make: Callable[[], object] = open_environment(part).make
        return make
    return partial(build, part.arguments)


def package_versions(part: EnvironmentPart | None) -> dict[str, str | None]:
    """The versions of the packages that an environment's rows and rewards come from."""
    if part is None or not is_source(part):
        return {}
    packages = getattr(open_environment(part), "packages", ())
    return {name: installed_version(name) for name in packages}


def close_sources() -> None:
    """End what the sources of this process have started."""
    _made_rows.clear()
    while _open_sources:
        _, source = _open_sources.popitem()
        if hasattr(source, "close"):
            source.close()


@contextlib.contextmanager
def sources_closed() -> Iterator[None]:
    """Close, behind what is done inside, the sources that it opens."""
    try:
        yield
    finally:
        close_sources()


atexit.register(close_sources)

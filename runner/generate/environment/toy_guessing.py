"""A small OpenEnv server that ships: a digit to guess; it answers higher or lower.

    python -m runner.generate.environment.toy_guessing --port PORT
    python -m runner experiment=openenv_grpo

An episode ends with the right digit, which earns 1, or after some guesses.
"""

import argparse
import random

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app

GUESSES = 4
SESSIONS = 256  # episodes side by side
NO_DIGIT = -0.2  # what a turn earns that is no guess


class Guess(Action):
    """A turn of the model."""

    text: str


class Hint(Observation):
    """A turn of the server."""

    text: str


class GuessingEnvironment(Environment):
    """The game of one session."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    number = 0
    guesses = 0

    def reset(self, seed: int | None = None, **_: object) -> Hint:
        """Choose the digit that the seed makes."""
        self.number = random.Random(seed).randrange(10)
        self.guesses = 0
        return Hint(text="Guess a digit.")

    def step(self, action: Guess, **_: object) -> Hint:
        """Compare a guess with the digit."""
        self.guesses += 1
        is_over = self.guesses == GUESSES
        guess = action.text.strip()
        if guess == str(self.number):
            return Hint(text="right", reward=1.0, done=True)
        if len(guess) != 1 or not guess.isdecimal():
            return Hint(text="A digit!", reward=NO_DIGIT, done=is_over)
        hint = "higher" if int(guess) < self.number else "lower"
        return Hint(text=hint, reward=0.0, done=is_over)

    @property
    def state(self) -> State:
        """The state, as clients may ask for it."""
        return State(step_count=self.guesses)


def main() -> None:
    """Serve at a port of this machine until a signal comes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    words = parser.parse_args()
    application = create_fastapi_app(
        GuessingEnvironment,
        Guess,
        Hint,
        max_concurrent_envs=SESSIONS,
    )
    uvicorn.run(application, host="127.0.0.1", port=words.port, log_level="warning")


if __name__ == "__main__":
    main()

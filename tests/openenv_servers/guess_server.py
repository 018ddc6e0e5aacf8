"""An OpenEnv server: guess a digit; it answers higher or lower, and gives 1 for the right one.

python guess_server.py --port PORT [--capacity N]
"""

import argparse
import os
import random
import time

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app

GUESSES = 3


class Guess(Action):
    text: str


class Answer(Observation):
    text: str


class GuessEnvironment(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, mood="", **kwargs):
        self.number = random.Random(seed).randrange(10)
        self.guesses = 0
        self.mood = mood
        if mood == "cannot":
            raise RuntimeError("no die to throw")
        return Answer(text="guess a digit")

    def step(self, action, timeout_s=None, **kwargs):
        self.guesses += 1
        if self.mood == "raises":
            raise RuntimeError("the die is lost")
        if self.mood == "hangs":
            time.sleep(3600)
        if self.mood == "dies":
            os._exit(1)
        if self.mood == "nan":
            return Answer(text="?", reward=float("nan"), done=True)
        text = action.text.strip()
        if text == str(self.number):
            return Answer(text="right", reward=1.0, done=True)
        is_over = self.guesses == GUESSES
        if len(text) != 1 or not text.isdigit():
            return Answer(text="a digit", reward=-0.1, done=is_over)
        return Answer(text="higher" if int(text) < self.number else "lower", done=is_over)

    @property
    def state(self):
        return State(step_count=self.guesses)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--capacity", type=int, default=256)
    words = parser.parse_args()
    application = create_fastapi_app(
        GuessEnvironment, Guess, Answer, max_concurrent_envs=words.capacity
    )
    uvicorn.run(application, host="127.0.0.1", port=words.port, log_level="warning")

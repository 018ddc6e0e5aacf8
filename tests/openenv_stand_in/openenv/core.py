"""The client of openenv-core as the runner uses it, for tests where the package is not installed.

The server is a class in this process, in ``SERVER``. It has a session for each client.
"""

import asyncio
from types import SimpleNamespace

SERVER = SimpleNamespace(environment=None, capacity=100, open=[], most_open=0, resets=0)


class GenericEnvClient:
    def __init__(self, base_url, message_timeout_s, mode):
        self.environment = None

    async def _send(self, method, *words, **arguments):
        if self.environment is None:
            if len(SERVER.open) >= SERVER.capacity:
                raise RuntimeError("Server error: full (code: CAPACITY_REACHED)")
            SERVER.open.append(self)
            SERVER.most_open = max(SERVER.most_open, len(SERVER.open))
            self.environment = SERVER.environment()
        await asyncio.sleep(0)
        observation, reward, done = getattr(self.environment, method)(*words, **arguments)
        return SimpleNamespace(observation=observation, reward=reward, done=done)

    async def reset(self, **arguments):
        SERVER.resets += 1
        return await self._send("reset", **arguments)

    async def step(self, action):
        return await self._send("step", action)

    async def disconnect(self):
        if self in SERVER.open:
            SERVER.open.remove(self)

"""A reward that another machine gives, asked over HTTP in batches.

One POST a batch, ``{"prompts": [...], "completions": [...], <column>: [...]}``; the answer is ``{"rewards": [...]}``,
or the list alone, a number or null for each completion. What the server does with them is its own affair.
"""

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

from runner.errors import ConfigError, DataError, EnvironmentFault, Fault, fault
from runner.io.secrets import MARKED
from runner.io.turns import Completion, Values

BUSY = (408, 425, 429, 500, 502, 503, 504)  # worth another try
MAX_MEBIBYTES = 64  # of an answer
HERE = ("localhost", "127.0.0.1", "::1")


def find_address_faults(url: str, where: str = "reward.remote.url") -> Iterator[Fault]:
    """A fault of an address that cannot be asked, whoever is there."""
    try:
        parts = urlsplit(url)
        is_whole, found = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0, repr(url)
    except ValueError as error:  # a bracket that is open, or a port that cannot be
        is_whole, found = False, f"{url!r}: {error}"
    if not is_whole:
        yield fault("reward.no_address", where=where, found=found)


@dataclass(eq=False)
class Remote:
    """Rewards of a server; EnvironmentFault without an answer, ConfigError for a refusal, DataError for an odd one."""

    url: str
    _: KW_ONLY
    batch_size: int = 32
    request_timeout: float = 60.0  # seconds for one answer
    retries: int = 3  # after a failure
    wait: float = 0.5  # seconds before the first of them, and before each other one twice as long
    parallel: int = 1
    columns: Sequence[str] = ()  # of the rows, which are sent along; nothing else is
    token_variable: str | None = None  # holds a bearer token, for this host, over plain HTTP for this machine only

    def __post_init__(self) -> None:
        self.batch_size, self.parallel = max(1, self.batch_size), max(1, self.parallel)
        ConfigError.refuse(find_address_faults(self.url))
        parts, variable = urlsplit(self.url), self.token_variable
        if parts.username or parts.password:
            raise ConfigError(fault("reward.password_in_address"))
        if variable and parts.scheme == "http" and parts.hostname not in HERE:
            raise ConfigError(fault("reward.token_in_plain_text"))
        if variable is not None:
            if not os.environ.get(variable):
                raise ConfigError(fault("reward.no_token", variable=variable))
            MARKED.add(variable)

    def __call__(
        self, prompts: Sequence[Completion], completions: Sequence[Completion], **columns: Values
    ) -> list[float | None]:
        if missing := [name for name in self.columns if name not in columns]:
            there = ", ".join(sorted(columns))
            raise DataError(fault("reward.no_column_to_send", missing=" or ".join(missing), there=there))
        sent = {"prompts": prompts, "completions": completions} | {name: columns[name] for name in self.columns}
        starts = range(0, len(completions), self.batch_size)
        batches = [{name: list(values[at : at + self.batch_size]) for name, values in sent.items()} for at in starts]
        with ThreadPoolExecutor(self.parallel) as pool:
            answers = list(pool.map(self._ask, batches, starts))
        return [reward for answer in answers for reward in answer]

    def _ask(self, batch: Mapping[str, Any], start: int) -> list[float | None]:
        body = json.dumps(batch, ensure_ascii=False).encode()
        failures: list[str] = []
        for attempt in range(self.retries + 1):
            if attempt:
                time.sleep(min(self.wait * 2 ** (attempt - 1), 60.0))
            try:
                return self._read(self._post(body), len(batch["completions"]), start)
            except HTTPError as error:
                error.close()
                if error.code not in BUSY:
                    raise ConfigError(fault("reward.refused", address=self._shown, error=error)) from None
                failures.append(f"status {error.code}")
            except (OSError, HTTPException) as error:
                failures.append(str(getattr(error, "reason", None) or error) or type(error).__name__)
        numbers = f"{start} to {start + len(batch['completions']) - 1}"
        tries = f"{len(failures)} tries, at last: {failures[-1]}"
        raise EnvironmentFault(fault("reward.no_answer", address=self._shown, numbers=numbers, tries=tries))

    def _post(self, body: bytes) -> bytes:
        """The server's answer, read before the time is over even if it comes slowly."""
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        request = Request(self.url, data=body, headers=headers, method="POST")
        if self.token_variable is not None:
            request.add_unredirected_header("Authorization", f"Bearer {os.environ[self.token_variable]}")
        deadline, answer = time.monotonic() + self.request_timeout, bytearray()
        around_proxy = [ProxyHandler({})] if self.url.startswith("http:") and self.token_variable else []
        with build_opener(_NoRedirect, *around_proxy).open(request, timeout=self.request_timeout) as response:
            while piece := response.read1(1 << 16):
                answer += piece
                if time.monotonic() > deadline:
                    raise TimeoutError(f"no whole answer in {self.request_timeout:g} s")
                if len(answer) > MAX_MEBIBYTES << 20:
                    raise DataError(fault("reward.endless_answer", most=MAX_MEBIBYTES))
        return bytes(answer)

    def _read(self, body: bytes, count: int, start: int) -> list[float | None]:
        try:
            answer = json.loads(body)
        except ValueError:
            raise DataError(fault("reward.no_json", address=self._shown, text=body[:60], count=count)) from None
        rewards = answer.get("rewards") if isinstance(answer, dict) else answer
        if isinstance(rewards, list) and len(rewards) == count:
            return rewards
        size = f"{len(rewards)} rewards" if isinstance(rewards, list) else "no list of rewards"
        raise DataError(fault("reward.other_number_of_rewards", size=size, start=start, count=count))

    @property
    def _shown(self) -> str:
        """The address without its query, which may hold what nobody should read."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}{parts.path}"


class _NoRedirect(HTTPRedirectHandler):
    """Leaves a redirect as the error that it then is: another host must see neither rows nor token."""

    def redirect_request(self, *args: object, **kwargs: object) -> None:
        return None

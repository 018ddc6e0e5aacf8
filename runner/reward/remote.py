"""A reward that another machine gives, asked over HTTP in batches.

One POST a batch, ``{"prompts": [...], "completions": [...], <column>: [...]}``; the answer is
``{"rewards": [...]}``, or the list alone, a number or null for each completion. What the server
does with them is its own affair.
"""

import json
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import BaseHandler, HTTPRedirectHandler, ProxyHandler, Request, build_opener

from runner.errors import ConfigError, DataError, EnvironmentFault, Fault
from runner.io.secrets import MARKED
from runner.io.turns import Columns, Completion, Values
from runner.schema.ranges import Count, Natural, NotNegative, Positive

BUSY = (408, 425, 429, 500, 502, 503, 504)  # statuses that are worth another try
MAX_MEBIBYTES = 64  # of an answer
MAX_WAIT = 60.0  # seconds between two tries
PIECE = 1 << 16  # bytes that are read at once
HERE = ("localhost", "127.0.0.1", "::1")


def find_address_faults(url: str, where: str = "reward.remote.url") -> Iterator[Fault]:
    """A fault of an address that nobody could be asked at, whoever is there."""
    found = repr(url)
    is_whole = False
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and parts.port != 0
        is_whole = has_host and parts.scheme in ("http", "https")
    except ValueError as error:  # a bracket that is open, or a port that cannot be
        found = f"{url!r}: {error}"
    if not is_whole:
        yield Fault(
            where=where,
            found=found,
            expected="an address that begins with http:// or https://",
            fix="=<address>",
        )


@dataclass(eq=False)
class Remote:
    """Rewards of a server.

    Raises EnvironmentFault where there is no answer, ConfigError for a refusal, and DataError for
    an answer that is no list of rewards.
    """

    url: str
    _: KW_ONLY
    batch_size: Count = 32
    request_timeout: Positive = 60.0  # seconds for one answer
    retries: Natural = 3  # after a failure
    wait: NotNegative = 0.5  # seconds before the first retry, doubled before each further one
    parallel: Count = 1
    columns: Sequence[str] = ()  # of the rows, which are sent along; nothing else is
    # The variable with a bearer token for this host; over plain HTTP only for this machine.
    token_variable: str | None = None

    def __post_init__(self) -> None:
        self.batch_size = max(1, self.batch_size)
        self.parallel = max(1, self.parallel)
        ConfigError.refuse(find_address_faults(self.url))
        parts = urlsplit(self.url)
        if parts.username or parts.password:
            raise ConfigError(
                Fault(
                    where="reward.remote.url",
                    found="a name or password in it",
                    expected="the name of a variable in token_variable",
                    fix="=<address>",
                )
            )
        if self.token_variable and parts.scheme == "http" and parts.hostname not in HERE:
            raise ConfigError(
                Fault(
                    where="reward.remote.url",
                    found="a token would travel over plain http",
                    expected="https, or a server on this machine",
                    fix="=<address>",
                )
            )
        if self.token_variable is not None:
            if not os.environ.get(self.token_variable):
                raise ConfigError(
                    Fault(
                        where="reward.remote.token_variable",
                        found=f"{self.token_variable} is not set",
                        expected="a token in the environment",
                        fix=f"export {self.token_variable}=...",
                    )
                )
            MARKED.add(self.token_variable)

    def __call__(
        self, prompts: Sequence[Completion], completions: Sequence[Completion], **columns: Values
    ) -> list[float | None]:
        missing = [name for name in self.columns if name not in columns]
        if missing:
            raise DataError(
                Fault(
                    where="reward.remote.columns",
                    found=f"the rows have no column {' or '.join(missing)}",
                    expected=f"some of {', '.join(sorted(columns))}",
                )
            )
        sent: dict[str, Values] = {"prompts": prompts, "completions": completions}
        for name in self.columns:
            sent[name] = columns[name]
        starts = range(0, len(completions), self.batch_size)
        batches = []
        for start in starts:
            end = start + self.batch_size
            batch = {}
            for name, values in sent.items():
                batch[name] = list(values[start:end])
            batches.append(batch)
        rewards: list[float | None] = []
        with ThreadPoolExecutor(self.parallel) as pool:
            for answer in list(pool.map(self._ask, batches, starts)):
                rewards += answer
        return rewards

    def _ask(self, batch: Columns, start: int) -> list[float | None]:
        """The rewards of one batch, whose first completion has the index ``start``."""
        body = json.dumps(batch, ensure_ascii=False).encode()
        count = len(batch["completions"])
        failures: list[str] = []
        for attempt in range(self.retries + 1):
            if attempt:
                time.sleep(min(self.wait * 2 ** (attempt - 1), MAX_WAIT))
            try:
                return self._read(self._post(body), count, start)
            except HTTPError as error:
                error.close()
                if error.code not in BUSY:
                    raise ConfigError(
                        Fault(
                            where="reward.remote.url",
                            found=f"{self._shown} answered {error.code} {error.reason}",
                            expected="status 200, and no redirect",
                            fix="=<address>",
                        )
                    ) from None
                failures.append(f"status {error.code}")
            except (OSError, HTTPException) as error:
                reason = getattr(error, "reason", None) or error
                failures.append(str(reason) or type(error).__name__)
        raise EnvironmentFault(
            Fault(
                where="reward.remote",
                found=f"{self._shown} gave no answer to completions {start} to "
                f"{start + count - 1} in {len(failures)} tries; the last one: {failures[-1]}",
                expected="a server that answers",
                fix="the same command continues",
            )
        )

    def _post(self, body: bytes) -> bytes:
        """The server's answer, read before the time is over even if it comes slowly."""
        request = Request(
            self.url,
            data=body,
            headers={"Content-Type": "application/json", "Accept": "application/json"},
            method="POST",
        )
        handlers: list[BaseHandler | type[BaseHandler]] = [_NoRedirect]
        if self.token_variable is not None:
            token = os.environ[self.token_variable]
            request.add_unredirected_header("Authorization", f"Bearer {token}")
            if self.url.startswith("http:"):  # no proxy shall see the token
                handlers.append(ProxyHandler({}))
        deadline = time.monotonic() + self.request_timeout
        answer = bytearray()
        opener = build_opener(*handlers)
        with opener.open(request, timeout=self.request_timeout) as response:
            while piece := response.read1(PIECE):
                answer += piece
                if time.monotonic() > deadline:
                    raise TimeoutError(f"no complete answer in {self.request_timeout:g} s")
                if len(answer) > MAX_MEBIBYTES << 20:
                    raise DataError(
                        Fault(
                            where="reward.remote",
                            found=f"an answer of more than {MAX_MEBIBYTES} MiB",
                            expected="rewards",
                        )
                    )
        return bytes(answer)

    def _read(self, body: bytes, count: int, start: int) -> list[float | None]:
        """The rewards in an answer to ``count`` completions from ``start`` on."""
        try:
            answer = json.loads(body)
        except ValueError:
            raise DataError(
                Fault(
                    where="reward.remote",
                    found=f"{self._shown} answered {body[:60]!r}",
                    expected=f'{{"rewards": [...]}} with {count} numbers or nulls',
                )
            ) from None
        rewards = answer
        if isinstance(answer, dict):
            rewards = answer.get("rewards")
        if isinstance(rewards, list) and len(rewards) == count:
            return rewards
        size = "no list of rewards"
        if isinstance(rewards, list):
            size = f"{len(rewards)} rewards"
        raise DataError(
            Fault(
                where="reward.remote",
                found=f"{size} for completions from {start} on",
                expected=f'{{"rewards": [...]}} with {count} numbers or nulls',
            )
        )

    @property
    def _shown(self) -> str:
        """The address without its query, which may hold what nobody should read."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}{parts.path}"


class _NoRedirect(HTTPRedirectHandler):
    """Makes a redirect an error: another host must see neither rows nor token."""

    def redirect_request(self, *args: object, **kwargs: object) -> None:
        return None

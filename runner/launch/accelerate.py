"""The launcher of several machines, each given the same command. What one has to do: README.md beside it.

The first machine serves a store of torch's, by which they say where torchrun is to meet, and how their processes ended.
"""

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple
from datetime import timedelta
from pathlib import Path
from typing import Any

from runner.config import world_size
from runner.config.machines import rank_of, rendezvous_of
from runner.errors import ConfigError, EnvironmentFault, Fault, fault
from runner.launch import worker
from runner.launch.local import Alone, End, record_of, train_together

POLL = 0.2  # seconds between two looks at the store
HANDSHAKE = 20  # most seconds for what answers at the rendezvous to show that it is a store
ENDING = 3  # seconds that processes have to end by themselves when those of another machine have failed


def accelerate(
    folder: str | Path,
    *,
    num_processes: int = 1,
    num_machines: int = 1,
    machine_rank: int | None = None,
    rendezvous: str | None = None,
    rendezvous_seconds: float = 300,
    debug: bool = False,
) -> int:
    """Train on this machine as one of several; where there is but one it is the same as ``local``."""
    if world_size() > 1 or num_processes * num_machines == 1:
        return worker.work(folder, debug=debug)
    given = {"machine_rank": machine_rank, "rendezvous": rendezvous}
    machines = Machines(given, num_machines, rendezvous_seconds) if num_machines > 1 else Alone()
    return train_together(folder, num_processes, debug, machines)


class Machines(Alone):
    """This machine as one of several."""

    def __init__(self, launcher: Mapping[str, Any], count: int, seconds: float):
        self.rank, self.count, self.seconds, self.attempt = int(rank_of(launcher)[0]), count, seconds, 0
        self.address, self.was_asked = rendezvous_of(launcher), False
        self.place = f" on machine {self.rank} ({socket.gethostname()})"
        self.others = [other for other in range(count) if other != self.rank]

    def _fault(self, found: str, fix: str = "run it again on each of them to continue") -> Fault:
        return fault("launch.no_meeting", address=self.address, found=found, count=self.count, fix=fix)

    def _open_store(self) -> None:
        from torch.distributed import TCPStore

        host, _, port = self.address.rpartition(":")
        deadline, own = time.monotonic() + self.seconds, "localhost" if self.rank == 0 else host
        opened = list[TCPStore]()

        def connect() -> None:
            wait = timedelta(seconds=HANDSHAKE)
            with contextlib.suppress(*([RuntimeError] if self.rank else [])):
                opened.append(TCPStore(own, int(port), None, not self.rank, wait, wait_for_workers=False))

        try:
            socket.getaddrinfo(host, port)
            if self.rank == 0:
                connect()
            while not opened:
                try:
                    socket.create_connection((host, int(port)), timeout=5).close()  # which a signal can end
                except OSError:  # it may not have begun yet
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(POLL)
                    continue
                thread = threading.Thread(target=connect, daemon=True)  # for ever where that is no store
                thread.start()
                thread.join(HANDSHAKE)
                if not opened:
                    raise ConnectionError("what answers there is no machine of a run")
        except (OSError, RuntimeError) as error:
            found = "this port is taken here" if "EADDRINUSE" in str(error) else str(error).splitlines()[0]
            fix = "launcher.rendezvous=<the first machine>:<a free port>, the same on each"
            raise EnvironmentFault(self._fault(found, fix)) from None
        self.store = opened[0]
        if self.store.add(f"machine {self.rank}", 1) > 1:
            fix = f"launcher.machine_rank=<0 to {self.count - 1}, another on each>"
            raise ConfigError(self._fault(f"machine {self.rank} is there already", fix))
        for other in [] if self.rank else self.others:
            self._hear(other, f"machine {other}", self.seconds)

    def _hear(self, other: int, key: str, seconds: float) -> str:
        deadline, found = time.monotonic() + seconds, f"nothing from machine {other} for {seconds:g} s"
        try:
            while time.monotonic() < deadline:
                if self.store.check([key]):
                    return self.store.get(key).decode()
                time.sleep(POLL)
        except RuntimeError:
            found = "machine 0 has ended"
        raise EnvironmentFault(self._fault(found))

    @contextlib.contextmanager
    def meeting(self) -> Iterator[dict[str, Any]]:
        """The place where torchrun meets this time, and a watch on the other machines as long as it trains."""
        if not self.attempt:
            self._open_store()
        self.attempt += 1
        key, done = f"port {self.attempt}", threading.Event()
        if self.rank == 0:
            with socket.create_server(("", 0)) as free:
                self.store.set(key, str(free.getsockname()[1]))
        place = f"{self.address.rpartition(':')[0]}:{self._hear(0, key, self.seconds)}"

        def watch() -> None:
            """Ask this process to end its own where those of another machine have failed: they may wait for them."""
            failed = self.was_asked = False
            while not failed and not done.wait(POLL):
                try:
                    failed = any(self.store.check([f"end {self.attempt} {other}"]) for other in self.others)
                except RuntimeError:
                    failed = True
            if failed and not done.wait(ENDING):
                self.was_asked = True
                os.kill(os.getpid(), signal.SIGTERM)

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            nodes = {"min_nodes": self.count, "max_nodes": self.count, "rdzv_configs": {"rank": self.rank}}
            yield {**nodes, "rdzv_backend": "static", "rdzv_endpoint": place}
        finally:
            done.set()
            watcher.join()

    def share(self, end: End) -> End:
        """The end of the processes of all machines, where some have failed: the first machine hears it of each."""
        if not (end.signal or end.failures or self.was_asked):
            self._leave(self.others)
            return end
        if self.was_asked:
            end = End(None, end.failures, end.adjustments)
        with contextlib.suppress(RuntimeError):
            self.store.set(f"end {self.attempt} {self.rank}", json.dumps(astuple(end)))
        patience = worker.GRACE + worker.MARGIN
        if self.rank:
            shared = End(*json.loads(self._hear(0, f"all {self.attempt}", self.count * patience)))
            self._leave(self.others)
            return shared
        heard = list(self.others)
        for other in self.others:
            try:
                its = End(*json.loads(self._hear(other, f"end {self.attempt} {other}", patience)))
            except EnvironmentFault as gone:
                heard.remove(other)
                its = End(None, [{"who": f"machine {other}", **record_of("failed", gone)}], 0)
            end = End(end.signal or its.signal, end.failures + its.failures, max(end.adjustments, its.adjustments))
        self.store.set(f"all {self.attempt}", json.dumps(astuple(end)))
        self._leave(heard)
        return end

    def _leave(self, others: Sequence[int]) -> None:
        """Say that this machine has read all; the first one waits for the others, because the store goes with it."""
        deadline = time.monotonic() + worker.GRACE
        with contextlib.suppress(RuntimeError):  # the first machine has ended, however
            self.store.set(f"left {self.attempt} {self.rank}", "")
            while self.rank == 0 and time.monotonic() < deadline:
                left = [self.store.check([f"left {self.attempt} {other}"]) for other in others]
                failed = [self.store.check([f"end {self.attempt} {other}"]) for other in others]
                if all(left) or (any(failed) and not self.store.check([f"all {self.attempt}"])):
                    return
                time.sleep(POLL)

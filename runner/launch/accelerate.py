"""The launcher of several machines, each given the same command. README.md: what a launcher is.

The first machine serves a store of torch's, by which they say where torchrun is to meet, and how
their processes ended.
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
from typing import TYPE_CHECKING, Any

from runner.config.machines import rank_of, rendezvous_of, world_size
from runner.errors import ConfigError, EnvironmentFault, Fault
from runner.launch import processes, worker
from runner.launch.local import Alone, End, record_of, train_together
from runner.run import Run
from runner.schema.ranges import Natural, Positive, Processes

if TYPE_CHECKING:
    from torch.distributed import TCPStore

POLL = 0.2  # seconds between two looks at the store
HANDSHAKE = 20  # most seconds for what answers at the rendezvous to show that it is a store
# Seconds that processes have to end by themselves when those of another machine have failed.
ENDING = 3
AGAIN = "run it again on each machine to continue"


def accelerate(
    folder: str | Path,
    *,
    num_processes: Processes = 1,
    num_machines: Processes = 1,
    machine_rank: Natural | None = None,
    rendezvous: str | None = None,
    rendezvous_seconds: Positive = 300,
    debug: bool = False,
) -> int:
    """Train on this machine as one of several; where there is but one, as ``local`` does."""
    if world_size() > 1 or num_processes * num_machines == 1:
        return worker.work(folder, debug=debug)
    machines = Alone()
    if num_machines > 1:
        given = {"machine_rank": machine_rank, "rendezvous": rendezvous}
        grace = processes.grace_of(Run(Path(folder)).experiment.launcher)
        machines = Machines(given, num_machines, rendezvous_seconds, grace)
    return train_together(folder, num_processes, debug, machines)


class Machines(Alone):
    """This machine as one of several."""

    def __init__(self, launcher: Mapping[str, Any], count: int, seconds: float, grace: float):
        self.rank = int(rank_of(launcher)[0])
        self.count = count
        self.seconds = seconds  # that the machines have to meet
        self.grace = grace  # seconds that processes have for their save
        self.attempt = 0
        self.address = rendezvous_of(launcher)
        self.was_asked = False  # to end its processes, because of another machine
        self.place = f" on machine {self.rank} ({socket.gethostname()})"
        self.others = [rank for rank in range(count) if rank != self.rank]

    def _fault(self, found: str, fix: str = AGAIN) -> Fault:
        """The fault of machines that do not meet, or lose each other."""
        return Fault(
            where="launcher.rendezvous",
            found=f"{self.address}: {found}",
            expected=f"the same command on each of {self.count} machines, and here the one with "
            "launcher.machine_rank=0",
            fix=fix,
        )

    def _open_store(self) -> None:
        """Serve the store, or reach it; the first machine waits here for the others."""
        host, _, port = self.address.rpartition(":")
        try:
            socket.getaddrinfo(host, port)
            if self.rank == 0:
                self.store = self._connect("localhost", int(port))
            else:
                self.store = self._reach_store(host, int(port))
        except (OSError, RuntimeError) as error:
            found = str(error).splitlines()[0]
            if "EADDRINUSE" in str(error):
                found = "this port is already in use here"
            fix = "launcher.rendezvous=<the first machine>:<a free port>, the same on each"
            raise EnvironmentFault(self._fault(found, fix)) from None
        if self.store.add(f"machine {self.rank}", 1) > 1:
            fix = f"launcher.machine_rank=<0 to {self.count - 1}, different on each>"
            raise ConfigError(self._fault(f"machine {self.rank} is already there", fix))
        if self.rank == 0:
            for other in self.others:
                self._hear(other, f"machine {other}", self.seconds)

    def _connect(self, host: str, port: int) -> "TCPStore":
        """A connection to the store, which the first machine holds and the others join."""
        from torch.distributed import TCPStore

        wait = timedelta(seconds=HANDSHAKE)
        return TCPStore(host, port, None, self.rank == 0, wait, wait_for_workers=False)

    def _reach_store(self, host: str, port: int) -> "TCPStore":
        """The store of the first machine, which may not have begun yet."""
        deadline = time.monotonic() + self.seconds
        stores: list[TCPStore] = []

        def connect() -> None:
            with contextlib.suppress(RuntimeError):
                stores.append(self._connect(host, port))

        while True:
            try:
                # A signal can end this wait, unlike torch's own.
                socket.create_connection((host, port), timeout=5).close()
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(POLL)
        # In a thread, since it waits for ever where that is no store.
        thread = threading.Thread(target=connect, daemon=True)
        thread.start()
        thread.join(HANDSHAKE)
        if not stores:
            raise ConnectionError("what answers there is not a machine of a run")
        return stores[0]

    def _hear(self, rank: int, key: str, seconds: float) -> str:
        """The text that a machine puts into the store; EnvironmentFault if it comes too late."""
        deadline = time.monotonic() + seconds
        found = f"nothing from machine {rank} for {seconds:g} s"
        try:
            while time.monotonic() < deadline:
                if self.store.check([key]):
                    return str(self.store.get(key).decode())
                time.sleep(POLL)
        except RuntimeError:
            found = "machine 0 has ended"
        raise EnvironmentFault(self._fault(found))

    @contextlib.contextmanager
    def meeting(self) -> Iterator[dict[str, Any]]:
        """The place where torchrun meets this time; the other machines are watched meanwhile."""
        if not self.attempt:
            self._open_store()
        self.attempt += 1
        key = f"port {self.attempt}"
        if self.rank == 0:
            with socket.create_server(("", 0)) as free:
                self.store.set(key, str(free.getsockname()[1]))
        host = self.address.rpartition(":")[0]
        port = self._hear(0, key, self.seconds)
        done = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(done,), daemon=True)
        watcher.start()
        try:
            yield {
                "min_nodes": self.count,
                "max_nodes": self.count,
                "rdzv_configs": {"rank": self.rank},
                "rdzv_backend": "static",
                "rdzv_endpoint": f"{host}:{port}",
            }
        finally:
            done.set()
            watcher.join()

    def _watch(self, done: threading.Event) -> None:
        """Ask this process to end its own where those of another machine have failed.

        They may wait for these.
        """
        self.was_asked = False
        has_failed = False
        ends = [f"end {self.attempt} {other}" for other in self.others]
        while not has_failed and not done.wait(POLL):
            try:
                has_failed = any(self.store.check([end]) for end in ends)
            except RuntimeError:  # the first machine has ended
                has_failed = True
        if has_failed and not done.wait(ENDING):
            self.was_asked = True
            os.kill(os.getpid(), signal.SIGTERM)

    def share(self, end: End) -> End:
        """The end of the processes of all machines, where some have failed.

        The first machine hears it of each, and tells all of them.
        """
        if not (end.signal or end.failures or self.was_asked):
            self._leave(self.others)
            return end
        if self.was_asked:
            end = End(None, end.failures, end.adjustments)
        with contextlib.suppress(RuntimeError):
            self.store.set(f"end {self.attempt} {self.rank}", json.dumps(astuple(end)))
        patience = self.grace + processes.MARGIN
        if self.rank:
            text = self._hear(0, f"all {self.attempt}", self.count * patience)
            shared = End(*json.loads(text))
            self._leave(self.others)
            return shared
        heard = list(self.others)
        for other in self.others:
            try:
                text = self._hear(other, f"end {self.attempt} {other}", patience)
                other_end = End(*json.loads(text))
            except EnvironmentFault as error:  # that machine has gone
                heard.remove(other)
                failure = {"who": f"machine {other}", **record_of("failed", error)}
                other_end = End(None, [failure], 0)
            end = End(
                end.signal or other_end.signal,
                end.failures + other_end.failures,
                max(end.adjustments, other_end.adjustments),
            )
        self.store.set(f"all {self.attempt}", json.dumps(astuple(end)))
        self._leave(heard)
        return end

    def _leave(self, others: Sequence[int]) -> None:
        """Say that this machine has read all.

        The first one waits for the others, because the store goes with it.
        """
        deadline = time.monotonic() + self.grace
        with contextlib.suppress(RuntimeError):  # the first machine has ended, however
            self.store.set(f"left {self.attempt} {self.rank}", "")
            while self.rank == 0 and time.monotonic() < deadline:
                left = [self.store.check([f"left {self.attempt} {other}"]) for other in others]
                if all(left):
                    return
                failed = [self.store.check([f"end {self.attempt} {other}"]) for other in others]
                if any(failed) and not self.store.check([f"all {self.attempt}"]):
                    return
                time.sleep(POLL)

"""Messages between the workers of a distributed run.

The first worker holds a TCP connection to each other one. They exchange small JSON values, one line each, at a few
points of a run; gradients take another way, see `collective`. A connection that breaks shows that a process has ended.

A connection is made to the port of the first worker before TensorFlow's server listens there, so that a worker needs
only the one port that the cluster's description gives it.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import socket
import sys
import threading
import time
from typing import IO, Any, Dict, Iterator, List, Optional

from adapter_bert.common import errors, streams
from adapter_bert.common.lazy_tensorflow import tf
from adapter_bert.devices.cluster import Cluster

# Seconds in which all workers must have connected. They may wait for machines, and read data and the base first.
START_SECONDS = 1800.0
# Seconds for the main thread to end by itself once a worker is lost; it may wait for TensorFlow, which may not notice.
GRACE_SECONDS = 10.0
_RETRY_SECONDS, _CONNECT_SECONDS, _LOG_SECONDS = 0.2, 5.0, 30.0
_WATCH_SECONDS = 1.0
# Seconds of silence, seconds between probes and their number, until a machine that does not answer counts as lost.
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}
_MAX_HELLO = 1000  # bytes


class Workers:
    """All workers of a run, as seen by one of them. A cluster of one worker needs no connections.

    with Workers(cluster) as workers:
        values = workers.exchange(value)
    """

    def __init__(self, cluster: Optional[Cluster] = None, start_seconds: float = START_SECONDS) -> None:
        self.cluster = cluster or Cluster()
        self.rank, self.count = self.cluster.rank, self.cluster.count
        self.failure: Optional[str] = None  # why the run cannot go on
        self._peers: Dict[int, _Connection] = {}
        self._lock = threading.Lock()
        self._failed = threading.Event()
        self._has_left = False
        self._deadline: Optional[float] = None
        self._start_seconds = start_seconds

    @property
    def is_first(self) -> bool:
        """Whether this worker evaluates and writes files."""
        return self.rank == 0

    def __enter__(self) -> Workers:
        """Connect the workers; wait until all have started."""
        if self.count > 1:
            connect = _accept_all if self.is_first else _connect_to_first
            self._peers = connect(self.cluster, time.monotonic() + self._start_seconds)
            for rank, connection in self._peers.items():
                threading.Thread(target=self._read, args=(rank, connection), daemon=True).start()
            threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, kind: Any, error: Optional[BaseException], traceback: Any) -> None:
        """Tell the other workers that this one ends, and why if it failed."""
        if error is None or isinstance(error, errors.StoppedError):  # all workers stop at the same step
            self.leave()
            return
        reason = "it was interrupted" if isinstance(error, KeyboardInterrupt) else errors.reason(error)
        with self._lock:
            is_new, self._has_left = self.failure is None and not self._has_left, True
        if is_new:
            self._send({"failed": f"{self.cluster.name(self.rank)} failed: {streams.printable(reason):.1000}"})

    def leave(self) -> None:
        """End the part of the run that needs the other workers."""
        with self._lock:
            self._has_left = True
        self._send({"done": True})

    def exchange(self, value: Any = None) -> List[Any]:
        """Return the JSON values that the workers pass here, in the order of their numbers. Waits for all of them.

        Raises:
          errors.UserError: a worker has failed or ended.
        """
        if self.count == 1:
            return [value]
        if self.is_first:
            values = [value] + [self._receive(rank) for rank in sorted(self._peers)]
            self._send({"values": values})
            return values
        self._send({"values": value})
        return self._receive(0)

    @contextlib.contextmanager
    def first_alone(self) -> Iterator[None]:
        """Let the first worker run the block before the others."""
        if not self.is_first:
            self.exchange()
        yield
        if self.is_first:
            self.exchange()

    def expect_end(self, seconds: Optional[float]) -> None:
        """Fail unless this is called again within a time: a worker may hang, and not all of TensorFlow has timeouts."""
        self._deadline = None if seconds is None else time.monotonic() + seconds

    def error(self, wait_seconds: float = 5.0) -> Optional[errors.UserError]:
        """Return the error of a worker that was lost; None if none is lost within the given time."""
        return errors.UserError(f"{self.failure}") if self._failed.wait(wait_seconds) else None

    def _watch(self) -> None:
        """Fail if a deadline has passed."""
        while not self._failed.wait(_WATCH_SECONDS) and not self._has_left:
            if self._deadline is not None and time.monotonic() > self._deadline:
                self._fail(
                    "the workers did not finish a step within --worker_timeout, although none has ended: one hangs"
                )

    def _receive(self, rank: int) -> Any:
        value = self._peers[rank].received.get()
        if self.failure is not None:
            raise errors.UserError(self.failure)
        return value

    def _send(self, message: Dict[str, Any]) -> None:
        for rank, connection in self._peers.items():
            try:
                connection.send(message)
            except OSError:
                self._fail(self._describe_end(rank))

    def _read(self, rank: int, connection: _Connection) -> None:
        """Handle the messages of another worker, until it ends."""
        try:
            for line in connection.lines:
                message = json.loads(line)
                if "failed" in message:
                    self._fail(message["failed"])
                    return
                if "done" in message:
                    return
                connection.received.put(message["values"])
        except (OSError, ValueError):
            pass
        self._fail(self._describe_end(rank))

    def _describe_end(self, rank: int) -> str:
        return f"{self.cluster.name(rank)} has ended or cannot be reached"

    def _fail(self, reason: str) -> None:
        """Pass on that a worker is lost; end this process if its main thread does not do so soon."""
        with self._lock:
            if self._has_left or self.failure is not None:
                return
            reason, own = f"{reason[:1].upper()}{reason[1:]}", self.cluster.name(self.rank)
            advice = "The same command continues from the last checkpoint."
            self.failure = f"{reason.rstrip('.')}. Therefore {own} ends too. {advice}"
        if self.is_first:
            self._send({"failed": reason})
        self._failed.set()
        for connection in self._peers.values():
            connection.received.put(None)
        watchdog = threading.Timer(GRACE_SECONDS, self._end_process)
        watchdog.daemon = True
        watchdog.start()

    def _end_process(self) -> None:
        if not self._has_left:
            program = os.path.basename(sys.argv[0])
            sys.stderr.write(f"\n{program}: error: {streams.printable(self.failure)}\n")
            sys.stderr.flush()
            os._exit(1)


class _Connection:
    """A connection to another worker."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):  # Linux
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._socket = connected
        self._lock = threading.Lock()
        self.lines: IO[bytes] = connected.makefile("rb")
        self.received: queue.Queue = queue.Queue()

    def send(self, message: Dict[str, Any]) -> None:
        """Send a message."""
        with self._lock:
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def set_timeout(self, seconds: Optional[float]) -> None:
        """Set how long to wait for a message."""
        self._socket.settimeout(seconds)

    def close(self) -> None:
        """Close the connection."""
        self.lines.close()
        self._socket.close()


def listen(cluster: Cluster) -> socket.socket:
    """Return a socket that listens on this worker's port; raise a `UserError` if that is in use."""
    is_ipv6 = ":" in cluster.endpoint(cluster.rank)[0]
    listener = socket.socket(socket.AF_INET6 if is_ipv6 else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("", cluster.port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise errors.UserError(
            f"Cannot listen on port {cluster.port} of {cluster.name(cluster.rank)}: {errors.reason(error)}. Another "
            "program uses it, maybe an earlier worker that is still running: end it, or choose another port."
        ) from None
    return listener


def _accept_all(cluster: Cluster, deadline: float) -> Dict[int, _Connection]:
    """Wait for the connections of all other workers; return them by number."""
    found: Dict[int, _Connection] = {}
    next_log = time.monotonic() + _LOG_SECONDS / 10
    with listen(cluster) as listener:
        while len(found) < cluster.count - 1:
            if select.select([listener], [], [], _RETRY_SECONDS)[0]:
                connection = _Connection(listener.accept()[0])
                try:
                    _welcome(connection, cluster, found)
                except errors.UserError as error:
                    for other in (connection, *found.values()):
                        with contextlib.suppress(OSError):
                            other.send({"failed": str(error)})
                    raise
            missing = [cluster.name(rank) for rank in range(1, cluster.count) if rank not in found]
            if missing and time.monotonic() > deadline:
                raise errors.UserError(
                    f"No connection from {errors.first_names(missing)}: start all workers, and check that they can "
                    f"reach {cluster.addresses[0]}."
                )
            if missing and time.monotonic() > next_log:
                tf.logging.info("Waiting for %s", errors.first_names(missing))
                next_log += _LOG_SECONDS
    return found


def _welcome(connection: _Connection, cluster: Cluster, found: Dict[int, _Connection]) -> None:
    """Add the worker that has connected to those found; ignore any other program."""
    connection.set_timeout(_CONNECT_SECONDS)
    try:
        hello = json.loads(connection.lines.readline(_MAX_HELLO))
        rank, count = int(hello["worker"]), int(hello["of"])
        connection.send({"welcome": True})
    except (OSError, ValueError, KeyError, TypeError):
        connection.close()
        return
    if count != cluster.count or not 0 < rank < count:
        raise errors.UserError(
            f"A process says that it is worker {rank} of {count}, but this is {cluster.name(0)} of {cluster.count}: "
            "give all of them the same description of the cluster."
        )
    if rank in found:
        raise errors.UserError(f"Two processes say that they are {cluster.name(rank)}.")
    connection.set_timeout(None)
    found[rank] = connection


def _connect_to_first(cluster: Cluster, deadline: float) -> Dict[int, _Connection]:
    """Connect to the first worker, which may not have started yet."""
    listen(cluster).close()  # only to check the port
    next_log = time.monotonic() + _LOG_SECONDS
    while True:
        try:
            return {0: _say_hello(cluster)}
        except (OSError, ValueError) as error:
            if time.monotonic() > deadline:
                raise errors.UserError(f"Cannot connect to {cluster.name(0)}: {errors.reason(error)}.") from None
            if time.monotonic() > next_log:
                tf.logging.info("Waiting for %s: %s", cluster.name(0), errors.reason(error))
                next_log += _LOG_SECONDS
        time.sleep(_RETRY_SECONDS)


def _say_hello(cluster: Cluster) -> _Connection:
    """Return a connection to the first worker; raise an error if it does not answer, e.g. if it is an earlier one."""
    connection = _Connection(socket.create_connection(cluster.endpoint(0), timeout=_CONNECT_SECONDS))
    try:
        connection.send({"worker": cluster.rank, "of": cluster.count})
        if json.loads(connection.lines.readline(_MAX_HELLO)) != {"welcome": True}:
            raise ValueError("another program answers")
    except (OSError, ValueError):
        connection.close()
        raise
    connection.set_timeout(None)
    return connection

"""Measure the server next to the predictor that it uses, with many tasks on one base, on this machine.

    python benchmarks/serving.py --base_dir=minilm --data_dir=glue_data/SST-2 --rounds=3

Rounds alternate between the predictor (calls with 256 sentences of all tasks, in this process) and the server (a
process of its own, which 256 connections with one sentence each keep busy; then half of that rate, with random
arrivals). The last part compares the times of one tenant alone with those beside a burst of another. The requests come
from this process, on the same cores.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, Iterator, List, NamedTuple, Sequence

from adapter_bert.common import system

system.configure_tensorflow()

from adapter_bert.common import errors
from adapter_bert.serving.server import tenants
from adapter_bert.serving.task_predictor import TaskPredictor
from adapter_bert.weights import bases
from adapter_bert.weights.bank import Bank
from benchmarks.sides import common
from benchmarks.sides.ours import pack_on

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Requests of the quiet tenant per second.
QUIET_RATE = 10.0


class Load(NamedTuple):
    """What was answered."""

    seconds: List[float]  # of each request, from its arrival; waiting for a connection counts
    duration: float

    @property
    def rate(self) -> float:
        """Answers per second."""
        return len(self.seconds) / self.duration

    def milliseconds(self, quantile: float) -> float:
        """Return a quantile of the times."""
        return 1e3 * sorted(self.seconds)[min(len(self.seconds) - 1, int(quantile * len(self.seconds)))]


class Client:
    """Sends requests over connections that stay open."""

    def __init__(self, port: int, key: str, texts: Sequence[str], tasks: int) -> None:
        self._port, self._random = port, random.Random(1)
        self._requests = []
        for index, text in enumerate(texts):
            body = json.dumps({"instances": [text]}).encode()
            head = f"POST /v1/models/task{index % tasks}:predict HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
            self._requests.append(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    async def _send(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(self._random.choice(self._requests))
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        await reader.readexactly(size)

    async def saturate(self, connections: int, seconds: float) -> Load:
        """Keep connections busy."""
        times: List[float] = []
        started = time.perf_counter()

        async def run() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            while time.perf_counter() < started + seconds:
                sent = time.perf_counter()
                await self._send(reader, writer)
                times.append(time.perf_counter() - sent)
            writer.close()

        await asyncio.gather(*(run() for _ in range(connections)))
        return Load(times, time.perf_counter() - started)

    async def at_rate(self, rate: float, seconds: float, connections: int = 64) -> Load:
        """Send requests at random times, independent of the answers."""
        arrivals: asyncio.Queue[float] = asyncio.Queue()
        times: List[float] = []
        started = time.perf_counter()

        async def run() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            while True:
                arrival = await arrivals.get()
                if arrival < 0:
                    break
                await self._send(reader, writer)
                times.append(time.perf_counter() - arrival)
            writer.close()

        workers = [asyncio.ensure_future(run()) for _ in range(connections)]
        following = started
        while following < started + seconds:
            following += self._random.expovariate(rate)
            await asyncio.sleep(max(0.0, following - time.perf_counter()))
            arrivals.put_nowait(time.perf_counter())
        for _ in workers:
            arrivals.put_nowait(-1.0)
        await asyncio.gather(*workers)
        return Load(times, time.perf_counter() - started)


@contextlib.contextmanager
def running_server(bank: str, flags: Sequence[str]) -> Iterator[int]:
    """Start `scripts/serve.py` and yield its port."""
    command = [sys.executable, os.path.join(ROOT, "scripts", "serve.py"), f"--bank={bank}", "--port=0", *flags]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stderr=log, env=dict(os.environ, PYTHONPATH=ROOT))
        try:
            while True:
                time.sleep(0.5)
                log.seek(0)
                lines = [json.loads(line) for line in log if '"address"' in line]
                if lines:
                    yield int(lines[0]["address"].rpartition(":")[2])
                    return
                if process.poll() is not None:
                    log.seek(0)
                    raise errors.UserError(f"The server has ended: {log.read()[-2000:]}")
        finally:
            process.terminate()
            process.wait()


def predictor_rate(predictor: TaskPredictor, texts: Sequence[str], args: argparse.Namespace) -> float:
    """Return sentences per second of calls with as many random sentences as the server has connections."""
    examples = [(f"task{index % args.tasks}", text) for index, text in enumerate(texts)]
    chosen = random.Random(1)
    started, count = time.perf_counter(), 0
    while time.perf_counter() < started + args.seconds:
        count += len(predictor.predict(chosen.choices(examples, k=args.connections), 32))
    return count / (time.perf_counter() - started)


def compare(predictor: TaskPredictor, client: Client, texts: Sequence[str], args: argparse.Namespace) -> None:
    """Print the throughput of predictor and server, and the times at half load."""
    ratios = []
    for number in range(1 + args.rounds):
        own = predictor_rate(predictor, texts, args)
        full = asyncio.run(client.saturate(args.connections, args.seconds))
        if not number:  # warm-up
            continue
        half = asyncio.run(client.at_rate(full.rate / 2, args.seconds))
        ratios.append(full.rate / own)
        print(
            f"round {number}: predictor {own:.0f}/s, server {full.rate:.0f}/s ({ratios[-1]:.2f}), p50 "
            f"{full.milliseconds(0.5):.0f} ms, p99 {full.milliseconds(0.99):.0f} ms; at half load ({half.rate:.0f}/s): "
            f"p50 {half.milliseconds(0.5):.1f} ms, p99 {half.milliseconds(0.99):.1f} ms",
            flush=True,
        )
    print(f"server / predictor: median {statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})")


async def _beside(quiet: Client, burst: Client, args: argparse.Namespace) -> List[Load]:
    busy = asyncio.ensure_future(burst.saturate(args.connections, 2 * args.seconds + 1))
    await asyncio.sleep(0.5)
    found = await quiet.at_rate(QUIET_RATE, 2 * args.seconds)
    return [found, await busy]


def compare_tenants(quiet: Client, burst: Client, args: argparse.Namespace) -> None:
    """Print the times of a quiet tenant alone, and beside the burst of another."""
    ratios = []
    for number in range(1, args.rounds + 1):
        alone = asyncio.run(quiet.at_rate(QUIET_RATE, 2 * args.seconds))
        beside, busy = asyncio.run(_beside(quiet, burst, args))
        ratios.append(beside.milliseconds(0.99) / alone.milliseconds(0.99))
        print(
            f"round {number}: alone p50 {alone.milliseconds(0.5):.1f}, p99 {alone.milliseconds(0.99):.1f} ms; "
            f"beside a burst ({busy.rate:.0f}/s) p50 {beside.milliseconds(0.5):.1f}, p99 "
            f"{beside.milliseconds(0.99):.1f} ms ({ratios[-1]:.2f})",
            flush=True,
        )
    print(f"p99 beside a burst / alone: median {statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--base_dir", required=True, help="folder of a base")
    add("--data_dir", required=True, help="folder of SST-2")
    add("--tasks", type=int, default=50, help="default: %(default)s")
    add("--rounds", type=int, default=3, help="default: %(default)s")
    add("--seconds", type=float, default=8.0, help="of each measurement; default: %(default)s")
    add("--connections", type=int, default=256, help="default: %(default)s")
    add("--precision", default="float32", help="default: %(default)s")
    add("--parts", default="throughput,tenants", help="default: %(default)s")
    add("flags", nargs="*", help="flags of the server, after --")
    args = parser.parse_args()
    job: common.Job = {"data_dir": args.data_dir, "sentences": 512, "adapter_size": 64, "length": 128}
    texts = common.read_sentences(job)
    base = bases.Base.find(args.base_dir)
    with tempfile.TemporaryDirectory() as folder:
        bank = Bank.create(os.path.join(folder, "bank"), base)
        pack = pack_on(base, job)
        for number in range(args.tasks):
            bank.add(pack, f"task{number}")
        keys = [tenants.create_key() for _ in range(2)]
        path = os.path.join(folder, "tenants.toml")
        with open(path, "w") as file:
            for name, (_, hashed) in zip("ab", keys):
                file.write(f"[tenants.{name}]\nkeys = [{json.dumps(hashed)}]\nuse = ['*']\n")
        options: Any = [f"--precision={args.precision}", f"--tenants={path}", *args.flags]
        with running_server(bank.folder, options) as port:
            quiet, busy = (Client(port, key, texts, args.tasks) for key, _ in keys)
            if "throughput" in args.parts:
                with TaskPredictor.from_bank(bank.folder, precision=args.precision) as predictor:
                    compare(predictor, busy, texts, args)
            if "tenants" in args.parts:
                compare_tenants(quiet, busy, args)


if __name__ == "__main__":
    main()

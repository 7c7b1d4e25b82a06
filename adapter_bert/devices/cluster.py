"""The workers of a distributed run, as an environment variable describes them. Imports no TensorFlow, see `launcher`.

`TF_CONFIG` is set by Kubernetes (TFJob), Vertex AI and this project's launcher, e.g. for the second of two workers:

    {"cluster": {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]}, "task": {"type": "worker", "index": 1}}
"""

from __future__ import annotations

import collections
import dataclasses
import json
import re
from typing import Any, Dict, List, Mapping, Tuple

from adapter_bert.common import errors

# Values of --distribution_strategy: the processes of one machine, and those of several.
STRATEGIES = MIRRORED, MULTI_WORKER_MIRRORED = "mirrored", "multi_worker_mirrored"
TF_CONFIG = "TF_CONFIG"
# Workers in the order of their numbers: a job of the first kind, if there is one, provides the first worker.
_JOBS = ("chief", "master", "worker")
_ADDRESS = re.compile(r"(\[[^]\s]+\]|[^:\s/\[\]]+):(\d{1,5})")
# Ports of SLURM jobs: below the range from which Linux takes ports for outgoing connections.
_SLURM_PORTS = range(12000, 32000)
# Variables of SLURM, in order of preference: those of the step (srun), then those of the job.
_SLURM_VARIABLES = {
    "tasks": ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
    "job": ("SLURM_JOB_ID", "SLURM_JOBID"),
    "tasks per node": ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"),
    "nodes": ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"),
}


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The addresses of all workers, and the number of this one. By default, this process is the only one."""

    addresses: Tuple[str, ...] = ("localhost:0",)  # host:port
    rank: int = 0

    @property
    def count(self) -> int:
        """Number of workers."""
        return len(self.addresses)

    @property
    def port(self) -> int:
        """The port of this worker."""
        return self.endpoint(self.rank)[1]

    def endpoint(self, rank: int) -> Tuple[str, int]:
        """Return host and port of a worker."""
        host, _, port = self.addresses[rank].rpartition(":")
        return host.strip("[]"), int(port)

    def name(self, rank: int) -> str:
        """Return how messages call a worker."""
        return f"worker {rank} ({self.addresses[rank]})"


def check_batch_size(batch_size: int, parts: int, count: int) -> None:
    """Raise a `UserError` unless a batch can be divided among workers, and each share into `parts`."""
    if batch_size % count:
        raise errors.UserError(
            f"--train_batch_size={batch_size} must be a multiple of the number of workers, {count}: it is the size of "
            "the whole batch, of which each worker computes an equal share."
        )
    if batch_size // count % parts:
        raise errors.UserError(
            f"--gradient_accumulation_steps={parts} must divide each worker's share of the batch, "
            f"{batch_size // count} examples: --train_batch_size={batch_size} for {count} workers."
        )


def from_environment(environment: Mapping[str, str]) -> Cluster:
    """Return the cluster that TF_CONFIG describes, or otherwise the variables of SLURM; raise a `UserError` if none."""
    if environment.get(TF_CONFIG):
        return parse_tf_config(environment[TF_CONFIG])
    if environment.get("SLURM_PROCID"):
        return from_slurm(environment)
    raise errors.UserError(
        f"--distribution_strategy={MULTI_WORKER_MIRRORED} needs the environment variable {TF_CONFIG}, which describes "
        "the cluster, or a process that was started by SLURM's srun. For several GPUs or processes of one machine, use "
        f"--distribution_strategy={MIRRORED}."
    )


def parse_tf_config(text: str) -> Cluster:
    """Return the cluster that the value of TF_CONFIG describes; raise a `UserError` if it is invalid."""
    try:
        config = json.loads(text)
    except ValueError as error:
        raise errors.UserError(f"{TF_CONFIG} is not JSON ({error}): {text:.200}") from None
    jobs, task = (config.get(key) if isinstance(config, dict) else None for key in ("cluster", "task"))
    if not isinstance(jobs, dict) or not isinstance(task, dict):
        raise errors.UserError(f"{TF_CONFIG} must be an object with the keys cluster and task, found {text:.200}")
    _check_jobs(jobs)
    addresses = [address for job in _JOBS for address in jobs.get(job, ())]
    repeated = [address for address, count in collections.Counter(addresses).items() if count > 1]
    if repeated:
        raise errors.UserError(f"{TF_CONFIG} names a worker twice: {errors.first_names(repeated)}.")
    return Cluster(tuple(addresses), _rank(jobs, task))


def _check_jobs(jobs: Mapping[str, Any]) -> None:
    unknown = [job for job, addresses in jobs.items() if job not in _JOBS and addresses]
    if unknown:
        raise errors.UserError(
            f"{TF_CONFIG} has the job {errors.first_names(unknown)} in its cluster; expected only {', '.join(_JOBS)}. "
            "There are no parameter servers here, and the first worker evaluates."
        )
    for job, addresses in jobs.items():
        if not isinstance(addresses, list):
            raise errors.UserError(
                f"{TF_CONFIG}: cluster: {job} must be a list of addresses, found {addresses!r:.100}."
            )
        for address in addresses:
            match = _ADDRESS.fullmatch(address) if isinstance(address, str) else None
            if not match or not 0 < int(match.group(2)) < 2**16:
                raise errors.UserError(f"{TF_CONFIG}: cluster: {job}: expected host:port, found {address!r:.100}.")


def _rank(jobs: Mapping[str, List[str]], task: Mapping[str, Any]) -> int:
    """Return the number of the worker that a task describes."""
    job, index = task.get("type"), task.get("index")
    if job not in jobs or job not in _JOBS:
        raise errors.UserError(f"{TF_CONFIG}: task: type is {job!r:.100}; the cluster has {errors.first_names(jobs)}.")
    if isinstance(index, str) and index.isdigit():
        index = int(index)
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(jobs[job]):
        raise errors.UserError(
            f"{TF_CONFIG}: task: index is {index!r:.100}; the cluster has {len(jobs[job])} of the type {job}, counted "
            "from 0."
        )
    return sum(len(jobs.get(earlier, ())) for earlier in _JOBS[: _JOBS.index(job)]) + index


def from_slurm(environment: Mapping[str, str]) -> Cluster:
    """Return the cluster of a SLURM job step; raise a `UserError` if variables are missing or contradict each other.

    Its tasks fill one node after another. The ports follow from the number of the job.
    """
    values = {}
    for fact, names in _SLURM_VARIABLES.items():
        values[fact] = next(filter(None, map(environment.get, names)), "")
        if not values[fact]:
            raise errors.UserError(f"SLURM has set SLURM_PROCID, but not {names[0]}: start the workers with srun.")
    try:
        rank, count, job = (int(text) for text in (environment["SLURM_PROCID"], values["tasks"], values["job"]))
        counts, nodes = _tasks_per_node(values["tasks per node"]), expand_nodes(values["nodes"])
    except ValueError as error:
        raise errors.UserError(f"Cannot read the variables of SLURM ({error}): {_shown(values)}.") from None
    if sum(counts) != count or len(counts) != len(nodes) or not 0 <= rank < count:
        raise errors.UserError(f"The variables of SLURM contradict each other: SLURM_PROCID={rank}, {_shown(values)}.")
    first = _SLURM_PORTS[job * 64 % len(_SLURM_PORTS)]
    addresses = [f"{node}:{first + local}" for node, tasks in zip(nodes, counts) for local in range(tasks)]
    own = environment.get("SLURMD_NODENAME")
    if own and not addresses[rank].startswith(own + ":"):
        raise errors.UserError(
            f"Task {rank} of the SLURM job runs on {own}; expected {addresses[rank].partition(':')[0]}: start the "
            "workers with srun --distribution=block."
        )
    return Cluster(tuple(addresses), rank)


def _shown(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value:.100}" for name, value in values.items())


def _tasks_per_node(text: str) -> List[int]:
    """Parse SLURM's numbers of tasks: `2(x3),1` is [2, 2, 2, 1]."""
    counts: List[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if not match:
            raise ValueError(f"'{part}' is not a number of tasks")
        counts += [int(match.group(1))] * int(match.group(2) or 1)
    return counts


def expand_nodes(text: str) -> List[str]:
    """Parse a list of nodes in SLURM's notation: `gpu[08-10,12],login` is gpu08, gpu09, gpu10, gpu12 and login."""
    nodes: List[str] = []
    for part in re.findall(r"(?:[^,\[]|\[[^]]*\])+", text):
        names = [""]
        for plain, ranges in re.findall(r"([^\[\]]+)|\[([^]]*)\]", part):
            names = [name + end for name in names for end in ([plain] if plain else _numbers(ranges))]
        nodes += names
    return nodes


def _numbers(text: str) -> List[str]:
    found: List[str] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        numbers = range(int(first), int(last if dash else first) + 1)
        found += [str(number).zfill(len(first)) for number in numbers]
    return found


def tf_config(cluster: Cluster) -> Dict[str, str]:
    """Return the environment variable that describes a cluster to one of its workers."""
    content = {"cluster": {"worker": list(cluster.addresses)}, "task": {"type": "worker", "index": cluster.rank}}
    return {TF_CONFIG: json.dumps(content)}

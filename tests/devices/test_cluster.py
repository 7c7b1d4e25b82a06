"""The description of a cluster: TF_CONFIG, SLURM's variables, and what is wrong with them."""

from __future__ import annotations

import json

import pytest

from adapter_bert.devices import cluster
from adapter_bert.devices.cluster import Cluster
from tests.helpers import assert_mentions, message_of

ADDRESSES = ["10.0.0.1:2222", "10.0.0.2:2222", "[fd00::3]:2223"]


def config_of(jobs, kind="worker", index=0, **more) -> str:
    return json.dumps({"cluster": jobs, "task": {"type": kind, "index": index}, **more})


def test_workers_are_counted_in_the_order_of_tf_config():
    found = cluster.parse_tf_config(config_of({"worker": ADDRESSES}, index=2))
    assert found == Cluster(tuple(ADDRESSES), 2)
    assert (found.count, found.port, found.endpoint(2)) == (3, 2223, ("fd00::3", 2223))
    assert found.name(1) == "worker 1 (10.0.0.2:2222)"


@pytest.mark.parametrize("first", ["chief", "master"])
def test_a_chief_is_the_first_worker(first):
    jobs = {"worker": ADDRESSES[1:], first: ADDRESSES[:1]}  # as Kubernetes and Vertex AI write it
    assert cluster.parse_tf_config(config_of(jobs, first, environment="cloud")) == Cluster(tuple(ADDRESSES), 0)
    assert cluster.parse_tf_config(config_of(jobs, "worker", "1")) == Cluster(tuple(ADDRESSES), 2)


def test_a_cluster_can_be_described_to_its_workers():
    described = Cluster(tuple(ADDRESSES), 1)
    assert cluster.from_environment(cluster.tf_config(described)) == described


@pytest.mark.parametrize(
    "text, facts",
    [
        ("{cluster", ["not JSON", "{cluster"]),
        ("[1]", ["cluster and task"]),
        (json.dumps({"cluster": {"worker": ADDRESSES}}), ["cluster and task"]),
        (json.dumps({"cluster": ADDRESSES, "task": {}}), ["cluster and task"]),
        (config_of({"worker": ADDRESSES + ADDRESSES[:1]}), ["twice", ADDRESSES[0]]),
        (config_of({"chief": ADDRESSES[:1], "worker": ADDRESSES}), ["twice", ADDRESSES[0]]),
        (config_of({"worker": ADDRESSES}, index=3), ["index", "3"]),
        (config_of({"worker": ADDRESSES}, index=-1), ["index", "-1"]),
        (config_of({"worker": ADDRESSES}, index=None), ["index", "None"]),
        (config_of({"worker": ADDRESSES}, index=True), ["index", "True"]),
        (config_of({"worker": ADDRESSES}, "chief"), ["type", "chief", "worker"]),
        (config_of({"worker": ADDRESSES}, "evaluator"), ["type", "evaluator"]),
        (config_of({"worker": ADDRESSES, "ps": ["10.0.0.9:2222"]}), ["ps", "chief, master, worker"]),
        (config_of({"worker": ADDRESSES[0]}), ["list", ADDRESSES[0]]),
        (config_of({"worker": ["10.0.0.1"]}), ["host:port", "10.0.0.1"]),
        (config_of({"worker": ["10.0.0.1:70000"]}), ["host:port", "70000"]),
        (config_of({"worker": [2222]}), ["host:port", "2222"]),
    ],
)
def test_an_invalid_tf_config_is_an_error(text, facts):
    assert_mentions(message_of(cluster.parse_tf_config, text), "TF_CONFIG", *facts)


def test_a_process_that_nothing_describes_is_an_error():
    assert_mentions(message_of(cluster.from_environment, {}), "TF_CONFIG", "srun", "mirrored")


SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "5",
    "SLURM_JOB_ID": "12",
    "SLURM_TASKS_PER_NODE": "2(x2),1",
    "SLURM_JOB_NODELIST": "gpu[08-09],login",
    "SLURMD_NODENAME": "gpu09",
}


def test_the_tasks_of_a_slurm_job_fill_one_node_after_another():
    found = cluster.from_environment(SLURM)
    port = found.endpoint(0)[1]
    expected = [f"gpu08:{port}", f"gpu08:{port + 1}", f"gpu09:{port}", f"gpu09:{port + 1}", f"login:{port}"]
    assert found == Cluster(tuple(expected), 3)
    assert 1024 < port < 32768
    other = cluster.from_environment(dict(SLURM, SLURM_JOB_ID="13"))
    assert abs(other.endpoint(0)[1] - port) >= 64, "jobs on the same node need different ports"


def test_the_step_counts_if_it_has_fewer_tasks_than_the_job():
    step = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_STEP_NODELIST": "gpu[08-09]"}
    found = cluster.from_slurm(dict(SLURM, **step, SLURM_PROCID="1"))
    assert [address.partition(":")[0] for address in found.addresses] == ["gpu08", "gpu09"]


@pytest.mark.parametrize(
    "changes, facts",
    [
        ({"SLURM_NTASKS": ""}, ["SLURM", "srun"]),
        ({"SLURM_NTASKS": "6"}, ["SLURM_PROCID=3", "6", "2(x2),1"]),
        ({"SLURM_PROCID": "5"}, ["SLURM_PROCID=5"]),
        ({"SLURM_TASKS_PER_NODE": "two"}, ["two"]),
        ({"SLURM_JOB_NODELIST": "gpu[x-y]"}, ["gpu[x-y]"]),
        ({"SLURMD_NODENAME": "gpu08"}, ["gpu08", "gpu09", "--distribution=block"]),
    ],
)
def test_contradicting_slurm_variables_are_an_error(changes, facts):
    assert_mentions(message_of(cluster.from_slurm, dict(SLURM, **changes)), *facts)


@pytest.mark.parametrize(
    "text, nodes",
    [
        ("node1", ["node1"]),
        ("gpu[08-10,12],login", ["gpu08", "gpu09", "gpu10", "gpu12", "login"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("a[1,3]-ib,b-2", ["a1-ib", "a3-ib", "b-2"]),
    ],
)
def test_nodes_in_the_notation_of_slurm(text, nodes):
    assert cluster.expand_nodes(text) == nodes


def test_a_batch_is_divided_equally():
    cluster.check_batch_size(32, 4, 8)
    assert_mentions(message_of(cluster.check_batch_size, 32, 1, 3), "--train_batch_size=32", "3")
    assert_mentions(message_of(cluster.check_batch_size, 32, 8, 8), "--gradient_accumulation_steps=8", "4", "32")

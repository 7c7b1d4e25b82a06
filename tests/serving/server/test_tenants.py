"""Tenants, their keys and their rights."""

from __future__ import annotations

import json

import pytest

from adapter_bert.serving.server.tenants import Tenants, create_key, hash_key
from tests.helpers import assert_mentions, message_of, write_file

HASHES = [f"sha256:{hash_key(key).hex()}" for key in ("first", "second", "third")]
FILE = f"""
[tenants.acme]
keys = ["{HASHES[0]}", "{HASHES[1]}"]
use = ["acme-*", "sst2"]
manage = ["acme-*"]
share = 2

[tenants.other]
keys = ["{HASHES[2]}"]
use = ["*"]
metrics = true
"""


@pytest.fixture
def tenants(tmp_path):
    return Tenants.read(write_file(tmp_path, "tenants.toml", FILE))


def test_each_key_belongs_to_its_tenant(tenants):
    assert [tenants.find(f"Bearer {key}").name for key in ("first", "second", "third")] == ["acme", "acme", "other"]
    assert tenants.find("bearer first").name == "acme"


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer ", "Bearer wrong", "Basic first", "first", "Bearer " + "x" * 9999, "Bearer \udcff"],
)
def test_other_keys_belong_to_nobody(tenants, header):
    assert tenants.find(header) is None


def test_the_hash_is_not_a_key(tenants):
    assert tenants.find(f"Bearer {HASHES[0]}") is None
    assert tenants.find(f"Bearer {HASHES[0].partition(':')[2]}") is None


def test_rights_follow_patterns(tenants):
    acme, other = tenants.find("Bearer first"), tenants.find("Bearer third")
    assert [acme.may_use(name) for name in ("acme-1", "sst2", "sst22", "ACME-1", "other")] == [True, True, *[False] * 3]
    assert [acme.may_manage(name) for name in ("acme-1", "sst2")] == [True, False]
    assert other.may_use("acme-1") and not other.may_manage("acme-1")
    assert (acme.share, acme.metrics, other.share, other.metrics) == (2, False, 1, True)


def test_without_a_file_everyone_may_do_everything():
    anyone = Tenants().find(None)
    assert anyone.may_use("x") and anyone.may_manage("x") and anyone.metrics and not Tenants().has_keys


def test_the_file_may_be_json(tmp_path):
    content = {"tenants": {"acme": {"keys": [HASHES[0]], "use": ["a"]}}}
    assert Tenants.read(write_file(tmp_path, "t.json", json.dumps(content))).find("Bearer first").name == "acme"


@pytest.mark.parametrize(
    "content, facts",
    [
        ("tenants = 3", ["tenants"]),
        ("[tenants]", ["[tenants.NAME]"]),
        ("[tenants.a]\nuse = []", ["tenant a", "keys"]),
        ("[tenants.a]\nkeys = []\nuse = []", ["tenant a", "empty"]),
        (f"[tenants.a]\nkeys = ['{HASHES[0]}', 'first']\nuse = []", ["tenant a", "item 1", "--create_key"]),
        (f"[tenants.a]\nkeys = ['{HASHES[0]}']\nuse = 'sst2'", ["tenant a", "use"]),
        (f"[tenants.a]\nkeys = ['{HASHES[0]}']\nuse = []\nshare = 0", ["tenant a", "share"]),
        (f"[tenants.a]\nkeys = ['{HASHES[0]}']\nuse = []\nadmin = true", ["tenant a", "admin"]),
        (f"[tenants.'a b']\nkeys = ['{HASHES[0]}']\nuse = []", ["tenant a b", "name"]),
        (f"[tenants.a]\nkeys = ['{HASHES[0]}', '{HASHES[0]}']\nuse = []", ["same key"]),
        ("[tenants", ["TOML"]),
    ],
)
def test_a_wrong_file_is_reported(tmp_path, content, facts):
    path = write_file(tmp_path, "tenants.toml", content)
    message = message_of(Tenants.read, path)
    assert_mentions(message, path, *facts)
    assert "first" not in message  # a key that was put into the file by mistake


def test_new_keys_differ_and_match_their_hashes(tmp_path):
    made = [create_key() for _ in range(3)]
    assert len({key for key, _ in made}) == 3 and all(len(key) >= 43 for key, _ in made)
    content = "".join(f"[tenants.t{i}]\nkeys = ['{hashed}']\nuse = []\n" for i, (_, hashed) in enumerate(made))
    tenants = Tenants.read(write_file(tmp_path, "tenants.toml", content))
    assert [tenants.find(f"Bearer {key}").name for key, _ in made] == ["t0", "t1", "t2"]

"""Tenants: who may use and manage which tasks. Their API keys are stored as hashes.

    [tenants.acme]
    keys = ["sha256:2c26b46b68ffc68ff99b453c1d304134…"]   # several during a rotation
    use = ["acme-*", "sst2"]                              # names of tasks; * stands for any characters
    manage = ["acme-*"]                                   # may load and unload these, in this process
    share = 2                                             # of the computing time, relative to others; default 1
    metrics = true                                        # may read /metrics; default false

Keys are 256 random bits, made by `create_key`. A plain SHA-256 is enough for them: slow hashes protect passwords, which
can be guessed, but nobody can try 2^256 keys. A presented key is compared with all hashes, in constant time.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import hashlib
import hmac
import re
import secrets
import sys
from typing import Any, List, Mapping, Optional, Sequence, Tuple

from adapter_bert.common import errors, files, json_files

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_TYPES = {"keys": Sequence[str], "use": Sequence[str], "manage": Sequence[str], "share": float, "metrics": bool}
_DEFAULTS = {"manage": [], "share": 1, "metrics": False}
_MAX_KEY = 200


@dataclasses.dataclass(frozen=True)
class Tenant:
    """What the owner of a key may do."""

    name: str
    use: Sequence[str] = ("*",)  # patterns of task names
    manage: Sequence[str] = ("*",)
    share: float = 1.0
    metrics: bool = True

    def may_use(self, task: str) -> bool:
        """Return whether the tenant may use a task."""
        return any(fnmatch.fnmatchcase(task, pattern) for pattern in self.use)

    def may_manage(self, task: str) -> bool:
        """Return whether the tenant may load and unload a task."""
        return any(fnmatch.fnmatchcase(task, pattern) for pattern in self.manage)


# Everyone, if there are no keys.
ANYONE = Tenant("anyone")


class Tenants:
    """The tenants of a server."""

    def __init__(self, hashes: Sequence[Tuple[bytes, Tenant]] = ()) -> None:
        """Use pairs of the hash of a key and its owner; without keys, everyone may do everything."""
        self._hashes = list(hashes)

    @property
    def has_keys(self) -> bool:
        """Return whether requests need a key."""
        return bool(self._hashes)

    @classmethod
    def read(cls, path: str) -> Tenants:
        """Read a TOML or JSON file; raise a `UserError` if it is invalid."""
        data = files.read_bytes(path, f"Cannot read --tenants={path}", json_files.MAX_BYTES)
        if path.endswith(".json"):
            content = json_files.parse(data, path, "")
        else:
            try:
                content = tomllib.loads(data.decode("utf-8"))
            except ValueError as error:
                raise errors.UserError(f"{path} is not a TOML file: {errors.reason(error)}.") from None
        json_files.check_type(content, Mapping[str, Mapping[str, Mapping[str, Any]]], path)
        if set(content) != {"tenants"} or not content["tenants"]:
            raise errors.UserError(f"{path} must have tables [tenants.NAME] and nothing else, found {list(content)}.")
        hashes: List[Tuple[bytes, Tenant]] = []
        for name, fields in content["tenants"].items():
            hashes += _parse(f"{path}: tenant {name}", name, fields)
        if len({digest for digest, _ in hashes}) < len(hashes):
            raise errors.UserError(f"{path}: two tenants have the same key. Make another: --create_key.")
        return cls(hashes)

    def find(self, authorization: Optional[str]) -> Optional[Tenant]:
        """Return the tenant of an `Authorization` header; None if it has no valid key."""
        if not self._hashes:
            return ANYONE
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or len(key) > _MAX_KEY:
            return None
        digest, found = hash_key(key.strip()), None
        for expected, tenant in self._hashes:  # all of them, so that the time does not depend on the key
            if hmac.compare_digest(digest, expected):
                found = tenant
        return found


def _parse(where: str, name: str, fields: Mapping[str, Any]) -> List[Tuple[bytes, Tenant]]:
    """Return the hashes of the tenant's keys, each with the tenant."""
    unknown = sorted(set(fields) - set(_TYPES))
    if unknown or not _NAME.fullmatch(name):
        problem = f"unknown key {unknown[0]!r:.60}" if unknown else "invalid name; use letters, digits and . _ -"
        raise errors.UserError(f"{where}: {problem}. Known keys: {', '.join(_TYPES)}.")
    values = {**_DEFAULTS, **fields}
    json_files.check_types(values, _TYPES, where)
    keys = values.pop("keys")
    wrong = [number for number, key in enumerate(keys) if not _HASH.fullmatch(key)]
    if wrong or not keys:
        problem = f"item {wrong[0]} is something else" if wrong else "it is empty"
        raise errors.UserError(
            f'{where}: keys must be a list of "sha256:" and 64 hex digits, as --create_key prints them; {problem}.'
        )
    if not 0.001 <= values["share"] <= 1000:
        raise errors.UserError(f"{where}: share must be from 0.001 to 1000, found {values['share']}.")
    tenant = Tenant(name, **values)
    return [(bytes.fromhex(key.partition(":")[2]), tenant) for key in keys]


def hash_key(key: str) -> bytes:
    """Return the SHA-256 of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def create_key() -> Tuple[str, str]:
    """Return a new random key, and its hash for the file."""
    key = secrets.token_urlsafe(32)
    return key, f"sha256:{hash_key(key).hex()}"

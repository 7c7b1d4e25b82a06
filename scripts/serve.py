"""Serve the tasks of a bank over HTTP.

    python scripts/serve.py --bank=bank                            # http://127.0.0.1:8501, with a web page
    python scripts/serve.py --bank=bank --host=0.0.0.0 --tenants=tenants.toml --tls_cert=cert.pem --tls_key=key.pem
    python scripts/serve.py --create_key                           # an API key, and its hash for tenants.toml

Packs that are added to the bank, replaced or removed are served, replaced or removed within seconds. docs/serving.md
describes the APIs (TensorFlow Serving's REST API, and the Open Inference Protocol), tenants and limits.
"""

from __future__ import annotations

import argparse
import importlib.util
from typing import Optional, Sequence

from adapter_bert.common import system

system.configure_tensorflow()

from adapter_bert.common import errors

_NEEDED = ("starlette", "uvicorn", "httptools", "prometheus_client")


def parse(words: Optional[Sequence[str]]) -> argparse.Namespace:
    """Parse the command line. Flags that are not given are absent."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
    )
    option = parser.add_argument
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--bank", metavar="FOLDER", help="bank with the tasks")
    what.add_argument("--create_key", action="store_true", help="print a new API key and its hash, and exit")
    option("--host", help="address to listen at; default: 127.0.0.1, for this machine only")
    option("--port", type=int, help="default: 8501; 0 for any free one")
    option("--tenants", metavar="FILE", help="TOML or JSON file with tenants and the hashes of their API keys")
    option("--tls_cert", metavar="FILE", help="PEM file with the certificate, for https")
    option("--tls_key", metavar="FILE", help="PEM file with the key of the certificate")
    option("--precision", help="float32 (default) or bfloat16")
    option("--threads", type=int, help="batches to compute at the same time; default: one per core")
    option("--batch_size", type=int, help="texts in a batch, at most; default: 32")
    option("--batch_tokens", type=int, help="tokens in a batch with padding, at most; default: 1024")
    option("--batch_delay_ms", type=float, help="time that a text may wait for others in its batch; default: 1")
    option("--max_queue", type=int, help="waiting texts of each tenant; more are answered with 429; default: 1024")
    option("--max_body_kb", type=int, help="size of a request; default: 1024")
    option("--max_texts", type=int, help="texts in a request; default: 256")
    option("--max_tokens", type=int, help="tokens in a request; default: 16384")
    option("--timeout", type=float, help="seconds for an answer, and for receiving a request; default: 10")
    option("--max_connections", type=int, help="open connections; default: 4096")
    option("--poll_seconds", type=float, help="how often the bank and --tenants are looked at; default: 2")
    option("--drain_seconds", type=float, help="time for requests in progress after SIGTERM; default: 30")
    return parser.parse_args(words)


def _check_installed() -> None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise errors.UserError(f"The server needs {', '.join(missing)}: pip install -e .[serve] (Python 3.9 or later).")


@errors.exits_on_user_error
def main(words: Optional[Sequence[str]] = None) -> None:
    """Serve, or create a key."""
    args = vars(parse(words))
    if args.pop("create_key", False):
        from adapter_bert.serving.server import tenants

        key, hashed = tenants.create_key()
        print(f'Key for the client, shown only here:  {key}\nEntry of "keys" in the file of --tenants:  "{hashed}"')
        errors.check_output()
        return
    _check_installed()
    from adapter_bert.serving.server import run  # imports TensorFlow

    run.serve(run.ServerSettings(**args))


if __name__ == "__main__":
    main()

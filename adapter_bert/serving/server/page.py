"""The web page of the server."""

from __future__ import annotations

import base64
import hashlib
import os
import re

with open(os.path.join(os.path.dirname(__file__), "page.html"), encoding="utf-8") as _file:
    PAGE = _file.read()


def _hash(tag: str) -> str:
    """Return the hash of the only element of a kind, in the form of a Content-Security-Policy."""
    (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", PAGE, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


# Only this script and this style, and requests to this server.
POLICY = (
    f"default-src 'none'; script-src {_hash('script')}; style-src {_hash('style')}; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

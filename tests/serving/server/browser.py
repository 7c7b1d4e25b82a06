"""A headless Chromium that tests control by its DevTools protocol, over two pipes."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from typing import Any, Dict, List

from tests.serving.server.servers import wait_until


class Browser:
    """One page of a window. `problems` has errors of its scripts and what its security policy has blocked."""

    def __init__(self, program: str, folder: str, width: int, height: int) -> None:
        self._program, self._folder, self._size = program, folder, (width, height)
        self._number, self._session, self._rest = 0, "", b""
        self.problems: List[str] = []

    def __enter__(self) -> Browser:
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()

        def use_pipes() -> None:  # Chromium reads from 3 and writes to 4
            for number, target in ((to_read, 103), (to_write, 104)):
                os.dup2(number, target)
            os.dup2(103, 3)
            os.dup2(104, 4)

        command = [
            self._program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
            "--remote-debugging-pipe", f"--user-data-dir={os.path.join(self._folder, 'profile')}",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            command, close_fds=False, preexec_fn=use_pipes, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(to_read)
        os.close(to_write)
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(domain + ".enable")
        width, height = self._size
        is_phone = width < 500
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=is_phone
        )
        return self

    def __exit__(self, *unused: Any) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._read)
        os.close(self._write)

    def open(self, address: str) -> None:
        """Open an address and wait until the page is complete."""
        self._call("Page.navigate", url=address)
        self.wait(f"location.href === {json.dumps(address)} && document.readyState === 'complete'")

    def run(self, expression: str) -> Any:
        """Return the value of an expression in JavaScript."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait for a condition in JavaScript."""
        wait_until(lambda: self.run(condition))

    def screenshot(self, path: str) -> None:
        """Write an image of the window."""
        with open(path, "wb") as file:
            file.write(base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"]))

    def _call(self, method: str, **parameters: Any) -> Dict[str, Any]:
        self._number += 1
        session = {"sessionId": self._session} if self._session else {}
        message = {"id": self._number, "method": method, "params": parameters, **session}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            found = self._receive()
            if found.get("id") == self._number:
                assert "error" not in found, found
                return found["result"]
            if found.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.problems.append(json.dumps(found["params"]))

    def _receive(self) -> Dict[str, Any]:
        while b"\0" not in self._rest:
            data = os.read(self._read, 65536)
            assert data, "The browser has ended."
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\0")
        return json.loads(line)

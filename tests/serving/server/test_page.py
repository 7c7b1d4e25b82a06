"""The web page: no external assets, and every function in a real browser."""

from __future__ import annotations

import re
import shutil

import pytest

pytest.importorskip("starlette", reason="Needs the extra `serve`.")
pytest.importorskip("uvicorn", reason="Needs the extra `serve`.")

from tests.helpers import write_file
from tests.serving.server.servers import serving

CHROMIUM = shutil.which("chromium")


def test_the_page_needs_nothing_else(server):
    page = server.request("/").body.decode()
    assert not re.search(r"\b(src|href)\s*=|@import|url\(|innerHTML|https?://", page)


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="Needs the program chromium: apt-get install chromium")
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_in_a_browser(server, expected, tmp_path, width):
    from tests.serving.server import browser

    with browser.Browser(CHROMIUM, str(tmp_path), width, 1100) as page:
        page.open(f"http://127.0.0.1:{server.port}/")
        page.wait("document.querySelectorAll('#tasks input').length == 5")
        assert page.run("[...document.querySelectorAll('#tasks input')].map(e => e.checked)") == [True] + [False] * 4
        page.run("document.querySelectorAll('#tasks input').forEach(e => { if (!e.checked) e.click() })")
        page.run("document.getElementById('text').value = 'is the cat big ?'")
        page.run("document.getElementById('second').value = 'they see it , and the cat is big .'")
        page.run("document.getElementById('predict').click()")
        page.wait("document.querySelectorAll('article .soft').length == 5")
        cards = page.run(
            "Object.fromEntries([...document.querySelectorAll('article')].map(e => [e.querySelector('h2').textContent,"
            " e.querySelector('.answer').textContent]))"
        )
        pair = ("is the cat big ?", "they see it , and the cat is big .")
        one, three, number = expected.predict([(name, pair) for name in ("one", "three", "number")])
        assert cards["one"] == one.label and cards["three"] == three.label
        assert float(cards["number"]) == pytest.approx(number.number, abs=1e-4)
        assert cards["squad"] == (expected.answer("squad", [pair])[0].text or "(no answer)")
        times = page.run("[...document.querySelectorAll('article .soft')].map(e => e.textContent)")
        assert all(re.fullmatch(r"\d+ ms", each) for each in times)
        shown = page.run("[...document.querySelectorAll('article .number')].map(e => e.textContent)")
        assert f"{100 * max(three.probabilities.values()):.1f} %" in shown
        page.screenshot(str(tmp_path / f"page_{width}.png"))
        assert page.run("document.documentElement.scrollWidth") <= width
        right = "Math.max(...[...document.querySelectorAll('main *')].map(e => e.getBoundingClientRect().right))"
        assert page.run(right) <= width
        assert page.problems == []  # neither errors of the script nor violations of the policy


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="Needs the program chromium: apt-get install chromium")
def test_the_page_asks_for_a_key(bank, tmp_path):
    from adapter_bert.serving.server.tenants import create_key
    from tests.serving.server import browser

    key, hashed = create_key()
    path = write_file(tmp_path, "tenants.toml", f"[tenants.a]\nkeys = ['{hashed}']\nuse = ['one', 'three']")
    with serving(bank, tenants=path) as server, browser.Browser(CHROMIUM, str(tmp_path), 390, 800) as page:
        page.open(f"http://127.0.0.1:{server.port}/")
        page.wait("document.getElementById('error').textContent.includes('key')")
        assert page.run("document.getElementById('key').getBoundingClientRect().height") > 0
        page.run(f"document.getElementById('key').value = {key!r}")
        page.run("document.getElementById('key').dispatchEvent(new Event('change'))")
        page.wait("document.querySelectorAll('#tasks input').length == 2")
        page.run("document.getElementById('text').value = 'the cat'")
        page.run("document.getElementById('predict').click()")
        page.wait("document.querySelectorAll('article .answer').length == 1")

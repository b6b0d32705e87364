"""Opens every page of the docs site in headless Chromium, as `make docs-browser` does.

Fails if a page, a table or a line of code is wider than its place at the width of a phone or a
desktop; if a page logs an error, or asks for something that does not exist or is not part of the
site; if axe-core finds a serious barrier, in light or dark; if search from a folder finds nothing;
or if a copy button does not copy the code beside it. Needs selenium, Chromium and its driver.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from selenium import webdriver
from selenium.common.exceptions import TimeoutException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

WIDTHS = (1280, 390)
SCHEMES = {"light": "default", "dark": "slate"}
"""Preferences of the browser, and the palettes in which the pages appear."""

MOUNT = "/tload/"
"""Path below which the site is served: that of `site_url`."""

SEARCHES = {
    "cuda out of memory": "troubleshooting.html",
    "io_uring docker": "troubleshooting.html",
    "resume copy": "sources.html",
    "numpy bfloat16": "quickstart.html",
    "hang timeout": "troubleshooting.html",
    "403 permission denied": "troubleshooting.html",
    "device_map": "pytorch.html",
    "memory_limit": "options.html",
}
"""Queries, and the page that must be among the first three pages found."""

PROMPT = re.compile(r"^(\$|>>>|\.\.\.) ", re.MULTILINE)

TOO_WIDE = """
const found = [...document.querySelectorAll('.md-typeset__scrollwrap, .highlight:not(.language-text) pre > code')];
return found.filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.innerText.slice(0, 60));
"""
"""Script that returns the beginnings of tables and code that scroll sideways."""

BARRIERS = """
const [rules, done] = arguments;
axe.run(document, rules).then(found => done(found.violations
  .filter(one => ['serious', 'critical'].includes(one.impact))
  .map(one => `${one.id} (${one.impact}): ${one.help}: ${one.nodes[0].html.slice(0, 120)}`)));
"""
"""Script that returns the serious violations of axe-core's rules."""
READ_CLIPBOARD = "navigator.clipboard.readText().then(arguments[0])"


class Handler(SimpleHTTPRequestHandler):
    """Serves the site below `MOUNT`, and its 404.html for everything else."""

    def translate_path(self, path: str) -> str:
        return super().translate_path("/" + path.removeprefix(MOUNT))

    def send_error(self, code: int, *_: object) -> None:
        body = (Path(self.directory) / "404.html").read_bytes()
        self.send_response(code)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("site", type=Path)
    parser.add_argument("--shots", type=Path, help="directory for pictures of the pages")
    parser.add_argument("--axe", type=Path, help="axe.min.js; without it, barriers are not looked for")
    given = parser.parse_args()
    site = given.site.resolve()
    axe = given.axe.read_text() if given.axe else None
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    root = f"http://127.0.0.1:{server.server_port}{MOUNT}"
    driver = start()
    pages = [str(page.relative_to(site)) for page in sorted(site.rglob("*.html"))]
    try:
        wrong = []
        for width in WIDTHS:
            for name in pages:
                wrong += [f"{name}, {width} px: {text}" for text in check_page(driver, root, name, width, given.shots)]
        if axe:
            wrong += check_barriers(driver, root, pages, axe)
        wrong += check_missing(driver, root)
        wrong += check_copy(driver, root, "quickstart.html")
        wrong += check_copy(driver, root, "api/load.html")
        wrong += check_search(driver, site)
    finally:
        driver.quit()
        server.shutdown()
    print(*wrong, f"{len(wrong)} problems", sep="\n")
    return bool(wrong)


def start() -> webdriver.Chrome:
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    # Without paths, selenium would search for both on the internet.
    options.binary_location = find("chromium", "google-chrome")
    return webdriver.Chrome(options, webdriver.ChromeService(find("chromedriver")))


def find(*programs: str) -> str:
    """Return the path of the first program that is installed."""
    for program in programs:
        if path := shutil.which(program):
            return path
    sys.exit(f"{sys.argv[0]}: needs {programs[0]} (Debian: apt install chromium chromium-driver)")


def check_page(driver: webdriver.Chrome, root: str, name: str, width: int, shots: Path | None) -> list[str]:
    """Return all that is wrong with a page at a width."""
    resize(driver, width, 900)
    driver.get(root + name)
    wrong = problems(driver, root)
    if (scrolled := driver.execute_script("return document.documentElement.scrollWidth")) > width:
        wrong.append(f"scrolls sideways, {scrolled} px wide")
    wrong += [f"wider than its place: {text!r}" for text in driver.execute_script(TOO_WIDE)]
    if shots:
        height = min(driver.execute_script("return document.documentElement.scrollHeight"), 6000)
        resize(driver, width, height)
        driver.save_screenshot(str(shots / f"{name.replace('/', '-').removesuffix('.html')}-{width}.png"))
    return wrong


def check_barriers(driver: webdriver.Chrome, root: str, pages: list[str], axe: str) -> list[str]:
    """Return what axe-core finds on all pages. Only colours differ between light and dark."""
    resize(driver, 1280, 900)
    driver.set_script_timeout(300)
    origin = root.removesuffix(MOUNT)
    wrong = []
    for scheme, palette in SCHEMES.items():
        # The theme remembers the scheme of the first visit.
        driver.get("about:blank")
        driver.execute_cdp_cmd("Storage.clearDataForOrigin", {"origin": origin, "storageTypes": "local_storage"})
        set_scheme(driver, scheme)
        rules = {} if scheme == "light" else {"runOnly": ["color-contrast"]}
        for name in pages:
            driver.get(root + name)
            shown = driver.execute_script("return document.body.dataset.mdColorScheme")
            if shown != palette:
                wrong.append(f"{name} is {shown} for those who prefer {scheme}")
            driver.execute_script(axe)
            wrong += [f"{name}, {scheme}: {text}" for text in driver.execute_async_script(BARRIERS, rules)]
    set_scheme(driver, "light")
    driver.get_log("browser")
    return wrong


def set_scheme(driver: webdriver.Chrome, scheme: str) -> None:
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)


def resize(driver: webdriver.Chrome, width: int, height: int) -> None:
    """Set the size of the page. The window cannot be as narrow as a phone."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def problems(driver: webdriver.Chrome, root: str) -> list[str]:
    """Return the errors that the current page logged, and requests that failed or left the site."""
    wrong = [entry["message"] for entry in driver.get_log("browser") if entry["level"] in {"WARNING", "SEVERE"}]
    for entry in driver.get_log("performance"):
        event = json.loads(entry["message"])["message"]
        if event["method"] == "Network.requestWillBeSent":
            url = event["params"]["request"]["url"]
            if not url.startswith((root, "data:", "blob:", "file:")):
                wrong.append(f"asks for {url}")
    return wrong


def check_missing(driver: webdriver.Chrome, root: str) -> list[str]:
    """Return links of the page for a missing address, two levels deep, that lead nowhere."""
    driver.get(root + "no/such/page.html")
    driver.get_log("browser")  # has the 404 itself
    links = [link.get_attribute("href") for link in driver.find_elements(By.CSS_SELECTOR, "a.md-nav__link[href]")]
    wrong = [f"404.html links to {link}" for link in links if MOUNT not in link]
    return wrong or ([] if links else ["404.html has no links"])


def check_copy(driver: webdriver.Chrome, root: str, name: str) -> list[str]:
    """Return the blocks whose copy button does not copy their text."""
    resize(driver, 1280, 900)
    driver.get(root + name)
    permissions = ["clipboardReadWrite", "clipboardSanitizedWrite"]
    driver.execute_cdp_cmd("Browser.grantPermissions", {"permissions": permissions, "origin": root.removesuffix(MOUNT)})
    driver.execute_cdp_cmd("Emulation.setFocusEmulationEnabled", {"enabled": True})
    wrong = []
    blocks = driver.find_elements(By.CSS_SELECTOR, "div.highlight")
    for block in blocks:
        button = block.find_element(By.CSS_SELECTOR, "button[data-md-type=copy], button.md-clipboard")
        driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", block)
        ActionChains(driver).move_to_element(block).move_to_element(button).click().perform()
        copied = driver.execute_async_script(READ_CLIPBOARD)
        shown = block.find_element(By.CSS_SELECTOR, "code").text
        # No block of these pages has output.
        if copied.strip() != PROMPT.sub("", shown).strip():
            wrong.append(f"{name}: the copy button copies {copied!r} of {shown!r}")
    return wrong or ([] if blocks else [f"{name} has no blocks"])


def check_search(driver: webdriver.Chrome, site: Path) -> list[str]:
    """Return the queries that do not find their page, in a site that is opened from a folder."""
    wrong = []
    find = "return [...document.querySelectorAll('.md-search-result__item > a')].map(a => a.href)"
    for query, wanted in SEARCHES.items():
        driver.get((site / "index.html").as_uri())
        driver.execute_script("document.querySelector('#__search').click()")
        driver.find_element(By.CSS_SELECTOR, "input.md-search__input").send_keys(query)
        try:
            found = WebDriverWait(driver, 20).until(lambda page: page.execute_script(find))
        except TimeoutException:
            found = []
        # A page and its sections are separate results.
        pages = list(dict.fromkeys(re.sub(r"[?#].*", "", url).rpartition("/")[2] for url in found))[:3]
        if wanted not in pages:
            wrong.append(f"search from a folder: {query!r} finds {pages}, not {wanted}")
    return wrong


sys.exit(main())

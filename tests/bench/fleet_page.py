"""``python -m tests.bench.fleet_page --nodes N``: how fast the Fleet page is with Airflow, Chromium and PostgreSQL.

Fills the records with N nodes that were tested daily, opens the page as a logged-in viewer, filters it, asks the server
for pages as fast as it answers, lets ten pages follow the fleet, of which a node moves before each renewal, and scrapes
the metrics as Prometheus does.
``--seed`` draws states and racks. Prints a table and one JSON object as its last line.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import psutil
import sqlalchemy

from muster import store
from muster.model.states import State
from muster.web import PREFIX
from muster_demo import watchdog
from muster_demo.stack import Stack
from tests.bench import bars
from tests.support.servers import browser, live_airflow, postgresql

STATES = {"production": 0.9, "qualified": 0.04, "quarantine": 0.03, "triage": 0.01, "registered": 0.02}
RACK = 16
PAINTS, REQUESTS, VIEWERS, LIVE_S, SCRAPES = 7, 120, 10, 60, 9


def spread(url: str, nodes: int, seed: int) -> None:
    """Give each node a rack, and a state drawn by ``STATES``."""
    rng = random.Random(seed)
    names = [node.name for node in store.nodes.find()][:nodes]
    rows = [
        {"n": name, "s": rng.choices(list(STATES), list(STATES.values()))[0], "r": f"r{place // RACK:04d}"}
        for place, name in enumerate(names)
    ]
    with sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://")).begin() as connection:
        connection.execute(sqlalchemy.text("UPDATE nodes SET state = :s, rack = :r WHERE name = :n"), rows)


def painted(page: browser.Browser, url: str) -> float:
    """Milliseconds from the navigation to the first content on the screen."""
    page.go(url)
    paint = "performance.getEntriesByName('first-contentful-paint')[0]"
    return float(page.wait(f"{paint} && {paint}.startTime"))


def filters(rng: random.Random, nodes: int) -> Iterator[str]:
    """Addresses of the page filtered, as operators open them; each time other racks and other nodes."""
    while True:
        yield from (
            "/?state=quarantine", f"/?rack=r{rng.randrange(nodes // RACK + 1):04d}", "/?q=gemm_rate",
            f"/?q=n0{rng.randrange(1000):03d}", "/?verdict=FAIL&page=2",
        )  # fmt: skip


def queries(rng: random.Random, nodes: int) -> Iterator[str]:
    """Addresses as operators open them: the whole fleet, filters, nodes."""
    chosen = filters(rng, nodes)
    while True:
        yield from ("/", *itertools.islice(chosen, 5), f"/node/n{rng.randrange(nodes):05d}")


def served(client: httpx.Client, rng: random.Random, nodes: int) -> float:
    """The 95th percentile of the server's milliseconds over ``REQUESTS`` pages, one after the other."""
    took = []
    for path in itertools.islice(queries(rng, nodes), REQUESTS):
        began = time.perf_counter()
        client.get(PREFIX + path).raise_for_status()
        took.append((time.perf_counter() - began) * 1000)
    return float(np.percentile(took, 95))


def followed(client: httpx.Client, stack: Stack) -> float:
    """Percent of a core that the API server uses more while ten pages follow the fleet than while none does.

    Each page asks every ten seconds; one node moves before each time, so that every page gets a new content.
    """
    port = f"port:{stack.login.port}"  # the API server's title names it
    running = psutil.process_iter(["cmdline"])
    server = next(each for each in running if port in " ".join(each.info["cmdline"] or ()))
    serving = (row.node for row in store.overview.rows() if row.state is State.PRODUCTION)

    def used(ask: bool) -> float:
        version, before = "", sum(server.cpu_times()[:2])
        for _ in range(LIVE_S // 10):
            begun = time.monotonic()
            store.nodes.move(next(serving), State.QUARANTINE, "bench", "one event an interval")
            for viewer in range(VIEWERS if ask else 0):
                answer = client.get(f"{PREFIX}/live", params={"version": version})
                assert answer.status_code == 200
                if viewer == VIEWERS - 1:
                    version = answer.text.partition('data-version="')[2].partition('"')[0]
            time.sleep(max(0.0, 10 - (time.monotonic() - begun)))
        return float(sum(server.cpu_times()[:2]) - before)

    return 100 * (used(True) - used(False)) / LIVE_S


def scraped(url: str, token: str, nodes: int) -> float:
    """Median milliseconds of a scrape of the metrics, in which each node has its series."""
    took = []
    for _ in range(SCRAPES):
        began = time.perf_counter()
        answer = httpx.get(url, headers={"Authorization": f"Bearer {token}"}, timeout=60)
        took.append((time.perf_counter() - began) * 1000)
        assert answer.text.count("muster_node_last_pass_timestamp_seconds{") >= nodes
    return statistics.median(took)


def measure(nodes: int, seed: int) -> dict[str, float]:
    """All figures, by their keys."""
    # These load Airflow, which needs a home of its own before.
    from muster.api import app as api
    from tests.muster.api.test_metrics import grow

    with tempfile.TemporaryDirectory(prefix="fleet-page-") as name, postgresql.running() as server:
        folder = Path(name)
        os.environ["MUSTER_HOME"] = str(folder / "muster")
        os.environ["MUSTER_DATABASE_URL"] = server.create("fleet")
        (folder / "token").write_text(token := secrets.token_urlsafe())
        os.environ["MUSTER_METRICS_TOKEN_FILE"] = str(folder / "token")
        store.engine.upgrade()
        grow(nodes, runs_each=10)
        spread(os.environ["MUSTER_DATABASE_URL"], nodes, seed)
        with (
            live_airflow.running(folder, "node_qualification") as stack,
            browser.chromium(folder / "profile") as page,
        ):
            base, rng = stack.login.url + PREFIX, random.Random(seed)
            page.call("Network.setExtraHTTPHeaders", headers={"Authorization": f"Bearer {stack.token()}"})
            painted(page, f"{base}/")
            first = [painted(page, f"{base}/") for _ in range(PAINTS)]
            filtered = [painted(page, base + path) for path in itertools.islice(filters(rng, nodes), 3 * PAINTS)]
            headers = {"Authorization": f"Bearer {stack.token()}"}
            with httpx.Client(base_url=stack.login.url, headers=headers, timeout=60) as client:
                p95 = served(client, rng, nodes)
                core = followed(client, stack)
            scrape = scraped(f"{stack.login.url}{api.PREFIX}/metrics", token, nodes)
        store.engine.dispose()
    return {
        "first_paint_ms": round(statistics.median(first), 1),
        "filter_ms": round(statistics.median(filtered), 1),
        "server_p95_ms": round(p95, 1),
        "live_core_percent": round(core, 2),
        "scrape_ms": round(scrape, 1),
    }


def main(arguments: list[str]) -> int:
    """The command; status 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args(arguments)
    figures = measure(chosen.nodes, chosen.seed)
    print("| what | figure | bar |\n|---|--:|--:|")
    for key, figure in figures.items():
        print(f"| {key} | {figure} | {bars.FLEET_PAGE[key].most:g} |")
    print(json.dumps({**figures, "nodes": chosen.nodes, "seed": chosen.seed}))
    return bars.status(figures, bars.FLEET_PAGE)


if __name__ == "__main__":
    sys.exit(watchdog.run(lambda: main(sys.argv[1:])))

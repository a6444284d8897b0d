"""docs/deploying.md, Clean-up: what its timers delete of Airflow's logs and rows."""

from __future__ import annotations

import datetime
import os
import re
import subprocess
import time
from pathlib import Path

from airflow.cli.cli_parser import get_parser

from tests.docs.quickstart import ROOT, replaced

SECTION = (ROOT / "docs" / "deploying.md").read_text().partition("\n## Clean-up\n")[2].partition("\n## ")[0]
# Of a crontab, in which a plain % ends the command.
ROWS, LOGS = (line.replace("\\%", "%") for line in re.findall(r"^\d+ \d+ \* \* \* airflow (.+)$", SECTION, re.M))
DAY_S = 24 * 3600


def test_the_line_for_rows_is_a_command_of_airflows_and_keeps_no_copy() -> None:
    words = subprocess.run(
        ["sh", "-c", replaced(ROWS, ("/usr/local/bin/airflow", "printf '%s\\n'"))],
        capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    given = get_parser().parse_args(words)
    age = datetime.datetime.now(datetime.UTC) - given.clean_before_timestamp
    assert (given.subcommand, given.yes, given.skip_archive, round(age.days / 10)) == ("clean", True, True, 9)


def test_the_line_for_logs_deletes_old_files_and_what_they_left_empty(tmp_path: Path) -> None:
    ages = {"dag/run/attempt=1.log": 31, "dag/run/attempt=2.log": 1, "dag/old/attempt=1.log": 31}
    for name in ages:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for name in ("dag/empty", "dag/new"):
        (tmp_path / name).mkdir()
    for name, days in {**ages, "dag/empty": 31, "dag/new": 0}.items():
        os.utime(tmp_path / name, (0, time.time() - (days + 0.5) * DAY_S))
    subprocess.run(["sh", "-c", replaced(LOGS, ("/opt/airflow/logs", str(tmp_path)))], check=True)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert left == {"dag", "dag/run", "dag/run/attempt=2.log", "dag/new", "dag/old"}
    os.utime(tmp_path / "dag" / "old", (0, time.time() - 31.5 * DAY_S))
    subprocess.run(["sh", "-c", replaced(LOGS, ("/opt/airflow/logs", str(tmp_path)))], check=True)
    assert not (tmp_path / "dag" / "old").exists()

"""Goal: a power cut under a real file system takes nothing that was confirmed, doubles nothing, and leaves nothing that
`warren check` calls a problem; the campaign that says so sees a loss, and leaves no mount.

Method: one short round of the campaign on ext4, as a command; its judge with confirms that nobody made.
"""

import json
import subprocess
from pathlib import Path

import pytest

from warren.tools.crash.loop_image import refusal
from warren.tools.crash.powercut import Confirmed
from warren.tools.crash.powercut_load import body_of, number_of
from warren.workers.process import interpreter

pytestmark = pytest.mark.crash


@pytest.mark.integration
def test_one_cut(tmp_path: Path) -> None:
    if why := refusal("ext4"):
        pytest.skip(why)
    done = subprocess.run(
        interpreter.command(
            "warren.tools.crash",
            *("powercut", "--rounds", "1", "--json", "--dir", str(tmp_path), "--keep", str(tmp_path)),
        ),
        env=interpreter.environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode == 2 or "mount: " in done.stderr:
        pytest.skip(f"this container may not mount: {done.stderr.strip().splitlines()[-1]}")
    assert done.stdout, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert (done.returncode, found["violations"]) == (0, [])
    assert found["confirmed"] > 0
    devices = subprocess.run(["losetup", "--all"], capture_output=True, text=True, check=True).stdout
    assert str(tmp_path) not in devices


def test_confirms_after_the_cut_do_not_count(tmp_path: Path) -> None:
    log = tmp_path / "confirms"
    lines = [
        "1.0 queue cut-a 1 3",
        "1.5 topic cut-topic 4 2 17",
        "1.6 group 2 18",
        "2.0 queue cut-a 4 1",
        "2.1 wrong late",
    ]
    log.write_text("\n".join(lines) + "\n")
    found = Confirmed.read(log, 2.0)
    assert found.queues["cut-a"] == {1, 2, 3}
    assert found.topics["cut-topic"] == {4: (2, 17)}
    assert (found.group, found.wrong) == ({2: 18}, [])
    assert Confirmed.read(log, 3.0).wrong == ["before the cut: late"]


def test_bodies_say_whether_all_of_them_is_there() -> None:
    body = body_of(17, 300)
    assert number_of(body) == 17
    assert [number_of(body[:at] + b"?" + body[at + 1 :]) for at in (5, 299)] == [None, None]
    assert number_of(body[:-1]) is None

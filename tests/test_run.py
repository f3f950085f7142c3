"""Run: work aside, rename last, go on after anything, and never two at once."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from evenhand import run as run_module
from evenhand.config import Refusal
from evenhand.run import Run, is_finished

CONFIG = {"command": "measure", "model": "m", "seed": 3}


class Stop(Exception):
    """The power fails."""


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def finished(target: Path, value: Any = 1, **how: Any) -> None:
    with Run.open(target, CONFIG, **how) as run:
        run.save("results.json", value)


def interrupted(target: Path, config: dict[str, Any] = CONFIG) -> Path:
    """A run that stopped after one file."""
    with contextlib.suppress(Stop), Run.open(target, config) as run:
        run.save("tables/afgb.parquet", pd.DataFrame({"id": ["a"]}))
        raise Stop
    return target.with_name(target.name + ".part")


def test_work_is_done_aside_and_renamed(tmp_path: Path) -> None:
    target = tmp_path / "runs" / "v1.5"
    with Run.open(target, CONFIG) as run:
        assert run.folder == tmp_path / "runs" / "v1.5.part"
        assert run.seed == 3
        run.save("results.json", {"scores": {}})
        assert not target.exists()
    assert run.folder == target
    assert [path.name for path in target.parent.iterdir()] == ["v1.5"]
    assert is_finished(target)
    assert files(target) == ["config.yaml", "results.json"]
    assert run.read("config.yaml") == CONFIG


def test_what_is_saved_is_what_is_read(tmp_path: Path) -> None:
    table = pd.DataFrame({"id": ["a", "b"], "gap": [0.1, 1e-12], "text": ["Bäcker", ""]})
    content = {"name": "Bäcker", "list": [1, 2.5, None], "deep": {"a": True}}
    with Run.open(tmp_path / "x", CONFIG) as run:
        run.save("deep/table.parquet", table)
        run.save("facts.json", content)
        run.save("facts.yaml", content)
        pd.testing.assert_frame_equal(run.read("deep/table.parquet"), table)
        assert run.read("facts.json") == run.read("facts.yaml") == content
        assert run.has("facts.json")
        assert not run.has("other.json")
        assert not [name for name in files(run.folder) if name.endswith(".tmp")]


def test_a_finished_run_is_not_overwritten_unless_told_to(tmp_path: Path) -> None:
    target = tmp_path / "x"
    finished(target, "first")
    with pytest.raises(Refusal, match=r"x exists already; choose another --out, or add --overwrite"):
        finished(target, "second")
    assert Run(target).read("results.json") == "first"
    assert not (tmp_path / "x.part").exists()
    (target / "old.txt").write_text("old", encoding="utf-8")
    finished(target, "third", overwrite=True)
    assert Run(target).read("results.json") == "third"
    assert files(target) == ["config.yaml", "results.json"]
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_failed_overwrite_keeps_the_old_run(tmp_path: Path) -> None:
    target = tmp_path / "x"
    finished(target, "first")
    with contextlib.suppress(Stop), Run.open(target, CONFIG, overwrite=True):
        raise Stop
    assert Run(target).read("results.json") == "first"


def test_an_unfinished_run_goes_on(tmp_path: Path) -> None:
    target = tmp_path / "x"
    part = interrupted(target)
    assert part.exists()
    assert not target.exists()
    with Run.open(target, CONFIG) as run:
        assert run.has("tables/afgb.parquet")
        assert run.read("tables/afgb.parquet")["id"].tolist() == ["a"]
        run.save("results.json", {})
    assert files(target) == ["config.yaml", "results.json", "tables/afgb.parquet"]
    assert not part.exists()


def test_an_unfinished_run_with_other_settings_is_refused_with_the_remedies(tmp_path: Path) -> None:
    part = interrupted(tmp_path / "x")
    with pytest.raises(Refusal) as refused, Run.open(tmp_path / "x", CONFIG | {"seed": 4}):
        pass
    for remedy in (f"evenhand run {part}", "delete it", "choose another --out"):
        assert remedy in str(refused.value)
    assert Run(part).read("config.yaml") == CONFIG
    assert Run(part).has("tables/afgb.parquet")


def test_a_run_that_made_nothing_is_begun_anew_with_other_settings(tmp_path: Path) -> None:
    """What was refused before anything was measured must not stand in the way of the command put right."""
    with contextlib.suppress(Refusal), Run.open(tmp_path / "x", CONFIG) as run:
        run.say("loading")
        raise Refusal("There is no model 'm'.")
    other = CONFIG | {"model": "n"}
    with Run.open(tmp_path / "x", other) as run:
        assert run.read("config.yaml") == other
        run.save("results.json", {})
    assert Run(tmp_path / "x").read("config.yaml") == other


def test_half_a_file_is_never_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure while writing leaves what was there before."""
    with Run.open(tmp_path / "x", CONFIG) as run:
        run.save("facts.json", "old")

        def full(_: Path, text: str, **__: Any) -> None:
            with open(_, "w", encoding="utf-8") as file:
                file.write(text[:3])
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(Path, "write_text", full)
            with pytest.raises(OSError, match="No space"):
                run.save("facts.json", "new and longer")
        assert run.read("facts.json") == "old"


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    target = tmp_path / "x"
    with Run.open(target, CONFIG) as run:
        with pytest.raises(Refusal, match=r"Another evenhand is working in .*x\.part; wait"):
            finished(target)
        found: list[Exception] = []

        def second() -> None:
            try:
                finished(target)
            except Refusal as refusal:
                found.append(refusal)

        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
        assert len(found) == 1
        run.save("results.json", "mine")
    assert Run(target).read("results.json") == "mine"


def test_the_log_has_a_line_an_entry(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for quiet in (False, True):
        run = Run(tmp_path, quiet=quiet)
        run.log(step=1, loss=0.5)
        run.say("measuring")
    lines = (tmp_path / "log.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 4
    assert capsys.readouterr().err == "measuring\n"


# Progress


class Clock:
    """Time that passes only when an item is worked on."""

    def __init__(self) -> None:
        self.now = 1000.0

    def time(self) -> float:
        return self.now

    def work(self, items: Iterator[int], seconds: float) -> list[int]:
        done = []
        for item in items:
            self.now += seconds
            done.append(item)
        return done


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(run_module, "time", clock)
    return clock


def test_progress_gives_every_item_and_a_line_every_half_minute(
    clock: Clock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert clock.work(Run(tmp_path).progress(range(100), "measuring afgb"), 1.0) == list(range(100))
    lines = capsys.readouterr().err.splitlines()
    assert [line.split() for line in lines] == [
        ["measuring", "afgb", "5", "%", "1:35", "left"],
        ["measuring", "afgb", "35", "%", "1:05", "left"],
        ["measuring", "afgb", "65", "%", "0:35", "left"],
        ["measuring", "afgb", "95", "%", "0:05", "left"],
    ]


def test_progress_counts_sizes_and_says_nothing_when_quick_or_quiet(
    clock: Clock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clock.work(Run(tmp_path).progress(range(100), "quick"), 0.01)
    clock.work(Run(tmp_path, quiet=True).progress(range(100), "quiet"), 1.0)
    assert capsys.readouterr().err == ""
    clock.work(Run(tmp_path).progress(range(2), "sized", sizes=[1, 3]), 10.0)
    assert "25 %  0:30 left" in capsys.readouterr().err


def test_progress_is_one_bar_on_a_terminal(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    clock.work(Run(tmp_path).progress(range(10), "measuring"), 1.0)
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert shown.count("\r") == 9  # the first two seconds show nothing
    assert "100 %" in shown


# A process that is killed

KILLED = """
import sys, time
from pathlib import Path
from evenhand.run import Run
with Run.open(Path(sys.argv[1]), {"command": "measure", "model": "m", "seed": 3}) as run:
    run.save("facts.json", {"half": 1})
    print("saved", flush=True)
    time.sleep(60)
"""


def test_a_killed_process_leaves_a_run_that_goes_on(tmp_path: Path) -> None:
    target = tmp_path / "x"
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(target)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "saved\n"
        with pytest.raises(Refusal, match="Another evenhand"):
            finished(target)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
    assert not target.exists()
    part = tmp_path / "x.part"
    assert not is_finished(part)
    assert Run(part).read("facts.json") == {"half": 1}
    started = time.time()
    with Run.open(target, CONFIG) as run:
        assert run.has("facts.json")
        run.save("results.json", {})
    assert time.time() - started < 5
    assert is_finished(target)
    assert not part.exists()

"""Run: one folder a run, worked on as `<name>.part` and renamed when it is whole."""

import contextlib
import fcntl
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO, TypeVar

import pandas as pd
import torch
import yaml
from accelerate import PartialState

from evenhand.config import Refusal

__all__ = ["Run", "is_finished", "is_main", "processes"]

T = TypeVar("T")
LINE_EVERY = 30.0
BAR_AFTER = 2.0


def processes() -> PartialState:
    """The processes of this launch; accelerate joins those on a CPU only when it is told that there is nothing else."""
    return PartialState(cpu=not torch.accelerator.is_available())


def is_main() -> bool:
    """Only the first of several processes writes."""
    return os.environ.get("RANK", "0") == "0"


def is_finished(folder: Path) -> bool:
    """A folder is a finished run when it has its results."""
    return (folder / "results.json").exists()


class Run:
    """A folder that is finished or not; what is saved in it is whole, and the next call goes on from there."""

    def __init__(self, folder: Path, quiet: bool = False, seed: int = 0) -> None:
        self.folder = folder
        self.seed = seed
        self.quiet = quiet
        self.started = time.time()

    @classmethod
    @contextlib.contextmanager
    def open(
        cls, target: Path, config: dict[str, Any], *, overwrite: bool = False, quiet: bool = False
    ) -> Iterator["Run"]:
        """Work in `<target>.part`, going on with an unfinished one of the same config; rename it when all is done."""
        if target.exists() and not overwrite:
            raise Refusal(f"{target} exists already; choose another --out, or add --overwrite to replace it.")
        part = target.with_name(target.name + ".part")
        part.mkdir(parents=True, exist_ok=True)
        with locked(part):
            same_config(part, config)
            run = cls(part, quiet, config.get("seed", 0))
            run.save("config.yaml", config)
            yield run
            run.settle()
            if is_main():
                (part / ".lock").unlink(missing_ok=True)
                replaced = target.with_name(target.name + ".old")
                if target.exists():
                    target.rename(replaced)
                part.rename(target)
                shutil.rmtree(replaced, ignore_errors=True)
            run.folder = target
            run.settle()

    def settle(self) -> None:
        """Wait until every process has come this far, so that what the first one saved can be read by all."""
        processes().wait_for_everyone()

    def has(self, name: str) -> bool:
        """Whether something was saved under this name, by this call or an interrupted one."""
        return (self.folder / name).exists()

    def path(self, name: str) -> Path:
        """Where a file of this run is."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def save(self, name: str, value: Any) -> None:
        """Write JSON, YAML or a table by the name's ending, so that a killed process leaves no half file."""
        if not is_main():
            return
        path = self.path(name)
        beside = path.with_name(path.name + ".tmp")
        if path.suffix == ".parquet":
            value.to_parquet(beside, index=False)
        elif path.suffix == ".yaml":
            beside.write_text(yaml.safe_dump(value, sort_keys=False, allow_unicode=True), encoding="utf-8")
        else:
            beside.write_text(json.dumps(value, indent=2, ensure_ascii=False), encoding="utf-8")
        os.replace(beside, path)

    def read(self, name: str) -> Any:
        """What was saved under this name."""
        path = self.folder / name
        if path.suffix == ".parquet":
            return pd.read_parquet(path)
        text = path.read_text(encoding="utf-8")
        return yaml.safe_load(text) if path.suffix == ".yaml" else json.loads(text)

    def log(self, **fields: Any) -> None:
        """One line in log.jsonl."""
        if is_main():
            line = json.dumps({"seconds": round(time.time() - self.started, 1), **fields}, default=str)
            with open(self.path("log.jsonl"), "a", encoding="utf-8") as file:
                file.write(line + "\n")

    def say(self, text: str) -> None:
        """One line to the person who waits, and to the log."""
        self.log(say=text)
        if is_main() and not self.quiet:
            print(text, file=sys.stderr, flush=True)

    def progress(self, items: Sequence[T], what: str, sizes: Sequence[int] | None = None) -> Iterator[T]:
        """Go through items with the time left: a bar on a terminal, else a line every 30 seconds."""
        done, total, start = 0, sum(sizes) if sizes else len(items), time.time()
        shown = start if sys.stderr.isatty() else start - LINE_EVERY + 5
        silent = self.quiet or not is_main()
        drawn = False
        for index, item in enumerate(items):
            yield item
            done += sizes[index] if sizes else 1
            now = time.time()
            pause = 0.2 if sys.stderr.isatty() else LINE_EVERY
            if silent or now - start < BAR_AFTER or now - shown < pause:
                continue
            shown, drawn = now, True
            show_progress(sys.stderr, what, done, total, now - start)
        if drawn and sys.stderr.isatty():
            print(file=sys.stderr)


def show_progress(stream: TextIO, what: str, done: int, total: int, seconds: float) -> None:
    """`measuring afgb  62 %  0:41 left`, drawn over itself on a terminal."""
    left = seconds * (total - done) / max(done, 1)
    text = f"{what:<28} {100 * done // max(total, 1):>3} %  {int(left) // 60}:{int(left) % 60:02d} left"
    if stream.isatty():
        bar = "=" * (20 * done // max(total, 1))
        print(f"\r{text}  [{bar:<20}]", end="", file=stream, flush=True)
    else:
        print(text, file=stream, flush=True)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One call at a time in a folder; the system lets go when a process dies."""
    if not is_main():
        yield
        return
    with open(folder / ".lock", "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Refusal(f"Another evenhand is working in {folder}; wait for it or choose another --out.") from None
        yield


def same_config(part: Path, config: dict[str, Any]) -> None:
    """An unfinished run goes on only under the settings it was started with."""
    path = part / "config.yaml"
    if {file.name for file in part.iterdir()} <= {"config.yaml", "log.jsonl", ".lock"}:
        return  # refused or stopped before anything was made
    if path.exists() and yaml.safe_load(path.read_text(encoding="utf-8")) != config and is_main():
        raise Refusal(
            f"{part} is an unfinished run with other settings; finish it with `evenhand run {part}`, "
            "delete it, or choose another --out."
        )

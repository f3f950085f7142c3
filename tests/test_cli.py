"""The command line: a mistake is answered in one sentence, and what goes right can be read by a program."""

import errno
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from evenhand import catalog, cli, steps
from evenhand.config import Refusal
from evenhand.run import Run


class Answer(NamedTuple):
    """What a command gave."""

    code: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """The one line on stderr."""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("evenhand: ")
        assert "Traceback" not in self.err + self.out
        return lines[0].removeprefix("evenhand: ")


class Shell:
    """`evenhand ...` in this process, for starting a new one takes longer than a tiny model's whole road."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *arguments: object) -> Answer:
        self.monkeypatch.setattr(sys, "argv", ["evenhand", *map(str, arguments)])
        self.capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            cli.main()
        code = left.value.code
        return Answer(code if isinstance(code, int) else int(code is not None), *self.capsys.readouterr())


@pytest.fixture
def evenhand(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], inside: Path) -> Shell:
    """The command, called in an empty folder."""
    return Shell(monkeypatch, capsys)


@pytest.fixture(scope="module")
def fair(tiny: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished debias run."""
    from evenhand.recipe import job_of

    folder = tmp_path_factory.mktemp("runs") / "fair"
    content = {"command": "debias", "model": tiny, "method": "prompt", "limit": 6, "metrics": ["afgb", "perplexity"]}
    steps.debias(job_of(content), folder, quiet=True)
    return folder


# What a user gets wrong


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("measure no-such-model-anywhere", "There is no model 'no-such-model-anywhere': not a folder, not a bundled"),
        ("measure smollm", "did you mean 'smollm2'?"),
        ("measure {tiny} --metrics afbg", "There is no metric 'afbg' (did you mean 'afgb'?)"),
        ("measure {tiny} --metrics afgb:genbias", "There is no dataset 'genbias' (did you mean 'genbiaseval'?)"),
        ("measure {tiny} --metrics perplexity:genbiaseval", "genbiaseval holds Prompt rows, and Text rows are needed"),
        ("measure {tiny} --set data.axis=height", "'gender', 'race', 'religion' or 'age' (given: 'height')"),
        ("measure {tiny} --set afgb.window=3", "metric afgb has no option 'window'"),
        ("measure {tiny} --set perplexity.windw=3", "did you mean 'window'?"),
        ("measure {tiny} --set perplexity.window=wide", "option 'window': Input should be a valid integer"),
        ("measure {tiny} --set perplexty.window=3", "there is no part 'perplexty' here"),
        ("measure {tiny} --set window=3", "write it as part.option=value"),
        ("measure {tiny} --dtype float31", "There is no dtype 'float31'; choose float32, bfloat16, float16 or nf4"),
        ("measure {tiny} --device nonsense", "nonsense"),
        ("measure .", "is a folder without config.json"),
        ("debias {tiny} --method lfft", "There is no method 'lfft' (did you mean 'lftf'?)"),
        ("debias {tiny} --preset papr", "lftf has no preset 'papr' (did you mean 'paper'?)"),
        ("debias {tiny} --set method.ratee=1", "method lftf has no option 'ratee' (did you mean 'rate'?)"),
        ("debias {tiny} --set method.loss=fair", "option 'loss': Input should be 'balance', 'cross_entropy'"),
        ("debias {tiny} --before nowhere", "nowhere is not a finished run"),
        ("locate {tiny} --with bmii", "There is no locator 'bmii' (did you mean 'bmi'?)"),
        ("locate {tiny} --set locate.final=1", "locator tradeoff has no option 'final'"),
        ("locate {tiny} --set locator.prompts=1", "there is no part 'locator'"),
        ("run lftf_tabel", "There is no recipe or run 'lftf_tabel' (did you mean 'lftf_table'?)"),
        ("run gone.yaml", "There is no file gone.yaml"),
        ("show lftff", "There is nothing called 'lftff' (did you mean 'lftf'?)"),
        ("ls metric", "There is no kind 'metric' (did you mean 'metrics'?)"),
        ("report gone", "gone is not a finished run"),
        ("compare gone away", "gone is not a finished run"),
        ("check gone --max afgb=1", "gone is not a finished run"),
        ("check gone", "Nothing to check; give at least one --max, --min or --max-regression"),
        ("check gone --max afgb", "--max afgb: write it as metric=value"),
        ("check gone --max afgb=low", "'low' is not an amount"),
        ("export gone away", "gone is not a finished debias run"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(arguments: str, says: str, tiny: str, evenhand: Shell) -> None:
    quiet = ["--quiet", "--limit", "2"] if arguments.split()[0] in ("measure", "debias", "locate") else []
    answer = evenhand(*arguments.format(tiny=tiny).split(), *quiet)
    assert answer.code == 2
    assert answer.out == ""
    assert says in answer.sentence
    assert len(answer.sentence) < 600


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("bios.csv", "bio,gender\nA nurse,f\n", 'bios.csv, row 1: no column "text" (columns: bio, gender).'),
        ("bios.csv", "", "bios.csv has no rows"),
        ("bios.jsonl", '{"text": "A nurse"}\n{"text": \n', "bios.jsonl, row 2: not valid JSON"),
        ("bios.txt", "A nurse\n", "bios.txt: evenhand reads .jsonl, .csv, .tsv and .parquet files"),
        (
            "words.jsonl",
            '{"text": "The nurse smiled because", "words": "extraordinarily|unbelievably"}\n',
            "The word 'extraordinarily' is not one token",
        ),
        (
            "words.jsonl",
            '{"text": "One because", "words": "he|she"}\n{"text": "Two because", "words": "she|he"}\n',
            "row row-2 compares she, he where others compare he, she",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_named(file: str, content: str, says: str, tiny: str, evenhand: Shell) -> None:
    Path(file).write_text(content, encoding="utf-8")
    answer = evenhand("measure", tiny, "--metrics", "afgb", "--data", file, "--quiet")
    assert answer.code == 2
    assert says in answer.sentence


def test_a_file_without_hints_is_refused_by_ub(tiny: str, evenhand: Shell) -> None:
    Path("prompts.csv").write_text("text\nThe nurse smiled because\n", encoding="utf-8")
    assert (
        "add a hint column" in evenhand("measure", tiny, "--metrics", "ub", "--data", "prompts.csv", "--quiet").sentence
    )


def test_a_finished_folder_is_kept_unless_told_to(tiny: str, evenhand: Shell) -> None:
    command = ("measure", tiny, "--metrics", "afgb", "--limit", 3, "--quiet", "--out", "x")
    assert evenhand(*command).code == 0
    kept = Path("x/results.json").stat().st_mtime_ns
    answer = evenhand(*command)
    assert answer.code == 2
    assert answer.sentence == "x exists already; choose another --out, or add --overwrite to replace it."
    assert Path("x/results.json").stat().st_mtime_ns == kept
    assert evenhand(*command, "--overwrite").code == 0
    assert Path("x/results.json").stat().st_mtime_ns != kept


def test_a_mistake_can_be_mended_in_the_same_folder(tiny: str, evenhand: Shell) -> None:
    """A command that was refused before anything was measured is no unfinished run."""
    rest = ("--metrics", "afgb", "--limit", 3, "--quiet", "--out", "x")
    assert evenhand("measure", "no-such-model-anywhere", *rest).code == 2
    answer = evenhand("measure", tiny, *rest)
    assert answer.code == 0, answer.err


# What goes right


def test_measure_prints_a_table_and_where_the_page_is(tiny: str, evenhand: Shell) -> None:
    answer = evenhand("measure", tiny, "--metrics", "afgb,ub,perplexity", "--limit", 3, "--out", "x")
    assert answer.code == 0
    for word in ("afgb", "ub", "perplexity", "normalised", "value [95 %]"):
        assert word in answer.out
    assert answer.out.splitlines()[-1] == "report: x/report.html"
    assert "measuring afgb on 3 rows of genbiaseval" in answer.err
    quiet = evenhand("measure", tiny, "--metrics", "afgb,ub,perplexity", "--limit", 3, "--quiet")
    assert quiet.err == ""
    assert quiet.out.splitlines() == answer.out.splitlines()[:-1]


def test_json_is_json_and_nothing_else(tiny: str, fair: Path, evenhand: Shell) -> None:
    measured = json.loads(evenhand("measure", tiny, "--metrics", "afgb", "--limit", 3, "--json").out)
    assert set(measured) == {"scores", "failed", "skipped", "seconds"}
    located = json.loads(evenhand("locate", tiny, "--with", "bmi", "--limit", 3, "--json").out)
    assert [line["block"] for line in located] == [0, 1, 2]
    compared = json.loads(evenhand("compare", fair, fair, "--json").out)
    assert compared["verdicts"]["afgb"]["verdict"] == "inconclusive"
    assert {"evenhand", "device", "versions", "cache"} <= set(json.loads(evenhand("env", "--json").out))
    command = ("debias", tiny, "--method", "prompt", "--metrics", "afgb", "--limit", 3, "--json", "--out", "x")
    debiased = evenhand(*command)
    assert json.loads(debiased.out) == json.loads(Path("x/results.json").read_text(encoding="utf-8"))


def test_check_answers_with_its_exit_code(fair: Path, evenhand: Shell) -> None:
    after = Run(fair).read("results.json")["after"]
    gap, perplexity = after["afgb"]["value"], after["perplexity"]["value"]
    passed = evenhand("check", fair, "--max", f"afgb={gap * 1.01}", "--min", "perplexity=1")
    assert (passed.code, passed.out, passed.err) == (0, f"{fair}: passed 2 checks\n", "")
    failed = evenhand("check", fair, "--max", f"afgb={gap / 2}", "--max", f"perplexity={perplexity / 2}")
    assert failed.code == 1
    assert failed.err == ""
    lines = failed.out.splitlines()
    assert [line.split()[:2] for line in lines] == [["FAILED", "afgb"], ["FAILED", "perplexity"]]
    assert evenhand("check", fair, "--max-regression", "perplexity=100000%").code == 0
    assert evenhand("check", fair, "--max-regression", "perplexity=-100%").code == 1


def test_ls_lists_everything_there_is(evenhand: Shell) -> None:
    out = evenhand("ls").out
    for kind in catalog.KINDS:
        part = evenhand("ls", kind).out
        assert part in out
        for name in catalog.names(kind):
            assert name in part
            assert catalog.summary(kind, name) in part


@pytest.mark.parametrize("name", [name for kind in catalog.KINDS for name in catalog.names(kind)])
def test_show_describes_everything_there_is(name: str, evenhand: Shell) -> None:
    answer = evenhand("show", name)
    assert answer.code == 0
    assert len(answer.out.splitlines()) >= 2


def test_show_gives_options_as_they_are_typed(evenhand: Shell) -> None:
    out = evenhand("show", "lftf").out
    assert "--set method.epochs=…   int, default 4" in out
    assert "How often every prompt is seen." in out
    assert "--preset paper: loss=cross_entropy" in out
    assert "--set perplexity.window=…   int, default 1024" in evenhand("show", "perplexity").out


def test_env_says_what_this_machine_has(evenhand: Shell) -> None:
    out = evenhand("env").out
    for word in ("evenhand", "python", "device", "bundled models", "smollm2"):
        assert word in out


def test_debias_check_report_export_and_repeat(tiny: str, evenhand: Shell) -> None:
    train = ("--set", "method.block=1", "--set", "method.epochs=2", "--set", "method.batch=4", "--train-limit", 24)
    debiased = evenhand("debias", tiny, "--metrics", "afgb", "--limit", 4, *train, "--out", "x", "--quiet")
    assert debiased.code == 0, debiased.err
    assert "trained 9,280 of" in debiased.out
    Path("x/report.html").unlink()
    assert evenhand("report", "x").out == "x/report.html\n"
    assert Path("x/report.html").exists()
    exported = evenhand("export", "x", "y")
    assert exported.out.startswith("y: logits equal the run's (largest difference ")
    assert evenhand("export", "x", "y").sentence.startswith("y exists already")
    again = evenhand("run", "x", "--out", "z", "--quiet")
    assert again.code == 0
    assert again.out.splitlines()[-1] == "report: z/report.html"
    one, other = (json.loads(Path(name, "results.json").read_text(encoding="utf-8")) for name in "xz")
    assert one["after"] == other["after"]


# What nobody expects


def test_a_full_disk_is_named_with_the_remedy(tiny: str, evenhand: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    command = ("measure", tiny, "--metrics", "afgb", "--limit", 3, "--quiet", "--out", "x")
    with monkeypatch.context() as patched:
        patched.setattr(Run, "save", full)
        answer = evenhand(*command)
    assert answer.code == 1
    assert answer.sentence == (
        "The disk is full; free some space and give the same command again: it goes on where it stopped."
    )
    assert not Path("x").exists()
    assert evenhand(*command).code == 0


def test_the_unexpected_is_one_line_and_debug_shows_all(
    tiny: str, evenhand: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("first\n\nsecond " + "x" * 1000)

    monkeypatch.setattr(steps, "measure", broken)
    answer = evenhand("measure", tiny)
    assert answer.code == 1
    assert answer.sentence.startswith("RuntimeError: first second xxx")
    assert answer.sentence.endswith("(unexpected; add --debug for the traceback)")
    assert len(answer.sentence) < 400
    monkeypatch.setattr(sys, "argv", ["evenhand", "measure", tiny, "--debug"])
    with pytest.raises(RuntimeError, match="first"):
        cli.main()


def test_an_interruption_says_that_the_run_can_go_on(
    tiny: str, evenhand: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(steps, "measure", interrupted)
    answer = evenhand("measure", tiny)
    assert answer.code == 130
    assert "the same command goes on from here" in answer.err


def test_a_refusal_in_a_process_of_its_own() -> None:
    def process(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "evenhand", *arguments], capture_output=True, text=True)

    plain = process("ls", "metric")
    assert (plain.returncode, plain.stdout, len(plain.stderr.splitlines())) == (2, "", 1)
    debug = process("ls", "metric", "--debug")
    assert debug.returncode != 0
    assert "Traceback (most recent call last)" in debug.stderr
    assert "Refusal: There is no kind 'metric'" in debug.stderr


def test_sentences_are_for_people() -> None:
    assert cli.sentence(Refusal("Do this.")) == "Do this."
    assert cli.sentence(ValueError("")).startswith("ValueError: ValueError")
    assert cli.sentence(OSError(errno.EACCES, "Permission denied")).startswith("PermissionError: ")

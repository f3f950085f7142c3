"""What a job measures: suites, what is passed over, and what fails while the rest goes on."""

import errno
from pathlib import Path

import pytest
import torch
from roads import debiasing, measuring, results_of
from tiny import tiny_lm, tiny_model, tiny_tokenizer

from evenhand import catalog, plan, steps
from evenhand.config import Absent, Refusal
from evenhand.data._rows import Choice, Pair, Text
from evenhand.lm import LM
from evenhand.metrics.afgb import AFGB
from evenhand.plan import SUITES, Planned, expected_seconds, planned, token_count
from evenhand.run import Run

GENERATED = {"afgb", "ub", "perplexity", "gas", "weat:word_sets"}


@pytest.fixture
def no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without files and without the hub."""
    monkeypatch.delenv("EVENHAND_DATA", raising=False)


@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_names_what_there_is(suite: str) -> None:
    for entry in SUITES[suite]:
        short, _, data = entry.partition(":")
        cls = catalog.load("metrics", short)
        assert catalog.load("data", data or cls.data).kind is cls.reads
    assert set(SUITES["quick"]) <= set(SUITES["default"]) <= set(SUITES["full"])


@pytest.mark.usefixtures("no_data")
def test_a_suite_without_data_passes_over_what_is_not_here(tiny: str) -> None:
    found = planned(measuring(tiny, suite="full"))
    assert {item.name for item in found.items} == GENERATED
    assert set(found.skipped) == set(SUITES["full"]) - GENERATED
    assert not found.failed
    for name, why in found.skipped.items():
        assert "EVENHAND_DATA" in why, name
        assert why.endswith("."), name


@pytest.mark.usefixtures("no_data", "no_page")
def test_the_suite_says_what_it_runs_and_what_not(
    tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = steps.measure(measuring(tiny, suite="quick", limit=24), tmp_path / "quick")
    said = capsys.readouterr().err
    assert "4 metrics, about" in said
    assert "Not here: the data of crows_pairs, stereoset" in said
    assert set(results["scores"]) == {"afgb", "ub", "perplexity", "weat:word_sets"}
    assert set(results["skipped"]) == {"crows_pairs", "stereoset"}
    assert set(results["seconds"]) == set(results["scores"])
    assert results_of(tmp_path / "quick")["skipped"] == results["skipped"]


def test_an_unknown_suite_or_a_harness_without_a_task_is_refused(tiny: str) -> None:
    with pytest.raises(Refusal, match=r"no suite 'quik' \(did you mean 'quick'\?\)"):
        planned(measuring(tiny, suite="quik"))
    with pytest.raises(Refusal, match="Say which task behind a colon"):
        planned(measuring(tiny, metrics=["harness"]))


@pytest.mark.usefixtures("no_data", "no_page")
def test_a_metric_that_was_asked_for_and_has_no_data_fails_alone(tiny: str) -> None:
    results = steps.measure(measuring(tiny, metrics=["afgb", "crows_pairs"], limit=4), quiet=True)
    assert set(results["scores"]) == {"afgb"}
    assert set(results["failed"]) == {"crows_pairs"}
    with pytest.raises(Refusal, match="EVENHAND_DATA"):
        steps.measure(measuring(tiny, metrics=["crows_pairs"], limit=4), quiet=True)
    with pytest.raises(Refusal, match="EVENHAND_DATA"):
        steps.debias(steps.Job(command="debias", model=tiny, method="lftf", metrics=("afgb", "crows_pairs")))


@pytest.mark.usefixtures("no_page")
def test_a_broken_file_fails_only_its_metric(tiny: str, tmp_path: Path) -> None:
    broken = tmp_path / "rows.jsonl"
    broken.write_text('{"text": "The nurse smiled because"}\n{"txt": 1}\n', encoding="utf-8")
    results = steps.measure(measuring(tiny, metrics=[f"afgb:{broken}", "ub"], limit=4), quiet=True)
    assert "row 2" in results["failed"][f"afgb:{broken}"]
    assert set(results["scores"]) == {"ub"}


@pytest.mark.usefixtures("no_page")
def test_a_model_that_answers_nan_gets_a_sentence(tmp_path: Path) -> None:
    model = tiny_model("llama")
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    model.save_pretrained(tmp_path / "nan")
    tiny_tokenizer().save_pretrained(tmp_path / "nan")
    with pytest.raises(Refusal, match="answers NaN; try --dtype float32"):
        steps.measure(measuring(str(tmp_path / "nan"), metrics=["afgb", "ub"], limit=4), quiet=True)


@pytest.mark.usefixtures("no_page")
def test_a_causal_metric_on_a_masked_model_is_named_and_the_rest_runs(tmp_path: Path) -> None:
    lm = tiny_lm("bert")
    lm.model.save_pretrained(tmp_path / "bert")
    lm.tokenizer.save_pretrained(tmp_path / "bert")
    results = steps.measure(
        measuring(str(tmp_path / "bert"), metrics=["afgb", "weat:word_sets"], limit=400), quiet=True
    )
    assert results["failed"] == {"afgb": f"afgb needs a causal language model; {tmp_path / 'bert'} is a masked one."}
    assert set(results["scores"]) == {"weat:word_sets"}


def test_tokens_are_counted_from_every_text_of_a_row() -> None:
    rows = [
        Text(id="1", text="a" * 8),
        Pair(id="2", more="b" * 4, less="c" * 4),
        Choice(id="3", context="d" * 8, options=("e" * 4, "f" * 4), answer=0, stereotyped=1),
    ]
    assert token_count(rows) == 8


def test_the_estimate_grows_with_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    lm: LM = tiny_lm("llama")
    ticks = iter(range(100))
    monkeypatch.setattr(plan.time, "perf_counter", lambda: float(next(ticks)))
    rows = [Text(id="1", text="a" * 4 * 512)]
    # 256 tokens in a second of this clock; a third of the work is shared.
    assert expected_seconds(lm, [Planned("afgb", AFGB(), "x", rows)]) == pytest.approx(2 * 0.65)  # pyright: ignore


def test_absent_data_is_a_refusal() -> None:
    assert issubclass(Absent, Refusal)


@pytest.mark.usefixtures("no_page")
def test_a_masked_model_whose_tokenizer_has_no_start_token(tmp_path: Path) -> None:
    """As BERT's own."""
    lm = tiny_lm("bert")
    lm.tokenizer.bos_token = lm.tokenizer.eos_token = None
    lm.model.save_pretrained(tmp_path / "bert")
    lm.tokenizer.save_pretrained(tmp_path / "bert")
    assert LM.load(str(tmp_path / "bert")).start is None
    job = measuring(str(tmp_path / "bert"), metrics=["weat:word_sets", "seat:word_sets"], limit=80)
    assert len(steps.measure(job, quiet=True)["scores"]) == 2


@pytest.mark.usefixtures("no_page")
@pytest.mark.parametrize("metric", ["gas", "weat:word_sets", "label_f1", "perplexity"])
def test_no_metric_takes_nan_for_an_answer(metric: str, tmp_path: Path) -> None:
    model = tiny_model("llama")
    with torch.no_grad():
        list(model.parameters())[-2].fill_(float("nan"))
    model.save_pretrained(tmp_path / "nan")
    tiny_tokenizer().save_pretrained(tmp_path / "nan")
    with pytest.raises(Refusal, match="answers NaN"):
        steps.measure(measuring(str(tmp_path / "nan"), metrics=[metric], limit=40), quiet=True)


@pytest.mark.usefixtures("no_page")
def test_a_text_the_model_cannot_read_fails_its_metric_alone(tmp_path: Path) -> None:
    lm = tiny_lm("gpt2")
    lm.model.save_pretrained(tmp_path / "gpt2")
    lm.tokenizer.save_pretrained(tmp_path / "gpt2")
    long = tmp_path / "long.jsonl"
    long.write_text('{"more": "%s", "less": "x"}' % ("word " * 300), encoding="utf-8")
    results = steps.measure(
        measuring(str(tmp_path / "gpt2"), metrics=[f"crows_pairs:{long}", "afgb"], limit=4), quiet=True
    )
    assert "reads 128; shorten or delete it" in results["failed"][f"crows_pairs:{long}"]
    assert set(results["scores"]) == {"afgb"}


@pytest.mark.usefixtures("no_page")
def test_what_nobody_thought_of_fails_its_metric_alone(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("by chance")

    monkeypatch.setattr(AFGB, "score", broken)
    results = steps.measure(measuring(tiny, metrics=["afgb", "ub"], limit=4), quiet=True)
    assert results["failed"] == {"afgb": "ZeroDivisionError: by chance"}
    with pytest.raises(ZeroDivisionError):
        steps.measure(measuring(tiny, metrics=["afgb"], limit=4), quiet=True)


@pytest.mark.usefixtures("no_page")
def test_a_full_disk_stops_the_run_and_is_no_failed_metric(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = measuring(tiny, metrics=["afgb", "ub"], limit=4)
    save = Run.save

    def full(run: Run, name: str, value: object) -> None:
        if name == "tables/ub.parquet":
            raise OSError(errno.ENOSPC, "No space left on device")
        save(run, name, value)

    with monkeypatch.context() as patched:
        patched.setattr(Run, "save", full)
        with pytest.raises(OSError, match="No space left"):
            steps.measure(job, tmp_path / "x", quiet=True)
    assert not (tmp_path / "x").exists()
    assert set(steps.measure(job, tmp_path / "x", quiet=True)["scores"]) == {"afgb", "ub"}


def test_a_harness_task_is_told_the_limit(tiny: str) -> None:
    found = planned(measuring(tiny, metrics=["harness:piqa"], limit=7)).items[0]
    assert found.metric.limit == 7  # pyright: ignore[reportAttributeAccessIssue]
    assert [row.id for row in found.rows] == ["piqa"]


@pytest.mark.usefixtures("no_page")
def test_only_the_same_measurement_is_compared(tiny: str, fair: Path, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text('{"more": "She cooks well.", "less": "He cooks well."}\n' * 3, encoding="utf-8")
    name = f"crows_pairs:{pairs}"
    for scorer in ("mean", "sum"):
        job = measuring(tiny, metrics=[name], settings={"crows_pairs": {"scorer": scorer}})
        steps.measure(job, tmp_path / scorer, quiet=True)
    with pytest.raises(Refusal, match="with other options; measure again with the same --set"):
        steps.compare(tmp_path / "mean", tmp_path / "sum")
    settings = {"crows_pairs": {"scorer": "sum"}, "method": {"block": 1, "epochs": 1}}
    job = debiasing(tiny, metrics=[name], settings=settings, before=str(tmp_path / "mean"))
    with pytest.raises(Refusal, match="with other options"):
        steps.debias(job, tmp_path / "x", quiet=True)
    with pytest.raises(Refusal, match="is no measurement; give the folder of `evenhand measure`"):
        steps.debias(debiasing(tiny, before=str(fair)), tmp_path / "y", quiet=True)

"""The command line: one function a verb. Heavy imports are inside them, so that `ls` and `--help` answer at once."""

import errno
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evenhand.config import Refusal, parse_settings

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["app", "main"]

app = typer.Typer(
    help="Finds the bias in a language model, removes it by fine-tuning, and proves it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    epilog="Add --debug to any command for the full traceback of an error.",
)

Model = Annotated[str, typer.Argument(help="A hub id, a folder, a run folder or a bundled name (smollm2).")]
Out = Annotated[Path | None, typer.Option(help="Where the run's folder goes; without it nothing is kept.")]
Data = Annotated[str, typer.Option(help="A dataset's name, or a .jsonl, .csv or .parquet file.")]
Metrics = Annotated[str, typer.Option(help="Metrics, separated by commas; metric:dataset measures on that dataset.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", help="An option, as part.option=value (see evenhand show NAME).")
]
Limit = Annotated[int | None, typer.Option(help="At most so many rows of each dataset.", min=1)]
Seed = Annotated[int, typer.Option(help="The seed of everything drawn.")]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16, float16, or nf4 (four bits; needs evenhand[quant]).")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda; without it the best there is.")]
Quiet = Annotated[bool, typer.Option(help="No progress, only results.")]
Json = Annotated[bool, typer.Option("--json", help="Print results as JSON.")]
Overwrite = Annotated[bool, typer.Option(help="Replace a finished run.")]
Trust = Annotated[bool, typer.Option(help="Run code from the model's repository.")]


def job(command: str, typed: dict[str, Any]) -> Any:
    """A job from a verb's arguments: those that are no part of it (out, quiet, ...) are left to the verb."""
    from evenhand.recipe import job_of

    aside = ("out", "overwrite", "quiet", "as_json", "settings")
    given = {name: value for name, value in typed.items() if name not in aside and value not in (None, "")}
    if "metrics" in given:
        given["metrics"] = [name.strip() for name in given["metrics"].split(",") if name.strip()]
    return job_of({"command": command, "settings": parse_settings(typed["settings"] or []), **given})


@app.command("ls")
def list_names(kind: Annotated[str, typer.Argument(help="data, metrics, methods, locators or recipes.")] = "") -> None:
    """List what there is: datasets, metrics, methods, locators, recipes."""
    from evenhand import catalog

    for each in [kind] if kind else catalog.KINDS:
        known = catalog.names(each)
        typer.secho(each, bold=True)
        for name in known:
            typer.echo(f"  {name:<16} {catalog.summary(each, name)}")


@app.command()
def show(name: Annotated[str, typer.Argument(help="A name that `ls` lists.")]) -> None:
    """Show what one thing is, where it comes from, and its options."""
    from evenhand.show import describe_name

    typer.echo(describe_name(name))


@app.command()
def measure(
    model: Model,
    metrics: Metrics = "",
    suite: Annotated[
        str, typer.Option(help="quick, default or full: what is measured when no metrics are named.")
    ] = "default",
    out: Out = None,
    data: Data = "",
    settings: Set = None,
    limit: Limit = None,
    seed: Seed = 0,
    dtype: Dtype = "float32",
    device: Device = None,
    trust_remote_code: Trust = False,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Measure a model; exit code 3 when one of the metrics could not be measured."""
    if data and not metrics:
        raise Refusal("--data needs --metrics: say what to measure on it, for example --metrics afgb.")
    suite = "" if metrics else suite
    given = job("measure", locals())
    from evenhand import steps
    from evenhand.tables import scores_table

    results = steps.measure(given, out, overwrite=overwrite, quiet=quiet)
    emit(results, as_json, lambda: scores_table(results["scores"], results["failed"], results["skipped"]))
    tell_report(out, as_json)
    if results["failed"]:
        raise typer.Exit(3)


@app.command()
def score(
    metric: Annotated[str, typer.Argument(help="A metric that reads predictions: stereoset, bbq, label_f1, tpr_gap.")],
    predictions: Annotated[Path, typer.Argument(help="The file of predictions, in its published format.")],
    data: Data = "",
    settings: Set = None,
    as_json: Json = False,
) -> None:
    """Score a file of some model's predictions, without the model."""
    from evenhand import steps
    from evenhand.tables import scores_table

    results = steps.score(metric, predictions, data, parse_settings(settings or []))
    emit(results, as_json, lambda: scores_table(results["scores"]))


@app.command()
def locate(
    model: Model,
    locator: Annotated[str, typer.Option("--with", help="How blocks are ranked: bmi or tradeoff.")] = "tradeoff",
    out: Out = None,
    data: Data = "",
    settings: Set = None,
    limit: Limit = None,
    seed: Seed = 0,
    dtype: Dtype = "float32",
    device: Device = None,
    trust_remote_code: Trust = False,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Find the block that carries the bias."""
    given = job("locate", locals())
    from evenhand import steps
    from evenhand.tables import ranking_table

    ranking = steps.locate(given, out, overwrite=overwrite, quiet=quiet)
    emit(ranking, as_json, lambda: ranking_table(ranking))
    tell_report(out, as_json)


@app.command()
def debias(
    model: Model,
    method: Annotated[str, typer.Option(help="How to debias (see evenhand ls methods).")] = "lftf",
    preset: Annotated[str, typer.Option(help="Named settings of the method, such as paper.")] = "",
    metrics: Metrics = "afgb,ub,perplexity",
    out: Out = None,
    data: Data = "",
    before: Annotated[str, typer.Option(help="A measure run of the same model, instead of measuring again.")] = "",
    settings: Set = None,
    limit: Limit = None,
    train_limit: Annotated[int | None, typer.Option(help="At most so many rows to train on.", min=1)] = None,
    seed: Seed = 0,
    dtype: Dtype = "float32",
    device: Device = None,
    trust_remote_code: Trust = False,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Measure, debias, measure again, and say what changed."""
    given = job("debias", locals())
    from evenhand import steps
    from evenhand.tables import verdict_table

    results = steps.debias(given, out, overwrite=overwrite, quiet=quiet)
    emit(results, as_json, lambda: verdict_table(results))
    tell_report(out, as_json)


@app.command()
def compare(first: Path, second: Path, as_json: Json = False) -> None:
    """Compare two runs, example by example."""
    from evenhand import steps
    from evenhand.tables import verdict_table

    results = steps.compare(first, second)
    emit(results, as_json, lambda: verdict_table(results))


@app.command()
def check(
    run: Path,
    most: Annotated[list[str] | None, typer.Option("--max", help="metric=value that must not be exceeded.")] = None,
    least: Annotated[list[str] | None, typer.Option("--min", help="metric=value that must be reached.")] = None,
    max_regression: Annotated[
        list[str] | None, typer.Option(help="metric=amount (0.5 or 2%) it may move away from its ideal.")
    ] = None,
) -> None:
    """Fail (exit code 1) when a run misses a threshold: for CI."""
    from evenhand import steps

    bounds = [pairs(most, "--max"), pairs(least, "--min"), pairs(max_regression, "--max-regression")]
    if not any(bounds):
        raise Refusal("Nothing to check; give at least one --max, --min or --max-regression.")
    numbers = [{name: steps.allowance(text, 1) for name, text in bound.items()} for bound in bounds[:2]]
    failures = steps.check(run, numbers[0], numbers[1], bounds[2])
    for failure in failures:
        typer.echo(f"FAILED {failure}")
    if failures:
        raise typer.Exit(1)
    typer.echo(f"{run}: passed {sum(map(len, bounds))} checks")


@app.command()
def report(run: Path) -> None:
    """Build a run's page again."""
    from evenhand.page import build
    from evenhand.steps import scores_of

    scores_of(run)
    typer.echo(str(build(run)))


@app.command("run")
def repeat(
    target: Annotated[str, typer.Argument(help="A recipe's name, a YAML file, a run folder, or an unfinished .part.")],
    out: Out = None,
    model: Annotated[str, typer.Option(help="Another model than the recipe's.")] = "",
    device: Device = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Repeat a run, go on with an unfinished one, or follow a recipe."""
    from evenhand.recipe import repeat
    from evenhand.run import is_main
    from evenhand.tables import scores_table, verdict_table

    changes = {name: value for name, value in (("model", model), ("device", device)) if value}
    folder = repeat(target, out, changes, overwrite=overwrite, quiet=quiet)
    if not is_main():
        return
    if (folder / "table.md").exists():
        typer.echo((folder / "table.md").read_text(encoding="utf-8"))
        return
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    if "verdicts" in results:
        emit(results, False, lambda: verdict_table(results))
    if "scores" in results:
        emit(results, False, lambda: scores_table(results["scores"], results["failed"], results["skipped"]))
    tell_report(folder, False)
    if results.get("failed"):
        raise typer.Exit(3)


@app.command()
def export(
    run: Path,
    target: Path,
    overwrite: Overwrite = False,
    device: Device = None,
    keep_layers: Annotated[
        bool, typer.Option(help="Write a model with added layers as it is, with the code that it needs.")
    ] = False,
) -> None:
    """Write a run's model as an ordinary transformers folder, proven equal; one with added layers is taught to a model
    of the base's own architecture."""
    from evenhand.exporting import adds_layers, export, refuse_target

    refuse_target(run, target, overwrite)
    if adds_layers(run) and not keep_layers:
        from evenhand.distilling import distil

        agreement = distil(run, target, overwrite=overwrite, device=device)["agreement"]
        typer.echo(
            f"{target}: the base's architecture, taught; the same first token in {100 * agreement['same_first']:.1f} %"
        )
        return
    difference = export(run, target, overwrite=overwrite, device=device)
    typer.echo(f"{target}: logits equal the run's (largest difference {difference:.1g})")


@app.command()
def attention(
    model: Model,
    prompt: Annotated[str, typer.Argument(help="The beginning of a text, such as 'The doctor said that'.")],
    words: Annotated[str, typer.Option(help="Attributes or words, separated by commas.")] = "gender",
    out: Annotated[Path | None, typer.Option(help="Write the heat map as a page into this .html file.")] = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Show where a model looks in a prompt: how much, after each token, goes to each sensitive word."""
    from evenhand.attending import attended
    from evenhand.tables import attention_table

    if out is not None and (out.exists() or not out.parent.is_dir()):
        raise Refusal(f"{out} {'exists already' if out.exists() else 'has no folder'}; choose another file.")
    table = attended(model, prompt, [word.strip() for word in words.split(",") if word.strip()], device)
    if out is not None:
        from evenhand.page import attention_page

        out.write_text(attention_page(table), encoding="utf-8")
    emit(table, as_json, lambda: attention_table(table))


@app.command()
def env(as_json: Json = False) -> None:
    """Say what this machine has."""
    from evenhand.bundled import BUNDLED, cache_folder
    from evenhand.environment import environment

    facts = environment() | {
        "cache": str(cache_folder()),
        "data": os.environ.get("EVENHAND_DATA", "EVENHAND_DATA is not set"),
        "bundled models": ", ".join(BUNDLED),
    }
    emit(facts, as_json, lambda: "\n".join(f"{name:<16} {value}" for name, value in facts.items()))


def pairs(given: list[str] | None, option: str) -> dict[str, str]:
    """`afgb=0.05` as a mapping."""
    found = {}
    for pair in given or []:
        name, equals, value = pair.partition("=")
        if not equals or not value:
            raise Refusal(f"{option} {pair}: write it as metric=value, for example {option} afgb=0.05.")
        found[name] = value
    return found


def emit(results: "dict[str, Any] | pd.DataFrame", as_json: bool, table: Any) -> None:
    """Print results for a program or for a person; only the first of several processes speaks."""
    from evenhand.run import is_main

    if not is_main():
        return
    if not as_json:
        typer.echo(table())
    elif isinstance(results, dict):
        typer.echo(json.dumps(results, indent=2))
    else:
        typer.echo(results.to_json(orient="records", indent=2))


def tell_report(out: Path | None, as_json: bool) -> None:
    """End with the path of the page."""
    from evenhand.run import is_main

    if out is not None and not as_json and is_main():
        typer.echo(f"report: {out / 'report.html'}")


def main() -> None:
    """Run a command; an error is one sentence, and the traceback comes with --debug."""
    debug = "--debug" in sys.argv
    sys.argv = [argument for argument in sys.argv if argument != "--debug"]
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        app()
    except Exception as error:
        if debug:
            raise
        typer.secho(f"evenhand: {sentence(error)}", err=True)
        raise SystemExit(2 if isinstance(error, Refusal) else 1) from None
    except SystemExit as left:
        if left.code == 130:  # what typer makes of an interruption
            typer.secho("evenhand: stopped; the same command goes on from here.", err=True)
        raise


def sentence(error: Exception) -> str:
    """What went wrong and what to do, in one sentence."""
    if isinstance(error, Refusal):
        return str(error)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "The disk is full; free some space and give the same command again: it goes on where it stopped."
    text = " ".join(str(error).split())[:300] or type(error).__name__
    return f"{type(error).__name__}: {text} (unexpected; add --debug for the traceback)"

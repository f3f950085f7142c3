"""Options: refused in one sentence with the choices, described from the code, and the same after YAML."""

from pathlib import Path
from typing import Any, Literal

import pytest
import yaml

from evenhand import catalog
from evenhand.config import Refusal, build, describe, options, parse_settings, read_yaml, values
from evenhand.methods.lftf import LFTF
from evenhand.recipe import job_of
from evenhand.steps import Job

CLASSES = [(kind, name) for kind in catalog.KINDS if kind != "recipes" for name in catalog.names(kind)]


@options
class Parent:
    """A parent."""

    rate: float = 0.5
    """How fast."""
    mode: Literal["slow", "fast"] = "slow"
    """Which way."""


@options
class Child(Parent):
    """A child."""

    count: int | None = None
    """How many."""


def refusal(settings: dict[str, Any], cls: type = Child) -> str:
    with pytest.raises(Refusal) as refused:
        build(cls, settings, "method child")
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_options_construct_with_defaults_and_with_values() -> None:
    assert build(Child, {}, "method child") == Child()
    chosen = build(Child, {"rate": 2, "count": 3, "mode": "fast"}, "method child")
    assert (chosen.rate, chosen.count, chosen.mode) == (2.0, 3, "fast")


def test_an_unknown_key_is_refused_with_the_nearest_and_all() -> None:
    message = refusal({"rat": 1})
    assert message.startswith("method child has no option 'rat'")
    assert "did you mean 'rate'?" in message
    assert message.endswith(" Its options: rate, mode, count.")
    assert "?." not in message
    assert "did you mean" not in refusal({"xyzzy": 1})


def test_a_wrong_choice_is_refused_with_the_choices() -> None:
    assert refusal({"mode": "quick"}) == (
        "method child, option 'mode': Input should be 'slow' or 'fast' (given: 'quick')."
    )


@pytest.mark.parametrize("settings", [{"rate": "swift"}, {"count": 1.5}, {"count": "many"}, {"rate": [1]}])
def test_a_wrong_type_is_refused_by_name(settings: dict[str, Any]) -> None:
    (name,) = settings
    message = refusal(settings)
    assert message.startswith(f"method child, option '{name}")
    assert repr(settings[name]) in message


def test_options_cannot_be_changed_or_given_by_position() -> None:
    with pytest.raises(AttributeError):
        Child().rate = 1.0  # pyright: ignore
    with pytest.raises((TypeError, ValueError), match="positional"):
        Child(1.0)  # pyright: ignore


def test_describe_gives_type_default_and_inherited_help() -> None:
    assert [tuple(option) for option in describe(Child)] == [
        ("rate", "float", 0.5, "How fast."),
        ("mode", "slow | fast", "slow", "Which way."),
        ("count", "int | none", None, "How many."),
    ]


@pytest.mark.parametrize(("kind", "name"), CLASSES)
def test_every_option_there_is_has_a_help_text(kind: str, name: str) -> None:
    for option in describe(catalog.load(kind, name)):
        assert option.help, f"{name}.{option.name}"
        assert option.help[0].isupper(), f"{name}.{option.name}"
        assert option.help.endswith("."), f"{name}.{option.name}"


# --set


def test_settings_are_read_as_yaml_and_numbers_as_numbers() -> None:
    pairs = ["method.rate=1e-4", "method.weights=[0, 1]", "method.block=null", "method.decay=false", "data.text=a=b"]
    assert parse_settings(pairs) == {
        "method": {"rate": 1e-4, "weights": [0, 1], "block": None, "decay": False},
        "data": {"text": "a=b"},
    }
    assert isinstance(parse_settings(["method.rate=1e-4"])["method"]["rate"], float)
    assert isinstance(parse_settings(["method.epochs=3"])["method"]["epochs"], int)
    assert parse_settings([]) == {}


def test_the_last_of_two_settings_counts() -> None:
    assert parse_settings(["method.rate=1", "method.rate=2"]) == {"method": {"rate": 2}}


def test_a_value_that_is_no_yaml_is_text() -> None:
    assert parse_settings(["data.text=[bio"]) == {"data": {"text": "[bio"}}


@pytest.mark.parametrize("pair", ["method.rate", "rate=1", "method.=1", "=1", ""])
def test_a_malformed_setting_is_refused_with_an_example(pair: str) -> None:
    with pytest.raises(Refusal, match=r"write it as part\.option=value, for example --set method\.rate=1e-4"):
        parse_settings([pair])


# YAML


@pytest.mark.parametrize(
    "content",
    [
        {"command": "measure", "model": "smollm2"},
        {"command": "measure", "model": "smollm2", "metrics": ["afgb", "perplexity:wikitext"], "limit": 5, "seed": 3},
        {"command": "debias", "model": "ünïcode: #1", "method": "lftf", "preset": "paper"},
        {
            "command": "debias",
            "model": "m",
            "method": "lftf",
            "settings": {"method": {"weights": (0, 1), "rate": 1e-5}},
        },
    ],
)
def test_a_job_is_the_same_after_yaml(content: dict[str, Any]) -> None:
    job = job_of(content)
    written = yaml.safe_load(yaml.safe_dump(values(job), sort_keys=False, allow_unicode=True))
    assert written == values(job)
    assert values(job_of(written)) == values(job)
    assert set(written) == {option.name for option in describe(Job)}


def test_a_preset_comes_first_and_the_users_own_options_win() -> None:
    job = job_of(
        {"command": "debias", "model": "m", "method": "lftf", "preset": "paper", "settings": {"method": {"rate": 0.1}}}
    )
    assert job.settings["method"] == LFTF.presets["paper"] | {"rate": 0.1}
    assert LFTF.presets["paper"]["rate"] == 1e-5


def test_yaml_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    for content, reason in (("a: [", "is not valid YAML"), ("- a\n- b\n", "holds no settings"), ("", "holds no")):
        path = tmp_path / "config.yaml"
        path.write_text(content, encoding="utf-8")
        with pytest.raises(Refusal, match=reason) as refused:
            read_yaml(str(path))
        assert "\n" not in str(refused.value)
    with pytest.raises(Refusal, match="There is no file"):
        read_yaml(str(tmp_path / "gone.yaml"))

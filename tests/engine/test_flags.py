"""The registry of flags: every declaration is sound, and no value gets in that is not plainly one of the flag's."""

import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
from arc.engine.flags import (
    DEFAULTS,
    ENVIRONMENT,
    FLAGS,
    Flag,
    FlagError,
    FlagReason,
    Reach,
    Value,
    check,
    check_together,
    environment_name,
    lookup,
    parse,
    show,
)
from arc.engine.flags_doc import page
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[2]

flags = st.sampled_from(list(FLAGS.values()))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


def valid_values(flag: Flag) -> st.SearchStrategy[Value]:
    """Values that the flag takes, of its own type."""
    if flag.kind == "bool":
        return st.booleans()
    words = [st.sampled_from(flag.words)] if flag.words else []
    if flag.choices:
        return st.one_of(st.sampled_from(flag.choices), *words)
    if flag.kind == "int":
        assert isinstance(flag.low, int) and isinstance(flag.high, int)
        return st.one_of(st.integers(flag.low, flag.high), *words)
    if flag.kind == "float":
        assert flag.low is not None and flag.high is not None
        return st.floats(flag.low, flag.high)
    text = (
        st.from_regex(re.compile(flag.form, re.ASCII), fullmatch=True) if flag.form else st.just("models/a b")
    )
    return st.one_of(text, *words)


@pytest.mark.parametrize("flag", FLAGS.values(), ids=FLAGS.keys())
def test_declaration_is_sound(flag: Flag) -> None:
    assert re.fullmatch(r"[a-z]+\.[a-z][a-z0-9_]*", flag.name)
    assert check(flag, flag.default) == flag.default
    assert (
        flag.kind not in ("int", "float") or flag.choices or (flag.low is not None and flag.high is not None)
    )
    assert flag.kind != "choice" or flag.choices
    assert flag.meaning and "\n" not in flag.meaning and not flag.meaning.endswith(".")
    assert flag.danger is None or flag.reach is Reach.LIVE  # nothing else can hurt while the engine runs
    assert (flag.danger is None) == (flag.risky is None)


@given(st.data())
def test_what_a_danger_warns_of_is_one_way_alone(data: st.DataObject) -> None:
    """Between two values the way back is no danger, but for the allocator's cap: without one it grows, and with one it
    gives back. No change is none."""
    flag = FLAGS[
        data.draw(st.sampled_from([name for name, flag in FLAGS.items() if flag.danger is not None]))
    ]
    one, other = data.draw(valid_values(flag)), data.draw(valid_values(flag))
    assert not flag.hurts(one, one)
    both = flag.hurts(one, other) and flag.hurts(other, one)
    assert not both or (flag.name == "alloc.cap_mib" and {0, "auto"} & {one, other})


@pytest.mark.parametrize(
    ("name", "old", "new", "hurts"),
    [
        ("admission.policy", "ragged", "bucketed", True),
        ("admission.policy", "bucketed", "ragged", False),
        ("admission.bucket_losers", "wait", "preempt", True),
        ("sched.max_step_tokens", 1024, 2048, True),
        ("sched.max_step_tokens", 2048, 1024, False),
        ("sched.prefill_chunk", 256, 512, True),
        ("sched.prefill_chunk", 256, 64, False),
        ("sched.paused", False, True, True),
        ("sched.paused", True, False, False),
        ("spec.depth", 0, 2, True),
        ("spec.depth", 1, 2, False),
        ("spec.depth", 2, 0, False),
        ("cache.prefix", True, False, True),
        ("cache.prefix", False, True, False),
        ("cache.page_cap", "none", 64, True),
        ("cache.page_cap", 64, "none", False),
        ("cache.page_cap", 64, 32, True),
        ("alloc.cap_mib", 512, 0, True),
        ("alloc.cap_mib", 0, 512, True),
        ("alloc.cap_mib", 512, 256, True),
        ("alloc.cap_mib", 256, 512, False),
        ("alloc.cap_mib", "auto", 512, True),
        ("profile.detail", "layer", "op", True),
        ("profile.detail", "op", "step", False),
        ("http.stall_s", 30.0, 1.0, True),
        ("http.stall_s", 1.0, 30.0, False),
        ("sched.max_running", 64, 1, False),
    ],
)
def test_a_change_hurts_in_the_way_that_the_danger_says(
    name: str, old: Value, new: Value, hurts: bool
) -> None:
    assert FLAGS[name].hurts(old, new) is hurts


def test_defaults_agree_with_each_other() -> None:
    assert check_together(DEFAULTS) == []


def test_environment_names_are_distinct() -> None:
    names = [environment_name(flag) for flag in FLAGS.values()] + list(ENVIRONMENT)
    assert len(set(names)) == len(names)
    assert environment_name(FLAGS["sched.max_running"]) == "ARC_SCHED_MAX_RUNNING"


def test_the_api_key_is_no_flag() -> None:
    assert not any("key" in name for name in FLAGS)


@given(st.data())
def test_what_is_shown_parses_back(data: st.DataObject) -> None:
    flag = data.draw(flags)
    value = check(flag, data.draw(valid_values(flag)))
    parsed = parse(flag, show(value))
    assert parsed == value and type(parsed) is type(value)


@given(flags, json_values)
def test_check_takes_only_what_the_declaration_allows(flag: Flag, value: object) -> None:
    try:
        taken = check(flag, value)
    except FlagError as error:
        assert error.flag == flag.name and flag.name in error.message
        assert error.reason in (FlagReason.TYPE, FlagReason.BOUNDS, FlagReason.CHOICE, FlagReason.FORM)
        return
    assert taken == value
    assert allowed(flag, taken)


@given(flags, st.text())
def test_parse_takes_only_what_the_declaration_allows(flag: Flag, text: str) -> None:
    try:
        taken = parse(flag, text)
    except FlagError as error:
        assert error.flag == flag.name
        return
    assert allowed(flag, taken)


def allowed(flag: Flag, value: object) -> bool:
    """The declaration's own words, said once more and differently."""
    if value in flag.words and isinstance(value, str):
        return True
    match flag.kind:
        case "bool":
            return value is True or value is False
        case "choice":
            return value in flag.choices
        case "str":
            assert isinstance(value, str)
            return value.isprintable() and (
                not flag.form or re.fullmatch(flag.form, value, re.ASCII) is not None
            )
        case "int" | "float":
            assert type(value) is (int if flag.kind == "int" else float)
            if flag.choices:
                return value in flag.choices
            assert flag.low is not None and flag.high is not None
            return flag.low <= value <= flag.high


@pytest.mark.parametrize("text", ["0", "1", "yes", "no", "", " on", "on ", "On", "TRUE", "none", "2"])
def test_only_on_and_off_switch_a_bool(text: str) -> None:
    with pytest.raises(FlagError, match=r"write on or off") as caught:
        parse(FLAGS["sched.paused"], text)
    assert caught.value.reason is FlagReason.TYPE


@pytest.mark.parametrize(("text", "value"), [("on", True), ("true", True), ("off", False), ("false", False)])
def test_bool_words(text: str, value: bool) -> None:
    assert parse(FLAGS["cache.prefix"], text) is value


@pytest.mark.parametrize(
    ("flag", "text", "value"),
    [
        ("sched.max_running", "64", 64),
        ("sched.max_running", "+64", 64),
        ("sched.max_running", "0064", 64),
        ("sched.max_step_tokens", "1_024", 1024),
        ("cache.page_cap", "none", "none"),
        ("cache.memory_mib", "auto", "auto"),
        ("cache.page_size", "16", 16),
        ("http.stall_s", "2", 2.0),
        ("http.stall_s", "1e1", 10.0),
        ("http.stall_s", ".5", 0.5),
        ("model.path", "/srv/a=b", "/srv/a=b"),
        ("model.device", "cuda:3", "cuda:3"),
    ],
)
def test_text_that_is_taken(flag: str, text: str, value: object) -> None:
    taken = parse(FLAGS[flag], text)
    assert taken == value and type(taken) is type(value)


@pytest.mark.parametrize(
    ("flag", "text", "reason"),
    [
        ("sched.max_running", "", FlagReason.TYPE),
        ("sched.max_running", " 64", FlagReason.TYPE),
        ("sched.max_running", "64\n", FlagReason.TYPE),
        ("sched.max_running", "64.0", FlagReason.TYPE),
        ("sched.max_running", "6e1", FlagReason.TYPE),
        ("sched.max_running", "0x40", FlagReason.TYPE),
        ("sched.max_running", "1__0", FlagReason.TYPE),
        ("sched.max_running", "_1", FlagReason.TYPE),
        ("sched.max_running", "٦٤", FlagReason.TYPE),  # digits that int() would take
        ("sched.max_running", "on", FlagReason.TYPE),
        ("sched.max_running", "auto", FlagReason.TYPE),
        pytest.param("sched.max_running", "9" * 5000, FlagReason.TYPE, id="5000 digits"),
        ("sched.max_running", "0", FlagReason.BOUNDS),
        ("sched.max_running", "4097", FlagReason.BOUNDS),
        ("sched.max_running", "-1", FlagReason.BOUNDS),
        ("cache.page_cap", "None", FlagReason.TYPE),
        ("cache.page_cap", "auto", FlagReason.TYPE),
        ("cache.page_size", "24", FlagReason.CHOICE),
        ("http.stall_s", "nan", FlagReason.TYPE),
        ("http.stall_s", "inf", FlagReason.TYPE),
        ("http.stall_s", "1e9", FlagReason.BOUNDS),
        ("http.stall_s", "1_0.5", FlagReason.TYPE),
        ("sched.order", "FCFS", FlagReason.CHOICE),
        ("sched.order", "", FlagReason.CHOICE),
        ("model.path", "", FlagReason.FORM),
        ("model.path", "a\0b", FlagReason.FORM),
        ("model.path", "a\udcffb", FlagReason.FORM),
        pytest.param("model.path", "a" * 4097, FlagReason.FORM, id="4097 letters"),
        ("model.device", "gpu", FlagReason.FORM),
        ("model.device", "cpu\n", FlagReason.FORM),
        ("control.name", "../x", FlagReason.FORM),
    ],
)
def test_text_that_is_refused(flag: str, text: str, reason: FlagReason) -> None:
    with pytest.raises(FlagError) as caught:
        parse(FLAGS[flag], text)
    assert caught.value.reason is reason
    assert len(caught.value.message) < 400


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("2g", "2048"),
        ("2GiB", "2048"),
        ("512m", "512"),
        ("512 MB", "512"),
        ("1.5g", "1536"),
        ("1t", "1048576"),
    ],
)
def test_a_memory_suffix_is_answered_with_the_right_number(text: str, right: str) -> None:
    with pytest.raises(FlagError, match=f": {right}$"):
        parse(FLAGS["cache.memory_mib"], text)


@pytest.mark.parametrize(
    ("flag", "value", "reason"),
    [
        ("sched.max_running", True, FlagReason.TYPE),
        ("sched.max_running", 64.0, FlagReason.TYPE),
        ("sched.max_running", "64", FlagReason.TYPE),
        ("sched.max_running", None, FlagReason.TYPE),
        ("sched.max_running", [64], FlagReason.TYPE),
        pytest.param(
            "sched.max_running", 10**5000, FlagReason.BOUNDS, id="an int that Python will not print"
        ),
        ("cache.page_cap", None, FlagReason.TYPE),
        ("cache.page_size", 24, FlagReason.CHOICE),
        ("cache.page_size", 16.0, FlagReason.TYPE),
        ("http.stall_s", math.nan, FlagReason.BOUNDS),
        ("http.stall_s", math.inf, FlagReason.BOUNDS),
        pytest.param("http.stall_s", 10**5000, FlagReason.BOUNDS, id="an int past every float"),
        ("http.stall_s", True, FlagReason.TYPE),
        ("sched.paused", 0, FlagReason.TYPE),
        ("sched.paused", "off", FlagReason.TYPE),
        ("sched.order", 1, FlagReason.TYPE),
    ],
)
def test_typed_values_that_are_refused(flag: str, value: object, reason: FlagReason) -> None:
    with pytest.raises(FlagError) as caught:
        check(FLAGS[flag], value)
    assert caught.value.reason is reason
    assert len(caught.value.message) < 400


@pytest.mark.parametrize(
    ("typo", "right"),
    [
        ("sched.max_runing", "sched.max_running"),
        ("max_running", "sched.max_running"),
        ("sched.max-running", "sched.max_running"),
        ("Sched.Max_Running", "sched.max_running"),
        ("shed.order", "sched.order"),
        ("group", "control.group"),
        ("cache.pagesize", "cache.page_size"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(typo: str, right: str) -> None:
    with pytest.raises(FlagError, match=rf"did you mean {right}") as caught:
        lookup(typo)
    assert caught.value.reason is FlagReason.UNKNOWN


def test_a_name_like_none_points_at_the_list() -> None:
    with pytest.raises(FlagError, match=r"`arc flags` lists them"):
        lookup("%%%")


@pytest.mark.parametrize("small", ["sched.prefill_chunk", "sched.max_running"])
def test_flags_that_must_fit_into_a_step(small: str) -> None:
    fits = {**DEFAULTS, small: 100, "sched.max_step_tokens": 1000}
    assert check_together({**fits, small: 1000}) == []
    (conflict,) = check_together({**fits, small: 1001})
    assert conflict.reason is FlagReason.CONFLICT
    assert {conflict.flag, *conflict.related} == {small, "sched.max_step_tokens"}
    assert "1001" in conflict.message and "1000" in conflict.message


def test_docs_page_is_current() -> None:
    assert (ROOT / "docs" / "flags.md").read_text(encoding="utf-8") == page(), "run `make docs`"


def test_every_flag_is_read_somewhere() -> None:
    """A flag that nothing reads would be accepted and do nothing."""
    own = {"flags.py", "flags_doc.py", "config.py"}
    code = [path for path in (ROOT / "engine").rglob("*.py") if path.name not in own]
    text = "".join(path.read_text(encoding="utf-8") for path in code)
    assert [name for name in FLAGS if f'"{name}"' not in text] == []


def test_registry_imports_next_to_nothing() -> None:
    """The console pays for this import at every start."""
    code = "import sys; before = set(sys.modules); import arc.engine.flags; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"torch", "numpy", "click", "msgspec", "tomli", "asyncio", "difflib", "json"}
    assert not heavy & set(done.stdout.split())

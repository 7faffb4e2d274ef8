import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewards.answers.units import read_unit
from tests.rewards.kinds.rows import judged, verifier

SAME = [
    ("9.81 m/s^2", "\\boxed{9.8 \\text{ m/s}^2}"),
    ("9.81 m/s^2", "\\boxed{981\\ \\text{cm/s}^2}"),
    ("3.6 km/h", "\\boxed{1 \\text{ m/s}}"),
    ("1500 m", "The distance is 1.5 km."),
    ("1500 m", "\\boxed{1500}"),
    ("2 hours", "It takes 120 minutes"),
    ("300 K", "\\boxed{26.85 \u00b0C}"),
    ("212 \u00b0F", "\\boxed{100 \u00b0C}"),
    ("1 kWh", "\\boxed{3.6 \\text{ MJ}}"),
    ("45%", "\\boxed{0.45}"),
    ("0.45", "\\boxed{45\\%}"),
    ("12 apples", "\\boxed{12 apples}"),
    ("100", "\\boxed{100.9}"),
    ("2.5e-3 mol", "\\boxed{2.5 \\times 10^{-3} \\text{ mol}}"),
    ("6 L", "\\boxed{0.006 \\text{ m}^3}"),
    ("42", "The answer is 42 (rounded to 2 decimal places)."),
    ("9.81 m/s^2", "It is 9.81 m/s^2, correct to 3 significant figures."),
    ("100 N", "The force is F = 100 N"),
    ("0.5", "\\boxed{\\frac{1}{2}}"),
    ("0.001 m", "\\boxed{10^{-3} \\text{ m}}"),
    ("10^5", "\\boxed{100000}"),
    ("2000000 N", "The force is 2 \\times 10^6 N, roughly"),
    ("2000000 N", "The force is about 2 x 10^6 N"),
    ("5 kg m^2/s^2", "\\boxed{5 \\text{ J}}"),
    ("25 degrees Celsius", "25\u00b0C"),
    ("10.8 km/h", "3 \\text{ m}/\\text{s}"),
    ("42 m", "\u7b54\u6848\u662f42\u7c73\u3002"),
]
DIFFERENT = [
    ("9.81 m/s^2", "\\boxed{9.6 \\text{ m/s}^2}"),
    ("1500 m", "\\boxed{1500 \\text{ km}}"),
    ("1500 m", "\\boxed{1500 \\text{ kg}}"),
    ("1500 m", "\\boxed{1500 apples}"),
    ("300 K", "\\boxed{300 \u00b0C}"),
    ("5 mW", "\\boxed{5 \\text{ MW}}"),
    ("100", "\\boxed{101.1}"),
    ("100", "\\boxed{-100}"),
    ("100", "nothing"),
    ("100", ""),
    ("0", "\\boxed{0.001}"),
    ("0", "1e999"),
    ("12", "\\boxed{84/7}"),
    ("0.5", "\\boxed{0.5\\%}"),
]


@pytest.mark.parametrize(("answer", "text"), SAME)
def test_the_same_quantity(answer: str, text: str) -> None:
    assert judged(verifier("number"), text, answer).correct


@pytest.mark.parametrize(("answer", "text"), DIFFERENT)
def test_another_quantity(answer: str, text: str) -> None:
    assert not judged(verifier("number"), text, answer).correct


def test_tolerances() -> None:
    exact = verifier("number", relative=0.0)
    assert judged(exact, "\\boxed{100.0}", "100").correct
    assert not judged(exact, "\\boxed{100.1}", "100").correct
    near = verifier("number", relative=0.0, absolute=0.5)
    assert judged(near, "\\boxed{100.5}", "100").correct
    assert not judged(near, "\\boxed{100.6}", "100").correct
    # In the unit of the right answer: 0.5 m.
    assert judged(near, "\\boxed{50 \\text{ cm}}", "1 m").correct
    assert judged(near, "\\boxed{100.5}", "100").parts["error"] == pytest.approx(0.005)


def test_what_units_mean() -> None:
    required = verifier("number", units="require")
    assert not judged(required, "\\boxed{5}", "5 m").correct
    assert judged(required, "\\boxed{5}", "5").correct
    ignored = verifier("number", units="ignore")
    assert judged(ignored, "\\boxed{5 \\text{ km}}", "5 m").correct


def test_a_row_without_a_number() -> None:
    with pytest.raises(ValueError, match="the right answer 'five' is not one number"):
        judged(verifier("number"), "5", "five")
    with pytest.raises(ValueError, match="is empty"):
        judged(verifier("number"), "5", "")


@pytest.mark.parametrize("name", ["xyz", "", "m//s", "kg kg kg^", "square", "apples", "K" * 99])
def test_what_is_no_unit(name: str) -> None:
    assert read_unit(name) is None


@given(st.text(max_size=40))
def test_any_text_is_a_unit_or_none(text: str) -> None:
    read_unit(text)

"""The grading table: what counts as equal, and what counts as the answer."""

import pytest

from nemo_rl.environments.math_verifier import grade

RIGHT, WRONG = 1.0, 0.0


@pytest.mark.parametrize(
    ("gold", "answer", "reward"),
    [
        # forms of one number
        ("0.5", r"\boxed{\frac12}", RIGHT),
        ("1000", r"\boxed{1,000}", RIGHT),
        ("1000", r"\boxed{1{,}000}", RIGHT),
        ("1000", r"\boxed{1\,000}", RIGHT),
        ("2000", r"\boxed{2 000}", RIGHT),
        ("70,000", r"\boxed{70000}", RIGHT),
        ("1000000", r"\boxed{1,000,000}", RIGHT),
        ("4", r"\boxed{004}", RIGHT),
        ("3", r"\boxed{3.0}", RIGHT),
        ("1e3", r"\boxed{1000}", RIGHT),
        ("1.5", r"\boxed{1\frac12}", RIGHT),
        ("12", r"\boxed{12.}", RIGHT),
        ("0", r"\boxed{-0}", RIGHT),
        ("5", r"\boxed{+5}", RIGHT),
        ("0.333", r"\boxed{\frac13}", WRONG),
        (r"\sqrt{2}", r"\boxed{1.41}", WRONG),
        ("-5", r"\boxed{5}", WRONG),
        ("123", r"\boxed{12,3}", WRONG),
        ("10", r"\boxed{1,0}", WRONG),
        # money, units, percent
        ("18", r"\boxed{\$18.00}", RIGHT),
        ("12", r"\boxed{$12$}", RIGHT),
        ("18", r"\boxed{18 dollars}", RIGHT),
        ("18", r"\boxed{18\text{ dollars}}", RIGHT),
        ("18", r"\boxed{18 \text{ cm}^2}", RIGHT),
        ("540", r"\boxed{540^\circ}", RIGHT),
        ("50", r"\boxed{50\%}", RIGHT),
        ("0.1", r"\boxed{10\%}", RIGHT),
        ("3", r"\boxed{3 million}", WRONG),
        ("5", r"\boxed{3 or 5}", WRONG),
        ("3", r"\boxed{3x}", WRONG),
        ("20", "#### €20", RIGHT),
        ("20", r"\boxed{20€}", RIGHT),
        ("20", "#### 20 (eggs)", RIGHT),
        ("30", "30°", RIGHT),
        ("30", r"It is $30^\circ$.", RIGHT),
        ("30", r"\boxed{30°}", RIGHT),
        ("10", r"10~\text{cm}", RIGHT),
        ("10", r"\boxed{10~\text{cm}}", RIGHT),
        ("10", r"\boxed{10\,\text{cm}}", RIGHT),
        ("10", "10 km/h", RIGHT),
        ("10", r"\boxed{10 km/h}", RIGHT),
        ("9.8", r"\boxed{9.8\text{ m/s}^2}", RIGHT),
        ("7", r"\boxed{7 months}", RIGHT),
        ("20", r"\boxed{20\text{ dollars a day}}", RIGHT),
        (r"3\sqrt{2}", r"\boxed{3\sqrt{2}\text{ cm}}", RIGHT),
        ("50", r"\boxed{50\text{ percent}}", RIGHT),
        ("5 million", r"\boxed{5\text{ million}}", WRONG),
        (r"5\text{ million}", r"\boxed{5 \text{ million}}", RIGHT),
        ("5", r"\boxed{5 feet six inches}", WRONG),
        ("2000", r"\boxed{2\text{ thousand}}", WRONG),
        # letters that may be variables are no units
        ("3", r"\boxed{3c}", WRONG),
        ("3c", r"\boxed{3}", WRONG),
        ("3", "The answer is 3x.", WRONG),
        ("5", r"\boxed{5 xy}", WRONG),
        ("5", r"\boxed{5\mathrm{i}}", WRONG),
        ("5", r"\boxed{5(abc)}", WRONG),
        # bases and ratios, of which math-verify reads the first number
        ("2516_8", r"\boxed{2516_8}", RIGHT),
        ("2516_8", r"\boxed{2516_{8}}", RIGHT),
        ("2516_8", r"\boxed{2516}", RIGHT),
        ("2516_8", r"\boxed{2516_7}", WRONG),
        ("1011_2", r"\boxed{1011_3}", WRONG),
        ("1011_2", "It is $1011_3$.", WRONG),
        ("10", r"\boxed{10_2}", WRONG),
        ("3:1", r"\boxed{3 : 1}", RIGHT),
        ("3:1", r"\boxed{3:2}", WRONG),
        ("3", r"\boxed{3:1}", WRONG),
        ("12", "It is 12:30.", WRONG),
        # Markdown
        ("18", "The answer is **18**.", RIGHT),
        ("18", "The answer is *18*.", RIGHT),
        ("18", "**Answer: 18**", RIGHT),
        ("18", "she makes **18** dollars", RIGHT),
        ("18", "#### **18**", RIGHT),
        ("18", "#### **18** dollars", RIGHT),
        ("18", "#### `18`", RIGHT),
        ("18", "<answer>**18**</answer>", RIGHT),
        ("18", r"\boxed{**18**}", RIGHT),
        ("-4", "**-4**", RIGHT),
        ("4", "**-4**", WRONG),
        ("0.75", "**3/4**", RIGHT),
        ("3/4", "**3/4**", RIGHT),
        ("3", "**3/4**", WRONG),
        ("18", "The answer is 18.\n\n---\n", RIGHT),
        ("24", r"\boxed{2*3*4}", RIGHT),
        ("8", r"\boxed{2**3}", WRONG),  # a power in Python only
        # expressions
        (r"3\sqrt{2}", r"\boxed{\sqrt{18}}", RIGHT),
        ("(x+1)(x-1)", r"\boxed{x^2-1}", RIGHT),
        ("x=5", r"\boxed{5}", RIGHT),
        (r"\text{Monday}", r"\boxed{Monday}", RIGHT),
        (r"\text{Monday}", r"\boxed{Tuesday}", WRONG),
        # sets have no order, tuples and intervals do, and none is another
        (r"\{1,2\}", r"\boxed{\{2,1\}}", RIGHT),
        ("1,2", r"\boxed{2,1}", RIGHT),
        ("(1,2)", r"\boxed{(1,2)}", RIGHT),
        ("(1,2)", r"\boxed{1,2}", RIGHT),
        ("(1,2)", r"\boxed{(2,1)}", WRONG),
        ("(1,2)", r"\boxed{2,1}", WRONG),
        ("(1,2)", r"\boxed{[1,2]}", WRONG),
        ("[1,2)", r"\boxed{[1,2]}", WRONG),
        ("(1,2)", r"\boxed{\{1,2\}}", WRONG),
        (r"\{1,2\}", r"\boxed{(1,2)}", WRONG),
        (r"\left(1,2\right)", r"\boxed{(1,2)}", RIGHT),
        (r"(-\infty,3)", r"\boxed{[-\infty, 3)}", WRONG),
        ("(1,2,3)", r"\boxed{(1,3,2)}", WRONG),
        # where the answer is
        ("7", r"first I thought \boxed{3}, but it is \boxed{7}", RIGHT),
        ("3", r"first I thought \boxed{3}, but it is \boxed{7}", WRONG),
        ("7", r"#### 3, no: \boxed{7}", RIGHT),
        ("7", r"\boxed{7} and cut off in \boxed{7", WRONG),
        ("5", r"\boxed{\boxed{5}}", RIGHT),
        ("5", r"\boxed 5", RIGHT),
        ("72", "half of 144\n#### 72", RIGHT),
        ("1000", "that is\n#### $1,000", RIGHT),
        ("72", "#### 71\n#### 72", RIGHT),
        ("8", "so <answer> 8 </answer>", RIGHT),
        # '####' is Markdown's fourth level of headings too
        ("18", "#### Step 2: money\nThe answer is 18.", RIGHT),
        ("18", "#### 1. Find the cost\nThe answer is 18.", RIGHT),
        ("18", "#### 1st part\nThe answer is 18.", RIGHT),
        ("18", "##### 2. Money\nThe answer is 18.", RIGHT),
        ("18", "#### **Solution**\nThe answer is 18.", RIGHT),
        ("2", "#### Step 2: money\nThe answer is 18.", WRONG),
        ("1", "#### 1. Find the cost", WRONG),
        ("2", "#### Step 2: money", WRONG),
        ("x+1", "#### x+1", RIGHT),
        ("0.5", r"#### \frac12", RIGHT),
        ("x^2", "#### $x^2$", RIGHT),
        ("x>3", "#### x > 3", RIGHT),
        ("BD_{16}", "#### BD_{16}", RIGHT),
        ("(1,2)", "#### (1,2)", RIGHT),
        ("0.5", "#### .5", RIGHT),
        ("-4", "#### -4", RIGHT),
        (r"\text{Monday}", "the day after\n#### Monday", RIGHT),
        ("half of 144\n#### 72", r"\boxed{72}", RIGHT),
        ("5", "The answer is 5.", RIGHT),
        ("8", "That is 96/12 = 8 dozen more.\nThe answer is 8.", RIGHT),
        ("8", "The answer is 8 dozen.\nSo 8 it is.", WRONG),
        ("5", "no box at all, five", WRONG),
        ("5", r"\boxed{}", WRONG),
        ("5", "", WRONG),
    ],
)
def test_grading_table(gold, answer, reward):
    assert grade(answer, {"ground_truth": gold}).reward == reward


@pytest.mark.parametrize("form", [r"\boxed{{{}}}", "#### {}", "The answer is {}.", "{}"])
@pytest.mark.parametrize(
    "answer",
    [
        *("5 thousands", "5 millions", "5 hundreds", "5 dozens", "5 tenths", "5 fifths", "5 hundredths", "5 thousand"),
        *("5 factorial", "5 score", "5 less", "5 below zero", "5 million dollars", "5 (million) dollars", "5½"),
        *("5 or 6", "5 (or 6)", "5 and a half", "5 per thousand", "**5** million", "5 *million*", "5\xa0million"),
        *(r"5\text{ million}", r"5\text{ hundred}", r"5\,\text{dozen}", r"5\text{ (or 6)}", r"5\text{, 6, 7}"),
        *(r"5\textbf{ million}", r"5\text{k}", r"5\text{ squared}", r"{5}\text{ million}", r"5\sqrt{2}", "$5$ million"),
    ],
)
def test_number_with_a_word_that_changes_it_is_another_number(answer, form):
    assert grade(form.format(answer), {"ground_truth": "5"}).reward == WRONG


def test_grade_reports_what_it_read():
    assert grade(r"\boxed{\frac{1}{2}} meters", {"ground_truth": "1"}).answer == r"\frac{1}{2}"

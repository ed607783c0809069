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
        ("x+1", "#### x+1", RIGHT),
        ("0.5", r"#### \frac12", RIGHT),
        ("x^2", "#### $x^2$", RIGHT),
        ("(1,2)", "#### (1,2)", RIGHT),
        ("0.5", "#### .5", RIGHT),
        ("-4", "#### -4", RIGHT),
        (r"\text{Monday}", "the day after\n#### Monday", RIGHT),
        ("half of 144\n#### 72", r"\boxed{72}", RIGHT),
        ("5", "The answer is 5.", RIGHT),
        ("5", "no box at all, five", WRONG),
        ("5", r"\boxed{}", WRONG),
        ("5", "", WRONG),
    ],
)
def test_grading_table(gold, answer, reward):
    assert grade(answer, {"ground_truth": gold}).reward == reward


def test_grade_reports_what_it_read():
    assert grade(r"\boxed{\frac{1}{2}} meters", {"ground_truth": "1"}).answer == r"\frac{1}{2}"

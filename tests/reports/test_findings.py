"""Findings in all their forms: terminal, Markdown, HTML and JSON have the same numbers."""

from __future__ import annotations

from blis_jax.reports.differences import findings
from blis_jax.reports.findings import Answer, Findings, Quantity, Remarks, Row, Sentence, Table
from blis_jax.reports.render import WIDTH, text
from blis_jax.reports.study import WINDOWS
from tests.reports.test_page import difference, study
from tests.support.findings_forms import assert_all_forms_agree, json_numbers

LONG = "a sentence of many words that goes on and on " * 6
FOUND = Findings(
    Answer(
        asked="How long is it?",
        verdict=(
            Sentence.of("it is ", Quantity(-12.345, -14.0, -11.0, " %", is_signed=True), "."),
        ),
        sure=Sentence.of("95 % for ", Quantity.whole(3), " differences."),
        price=Sentence.of(Quantity.whole(1200), " runs."),
        next="more seeds.",
        time=Sentence.of(Quantity(2.0), " s."),
    ),
    (
        Table(
            ("class", "metric", "mean", "change", ""),
            (
                Row(
                    (
                        "all",
                        "TTFT, ms",
                        Quantity(161.0, 160.0, 162.0, form="half"),
                        Quantity(3.2),
                        "worse",
                    )
                ),
                Row(
                    ("all", "a|b", Quantity(None), Quantity(0.0, 0.0, None), "same"), is_brief=False
                ),
            ),
            num_keys=2,
            brief_columns=(0, 1, 3, 4),
        ),
        Remarks((LONG, "7 checks, none broken."), "Checks"),
        Remarks(("2 runs failed.",), is_brief=True),
    ),
)


def test_made_up_findings_agree_in_all_forms() -> None:
    assert_all_forms_agree(FOUND)


def test_a_comparison_agrees_in_all_forms() -> None:
    other = difference(slo_class="all", metric="ttft_mean_ms", verdict="unclear", num_pairs=1)
    assert_all_forms_agree(findings(study(differences=(difference(), other))))


def test_the_answer_comes_first_and_the_rest_when_asked() -> None:
    lines = text(FOUND).splitlines()
    assert [line.split(":")[0] for line in lines[:5]] == [
        "Asked",
        "Verdict",
        "Sure",
        "Price",
        "Next",
    ]
    assert "−12.3 % [−14.0, −11.0]" in lines[1] and "1200 runs. 2.00 s." in lines[3]
    short, whole = text(FOUND), text(FOUND, has_all=True)
    assert "2 runs failed." in short and "a|b" not in short and "± 1.0" not in short
    last = " ".join(short.splitlines()[-2:])
    assert last.startswith("--all prints 1 more row; --explain tells how ") and "(2 notes; " in last
    explained = text(FOUND, has_notes=True)
    assert explained.endswith("--all prints 1 more row.")
    assert "7 checks" in explained and "± 1.0" not in explained
    assert "a|b" in whole and "± 1.0" in whole and "7 checks" in whole and "--all" not in whole


def test_a_wide_table_is_cut_beside_its_keys() -> None:
    columns = ("key", *(f"column {at} {'x' * 20}" for at in range(9)))
    table = Table(columns, (Row(("row", *map(float.__str__, map(float, range(9))))),))
    lines = text(Findings(FOUND.answer, (table,))).splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert sum(line.startswith("row") for line in lines) == 3
    assert all(column in "\n".join(lines) for column in columns)


def test_seconds_are_not_in_the_document() -> None:
    """A file is the same after a run that was interrupted and gone on with."""
    assert "2.00" not in str(FOUND.answer.to_json()) and 2.0 not in list(
        json_numbers(FOUND.to_json())
    )


def test_rows_without_a_clear_difference_are_left_out() -> None:
    kinds = ("better", "worse", "unclear", "same")
    every = tuple(difference(verdict=name, slo_class=name) for name in kinds)
    (table,) = findings(study(differences=every)).tables
    assert [row.cells[0] for row in table.brief().rows] == ["better", "worse"]
    assert len(table.rows) == len(kinds)


def test_what_is_open_is_shown_where_few_metrics_are_asked_for_or_a_strategy_has_no_row() -> None:
    def rows(verdicts: dict[str, str], slo_class: str = "all") -> list[str]:
        every = tuple(
            difference(verdict=each, metric=name, slo_class=slo_class)
            for name, each in verdicts.items()
        )
        (table,) = findings(study(differences=every)).tables
        return [str(row.cells[-1]) for row in table.brief().rows]

    few = {"ttft_mean_ms": "better", "tpot_mean_ms": "unclear"}
    assert rows(few) == ["better", "unclear"] and rows(few, "critical") == ["better"]
    usual = ("ttft_mean_ms", "tpot_mean_ms", "itl_mean_ms", "goodput_rps", "output_tokens_per_s")
    assert rows(dict.fromkeys(usual, "unclear")) == ["unclear"] * 5
    assert rows({**dict.fromkeys(usual, "unclear"), "ttft_mean_ms": "worse"}) == ["worse"]


def test_a_long_word_is_never_cut_inside_a_number() -> None:
    """Files and arms have names that are wider than a line, `plain.yaml:a=0.001;b=900`."""
    for shift in range(12):
        path = f"{'x' * shift}/{'folder-10234567/' * 12}priority.yaml:slo_age_weight=0.00123456;b=1234567"
        found = Findings(FOUND.answer, (Remarks((f"The arm {path} is inert.",), is_brief=True),))
        assert_all_forms_agree(found)
        assert path in "".join(line.strip() for line in text(found).splitlines())


def test_one_trace_has_no_further_runs_to_propose() -> None:
    unclear = difference(slo_class="all", metric="ttft_mean_ms", verdict="unclear", num_pairs=40)
    of_seeds = findings(study(differences=(unclear,), seeds=tuple(range(20)))).answer.next
    assert "--decide adds them" in str(of_seeds)
    of_few = findings(study(differences=(unclear,), seeds=tuple(range(5)))).answer.next
    assert "5 seeds give no verdict" in str(of_few) and "6.25 %" in str(of_few)
    assert "Give 6 or more" in str(of_few)
    of_trace = findings(study(differences=(unclear,), pairs="blocks")).answer.next
    assert "--trace-windows N" in str(of_trace)
    of_windows = study(differences=(unclear,), seeds=tuple(range(20)), runs=WINDOWS)
    said = str(findings(of_windows).answer.next)
    assert "a longer trace tells more" in said and "--decide" not in said
    of_windows = study(differences=(unclear,), seeds=tuple(range(5)), runs=WINDOWS)
    assert str(findings(of_windows).answer.next).endswith("Give 6 or more.")

"""The tables have the paper's layout and numbers, next to those of the sweep."""

from __future__ import annotations

import csv
import io
import os
import pathlib

import numpy as np
import pytest

from adapter_bert.experiments import published, tables
from adapter_bert.experiments.summaries import compare, macro_average, summarize
from adapter_bert.experiments.tables import DASH, format_score
from tests.experiments.sweeps import make_cell, sweep


def row_of(table, *start):
    (row,) = [dict(zip(table.headers, row)) for row in table.rows if tuple(row[: len(start)]) == start]
    return row


@pytest.mark.parametrize("name", list(published.ADDITIONAL))
def test_published_averages_are_those_of_the_published_scores(name):
    method = published.ADDITIONAL[name]
    assert len(method.scores) == len(published.ADDITIONAL_TASKS) == 17
    assert np.mean(method.scores) == pytest.approx(method.average, abs=0.1)


def test_the_published_total_is_the_score_of_the_glue_server():
    # BERT-large on the leaderboard: accuracy of MRPC and QQP, Pearson's correlation of STS-B, accuracy of WNLI.
    second, wnli = {"MRPC": 85.4, "STS-B": 86.5, "QQP": 89.3}, 65.1
    paper = published.GLUE["Full fine-tuning"]
    scores = dict(zip(published.GLUE_TASKS, paper.scores))
    scores.update({task: np.mean([scores[task], second[task]]) for task in second})
    mnli = np.mean([scores.pop("MNLI-m"), scores.pop("MNLI-mm")])
    assert np.mean([*scores.values(), mnli, wnli]) == pytest.approx(paper.average, abs=0.1)
    assert np.mean(paper.scores) == pytest.approx(82.02, abs=0.01)


def test_table_1_has_the_papers_rows():
    row = row_of(tables.glue_table([]), "Adapters (64)", "paper, test")
    assert (row["Total num params"], row["Trained params / task"]) == ("1.2×", "2.1%")
    assert (row["CoLA"], row["SST"], row["MNLI-mm"], row["RTE"]) == ("56.9", "94.2", "84.6", "68.8")
    assert (row["Mean"], row["Total"]) == ("81.1", "79.6")
    assert row_of(tables.glue_table([]), "Metric", "paper, test")["STS-B"] == "spearman"


def test_table_1_has_own_scores_with_seeds_collapsed_runs_and_metrics():
    table = tables.glue_table(sweep())
    full, adapters = row_of(table, "Full fine-tuning", "own, dev"), row_of(table, "Adapters (64)", "own, dev")
    scores = [100 * cell.dev for cell in sweep() if cell.task == "CoLA" and cell.method == "adapters 64"][:3]
    assert adapters["CoLA"] == f"{np.mean(scores):.1f} ± {np.std(scores, ddof=1) / 3**0.5:.1f}"
    assert (full["Seeds"], full["Collapsed"], adapters["Collapsed"]) == ("2–3", "1", "0")
    assert full["RTE"].endswith(" †1")
    assert row_of(table, "Metric", "own, dev")["MRPC"] == "f1"


def test_table_1_chooses_the_best_size_per_task_on_dev():
    row = row_of(tables.glue_table(sweep()), "Adapters (8-256)", "own, dev")
    for column, task in (("MRPC", "MRPC"), ("MNLI-m", "MNLI"), ("RTE", "RTE")):
        methods = ("adapters 8", "adapters 64", "adapters 256")
        fitting = [each for each in summarize(sweep()) if each.task == task and each.method in methods]
        assert len(fitting) >= 2
        assert row[column] == format_score(max(fitting, key=lambda each: each.mean))


def test_a_single_size_is_no_choice():
    table = tables.glue_table([make_cell(0.5, seed) for seed in (1, 2)])
    assert row_of(table, "Adapters (64)", "own, dev")["CoLA"] == "50.0 ± 0.0"
    assert row_of(table, "Adapters (8-256)", "own, dev")["CoLA"] == DASH


def test_table_1_counts_parameters_as_multiples_of_one_bert():
    table = tables.glue_table(sweep())
    full, adapters = row_of(table, "Full fine-tuning", "own, dev"), row_of(table, "Adapters (64)", "own, dev")
    assert (full["Total num params"], full["Trained params / task"]) == ("9.00×", "100%")
    share = 2_419_202 / 109_443_840
    assert adapters["Total num params"] == f"{1 + 9 * share:.2f}×" == "1.20×"
    assert adapters["Trained params / task"] == "2.21%"


def test_the_mean_has_an_interval_and_needs_all_tasks():
    tasks = [task for task, _ in published.GLUE_TASKS.values()]
    average = macro_average(sweep(), "adapters 64", tasks)
    row = row_of(tables.glue_table(sweep()), "Adapters (64)", "own, dev")
    assert row["Mean"] == f"{average.mean:.1f} [{average.interval[0]:.1f}, {average.interval[1]:.1f}]"
    some = tables.glue_table([cell for cell in sweep() if cell.task != "RTE"])
    row = row_of(some, "Adapters (64)", "own, dev")
    assert (row["RTE"], row["Mean"], row["Total"]) == (DASH, DASH, DASH)
    assert row["Total num params"].endswith("(8 of 9 tasks)")


def test_methods_without_runs_have_dashes():
    row = row_of(tables.glue_table([]), "Full fine-tuning", "own, dev")
    assert set(list(row.values())[2:]) == {DASH}
    assert len(tables.size_table([]).rows) == 3
    assert len(tables.additional_table([]).rows) == 17 + 5


def test_table_2_has_paper_and_own_columns():
    table = tables.additional_table(sweep())
    row = row_of(table, "SMS spam collection")
    assert row["Adapters (paper, test)"] == "95.1 ± 2.2"
    assert row["No BERT baseline (paper, test)"] == "98.5"
    scores = [100 * cell.test for cell in sweep() if cell.task == "sms_spam_collection" and cell.kind == "adapter"]
    assert row["Adapters (own, test)"] == f"{np.mean(scores):.1f} ± {np.std(scores, ddof=1) / 3**0.5:.1f}"
    assert row["Metric (own, test)"] == "accuracy"
    assert row_of(table, "20 newsgroups")["Adapters (own, test)"] == DASH
    assert row_of(table, "Average")["Variable fine-tuning (paper, test)"] == "74.0"
    assert row_of(table, "Total number of params")["Variable fine-tuning (paper, test)"] == "9.9×"
    assert row_of(table, "Seeds")["Adapters (own, test)"] == "3"


def test_table_2_has_a_column_for_networks_without_bert_if_there_are_some():
    task = "sms_spam_collection"
    runs = [
        make_cell(task=task, method="no BERT", kind="baseline", seed=seed, test=0.9 + seed / 100) for seed in (1, 2)
    ]
    runs.append(make_cell(task=task, test=0.8))
    table = tables.additional_table(runs)
    row = row_of(table, "SMS spam collection")
    assert row["No BERT baseline (own, test)"] == "91.5 ± 0.5" and row["Adapters (own, test)"] == "80.0"
    names = list(table.headers)
    assert names.index("No BERT baseline (own, test)") == names.index("No BERT baseline (paper, test)") + 1
    # It has nothing in common with a BERT.
    for name in ("Total number of params", "Trained params/task"):
        assert row_of(table, name)["No BERT baseline (own, test)"] == DASH
    assert "No BERT baseline (own, test)" not in tables.additional_table(runs[2:]).headers


def test_variable_fine_tuning_is_selected_on_dev_and_reported_on_test():
    runs = [
        make_cell(0.9, method="full", kind="full", task="SMS spam collection", test=0.7),
        make_cell(0.8, method="top_layers 3", kind="top_layers", task="SMS spam collection", test=0.8),
    ]
    row = row_of(tables.additional_table(runs), "SMS spam collection")
    assert row["Variable fine-tuning (own, test)"] == row["Full fine-tuning (own, test)"] == "70.0"
    row = row_of(tables.additional_table(runs[:1]), "SMS spam collection")
    assert row["Variable fine-tuning (own, test)"] == DASH


def test_the_size_table_is_the_mean_accuracy_over_tasks_that_all_sizes_have():
    table = tables.size_table(sweep())
    assert [row[1] for row in table.rows] == ["86.2", "85.8", "85.7"]
    means = []
    for task in ("CoLA", "MRPC"):
        cells = [cell for cell in sweep() if cell.task == task and cell.method == "adapters 256"]
        rates = {cell.settings["learning_rate"] for cell in cells}
        scores = [[c.metrics["accuracy"] for c in cells if c.settings["learning_rate"] == rate] for rate in rates]
        means.append(100 * max(np.mean(each) for each in scores))
    row = row_of(table, "256")
    assert row["own, dev accuracy"].startswith(f"{np.mean(means):.1f} [")
    assert row["Tasks"] == "2 of 8"
    without_large = [cell for cell in sweep() if cell.method != "adapters 256"]
    assert row_of(tables.size_table(without_large), "64")["Tasks"] == "8 of 8"


def test_runs_without_a_score_are_marked():
    (summary,) = summarize([make_cell(0.5, 1), make_cell(None, 2)])
    assert format_score(summary) == "50.0 ‡1"
    (summary,) = summarize([make_cell(None)])
    assert format_score(summary) == f"{DASH} ‡1"


def test_summaries_and_comparisons_are_tables():
    table = tables.summary_table(summarize(sweep()))
    row = row_of(table, "RTE", "full")
    assert (row["Score"], row["Seeds"], row["Collapsed"]) == ("accuracy, dev", "2", "1")
    table = tables.comparison_table(compare(sweep(), "adapters 64", "full"))
    row = row_of(table, "CoLA")
    assert (row["Difference"], row["Seeds"]) == ("adapters 64 - full", "3")


def test_tables_are_saved_as_markdown_csv_and_latex(tmp_path):
    table = tables.glue_table(sweep())
    paths = table.save(str(tmp_path / "glue"))
    assert [os.path.basename(path) for path in paths] == ["glue.md", "glue.csv", "glue.tex"]
    markdown, comma_separated, latex = (pathlib.Path(path).read_text(encoding="utf-8") for path in paths)
    assert markdown.count("\n|") == len(table.rows) + 1
    assert all(note in markdown for note in table.notes)
    assert list(csv.reader(io.StringIO(comma_separated))) == [list(table.headers), *map(list, table.rows)]
    assert latex.count("\\\\") == len(table.rows) + 1
    assert "100\\%" in latex
    assert tables.glue_table(sweep()).markdown() == markdown
    assert tables.summary_table([]).markdown().count("\n|") == 1

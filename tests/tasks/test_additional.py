"""The paper's 17 additional tasks: published files, filters, labels and splits."""

from __future__ import annotations

import collections
import csv
import io
import os
import tarfile
from typing import Any, Dict, List, Sequence, Tuple

import pytest

from adapter_bert import tasks
from adapter_bert.tasks import additional, published
from tests.helpers import SHARED, as_tuples, assert_mentions, message_of, write_file

TEXT_DATA = os.path.join(SHARED, "data", "text")

# Tables 3 and 4 of the paper: train, dev and test examples, classes; epochs of full fine-tuning and of adapters.
PAPER = {
    "20_newsgroups": (15076, 1885, 1885, 20, 50, 50),
    "crowdflower_airline": (11712, 1464, 1464, 3, 50, 20),
    "crowdflower_corporate_messaging": (2494, 312, 312, 4, 100, 50),
    "crowdflower_disasters": (8688, 1086, 1086, 2, 50, 50),
    "crowdflower_economic_news_relevance": (6392, 799, 800, 2, 20, 20),
    "crowdflower_emotion": (32000, 4000, 4000, 13, 20, 20),
    "crowdflower_global_warming": (3380, 422, 423, 2, 100, 50),
    "crowdflower_political_audience": (4000, 500, 500, 2, 50, 20),
    "crowdflower_political_bias": (4000, 500, 500, 2, 50, 50),
    "crowdflower_political_message": (4000, 500, 500, 9, 50, 50),
    "crowdflower_primary_emotions": (2019, 252, 253, 18, 100, 100),
    "crowdflower_progressive_opinion": (927, 116, 116, 3, 100, 100),
    "crowdflower_progressive_stance": (927, 116, 116, 4, 100, 100),
    "crowdflower_us_economic_performance": (3961, 495, 496, 2, 100, 20),
    "customer_complaint_database": (146667, 18333, 18334, 157, 20, 20),
    "news_aggregator_dataset": (338349, 42294, 42294, 4, 20, 20),
    "sms_spam_collection": (4459, 557, 558, 2, 50, 20),
}

CROWDFLOWER = "_unit_id,_golden,_unit_state,_trusted_judgments,_last_judgment_at"
TWEETS = (
    "tweet_id,airline_sentiment,airline_sentiment_confidence,negativereason,negativereason_confidence,airline,"
    "airline_sentiment_gold,name,negativereason_gold,retweet_count,text,tweet_coord,tweet_created,tweet_location,"
    "user_timezone"
)
DISASTERS = f"{CROWDFLOWER},choose_one,choose_one:confidence,choose_one_gold,keyword,location,text,tweetid,userid"
ECONOMY = (
    f"{CROWDFLOWER},positivity,positivity:confidence,relevance,relevance:confidence,articleid,date,headline,"
    "positivity_gold,relevance_gold,text"
)
POLITICS = (
    f"{CROWDFLOWER},audience,audience:confidence,bias,bias:confidence,message,message:confidence,orig__golden,"
    "audience_gold,bias_gold,bioid,embed,id,label,message_gold,source,text"
)
PROGRESSIVE = f"{CROWDFLOWER},{additional._STANCE},{additional._OPINION},orig__golden,target,tweet"
COMPLAINTS = (
    "Date received,Product,Sub-product,Issue,Sub-issue,Consumer complaint narrative,Company public response,Company,"
    "State,ZIP code,Tags,Consumer consent provided?,Submitted via,Date sent to company,Company response to consumer,"
    "Timely response?,Consumer disputed?,Complaint ID"
)
STANCES = {
    "AGAINST: the tweeter is against the target (e.g., by opposing it).": "AGAINST",
    "FOR: the tweeter supports the target.": "FOR",
    "NEUTRAL: the tweeter has a neutral stance: neither.": "NEUTRAL",
    "NONE OF THE ABOVE: There is no clue.": "NONE OF THE ABOVE",
}
OPINIONS = {
    "1.  The tweet explicitly expresses opinion about the target. Yes.": "about the target",
    "2. The tweet does NOT expresses opinion about the target.": "about something else",
    "3.  The tweet is not explicitly expressing opinion. (For example, information.)": "no opinion",
}


def same(*labels: str) -> Dict[str, str]:
    return {label: label for label in labels}


# Task -> files as published: name, header (none: rows of eight or two cells), columns of text and label, and the label
# of the example for each label in the file; an empty one excludes the row.
LAYOUTS: Dict[str, List[Tuple[str, str, Any, Any, Dict[str, str]]]] = {
    "crowdflower_airline": [
        (name, TWEETS, "text", "airline_sentiment", same("negative", "neutral", "positive"))
        for name in ("Tweets.csv", "Airline-Sentiment-2-w-AA.csv")
    ],
    "crowdflower_corporate_messaging": [
        (name, f"\ufeff{CROWDFLOWER},category,category:confidence,category_gold,id,screenname,text", "text",
         "category", same("Action", "Dialogue", "Exclude", "Information"))
        for name in ("Corporate-messaging-DFE.csv", "Corporate-messaging.csv")
    ],
    "crowdflower_disasters": [
        ("socialmedia-disaster-tweets-DFE.csv", DISASTERS, "text", "choose_one",
         {**same("Relevant", "Not Relevant"), "Can't Decide": ""}),
    ],
    "crowdflower_economic_news_relevance": [
        ("Full-Economic-News-DFE-839861.csv", ECONOMY, "text", "relevance", {**same("yes", "no"), "not sure": ""}),
    ],
    "crowdflower_emotion": [
        ("text_emotion.csv", "tweet_id,sentiment,author,content", "content", "sentiment", same(*additional.EMOTIONS)),
    ],
    "crowdflower_global_warming": [
        ("1377884570_tweet_global_warming.csv", "tweet,existence,existence.confidence", "tweet", "existence",
         {"Yes": "Yes", "Y": "Yes", "No": "No", "N": "No", "NA": "", "N/A": "", "": ""}),
    ],
    "crowdflower_political_audience": [
        ("Political-media-DFE.csv", POLITICS, "text", "audience", same("constituency", "national")),
    ],
    "crowdflower_political_bias": [
        ("Political-media-DFE.csv", POLITICS, "text", "bias", same("neutral", "partisan")),
    ],
    "crowdflower_political_message": [
        ("Political-media-DFE.csv", POLITICS, "text", "message", same(*additional.MESSAGES)),
    ],
    "crowdflower_primary_emotions": [
        ("primary-plutchik-wheel-DFE.csv",
         f"{CROWDFLOWER},emotion,emotion_confidence,emotion_gold,id,idiom_id,sentence", "sentence", "emotion",
         same(*additional.PLUTCHIK_EMOTIONS)),
    ],
    "crowdflower_progressive_opinion": [
        ("progressive-tweet-sentiment.csv", PROGRESSIVE, "tweet", additional._OPINION, OPINIONS),
    ],
    "crowdflower_progressive_stance": [
        ("progressive-tweet-sentiment.csv", PROGRESSIVE, "tweet", additional._STANCE, STANCES),
    ],
    "crowdflower_us_economic_performance": [
        ("us-economic-newspaper.csv", ECONOMY, "text", "relevance", {**same("yes", "no"), "not sure": ""}),
    ],
    "customer_complaint_database": [
        *((name, COMPLAINTS, "Consumer complaint narrative", "Issue", same("Billing disputes", "Other", "Fraud"))
          for name in ("Consumer_Complaints.csv", "complaints.csv", "rows.csv")),
        ("consumer_complaints.csv", "date_received,product,issue,consumer_complaint_narrative,complaint_id",
         "consumer_complaint_narrative", "issue", same("Billing disputes", "Other")),
    ],
    "news_aggregator_dataset": [
        ("newsCorpora.csv", "", 1, 4, same("b", "t", "e", "m")),
        ("uci-news-aggregator.csv", "ID,TITLE,URL,PUBLISHER,CATEGORY,STORY,HOSTNAME,TIMESTAMP", "TITLE", "CATEGORY",
         same("b", "t", "e", "m")),
    ],
    "sms_spam_collection": [
        ("SMSSpamCollection", "", 1, 0, same("ham", "spam")),
        ("spam.csv", "v1,v2,,,", "v2", "v1", same("ham", "spam")),
    ],
}  # fmt: skip
CASES = [(name, *layout) for name, layouts in LAYOUTS.items() for layout in layouts]


def read(name: str, folder: Any) -> Dict[str, List[tuple]]:
    """Return the examples of each split as (guid, text_a, text_b, label)."""
    return {split: as_tuples(tasks.read_examples(tasks.get(name), str(folder), split)) for split in published.SPLITS}


def table(header: str, text: Any, label: Any, rows: Sequence[Tuple[str, str]]) -> str:
    """Return a file with these texts and labels; its other cells are filled with numbers."""
    if not header:
        width = 8 if label == 4 else 2
        cells = [[{text: row[0], label: row[1]}.get(i, str(i)) for i in range(width)] for row in rows]
        return "".join("\t".join(each) + "\n" for each in cells)
    names = next(csv.reader([header.lstrip("\ufeff")]))
    buffer = io.StringIO(newline="")
    csv.writer(buffer).writerows(
        [{text: row[0], label: row[1]}.get(name, str(i)) for i, name in enumerate(names)] for row in rows
    )
    return header + "\r\n" + buffer.getvalue()


def write_sms(folder: Any, count: int = 30) -> str:
    rows = "".join(f"{'spam' if i % 3 == 0 else 'ham'}\ttext {i}\n" for i in range(count))
    return write_file(folder, "SMSSpamCollection", rows)


# ----------------------------------------------------------------------------------------------- definitions


def test_names_classes_sizes_and_epochs_are_those_of_the_paper():
    assert set(PAPER) == set(additional.BY_NAME) == {each.name for each in additional.TASKS} <= set(tasks.names())
    for name, (train, dev, test, classes, full, adapter) in PAPER.items():
        known = additional.BY_NAME[name]
        assert known.epochs == (full, adapter)
        assert published.split_sizes(known.num_examples) == (train, dev, test)
        assert known.labels is None or len(set(known.labels)) == len(known.labels) == classes
        task = tasks.get(name)
        assert task.metrics == ("accuracy",) and task.scores_test and not task.is_regression
    assert [name for name, known in additional.BY_NAME.items() if known.labels is None] == [
        "customer_complaint_database"
    ]


def test_glue_tests_are_not_scored_and_xnli_tests_are():
    assert not any(task.scores_test for task in tasks.glue.TASKS)
    assert tasks.get("XNLI").scores_test


# ------------------------------------------------------------------------------------------- published files


@pytest.mark.parametrize("name, file, header, text, label, labels", CASES, ids=[f"{c[0]}-{c[1]}" for c in CASES])
def test_a_published_file_is_read_filtered_and_split(tmp_path, log, name, file, header, text, label, labels):
    # The number of rows of each label differs, so that a wrong label is noticed.
    spellings = [spelling for i, spelling in enumerate(labels) for _ in range(8 + i)]
    rows = [(f'"It", he said,\nis {i}' if header else f'is "{i}', each) for i, each in enumerate(spellings)]
    write_file(tmp_path, file, table(header, text, label, rows))
    found = read(name, tmp_path)
    expected = {content: labels[spelling] for content, spelling in rows if labels[spelling]}
    examples = [example for split in found.values() for example in split]
    assert {text_a: each for _, text_a, _, each in examples} == expected and len(examples) == len(expected)
    assert all(text_b is None for _, _, text_b, _ in examples)
    assert tuple(len(found[split]) for split in published.SPLITS) == published.split_sizes(len(expected))
    [difference] = [line for line in log if "compared to the paper" in line]
    assert_mentions(difference, file, len(expected), additional.BY_NAME[name].num_examples, len(found["test"]))
    if len(rows) > len(expected):
        [excluded] = [line for line in log if "excluded" in line]
        assert_mentions(excluded, f"{len(rows) - len(expected)} of {len(rows)}")


def test_every_published_file_is_in_the_layouts_of_this_test():
    tested = {(case[0], case[1].replace("-DFE", "")) for case in CASES}
    names = {(each.name, file.name.replace("-DFE", "")) for each in additional.TASKS for file in each.files}
    same_columns = {
        ("crowdflower_global_warming", "tweet_global_warming.csv"),
        ("sms_spam_collection", "SMSSpamCollection.txt"),
    }
    archives = {("20_newsgroups", name) for name in ("20news-bydate.tar.gz", "20news-bydate")}
    assert names - tested == same_columns | archives and tested <= names


@pytest.mark.parametrize("is_archive", [True, False])
def test_newsgroups_are_read_from_the_archive_or_its_folder(tmp_path, is_archive):
    posts = {
        f"20news-bydate-{part}/{group}/{part}{number}": f"{part} {group} {number}"
        for part in ("train", "test") for group in ("sci.med", "rec.autos") for number in range(10)
    }  # fmt: skip
    for path, text in posts.items():
        write_file(tmp_path / "20news-bydate", path, text)
    if is_archive:
        os.mkdir(tmp_path / "packed")
        with tarfile.open(tmp_path / "packed" / "20news-bydate.tar.gz", "w:gz") as archive:
            archive.add(tmp_path / "20news-bydate", arcname=".")
    found = read("20_newsgroups", tmp_path / "packed" if is_archive else tmp_path)
    texts = {text: label for split in found.values() for _, text, _, label in split}
    assert texts == {text: path.split("/")[1] for path, text in posts.items()}
    assert [len(found[split]) for split in published.SPLITS] == [32, 4, 4]


def test_complaints_have_the_issues_of_the_file_as_classes_and_rows_without_narrative_are_excluded(tmp_path):
    layout = LAYOUTS["customer_complaint_database"][0]
    rows = [(f"text {i}" if i % 2 else "", ["Loan", "Advertising", "Credit"][i % 3]) for i in range(60)]
    write_file(tmp_path, layout[0], table(*layout[1:4], rows + [("", "Only without a narrative")]))
    assert sum(map(len, read("customer_complaint_database", tmp_path).values())) == 30
    task = tasks.get("customer_complaint_database").with_labels(str(tmp_path))
    assert task.labels == ("Advertising", "Credit", "Loan")


# --------------------------------------------------------------------------------------------------- splits


def test_the_split_is_disjoint_complete_stratified_and_exact():
    labels = [str(i % 7 if i % 3 else 0) for i in range(1159)] + ["rare"]
    found = published.split_indices(labels)
    assert sorted(i for indices in found.values() for i in indices) == list(range(1160))
    assert tuple(len(found[split]) for split in published.SPLITS) == published.split_sizes(1160) == (928, 116, 116)
    for indices, share in zip(found.values(), (0.8, 0.1, 0.1)):
        assert indices == sorted(indices)
        counts = collections.Counter(labels[i] for i in indices)
        assert all(abs(counts[label] - share * labels.count(label)) <= 2 for label in set(labels))


@pytest.mark.parametrize("count", range(1, 40))
def test_every_number_of_examples_can_be_split(count):
    found = published.split_indices(["a"] * count)
    assert tuple(map(len, found.values())) == published.split_sizes(count)
    assert sorted(sum(found.values(), [])) == list(range(count))


def test_the_split_never_changes(tmp_path):
    """Scores are compared across machines and versions, so these numbers must stay."""
    assert published.split_indices(["a", "b"] * 10) == {
        "train": [0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 12, 13, 14, 15, 16, 19], "dev": [17, 18], "test": [4, 11],
    }  # fmt: skip
    write_sms(tmp_path)
    assert [guid for guid, *_ in read("sms_spam_collection", tmp_path)["test"]] == ["test-3", "test-4", "test-9"]


def test_a_changed_file_is_read_again(tmp_path):
    write_sms(tmp_path)
    assert sum(map(len, read("sms_spam_collection", tmp_path).values())) == 30
    write_sms(tmp_path, 50)
    assert sum(map(len, read("sms_spam_collection", tmp_path).values())) == 50


def test_the_log_says_that_the_sizes_are_those_of_the_paper(tmp_path, log):
    write_sms(tmp_path, 5574)
    assert list(map(len, read("sms_spam_collection", tmp_path).values())) == [4459, 557, 558]
    [line] = [line for line in log if "as in the paper" in line]  # once, not for each split
    assert_mentions(line, "sms_spam_collection", "4459 train", "557 dev", "558 test")


# --------------------------------------------------------------------------------------------------- errors


def test_a_missing_file_is_reported_with_the_names_looked_for_and_the_folder(tmp_path):
    write_file(tmp_path, "tweets.txt", "")
    message = message_of(read, "crowdflower_airline", tmp_path)
    assert_mentions(message, tmp_path, "Tweets.csv", "Airline-Sentiment-2-w-AA.csv", "tweets.txt", published.GUIDE)
    assert_mentions(message_of(read, "crowdflower_airline", tmp_path / "no"), f"--data_dir={tmp_path / 'no'}")
    assert_mentions(message_of(read, "crowdflower_airline", ""), "--data_dir", "Tweets.csv")


def test_unexpected_columns_are_reported_with_those_expected(tmp_path):
    path = write_file(tmp_path, "us-economic-newspaper.csv", "_unit_id,positivity,text\n1,2,up\n")
    message = message_of(read, "crowdflower_us_economic_performance", tmp_path)
    assert_mentions(message, path, "'text'", "'relevance'", "_unit_id, positivity, text", published.GUIDE)
    path = write_file(tmp_path, "newsCorpora.csv", "1\ta\tb\n2\ta\tb\n")
    assert_mentions(message_of(read, "news_aggregator_dataset", tmp_path), path, "'2'", "'5'", "1, 2, 3")


def test_an_unknown_label_is_reported_with_its_line_and_the_known_ones(tmp_path):
    path = write_file(tmp_path, "tweet_global_warming.csv", "tweet,existence,c\none,Y,1\ntwo,maybe,1\n")
    message = message_of(read, "crowdflower_global_warming", tmp_path)
    assert_mentions(message, f"{path}, line 3", "'maybe'", "Yes", "N/A")
    assert_mentions(message_of(read, "sms_spam_collection", write_other_spam(tmp_path)), "line 2", "'Ham'", "ham, spam")


def write_other_spam(folder: Any) -> Any:
    write_file(folder, "SMSSpamCollection", "ham\tone\nHam\ttwo\n")
    return folder


def test_a_file_without_usable_rows_is_reported(tmp_path):
    path = write_file(tmp_path, "tweet_global_warming.csv", "tweet,existence,c\none,NA,1\n,Yes,1\n")
    assert_mentions(message_of(read, "crowdflower_global_warming", tmp_path), path, "2 rows")


# ------------------------------------------------------------------------------------------------- real data


def real_file(name: str) -> str:
    paths = [os.path.join(TEXT_DATA, file.name) for file in additional.BY_NAME[name].files]
    return next((path for path in paths if os.path.exists(path)), "")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "20_newsgroups" else ()) for name in PAPER]
)
def test_the_real_file_gives_the_counts_and_classes_of_the_paper(name):
    if not real_file(name):
        pytest.skip(f"needs {additional.BY_NAME[name].files[0].name} in {TEXT_DATA}")
    found = read(name, TEXT_DATA)
    *sizes, classes = PAPER[name][:4]
    assert [len(found[split]) for split in published.SPLITS] == sizes
    assert {label for _, _, _, label in found["train"]} == set(tasks.get(name).labels)
    assert len(tasks.get(name).labels) == classes

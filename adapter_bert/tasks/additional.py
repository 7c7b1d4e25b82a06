"""The 17 additional classification tasks of the paper: its Tables 3 (sizes) and 4 (epochs).

`num_examples` is the sum of the three splits in Table 3, and `Epochs(full, adapter)` is a row of Table 4.
`docs/additional_tasks.md` lists the files and describes which rows are used.
"""

from __future__ import annotations

from typing import Dict, Tuple

from adapter_bert.tasks.published import Epochs, File, PublishedTask
from adapter_bert.tasks.task import register

NEWSGROUPS = (
    "alt.atheism", "comp.graphics", "comp.os.ms-windows.misc", "comp.sys.ibm.pc.hardware", "comp.sys.mac.hardware",
    "comp.windows.x", "misc.forsale", "rec.autos", "rec.motorcycles", "rec.sport.baseball", "rec.sport.hockey",
    "sci.crypt", "sci.electronics", "sci.med", "sci.space", "soc.religion.christian", "talk.politics.guns",
    "talk.politics.mideast", "talk.politics.misc", "talk.religion.misc",
)  # fmt: skip
EMOTIONS = (
    "anger", "boredom", "empty", "enthusiasm", "fun", "happiness", "hate", "love", "neutral", "relief", "sadness",
    "surprise", "worry",
)  # fmt: skip
MESSAGES = (
    "attack", "constituency", "information", "media", "mobilization", "other", "personal", "policy", "support",
)  # fmt: skip
PLUTCHIK_EMOTIONS = (
    "Aggression", "Ambiguous", "Anger", "Anticipation", "Awe", "Contempt", "Disapproval", "Disgust", "Fear", "Joy",
    "Love", "Neutral", "Optimism", "Remorse", "Sadness", "Submission", "Surprise", "Trust",
)  # fmt: skip
_STANCE = (
    "q1_from_reading_the_tweet_which_of_the_options_below_is_most_likely_to_be_true_about_the_stance_or_outlook_of_the_"
    "tweeter_towards_the_target"
)
_OPINION = "q2_which_of_the_options_below_is_true_about_the_opinion_in_the_tweet"
_NARRATIVE, _ISSUE = "Consumer complaint narrative", "Issue"


def _csv(text: str, label: str, *names: str) -> Tuple[File, ...]:
    """Return CrowdFlower's file under each of these names, with and without its suffix DFE (data for everyone)."""
    variants = dict.fromkeys(variant for name in names for variant in (name, name.replace("-DFE", "")))
    return tuple(File(name, text, label) for name in variants)


TASKS = (
    PublishedTask(
        "20_newsgroups", (File("20news-bydate.tar.gz"), File("20news-bydate")), 18846, NEWSGROUPS, Epochs(50, 50)
    ),
    PublishedTask(
        "crowdflower_airline",
        _csv("text", "airline_sentiment", "Tweets.csv", "Airline-Sentiment-2-w-AA.csv"),
        14640,
        ("negative", "neutral", "positive"),
        Epochs(50, 20),
    ),
    PublishedTask(
        "crowdflower_corporate_messaging",
        _csv("text", "category", "Corporate-messaging-DFE.csv"),
        3118,
        ("Action", "Dialogue", "Exclude", "Information"),
        Epochs(100, 50),
    ),
    PublishedTask(
        "crowdflower_disasters",
        _csv("text", "choose_one", "socialmedia-disaster-tweets-DFE.csv"),
        10860,
        ("Not Relevant", "Relevant"),
        Epochs(50, 50),
        excluded=("Can't Decide",),
    ),
    PublishedTask(
        "crowdflower_economic_news_relevance",
        _csv("text", "relevance", "Full-Economic-News-DFE-839861.csv"),
        7991,
        ("no", "yes"),
        Epochs(20, 20),
        excluded=("not sure",),
    ),
    PublishedTask(
        "crowdflower_emotion", _csv("content", "sentiment", "text_emotion.csv"), 40000, EMOTIONS, Epochs(20, 20)
    ),
    PublishedTask(
        "crowdflower_global_warming",
        _csv("tweet", "existence", "1377884570_tweet_global_warming.csv", "tweet_global_warming.csv"),
        4225,
        ("No", "Yes"),
        Epochs(100, 50),
        excluded=("NA", "N/A"),
        spellings={"N": "No", "Y": "Yes"},
    ),
    PublishedTask(
        "crowdflower_political_audience",
        _csv("text", "audience", "Political-media-DFE.csv"),
        5000,
        ("constituency", "national"),
        Epochs(50, 20),
    ),
    PublishedTask(
        "crowdflower_political_bias",
        _csv("text", "bias", "Political-media-DFE.csv"),
        5000,
        ("neutral", "partisan"),
        Epochs(50, 50),
    ),
    PublishedTask(
        "crowdflower_political_message",
        _csv("text", "message", "Political-media-DFE.csv"),
        5000,
        MESSAGES,
        Epochs(50, 50),
    ),
    PublishedTask(
        "crowdflower_primary_emotions",
        _csv("sentence", "emotion", "primary-plutchik-wheel-DFE.csv"),
        2524,
        PLUTCHIK_EMOTIONS,
        Epochs(100, 100),
    ),
    PublishedTask(
        "crowdflower_progressive_opinion",
        _csv("tweet", _OPINION, "progressive-tweet-sentiment.csv"),
        1159,
        ("about the target", "about something else", "no opinion"),
        Epochs(100, 100),
        spellings={"1": "about the target", "2": "about something else", "3": "no opinion"},
        label_end=".",
    ),
    PublishedTask(
        "crowdflower_progressive_stance",
        _csv("tweet", _STANCE, "progressive-tweet-sentiment.csv"),
        1159,
        ("AGAINST", "FOR", "NEUTRAL", "NONE OF THE ABOVE"),
        Epochs(100, 100),
        label_end=":",
    ),
    PublishedTask(
        "crowdflower_us_economic_performance",
        _csv("text", "relevance", "us-economic-newspaper.csv"),
        4952,
        ("no", "yes"),
        Epochs(100, 20),
        excluded=("not sure",),
    ),
    PublishedTask(
        "customer_complaint_database",
        (
            *(File(name, _NARRATIVE, _ISSUE) for name in ("Consumer_Complaints.csv", "complaints.csv", "rows.csv")),
            File("consumer_complaints.csv", "consumer_complaint_narrative", "issue"),
        ),
        183334,
        None,
        Epochs(20, 20),
    ),
    PublishedTask(
        "news_aggregator_dataset",
        (File("newsCorpora.csv", "2", "5"), File("uci-news-aggregator.csv", "TITLE", "CATEGORY")),
        422937,
        ("b", "e", "m", "t"),
        Epochs(20, 20),
    ),
    PublishedTask(
        "sms_spam_collection",
        (*(File(f"SMSSpamCollection{ending}", "2", "1") for ending in ("", ".txt")), File("spam.csv", "v2", "v1")),
        5574,
        ("ham", "spam"),
        Epochs(50, 20),
    ),
)

BY_NAME: Dict[str, PublishedTask] = {each.name: each for each in TASKS}

for _each in TASKS:
    register(_each.task)

"""Slack's mrkdwn, as the page shows it."""

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.simulator.slack.mrkdwn import mrkdwn, plain

NOW = 1_649_715_118  # Mon, 11 Apr 2022 22:11:58 GMT


def date(pattern: str, after: int = 0) -> str:
    html = mrkdwn(f"<!date^{NOW + after}^{pattern}|fallback>", NOW)
    return html.removeprefix("<time>").removesuffix("</time>")


def a(href: str) -> str:
    return f'<a href="{href}" rel="noopener noreferrer">'


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("plain", "plain"),
        ("*bold* _italic_ ~gone~", "<b>bold</b> <i>italic</i> <s>gone</s>"),
        ("*_both_*", "<b><i>both</i></b>"),
        ("snake_case_name 2*3*4", "snake_case_name 2*3*4"),
        ("* no * bold", "* no * bold"),
        ("*two\nlines*", "*two<br>lines*"),
        ("`a*b*c`", "<code>a*b*c</code>"),
        ("a\n```\n*x*\ny\n```\nb", "a<pre>*x*\ny</pre>b"),
        ("&lt;b&gt; &amp;amp; <b", "&lt;b&gt; &amp;amp; &lt;b"),
        ("&gt; one\n&gt; two\nthree", "<blockquote>one<br>two</blockquote>three"),
        (
            "<https://x.example/?a&amp;b|*l*>",
            f"{a('https://x.example/?a&amp;b')}*l*</a>",
        ),
        (
            "*<https://x.example>*",
            f"<b>{a('https://x.example')}https://x.example</a></b>",
        ),
        ("<javascript:alert(1)|x>", "&lt;x&gt;"),
        ("<@U1> <#C1|ops>", "{@U1} {#ops}"),
        ("<!here> <!subteam^S1|@infra>", "{!@here} {!@infra}"),
        (":warning: :nobody:", "(:warning:\N{WARNING SIGN}\ufe0f) :nobody:"),
        ("`:warning:`", "<code>:warning:</code>"),
        ("\ue0000\ue001", "\ufffd0\ufffd"),
    ],
)
def test_text_becomes_html(text: str, html: str) -> None:
    shown = mrkdwn(text, NOW, is_verbatim=True)
    shown = re.sub(r'<span class="mention loud">(.*?)</span>', r"{!\1}", shown)
    shown = re.sub(r'<span class="mention">(.*?)</span>', r"{\1}", shown)
    shown = re.sub(r'<span class="emoji" title="(.*?)">(.*?)</span>', r"(\1\2)", shown)
    assert shown == html


def test_address_becomes_a_link_unless_the_text_is_verbatim() -> None:
    assert mrkdwn("at https://x.example", NOW).startswith("at <a href=")
    assert mrkdwn("at https://x.example", NOW, is_verbatim=True) == (
        "at https://x.example"
    )


@pytest.mark.parametrize(
    ("pattern", "shown"),
    [
        ("{date_num}", "2022-04-11"),
        ("{date_slash}", "04/11/2022"),
        ("{date}", "April 11th, 2022"),
        ("{date_short}", "Apr 11, 2022"),
        ("{date_long}", "Monday, April 11th, 2022"),
        ("{date_short_pretty} at {time}", "today at 22:11"),
        ("{time_secs}", "22:11:58"),
        ("{ago}", "0 seconds ago"),
        ("{unknown}", "fallback"),
    ],
)
def test_date_is_written_as_its_pattern_says(pattern: str, shown: str) -> None:
    assert date(pattern) == shown


@pytest.mark.parametrize(
    ("after", "pattern", "shown"),
    [
        (86_400, "{date_pretty}", "tomorrow"),
        (-86_400, "{date_long_pretty}", "yesterday"),
        (10 * 86_400, "{date_pretty}", "April 21st, 2022"),
        (14 * 60, "{ago}", "in 14 minutes"),
        (-3600, "{ago}", "1 hour ago"),
        (10**11 * 9, "{date}", "fallback"),
    ],
)
def test_date_is_near_or_far(after: int, pattern: str, shown: str) -> None:
    assert date(pattern, after) == shown


class Tags(HTMLParser):
    """Parses a page; fails at a tag that the renderer does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = {"b", "i", "s", "a", "br", "pre", "code", "span", "time", "blockquote"}
        assert tag in known
        assert {name for name, _ in attrs} <= {"href", "rel", "class", "title"}
        if href := dict(attrs).get("href"):
            assert href.lower().startswith(("http://", "https://", "mailto:"))

    def handle_data(self, data: str) -> None:
        self.text += data


SIGNS = ["<", ">", "|", "*", "_", "~", "`", "```", '"', "'", ":x:", "\n", "^", " ", "0"]
WORDS = ["&lt;", "&amp;", "&gt; ", "word", "{time}", "\ue000", "\ue001", "onload="]
TAGS = ["<script>", "<!date^1^", "<https://x", "<javascript:x", "<@U1"]


@given(st.lists(st.sampled_from([*SIGNS, *WORDS, *TAGS]), max_size=30).map("".join))
def test_nothing_in_a_text_becomes_markup_of_its_own(text: str) -> None:
    for html in (mrkdwn(text, NOW), plain(text)):
        tags = Tags()
        tags.feed(html)
        tags.close()


@given(st.lists(st.sampled_from([*SIGNS, *WORDS, *TAGS]), max_size=30).map("".join))
def test_what_was_taken_out_is_put_back(text: str) -> None:
    assert not set(mrkdwn(text, NOW)) & {"\ue000", "\ue001"}

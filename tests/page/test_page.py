"""The page as a whole: themes, small screens, the keyboard, screen readers, and who may look."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.page.stage import Stage, Visit, faults, staged, visiting

pytestmark = pytest.mark.heavy
VIEWS = {
    "conversations": ".rows", "models": "article.model", "savings": ".tile", "log": "tbody tr", "start": ".found li",
    "c": ".turn", "r": ".change-row",
}  # fmt: skip
"""What is there when a view is."""
LIGHT, DARK = "rgb(250, 250, 249)", "rgb(19, 20, 22)"


@pytest.fixture(scope="module")
def stage(browser: Browser) -> Iterator[Stage]:
    with staged() as running:
        running.compacted("frames")
        yield running


def every_view(visit: Visit, stage: Stage) -> Iterator[Page]:
    (row,) = stage.rows("frames0")
    ids = {"c": row["id"], "r": row["request"]}
    for view, ready in VIEWS.items():
        page = visit.open("/".join([view, *filter(None, [ids.get(view)])]))
        expect(page.locator(ready).first).to_be_visible()
        yield page


def background(page: Page) -> str:
    colour: str = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    return colour


def test_the_base_url_can_be_copied(browser: Browser, stage: Stage) -> None:
    with visiting(browser, stage.proxy.url) as visit:
        page = visit.open("start")
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.get_by_role("button", name="Copy").click()
        expect(page.get_by_role("button", name="Copied")).to_be_visible()
        assert page.evaluate("navigator.clipboard.readText()") == f"{stage.proxy.url}/v1"


def test_one_who_has_been_here_begins_with_the_conversations(browser: Browser, stage: Stage) -> None:
    with visiting(browser, stage.proxy.url) as visit:
        page = visit.open()
        expect(page).to_have_url(f"{stage.proxy.url}/#/conversations")
        expect(page.get_by_role("navigation").get_by_role("link").first).to_have_text("Start")


@pytest.mark.parametrize("dark", [False, True])
def test_nothing_keeps_people_from_using_any_view(browser: Browser, stage: Stage, *, dark: bool) -> None:
    with visiting(browser, stage.proxy.url, dark=dark) as visit:
        for page in every_view(visit, stage):
            assert background(page) == (DARK if dark else LIGHT)
            assert faults(page) == [], page.url


def test_every_view_fits_a_phone(browser: Browser, stage: Stage) -> None:
    with visiting(browser, stage.proxy.url, phone=True) as visit:
        for page in every_view(visit, stage):
            wide = page.locator(".log").all() or [page.locator("html")]
            assert all(each.evaluate("it => it.scrollWidth <= it.clientWidth") for each in wide), page.url


def test_a_chosen_theme_holds_against_the_systems_and_is_kept(browser: Browser, stage: Stage) -> None:
    with visiting(browser, stage.proxy.url, dark=True) as visit:
        page = visit.open("start")
        assert background(page) == DARK
        page.get_by_role("button", name="Theme: auto").click()
        expect(page.get_by_role("button", name="Theme: light")).to_be_visible()
        assert background(page) == LIGHT
        page.reload()
        expect(page.get_by_role("button", name="Theme: light")).to_be_visible()
        assert background(page) == LIGHT
        page.get_by_role("button", name="Theme: light").click()
        expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()
        assert background(page) == DARK


def focused(page: Page) -> str:
    words: str = page.evaluate("(document.activeElement.getAttribute('aria-label') ?? document.activeElement.innerText).trim()")
    return words


def tab_to(page: Page, words: str) -> None:
    """Go on with the tab key until something is reached."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if words in focused(page):
            ring = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert ring == "solid", f"{words} has the focus, and nobody sees it"
            return
    raise AssertionError(f"the tab key does not reach {words}")


def test_a_keyboard_is_enough(browser: Browser, stage: Stage) -> None:
    with visiting(browser, stage.proxy.url) as visit:
        page = visit.open("savings")
        expect(page.locator(".tile").first).to_be_visible()
        page.evaluate("document.activeElement.blur()")
        tab_to(page, "Skip to the content")
        page.keyboard.press("Enter")
        assert focused(page) == "Savings"
        page.evaluate("document.activeElement.blur()")
        tab_to(page, "Conversations")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_be_focused()
        assert focused(page) == "Conversations"
        tab_to(page, "Remember: the code of frames0")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_be_focused()
        expect(page.get_by_role("button", name="Forget summary")).to_be_visible()
        tab_to(page, "Forget summary")
        page.keyboard.press("Enter")
        expect(page.get_by_role("button", name="Cancel")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.get_by_role("button", name="Cancel")).to_have_count(0)


def test_what_is_said_aloud(browser: Browser, stage: Stage) -> None:
    with visiting(browser, stage.proxy.url) as visit:
        page = visit.open("conversations")
        asking = stage.slowly("volcanoes")
        row = page.locator(".rows > .row", has_text="volcanoes")
        row.get_by_role("button", name="Stop the answer in Tell me slowly about volcanoes.").click()
        expect(page.get_by_role("status")).to_have_text("Tell me slowly about volcanoes.: stopped")
        asking.ended()


def test_markup_in_what_is_said_stays_text(browser: Browser, stage: Stage) -> None:
    stage.proxy.chat({"model": "m", "messages": [{"role": "user", "content": "<img src=x onerror=alert(1)> <b>bold</b>"}]})
    with visiting(browser, stage.proxy.url) as visit:
        page = visit.open("conversations")
        expect(page.get_by_role("link", name="<img src=x onerror=alert(1)>")).to_be_visible()


def test_what_the_policy_refuses_is_found(browser: Browser, stage: Stage) -> None:
    """These tests would see a violation, and a request to another host."""
    with visiting(browser, stage.proxy.url) as visit:
        page = visit.open("start")
        page.evaluate("document.body.insertAdjacentHTML('beforeend', '<p style=\"color: red\">x</p>')")
        page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=\"http://127.0.0.1:1/x.png\">')")
        page.wait_for_timeout(0)
        expect(page.locator("p[style]")).to_be_attached()
        assert len([each for each in visit.wrong if "Content Security Policy" in each]) == 2
        visit.wrong.clear()


def test_a_lost_connection_is_said_and_taken_up_again(browser: Browser, stage: Stage) -> None:
    with visiting(browser, stage.proxy.url) as visit:
        visit.page.clock.install()
        page = visit.open("conversations")
        link = page.locator(".link")
        expect(link).to_have_text("live")
        # No browser breaks off what streams already, so it is asked for anew.
        page.route("**/spillway/*", lambda route: route.abort())
        page.evaluate("import('/ui/feed.js').then(({ open }) => open())")
        expect(link).to_contain_text("not connected")
        expect(page.get_by_role("status")).to_have_text("The connection to Spillway is lost.")
        expect(page.locator(".rows > .row").first).to_be_visible()
        page.unroute("**/spillway/*")
        page.clock.fast_forward(4000)
        expect(link).to_have_text("live")


# Who may look


@pytest.fixture(scope="module")
def keyed(browser: Browser) -> Iterator[Stage]:
    with staged(api_keys=("one-key", "another-key"), admin_keys=("admin-key",)) as running:
        running.talk("mine", 1, key="one-key")
        running.talk("theirs", 1, key="another-key")
        yield running


def test_the_link_of_the_log_opens_the_page_and_leaves_the_address(browser: Browser) -> None:
    with staged(host="0.0.0.0", allow=("open",), page_token="of/the-log") as stage:
        stage.talk("harbours", 1)
        with visiting(browser, stage.proxy.url) as visit:
            visit.page.set_extra_http_headers({"x-forwarded-for": "192.0.2.7"})
            page = visit.open()
            expect(page.get_by_label("Key")).to_be_visible()
            page.goto("about:blank")
            page.goto(f"{stage.proxy.url}/#key=of%2Fthe-log")
            expect(page.locator(".rows")).to_contain_text("harbours0")
            assert "key" not in page.url


def sign_in(visit: Visit, key: str) -> Page:
    page = visit.open()
    page.get_by_label("Key").fill(key)
    page.get_by_role("button", name="Sign in").click()
    return page


def test_a_key_shows_its_own_conversations_and_no_others(browser: Browser, keyed: Stage) -> None:
    with visiting(browser, keyed.proxy.url) as visit:
        expect(sign_in(visit, "no-key").get_by_role("alert")).to_be_visible()
        page = sign_in(visit, "one-key")
        expect(page.locator(".rows")).to_contain_text("mine0")
        expect(page.locator(".rows")).not_to_contain_text("theirs")
        keyed.talk("mine-later", 1, key="one-key")
        expect(page.locator(".rows")).to_contain_text("mine-later0")
        page.reload()  # the key lasts as long as the tab
        expect(page.locator(".rows")).to_contain_text("mine0")
        assert page.context.cookies() == []
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_label("Key")).to_be_visible()
        expect(page.locator(".rows")).to_have_count(0)


def test_what_is_remembered_is_read_and_deleted(browser: Browser) -> None:
    with staged(api_keys=("one-key",), memory="key") as stage, visiting(browser, stage.proxy.url) as visit:
        for text in ("I am allergic to nuts.", "I like tea."):
            asked = {"model": "m", "messages": [{"role": "user", "content": text}]}
            assert stage.proxy.chat(asked, authorization="Bearer one-key").status_code == 200
        page = sign_in(visit, "one-key")
        page.get_by_role("link", name="Memory").click()
        expect(page.get_by_role("listitem").filter(has_text="allergic")).to_be_visible()
        assert faults(page) == []
        page.get_by_role("button", name="Delete: I am allergic to nuts.").click()
        expect(page.get_by_role("main")).not_to_contain_text("allergic")
        page.get_by_role("button", name="Delete: I like tea.").click()
        expect(page.get_by_text("Nothing is remembered.")).to_be_visible()


def test_who_has_shown_a_key_asks_a_model_with_it(browser: Browser, keyed: Stage) -> None:
    with visiting(browser, keyed.proxy.url) as visit:
        page = sign_in(visit, "one-key")
        page.get_by_role("link", name="Start").click()
        page.get_by_label("Message", exact=True).fill("Remember: the code of asking is c1.")
        page.get_by_role("button", name="Send").click()
        expect(page.locator(".said")).to_contain_text("Noted.")
        expect(page.locator(".try .state")).to_have_text("idle")
        page.get_by_role("button", name="New chat").click()
        expect(page.locator(".said")).to_have_count(0)
    assert keyed.rows("asking", "another-key") == []


def test_a_link_that_is_followed_as_soon_as_the_key_is_known_is_where_one_stays(browser: Browser, keyed: Stage) -> None:
    with visiting(browser, keyed.proxy.url) as visit:
        known = 'document.querySelector("header button + button") && !location.hash'  # the button to sign out
        seen = f"new MutationObserver(() => {{ if ({known}) location.hash = '#/log' }})"
        visit.page.add_init_script(f"{seen}.observe(document, {{ subtree: true, childList: true }})")
        expect(page := sign_in(visit, "one-key")).to_have_url(f"{keyed.proxy.url}/#/log")
        page.evaluate("new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)))")
        assert page.url.endswith("#/log")


def test_an_admin_key_shows_all_of_them_and_not_what_was_said(browser: Browser, keyed: Stage) -> None:
    with visiting(browser, keyed.proxy.url, refused={403}) as visit:
        page = sign_in(visit, "admin-key")
        expect(page.locator(".rows > .row").nth(1)).to_be_visible()
        expect(page.locator(".rows")).not_to_contain_text("code of")
        expect(page.get_by_role("contentinfo")).to_contain_text("content is hidden for this key")
        page.locator(".rows .title").first.click()
        expect(page.locator(".turn")).to_have_count(1)
        expect(page.get_by_text("Content is hidden for this key.")).to_be_visible()
        page.locator(".turn").first.get_by_role("link").click()
        expect(page.get_by_text("Content is hidden for this key.")).to_be_visible()
        assert faults(page) == []

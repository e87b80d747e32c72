"""The page in a real browser."""

import pytest


@pytest.fixture(scope="module")
def opened(page, browser):
    """The page in a browser, with everything it complained about and asked for."""
    tab = browser.new_page(viewport={"width": 390, "height": 844})
    complaints, requests = [], []
    tab.on("console", lambda message: complaints.append(message.text))
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("request", lambda request: requests.append(request.url))
    tab.goto(page.as_uri())
    yield tab, complaints, requests, page
    tab.close()


def test_opens_without_a_complaint_or_a_request(opened):
    _, complaints, requests, path = opened
    assert complaints == []
    assert [url for url in requests if not url.startswith("data:")] == [path.as_uri()]


@pytest.mark.parametrize("width", [390, 768, 1200])
def test_nothing_extends_beyond_the_edge(opened, width):
    page = opened[0]
    page.set_viewport_size({"width": width, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    outside = page.evaluate(
        """width => [...document.querySelectorAll('body *')].filter(element => {
            if (element.closest('.scroll, svg, details:not([open])')) return false;
            return element.getBoundingClientRect().right > width + 1;
        }).map(element => element.outerHTML.slice(0, 80))""",
        width,
    )
    assert outside == []


def test_the_first_screen_has_the_answer_the_coverage_and_the_forest(opened):
    page = opened[0]
    page.set_viewport_size({"width": 1200, "height": 900})
    tops = {name: page.locator(name).first.bounding_box()["y"] for name in ("h1", "#table-coverage", "#forest")}
    assert max(tops.values()) < 450
    assert page.locator("h1").inner_text()


def test_identifiers_are_unique_and_every_link_leads_somewhere(opened):
    page = opened[0]
    names = page.evaluate("[...document.querySelectorAll('[id]')].map(element => element.id)")
    assert len(names) == len(set(names))
    links = page.evaluate("[...document.querySelectorAll('a[href^=\"#\"]')].map(a => a.getAttribute('href').slice(1))")
    assert set(links) <= set(names)


def test_figures_have_words_and_no_text_overlaps(opened):
    page = opened[0]
    assert page.locator("figure svg:not([aria-label])").count() == 0
    page.set_viewport_size({"width": 1200, "height": 844})
    overlaps = page.evaluate(
        """() => [...document.querySelectorAll('figure svg')].flatMap(svg => {
            const texts = [...svg.querySelectorAll('text')].filter(t => t.textContent.trim());
            const boxes = texts.map(t => [t.textContent.trim(), t.getBoundingClientRect()]);
            const found = [];
            boxes.forEach(([a, p], i) => boxes.slice(i + 1).forEach(([b, q]) => {
                const x = Math.min(p.right, q.right) - Math.max(p.left, q.left);
                const y = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
                if (x > 2 && y > 4) found.push(`${svg.closest('figure').id}: ${a} / ${b}`);
            }));
            return found;
        })"""
    )
    assert overlaps == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_schemes_have_readable_text(opened, scheme):
    page = opened[0]
    page.emulate_media(color_scheme=scheme)
    style = "() => { const s = getComputedStyle(document.body); return [s.color, s.backgroundColor] }"
    assert contrast(*page.evaluate(style)) > 10
    page.emulate_media(color_scheme="light")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_figure_in_a_file_has_a_size_and_follows_the_scheme(opened, browser, scheme):
    tab = browser.new_page(color_scheme=scheme, viewport={"width": 1200, "height": 800})
    tab.goto((opened[3].parent / "figures" / "forest.svg").as_uri())
    assert 480 <= tab.evaluate("document.documentElement.getBoundingClientRect().width") <= 560
    text, ground = (f"getComputedStyle(document.querySelector('{name}')).fill" for name in ("text", "rect"))
    assert contrast(tab.evaluate(text), tab.evaluate(ground)) > 5
    tab.close()


def contrast(one, other):
    def luminance(text):
        parts = [int(part) / 255 for part in text.strip("rgba()").split(",")[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_on_a_phone_rows_are_cards_and_nothing_scrolls_sideways(opened):
    page = opened[0]
    page.set_viewport_size({"width": 390, "height": 844})
    wide = page.evaluate(
        "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.ariaLabel)"
    )
    assert wide == []
    label = "getComputedStyle(document.querySelector('#table1 td'), '::before').content"
    assert page.evaluate(label) == '"accuracy, %"'
    page.set_viewport_size({"width": 1200, "height": 844})
    assert page.evaluate(label) == "none"

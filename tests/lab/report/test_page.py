import pytest

from maxsep.lab.report import render
from maxsep.lab.spec import RunSpec


@pytest.fixture(scope="module")
def opened(page, browser):
    """The page in a real browser, with everything it complained about and asked for."""
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


def test_it_prints_on_paper(opened):
    page = opened[0]
    page.set_viewport_size({"width": 794, "height": 1123})  # A4
    page.emulate_media(media="print")
    try:
        assert page.evaluate("document.documentElement.scrollWidth") <= 794
        paper = page.pdf(format="A4")
    finally:
        page.emulate_media(media="screen")
    assert paper.startswith(b"%PDF")
    assert len(paper) > 50_000


@pytest.mark.parametrize("width", [390, 768, 1200])
def test_nothing_hangs_over_the_edge(opened, width):
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
    cut = page.evaluate("[...document.querySelectorAll('pre')].map(box => box.scrollWidth - box.clientWidth)")
    assert cut == [0], "commands are wrapped, not cut"


def test_no_identifier_is_given_twice_and_every_link_leads_somewhere(opened):
    page = opened[0]
    names = page.evaluate("[...document.querySelectorAll('[id]')].map(element => element.id)")
    assert len(names) == len(set(names))
    links = page.evaluate("[...document.querySelectorAll('a[href]')].map(link => link.getAttribute('href').slice(1))")
    assert set(links) <= set(names)


def test_tables_say_what_they_should(opened):
    page = opened[0]
    text = page.locator("#accuracy").inner_text()
    for expected in ("95.09", "gain over scaled, same radius", "= plain", "3 seeds", "imbalance 0.02"):
        assert expected in text, expected
    assert "unfinished" in page.locator("#problems").inner_text()
    assert page.locator("#finding h2").inner_text()


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


def test_both_schemes_have_readable_text(opened):
    page = opened[0]
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        ink, ground = page.evaluate(
            "() => { const s = getComputedStyle(document.body); return [s.color, s.backgroundColor] }"
        )
        assert contrast(ink, ground) > 10
    page.emulate_media(color_scheme="light")


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
    told = page.evaluate(
        "[...document.querySelectorAll('#accuracy td')].filter(e => e.offsetParent)"
        ".map(e => [getComputedStyle(e, '::before').content, e.getBoundingClientRect().right])"
    )
    assert {'"ours, %"', '"gain over scaled, same radius"'} <= {label for label, _ in told}
    assert max(right for _, right in told) <= 390
    page.set_viewport_size({"width": 1200, "height": 844})
    assert page.evaluate("getComputedStyle(document.querySelector('#accuracy td'), '::before').content") == "none"


def test_a_table_with_nine_columns_fits_a_screen(tmp_path, run_folder, browser):
    """Unequal classes, wide spreads, long names: nothing of it is behind the edge of the box."""
    for loss in ("cross_entropy", "balanced_softmax"):
        for seed in range(3):
            spread = 0.25 * seed
            told = {"top1": 0.3 + spread, "balanced": 0.2 + spread, "best_top1": 0.4 + spread, "ece": 0.1 + spread}
            told |= {"class_counts": [150, 50, 6], "per_class": [0.3 + spread, 0.2 + spread, 0.1 + spread]}
            run_folder(tmp_path, RunSpec(head="maxsep", loss=loss, seed=seed), metrics=told)
    tab = browser.new_page(viewport={"width": 1200, "height": 844})
    tab.goto(render(tmp_path, tmp_path / "report").as_uri())
    assert tab.locator("#table-shots-1 thead th").count() == 9
    box = "document.querySelector('#table-shots-1').closest('.scroll')"
    assert tab.evaluate(f"{box}.scrollWidth - {box}.clientWidth") == 0
    tab.close()

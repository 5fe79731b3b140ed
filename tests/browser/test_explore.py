"""The page of ``drpm explore``: its arithmetic against the library, and its controls."""

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from playwright.sync_api import Browser, Locator, Page, expect
from torch import Tensor

import drpm
from drpm.cli.pages import render_explorer
from drpm.relaxation.operators import gumbel_like
from tests.browser.conftest import PATIENCE
from tests.oracles import FALSE_ALARM, assignments, chi_square_p_value, to_matrix

Open = Callable[..., Page]


class Model(NamedTuple):
    """Parameters of a law, for the library and for the page."""

    rows: Tensor  # (1, n) log-scores or (K, n) log-affinities
    weights: Tensor
    limits: dict[str, Tensor]

    @property
    def elements(self) -> int:
        return self.rows.shape[1]

    def law(self) -> drpm.RandomPartition | drpm.AffinityPartition:
        if len(self.rows) > 1:
            return drpm.AffinityPartition(self.rows, self.weights, **self.limits)
        return drpm.RandomPartition(self.rows[0], self.weights, **self.limits)

    def relaxed(self, temperature: float) -> Any:
        settings: dict[str, Any] = {"hard": False, **self.limits}
        if len(self.rows) > 1:
            return drpm.RelaxedAffinityPartition(temperature, self.rows, self.weights, **settings)
        return drpm.RelaxedRandomPartition(temperature, self.rows[0], self.weights, **settings)

    def for_page(self) -> dict[str, Any]:
        full = {"rows": self.rows, "weights": self.weights, **self.limits}
        return {name: value.tolist() for name, value in full.items()}


def make_model(n: int, groups: int, affinity: bool, limited: bool, scale: float = 2.0) -> Model:
    shape = (groups if affinity else 1, n)
    rows = scale * torch.randn(shape, dtype=torch.float64)
    weights = torch.randn(groups, dtype=torch.float64)
    low, high = torch.zeros(groups), torch.full((groups,), float(n))
    if limited:
        low[0], high[-1] = 1, max(1, n // 2)
    return Model(rows, weights, {"minimum": low, "maximum": high})


CASES = [
    (5, 3, False, False),
    (5, 3, True, False),
    (6, 3, False, True),
    (6, 3, True, True),
    (8, 2, False, True),
    (4, 4, True, True),
    (4, 1, False, False),
    (1, 3, True, False),
]


@pytest.fixture(params=CASES, ids=lambda case: "-".join(map(str, case)))
def model(request: pytest.FixtureRequest, seed: None) -> Model:
    return make_model(*request.param)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("explore") / "explore.html"
    path.write_text(render_explorer(), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def call(path: Path, browser: Browser) -> Callable[..., Any]:
    """Call a function of the page, once or with each of several lists of arguments."""
    page = browser.new_page()
    page.goto(path.as_uri(), timeout=PATIENCE)

    def call(name: str, *arguments: Any, each: list[list[Any]] | None = None) -> Any:
        program = f"calls => calls.map(arguments => Partitions.{name}(...arguments))"
        found = page.evaluate(program, each or [list(arguments)])
        return found if each else found[0]

    return call


def assert_close(found: Any, expected: Tensor) -> None:
    actual = torch.tensor(found, dtype=torch.float64)
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


def enumerate_law(law: Any) -> tuple[Tensor, Tensor, Tensor]:
    """All labels (K^n, n), whether each is possible, and all probabilities."""
    groups, n = law.event_shape
    labels = assignments(n, groups)
    every_Y = to_matrix(labels, groups)
    inside = law.support.check(every_Y)
    probs = torch.zeros(len(labels), dtype=torch.float64)
    probs[inside] = law.log_prob(every_Y[inside]).exp()
    return labels, inside, probs


def marginals_of(law: Any) -> Tensor:
    labels, _, probs = enumerate_law(law)
    return (probs[:, None, None] * to_matrix(labels, law.event_shape[0])).sum(0)


# The arithmetic.


def test_sizes(call: Any, model: Model) -> None:
    n = model.elements
    found = call("sizeLaw", n, model.for_page())
    law = drpm.FisherHypergeometric(n, model.weights, **model.limits)
    support = law.enumerate_support()
    probs = law.log_prob(support).exp()
    assert found["sizes"] == support.tolist()
    assert_close(found["probs"], probs)
    assert_close(found["mean"], law.mean)
    counts = torch.arange(n + 1)[:, None, None]
    assert_close(found["marginals"], ((support == counts) * probs[:, None]).sum(1).mT)


@pytest.mark.parametrize("n", [1, 5])
def test_orders(call: Any, n: int) -> None:
    scores = 2 * torch.randn(n, dtype=torch.float64)
    law = drpm.PlackettLuce(scores)
    orders = torch.tensor(list(itertools.permutations(range(n))))
    log_probs = law.log_prob(orders)
    pairs = [[scores.tolist(), order] for order in orders.tolist()]
    assert_close(call("orderLogProb", each=pairs), log_probs)
    likely = call("likelyOrders", scores.tolist(), 7)
    best = log_probs.sort(descending=True).indices[:7]
    assert [each["order"] for each in likely] == orders[best].tolist()
    assert_close([each["prob"] for each in likely], log_probs[best].exp())


def test_partitions(call: Any, model: Model) -> None:
    law = model.law()
    _, inside, probs = enumerate_law(law)
    found = torch.tensor(call("partitionProbs", model.for_page()), dtype=torch.float64)
    assert_close(found.tolist(), probs)
    # Small probabilities have digits too.
    assert_close(found[inside].log().tolist(), probs[inside].log())
    marginals = call("marginals", model.for_page())
    assert_close(marginals, marginals_of(law))
    if isinstance(law, drpm.RandomPartition):
        assert_close(marginals, law.marginals())
    likely = call("likelyPartitions", model.for_page(), 5)
    best = probs.sort(descending=True).indices[: min(5, int(inside.sum()))]
    assert_close([each["prob"] for each in likely], probs[best])
    shown = torch.tensor([each["labels"] for each in likely])
    # What one more in the label of each element adds to the index of a partition.
    places = len(model.weights) ** torch.arange(model.elements - 1, -1, -1)
    assert_close([each["prob"] for each in likely], probs[(shown @ places).long()])


def test_bounds(call: Any, model: Model) -> None:
    law = model.law()
    labels, inside, _ = enumerate_law(law)
    labels = labels[inside]
    lower, upper = law.log_prob_bounds(to_matrix(labels, len(model.weights)))
    pairs = [[model.for_page(), each] for each in labels.tolist()]
    found = call("logProbBounds", each=pairs)
    assert_close([each["lower"] for each in found], lower)
    assert_close([each["upper"] for each in found], upper)


def test_relaxed_samples(call: Any, model: Model) -> None:
    groups, n = len(model.weights), model.elements
    for seed, temperature in enumerate([0.05, 0.1, 0.5, 1.0, 3.0] * 3):
        law = model.relaxed(temperature)
        expected = law.rsample_parts(generator=torch.Generator().manual_seed(seed))
        generator = torch.Generator().manual_seed(seed)
        sizes = torch.empty(groups - 1, n + 1, dtype=torch.float64)
        if groups > 1:
            sizes = gumbel_like(sizes, generator)
        noise = {"sizes": sizes.tolist(), "scores": gumbel_like(model.rows, generator).tolist()}
        found = call("relaxedPartition", model.for_page(), temperature, noise)
        assert_close(found["Y"], expected.Y)
        assert found["order"] == expected.order.tolist()
        assert found["sizes"] == [found["labels"].count(k) for k in range(groups)]
        assert [found["labels"][i] for i in found["order"]] == sorted(found["labels"])


@pytest.mark.parametrize("affinity", [False, True])
def test_samples_have_the_distribution(path: Path, open_page: Open, affinity: bool) -> None:
    model = make_model(4, 3, affinity, True, scale=1.0)
    program = """([model, draws]) => {
        const counts = {};
        for (let seed = 0; seed < draws; seed++) {
            const noise = Partitions.sampleNoise(seed, 8, 4);
            const key = Partitions.relaxedPartition(model, 1, noise).labels.join("");
            counts[key] = (counts[key] ?? 0) + 1;
        }
        return counts;
    }"""
    counts = open_page(path).evaluate(program, [model.for_page(), 10_000])
    labels, _, probs = enumerate_law(model.law())
    found = [counts.get("".join(map(str, each)), 0) for each in labels.tolist()]
    p_value = chi_square_p_value(np.array(found), probs.numpy())
    assert p_value > FALSE_ALARM / 2  # of two tests


# The page.

PRESETS = ("Quick start", "Equal", "Two camps", "One large", "Tight limits", "Affinities")
CONTROLS = "button, input, select, textarea, a[href], [tabindex]"


def preset(page: Page, name: str) -> None:
    button = page.get_by_role("button", name=name, exact=True)
    button.click()
    expect(button).to_have_attribute("aria-pressed", "true")


def enlarge(page: Page) -> None:
    """As many elements and subsets as there can be."""
    for name in ("Add an element", "Add a subset"):
        button = page.get_by_role("button", name=name)
        while button.is_enabled():
            button.click()
    expect(page.locator("#marginals tbody tr")).to_have_count(4)
    expect(page.locator("#marginals tbody td")).to_have_count(32)


def table(page: Page, name: str) -> Tensor:
    rows = page.locator(f"#{name} tbody tr").all()
    return torch.tensor([[float(x) for x in row.locator("td").all_inner_texts()] for row in rows])


def slider(page: Page, name: str) -> Locator:
    return page.get_by_role("slider", name=name, exact=True)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_show_the_law_of_their_code(path: Path, open_page: Open, name: str) -> None:
    page = open_page(path)
    preset(page, name)
    scope: dict[str, Any] = {}
    exec(page.locator("#python").inner_text(), scope)
    law = scope["law"]
    expected = drpm.AffinityPartition if name == "Affinities" else drpm.RandomPartition
    assert isinstance(law, expected)
    labels, inside, probs = enumerate_law(law)
    # All numbers are rounded for the reader.
    torch.testing.assert_close(
        table(page, "marginals"), marginals_of(law).float(), rtol=0, atol=0.00501
    )
    means = re.findall(r"mean ([\d.]+)", page.locator("#histograms").inner_text())
    assert means == [f"{mean:.2f}" for mean in law.sizes.mean]
    assert f"{int(inside.sum()):,} partitions" in page.locator("#partitions-total").inner_text()
    best = to_matrix(labels[probs.argmax()], law.event_shape[0])
    lower, upper = (bound.exp().item() for bound in law.log_prob_bounds(best))
    first = page.locator("#likely-partitions .bounds").first.inner_text()
    shown = [float(x.replace("\u2212", "-")) for x in first.split("\u2264")]
    assert shown == pytest.approx([lower, probs.max().item(), upper], rel=0.06, abs=0.0006)


def test_sliders_change_what_is_shown(path: Path, open_page: Open) -> None:
    page = open_page(path)
    before = table(page, "marginals")
    slider(page, "Log-weight of subset 3").press("End")
    expect(page.locator("#python")).to_contain_text("log_weights = torch.tensor([0.5, 0, 4]")
    assert (table(page, "marginals")[2] >= before[2]).all()
    slider(page, "Log-score of A").press("ArrowLeft")
    expect(page.locator("#python")).to_contain_text("[2.9, 2.5, ")
    slider(page, "Smallest size").press("ArrowRight")
    slider(page, "Largest size").press("Home")
    expect(page.locator("#python")).to_contain_text("minimum=1, maximum=2")
    expect(page.get_by_role("button", name="Quick start")).to_have_attribute(
        "aria-pressed", "false"
    )
    torch.testing.assert_close(
        table(page, "marginals").sum(1), torch.full((3,), 2.0), rtol=0, atol=0.04
    )


def test_the_switch_to_affinities_keeps_the_law(path: Path, open_page: Open) -> None:
    page = open_page(path)
    before = table(page, "marginals")
    page.get_by_role("switch").press("Space")
    expect(page.locator("#scores-title")).to_have_text("Log-affinities")
    expect(page.locator("#python")).to_contain_text("drpm.AffinityPartition")
    assert torch.equal(table(page, "marginals"), before)
    slider(page, "Log-affinity of subset 2 for F").press("End")
    expect(page.locator("#python")).to_contain_text("[3, 2.5, 0.5, 0, -2, 4]")
    assert table(page, "marginals")[1, 5] > before[1, 5]
    # The affinities are there again after a look at the scores.
    page.get_by_role("switch").press("Space")
    expect(page.locator("#python")).to_contain_text("drpm.RandomPartition")
    page.get_by_role("switch").press("Space")
    expect(page.locator("#python")).to_contain_text("[3, 2.5, 0.5, 0, -2, 4]")


@pytest.mark.parametrize("name", ["Tight limits", "Affinities"])
def test_any_number_of_elements_and_subsets(path: Path, open_page: Open, name: str) -> None:
    page = open_page(path)
    preset(page, name)
    buttons = [
        page.get_by_role("button", name=f"{verb} {what}")
        for verb, what in (
            ("Remove", "an element"),
            ("Remove", "a subset"),
            ("Add", "an element"),
            ("Add", "a subset"),
        )
    ]
    ends = []
    for button in buttons:
        while button.is_enabled():
            button.click()
            n, groups = (int(page.locator(f"#{x}").inner_text()) for x in ("elements", "subsets"))
            expect(page.locator("#marginals tbody td")).to_have_count(n * groups)
            expect(page.locator("#relaxed tbody td")).to_have_count(n * groups)
            shown = table(page, "marginals")
            torch.testing.assert_close(shown.sum(0), torch.ones(n), rtol=0, atol=0.03)
        ends.append((n, groups))
    assert (ends[1], ends[3]) == ((2, 2), (8, 4))


# For every slider, the milliseconds from a move until the page is drawn again.
DELAYS = """async () => {
    const delays = [];
    for (const slider of document.querySelectorAll("input[type=range]:enabled")) {
        const start = performance.now();
        slider.stepUp();
        slider.dispatchEvent(new Event("input", { bubbles: true }));
        await new Promise(requestAnimationFrame);
        await new Promise(requestAnimationFrame);
        delays.push(performance.now() - start);
    }
    return delays;
}"""


def test_sliders_answer_at_once(path: Path, open_page: Open) -> None:
    """Within 300 ms with the most sliders: a requirement, and the one time limit among the tests.

    The best of up to ten rounds counts, since a machine may be busy. On a loaded one, a slider took
    42 to 70 ms as a rule, the slowest of a round 62 to 502 ms.
    """
    page = open_page(path)
    preset(page, "Affinities")
    enlarge(page)
    best = np.array(page.evaluate(DELAYS))
    assert len(best) > 35  # 8 x 4 affinities, weights and more
    for _ in range(9):
        if best.max() >= 300:
            best = np.minimum(best, page.evaluate(DELAYS))
    assert best.max() < 300, best


def test_samples_repeat(path: Path, open_page: Open) -> None:
    page = open_page(path)
    seed = page.get_by_label("Seed")
    before = table(page, "relaxed")
    page.get_by_role("button", name="Draw again").click()
    expect(seed).to_have_value("2")
    assert not torch.equal(table(page, "relaxed"), before)
    seed.fill("1")
    assert torch.equal(table(page, "relaxed"), before)
    seed.fill("")  # while the reader types
    assert torch.equal(table(page, "relaxed"), before)


def test_cooling(path: Path, open_page: Open) -> None:
    page = open_page(path)
    page.clock.install()
    page.reload()
    button = page.locator("#cool")
    button.click()
    expect(button).to_have_text("Stop")
    page.clock.run_for(2500)
    warm = float(slider(page, "Temperature").get_attribute("aria-valuetext") or "")
    assert 0.1 < warm < 2
    page.clock.run_for(3000)
    expect(button).to_have_text("Cool down")
    expect(slider(page, "Temperature")).to_have_attribute("aria-valuetext", "0.05")
    button.click()
    page.clock.run_for(1000)
    button.click()
    expect(button).to_have_text("Cool down")
    stopped = slider(page, "Temperature").get_attribute("aria-valuetext")
    page.clock.run_for(1000)
    expect(slider(page, "Temperature")).to_have_attribute("aria-valuetext", stopped or "")


def test_cooling_without_motion(path: Path, open_page: Open) -> None:
    page = open_page(path, reduced_motion="reduce")
    page.clock.install()
    page.reload()
    page.clock.run_for(100)
    page.locator("#cool").click()
    expect(slider(page, "Temperature")).to_have_attribute("aria-valuetext", "0.05")
    expect(page.locator("#cool")).to_have_text("Cool down")


def test_keyboard(path: Path, open_page: Open) -> None:
    page = open_page(path)
    preset(page, "Affinities")
    enlarge(page)
    # Focus starts from the top of the document.
    page.evaluate("document.activeElement.blur(); getSelection().removeAllRanges()")
    page.mouse.click(1, 1)
    expected = page.evaluate(f"document.querySelectorAll('{CONTROLS}').length")
    disabled = page.evaluate("document.querySelectorAll(':disabled').length")
    facts = """() => {
        const control = document.activeElement;
        control.id ||= `control-${performance.now()}`;
        const name = control.getAttribute("aria-label") || control.textContent;
        return {
            id: control.id,
            native: ["BUTTON", "INPUT"].includes(control.tagName),
            name: (name || control.labels[0].textContent).trim(),
            outline: parseFloat(getComputedStyle(control).outlineWidth),
        };
    }"""
    reached = set()
    for _ in range(expected - disabled):
        page.keyboard.press("Tab")
        found = page.evaluate(facts)
        assert found["native"], found
        assert found["name"], found
        assert found["outline"] >= 2, found
        reached.add(found["id"])
    assert len(reached) == expected - disabled > 40


# What is cut off or wider than the page, for all presets with few and many elements.
WIDER = """async () => {
    const wider = [];
    const check = async (name) => {
        await new Promise(requestAnimationFrame);
        await new Promise(requestAnimationFrame);
        if (document.documentElement.scrollWidth > innerWidth) wider.push(name);
        for (const part of document.querySelectorAll("section, td, .bounds, .pill, label, li")) {
            if (part.scrollWidth > part.clientWidth + 1) wider.push(`${name}: ${part.outerHTML}`);
        }
    };
    for (const button of document.querySelectorAll("#presets button")) {
        button.click();
        await check(button.textContent);
        for (const id of ["more-elements", "more-subsets"]) {
            const more = document.getElementById(id);
            while (!more.disabled) more.click();
        }
        await check(`${button.textContent}, enlarged`);
    }
    return wider;
}"""


@pytest.mark.parametrize(
    ("width", "color_scheme"), [(375, "light"), (375, "dark"), (800, "dark"), (1280, "light")]
)
def test_nothing_is_wider_than_the_page(
    path: Path, open_page: Open, width: int, color_scheme: str
) -> None:
    page = open_page(path, viewport={"width": width, "height": 700}, color_scheme=color_scheme)
    assert page.evaluate(WIDER) == []
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    brightness = sum(map(int, re.findall(r"\d+", background)[:3])) / 3
    assert (brightness < 60) == (color_scheme == "dark")

// The page of `drpm explore`: controls, and what they change. The arithmetic is in partitions.js.
"use strict";

(() => {
  const LETTERS = "ABCDEFGH";
  const MOST_SUBSETS = 4;
  const FEWEST = 2; // elements, and subsets
  const [COLDEST, HOTTEST] = [0.05, 5];
  const COOLING_TIME = 5000; // milliseconds

  const PRESETS = {
    "Quick start": { scores: [3, 2.5, 0.5, 0, -2, -2.5], weights: [0.5, 0, 0] },
    Equal: { scores: [0, 0, 0, 0, 0, 0], weights: [0, 0, 0] },
    "Two camps": { scores: [3, 3, 3, 3, -3, -3, -3, -3], weights: [0, 0] },
    "One large": { scores: [2, 1, 0, 0, -1, -2], weights: [3, 0, 0, 0] },
    "Tight limits": {
      scores: [2, 1.5, 1, 0, -1, -1.5, -2],
      weights: [2, 0, -1],
      minimum: 2,
      maximum: 3,
    },
    Affinities: {
      rows: [
        [0, 0, 3, 3, 0, 0],
        [3, 3, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0],
      ],
      weights: [0.5, 0, 0],
    },
  };

  const state = { temperature: 1, seed: 1 };
  const byId = (id) => document.getElementById(id);
  const range = (count) => Array.from({ length: count }, (_, i) => i);
  const letters = () => range(state.elements).map((i) => LETTERS[i]);

  /** An element with attributes and children; a subset's number gives it its color. */
  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("--") || name === "left" || name === "width" || name === "height") {
        element.style.setProperty(name, value);
      } else if (name === "subset") element.dataset.subset = value;
      else element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
  }

  function showProb(prob) {
    if (prob === 0 || prob >= 0.00995) return prob.toFixed(3);
    if (prob >= 0.000995) return prob.toFixed(4);
    return prob.toExponential(1).replace("-", "\u2212");
  }

  const showNumber = (x) => x.toFixed(1).replace("-", "\u2212");
  const percent = (x) => `${(100 * x).toFixed(2)}%`;
  const chip = (k) => make("span", { class: "chip", subset: k }, `${k + 1}`);

  // --- the model --------------------------------------------------------------------------------

  function choosePreset(name) {
    const preset = PRESETS[name];
    const rows = preset.rows ?? [preset.scores];
    const pad = (values, length) => [...values, ...new Array(length - values.length).fill(0)];
    state.preset = name;
    state.elements = rows[0].length;
    state.subsets = preset.weights.length;
    state.affinities = preset.rows !== undefined;
    state.scores = pad(rows[0], LETTERS.length);
    state.rows = preset.rows && range(MOST_SUBSETS).map((k) => pad(rows[k] ?? [], LETTERS.length));
    state.weights = pad(preset.weights, MOST_SUBSETS);
    state.minimum = preset.minimum ?? 0;
    state.maximum = preset.maximum ?? state.elements;
    rebuild();
  }

  /** The limits that leave at least one possible size of every subset. */
  function limitRanges() {
    const mean = state.elements / state.subsets;
    return {
      minimum: [0, Math.floor(mean)],
      maximum: [Math.ceil(mean), state.elements],
    };
  }

  function resize(elements, subsets) {
    const unlimited = state.maximum === state.elements;
    state.elements = elements;
    state.subsets = subsets;
    const { minimum, maximum } = limitRanges();
    state.minimum = Math.min(state.minimum, minimum[1]);
    const largest = unlimited ? maximum[1] : state.maximum;
    state.maximum = Math.min(Math.max(largest, maximum[0]), maximum[1]);
    state.preset = null;
    rebuild();
  }

  /** The model as partitions.js takes it. */
  function currentModel() {
    const { elements, subsets, affinities } = state;
    const rows = affinities ? state.rows.slice(0, subsets) : [state.scores];
    return {
      rows: rows.map((row) => row.slice(0, elements)),
      weights: state.weights.slice(0, subsets),
      minimum: new Array(subsets).fill(state.minimum),
      maximum: new Array(subsets).fill(state.maximum),
    };
  }

  // --- controls ---------------------------------------------------------------------------------

  /** A slider and the text of its value. */
  function makeSlider(label, [min, max, step], value, change, show = showNumber) {
    const shown = make("span", { class: "value", "aria-hidden": "true" }, show(value));
    const input = make("input", { type: "range", min, max, step, "aria-label": label });
    input.classList.toggle("centered", min === -max);
    input.value = value;
    input.disabled = min === max;
    input.setAttribute("aria-valuetext", show(value));
    input.addEventListener("input", () => {
      const found = Number(input.value);
      shown.textContent = show(found);
      input.setAttribute("aria-valuetext", show(found));
      change(found);
    });
    return { input, shown };
  }

  /** A slider of the model, whose move is a step away from the preset. */
  function parameterSlider(label, limits, values, index, show) {
    return makeSlider(
      label,
      limits,
      values[index],
      (value) => {
        values[index] = value;
        state.preset = null;
        schedule();
      },
      show,
    );
  }

  const LOGS = [-4, 4, 0.1];

  function row(name, { input, shown }) {
    return make("label", { class: "row" }, name, input, shown);
  }

  function buildScores() {
    const letter = (i) => make("span", { class: "letter" }, LETTERS[i]);
    if (!state.affinities) {
      return range(state.elements).map((i) =>
        row(letter(i), parameterSlider(`Log-score of ${LETTERS[i]}`, LOGS, state.scores, i)),
      );
    }
    const groups = range(state.subsets);
    const heads = groups.map((k) => make("span", { class: "head" }, chip(k)));
    const cells = range(state.elements).flatMap((i) => [
      letter(i),
      ...groups.map((k) => {
        const label = `Log-affinity of subset ${k + 1} for ${LETTERS[i]}`;
        const { input, shown } = parameterSlider(label, LOGS, state.rows[k], i);
        return make("label", { class: "cell", subset: k }, shown, input);
      }),
    ]);
    const columns = { class: "grid", "--columns": state.subsets };
    return [make("div", columns, make("span"), ...heads, ...cells)];
  }

  function buildControls() {
    byId("scores").replaceChildren(...buildScores());
    const weights = range(state.subsets).map((k) => {
      const label = `Log-weight of subset ${k + 1}`;
      const built = row(chip(k), parameterSlider(label, LOGS, state.weights, k));
      built.dataset.subset = k;
      return built;
    });
    byId("weights").replaceChildren(...weights);
    const names = { minimum: "Smallest size", maximum: "Largest size" };
    const limits = Object.entries(limitRanges()).map(([name, limits]) => {
      const slider = parameterSlider(names[name], [...limits, 1], state, name, String);
      return row(make("span", {}, names[name]), slider);
    });
    byId("limits").replaceChildren(...limits);
    byId("elements").textContent = state.elements;
    byId("subsets").textContent = state.subsets;
    byId("fewer-elements").disabled = state.elements === FEWEST;
    byId("more-elements").disabled = state.elements === LETTERS.length;
    byId("fewer-subsets").disabled = state.subsets === FEWEST;
    byId("more-subsets").disabled = state.subsets === MOST_SUBSETS;
    byId("affinities").checked = state.affinities;
    byId("scores-title").textContent = state.affinities ? "Log-affinities" : "Log-scores";
    byId("scores-effect").textContent = state.affinities
      ? "a high value, a likely choice"
      : "a high score, an early place";
    byId("scores-note").textContent = state.affinities
      ? "The last subset takes what is left: its column does not change the probabilities."
      : "";
    byId("lead").textContent = state.affinities
      ? "A two-stage model: draw the sizes of the subsets, then let one subset after another " +
        "draw its elements from those that are left, each by its own scores."
      : "A two-stage model: draw the sizes of the subsets, draw an order of the elements, and " +
        "let the subsets take the elements in that order.";
  }

  // --- what the page shows ----------------------------------------------------------------------

  function showSizes(model) {
    const law = Partitions.sizeLaw(state.elements, model);
    const highest = Math.max(...law.marginals.flat());
    const histograms = law.marginals.map((probs, k) => {
      const texts = probs.map((prob, size) => `size ${size}: ${showProb(prob)}`);
      const about = `Subset ${k + 1}, mean ${law.mean[k].toFixed(2)}; ${texts.join(", ")}`;
      const bars = probs.map((prob, size) =>
        make("i", { height: percent(prob / highest), title: texts[size] }),
      );
      const ticks = probs.map((_, size) => make("span", {}, `${size}`));
      const mean = percent((law.mean[k] + 0.5) / probs.length);
      return make(
        "div",
        { class: "histogram", subset: k, role: "img", "aria-label": about },
        make("div", { class: "title" }, chip(k), `mean ${law.mean[k].toFixed(2)}`),
        make("div", { class: "plot" }, ...bars),
        make("div", { class: "ticks" }, make("b", { class: "mean", left: mean }), ...ticks),
      );
    });
    byId("histograms").replaceChildren(...histograms);
    byId("histograms").classList.toggle("square", histograms.length === 4);
    const best = range(law.probs.length).sort((a, b) => law.probs[b] - law.probs[a]);
    const items = best.slice(0, 4).map((index) => {
      const parts = law.sizes[index].map((size, k) =>
        make("span", { subset: k, "--size": size, class: size ? "" : "none" }, `${size}`),
      );
      return rankingItem(make("div", { class: "strip" }, ...parts), law.probs[index]);
    });
    byId("likely-sizes").replaceChildren(...items);
  }

  function rankingItem(content, prob, subset) {
    const named = subset === undefined ? [] : [chip(subset)];
    const track = make("div", { class: "track" }, make("i", { width: percent(prob) }));
    const settings = subset === undefined ? {} : { class: "named", subset };
    const number = make("span", { class: "number" }, showProb(prob));
    return make("li", settings, ...named, content, number, track);
  }

  function showOrders(model) {
    const tiles = (order) =>
      make("div", { class: "order" }, ...order.map((i) => make("span", {}, LETTERS[i])));
    let items;
    if (state.affinities) {
      items = model.rows.flatMap((row, k) =>
        Partitions.likelyOrders(row, 2).map(({ order, prob }) =>
          rankingItem(tiles(order), prob, k),
        ),
      );
    } else {
      const orders = Partitions.likelyOrders(model.rows[0], 8);
      items = orders.map(({ order, prob }) => rankingItem(tiles(order), prob));
    }
    byId("likely-orders").replaceChildren(...items);
    const count = range(state.elements).reduce((product, i) => product * (i + 1), 1);
    byId("orders-about").textContent = state.affinities
      ? "By affinities, every subset has its own order of the elements and takes the first of " +
        "those that are left. The two most likely orders of each, and their probabilities:"
      : `The most likely of the ${count.toLocaleString("en")} orders, and their probabilities:`;
  }

  /** The subsets of a partition, one after another. */
  function partitionPills(labels) {
    return range(state.subsets).map((k) => {
      const members = letters().filter((_, i) => labels[i] === k);
      const content = members.length ? members.map((x) => make("span", {}, x)) : ["\u2205"];
      return make("span", { class: members.length ? "pill" : "pill empty", subset: k }, ...content);
    });
  }

  function showPartitions(model, probs) {
    const likely = Partitions.likelyPartitions(model, 6, probs);
    const found = likely.map((each) => ({
      ...each,
      exact: Math.log(each.prob),
      ...Partitions.logProbBounds(model, each.labels),
    }));
    const decade = Math.LN10;
    const low = Math.floor(Math.min(...found.map((x) => x.lower)) / decade + 1e-9);
    const above = Math.ceil(Math.max(...found.map((x) => x.upper)) / decade - 1e-9);
    const high = Math.max(above, low + 1);
    const place = (log) => percent((log / decade - low) / (high - low));
    const items = found.map(({ labels, prob, exact, lower, upper }) => {
      const width = percent((upper - lower) / decade / (high - low));
      const [least, most] = [lower, upper].map((log) => showProb(Math.exp(log)));
      return make(
        "li",
        {},
        make("div", { class: "tiles" }, ...partitionPills(labels)),
        make(
          "div",
          { class: "between", "aria-hidden": "true" },
          make("span", { class: "interval", left: place(lower), width }),
          make("span", { class: "exact", left: place(exact) }),
        ),
        make(
          "div",
          { class: "bounds" },
          make("span", { title: "lower bound" }, least),
          "\u2264",
          make("strong", { title: "exact probability" }, showProb(prob)),
          "\u2264",
          make("span", { title: "upper bound" }, most),
        ),
      );
    });
    byId("likely-partitions").replaceChildren(...items);
    // The width of all letters and subsets in a row, whatever the partition.
    const tiles = `${1.1 * state.elements + 1.7 * state.subsets}rem`;
    byId("likely-partitions").parentElement.style.setProperty("--tiles", tiles);
    const every = Math.ceil((high - low) / 6);
    const ticks = range(high - low + 1).filter((i) => (high - low - i) % every === 0);
    const texts = ticks.map((i) => {
      const exponent = low + i;
      const text = Math.abs(exponent) < 4 ? `${Number(`1e${exponent}`)}` : `1e${exponent}`;
      return make("span", { left: place(exponent * decade) }, text.replace("-", "\u2212"));
    });
    byId("axis").replaceChildren(...texts);
    byId("partitions-about").textContent =
      "Several orders can give the same partition, and its exact probability (the dot) sums " +
      "over all of them. The paper\u2019s bounds (the bar) avoid the sum: the lower bound keeps " +
      "only the most likely of these orders, and the upper bound counts each of them as " +
      (state.affinities ? "that one." : "the most likely of all orders, so it may exceed one.");
    const count = probs.reduce((total, prob) => total + (prob > 0), 0);
    const share = found.reduce((total, { prob }) => total + prob, 0);
    byId("partitions-total").textContent =
      `${count.toLocaleString("en")} partitions are possible. ` +
      (found.length === count
        ? "All of them are shown."
        : `The ${found.length} most likely ones have ${showProb(share)} of the probability.`);
  }

  function showHeat(id, values, digits = 2) {
    const head = letters().map((letter) => make("th", { scope: "col" }, letter));
    const rows = values.map((row, k) =>
      make(
        "tr",
        { subset: k },
        make("th", { scope: "row", "aria-label": `Subset ${k + 1}` }, chip(k)),
        ...row.map((x) => make("td", { "--share": x.toFixed(4) }, x.toFixed(digits))),
      ),
    );
    byId(id).replaceChildren(
      make("thead", {}, make("tr", {}, make("td"), ...head)),
      make("tbody", {}, ...rows),
    );
  }

  function showOverview(marginals) {
    const columns = letters().map((letter, i) => {
      const parts = marginals.map((row, k) => make("i", { subset: k, height: percent(row[i]) }));
      return make("span", {}, make("span", { class: "split" }, ...parts), letter);
    });
    byId("overview").replaceChildren(...columns);
    byId("overview").setAttribute("aria-label", "Every element, divided among the subsets");
  }

  function showSample() {
    // The noise of the largest model, so that a change of the parameters keeps it.
    const noise = Partitions.sampleNoise(state.seed, LETTERS.length, MOST_SUBSETS);
    const sample = Partitions.relaxedPartition(currentModel(), state.temperature, noise);
    showHeat("relaxed", sample.Y);
    const tiles = sample.order.map((i) =>
      make("span", { class: "pill", subset: sample.labels[i] }, LETTERS[i]),
    );
    byId("sample").replaceChildren(...tiles);
    const order = sample.order.map((i) => LETTERS[i]).join("");
    byId("sample").setAttribute("aria-label", `The order ${order}, divided among the subsets`);
    const sizes = sample.sizes.join(", ");
    byId("sample-about").textContent = `The subsets take ${sizes} of the elements, in this order:`;
  }

  function showPython(model) {
    const list = (values) => `[${values.join(", ")}]`;
    const rows = model.rows.map((row) => `    ${list(row)},`);
    const scores = state.affinities ? ["[", ...rows, "]"].join("\n") : list(model.rows[0]);
    const tensor = (values) => `torch.tensor(${values}, dtype=torch.float64)`;
    const limits = [];
    if (state.minimum > 0) limits.push(`minimum=${state.minimum}`);
    if (state.maximum < state.elements) limits.push(`maximum=${state.maximum}`);
    const name = state.affinities ? "log_affinities" : "log_scores";
    const law = state.affinities ? "AffinityPartition" : "RandomPartition";
    byId("python").textContent = [
      "import torch",
      "import drpm",
      "",
      `${name} = ${tensor(scores)}`,
      `log_weights = ${tensor(list(model.weights))}`,
      `law = drpm.${law}(${[name, "log_weights", ...limits].join(", ")})`,
      "law.sizes.mean, law.marginals()",
      "Y = law.sample()",
      "law.log_prob(Y).exp(), law.log_prob_bounds(Y)",
    ].join("\n");
  }

  function update() {
    const model = currentModel();
    const tables = Partitions.partitionTables(model);
    const marginals = Partitions.marginals(model, tables);
    showOverview(marginals);
    showSizes(model);
    showOrders(model);
    showPartitions(model, Partitions.partitionProbs(model, tables));
    showHeat("marginals", marginals);
    showSample();
    showPython(model);
    for (const button of byId("presets").children) {
      button.setAttribute("aria-pressed", button.textContent === state.preset);
    }
  }

  let scheduled = false;

  /** Update with the next frame, once for all changes until then. */
  function schedule() {
    if (scheduled) return;
    scheduled = true;
    requestAnimationFrame(() => {
      scheduled = false;
      update();
    });
  }

  function rebuild() {
    buildControls();
    schedule();
  }

  // --- temperature ------------------------------------------------------------------------------

  let frame = null;

  function buildTemperature() {
    const show = (log) => Math.exp(log).toFixed(2);
    const limits = [Math.log(COLDEST), Math.log(HOTTEST), 0.01];
    const change = (log) => {
      stopCooling();
      state.temperature = Math.exp(log);
      showSample();
    };
    const slider = makeSlider("Temperature", limits, Math.log(state.temperature), change, show);
    byId("temperature").replaceChildren(row(make("span", {}, "Temperature"), slider));
    return (temperature) => {
      state.temperature = temperature;
      slider.input.value = Math.log(temperature);
      slider.shown.textContent = temperature.toFixed(2);
      slider.input.setAttribute("aria-valuetext", temperature.toFixed(2));
      showSample();
    };
  }

  function stopCooling() {
    if (frame !== null) cancelAnimationFrame(frame);
    frame = null;
    byId("cool").textContent = "Cool down";
  }

  function startCooling(setTemperature) {
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) {
      setTemperature(COLDEST);
      return;
    }
    byId("cool").textContent = "Stop";
    let start = null;
    const step = (now) => {
      start ??= now;
      const progress = Math.min((now - start) / COOLING_TIME, 1);
      setTemperature(HOTTEST * (COLDEST / HOTTEST) ** progress);
      if (progress < 1) frame = requestAnimationFrame(step);
      else stopCooling();
    };
    frame = requestAnimationFrame(step);
  }

  // --- start ------------------------------------------------------------------------------------

  function addListeners() {
    const steps = {
      "fewer-elements": () => resize(state.elements - 1, state.subsets),
      "more-elements": () => resize(state.elements + 1, state.subsets),
      "fewer-subsets": () => resize(state.elements, state.subsets - 1),
      "more-subsets": () => resize(state.elements, state.subsets + 1),
    };
    for (const [id, step] of Object.entries(steps)) byId(id).addEventListener("click", step);
    byId("affinities").addEventListener("change", (event) => {
      state.affinities = event.target.checked;
      // Equal rows are the same law.
      state.rows ??= range(MOST_SUBSETS).map(() => [...state.scores]);
      state.preset = null;
      rebuild();
    });
    byId("seed").addEventListener("input", (event) => {
      if (!event.target.checkValidity()) return;
      state.seed = Number(event.target.value);
      showSample();
    });
    byId("again").addEventListener("click", () => {
      state.seed = (state.seed + 1) % 1000000;
      byId("seed").value = state.seed;
      showSample();
    });
    const setTemperature = buildTemperature();
    byId("cool").addEventListener("click", () => {
      if (frame === null) startCooling(setTemperature);
      else stopCooling();
    });
    byId("controls").addEventListener("submit", (event) => event.preventDefault());
  }

  for (const name of Object.keys(PRESETS)) {
    const button = make("button", { type: "button" }, name);
    button.addEventListener("click", () => choosePreset(name));
    byId("presets").append(button);
  }
  byId("seed").value = state.seed;
  addListeners();
  choosePreset("Quick start");
})();

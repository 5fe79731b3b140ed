// The laws of drpm for a few elements, without any library and without a page.
//
// A model is an object {rows, weights, minimum, maximum}. `rows` holds log-scores: one row of n
// numbers as in RandomPartition, or K rows as in AffinityPartition. `weights` holds K log-weights,
// `minimum` and `maximum` the limits of the K sizes. Sets of elements are bit masks.
"use strict";

const Partitions = (() => {
  const range = (count) => Array.from({ length: count }, (_, i) => i);
  const sum = (values) => values.reduce((total, value) => total + value, 0);
  const matrix = (rows, columns) => range(rows).map(() => new Array(columns).fill(0));

  function countElements(mask) {
    let count = 0;
    for (let rest = mask; rest; rest &= rest - 1) count++;
    return count;
  }

  function logFactorial(n) {
    return sum(range(n).map((i) => Math.log(i + 1)));
  }

  function softmax(logits) {
    const largest = Math.max(...logits);
    const masses = logits.map((x) => Math.exp(x - largest));
    const total = sum(masses);
    return masses.map((x) => x / total);
  }

  /** Indices by descending score; of equal scores, the first comes first. */
  function orderDescending(scores) {
    return range(scores.length).sort((a, b) => scores[b] - scores[a] || a - b);
  }

  /** The log-scores by which subset k chooses. */
  function rowOf(model, k) {
    return model.rows[model.rows.length === 1 ? 0 : k];
  }

  // --- sizes: Fisher's noncentral hypergeometric distribution -----------------------------------

  /** K tables of binomial(n, m) omega^m for m = 0..n, zero outside the limits. */
  function sizeFactors(n, model) {
    // A common factor of all weights has no effect, since the sizes sum to n.
    const largest = Math.max(...model.weights);
    return model.weights.map((weight, k) =>
      range(n + 1).map((m) => {
        if (m < model.minimum[k] || m > model.maximum[k]) return 0;
        const places = logFactorial(n) - logFactorial(m) - logFactorial(n - m);
        return Math.exp(places + m * (weight - largest));
      }),
    );
  }

  /** Entry [k][r]: the mass of groups k, k + 1, ... taking r elements together. */
  function suffixMasses(factors) {
    const n = factors[0].length - 1;
    const tables = [...factors.map(() => null), range(n + 1).map((r) => (r === 0 ? 1 : 0))];
    for (let k = factors.length - 1; k >= 0; k--) {
      const later = tables[k + 1];
      tables[k] = range(n + 1).map((r) =>
        sum(range(r + 1).map((m) => factors[k][m] * later[r - m])),
      );
    }
    return tables;
  }

  /** All possible sizes with their probabilities, every group's own law, and the mean. */
  function sizeLaw(n, model) {
    const factors = sizeFactors(n, model);
    const groups = factors.length;
    const sizes = [];
    const masses = [];
    const visit = (taken, left, mass) => {
      const k = taken.length;
      if (mass === 0) return;
      if (k < groups - 1) {
        for (let m = 0; m <= left; m++) visit([...taken, m], left - m, mass * factors[k][m]);
      } else if (factors[k][left] > 0) {
        sizes.push([...taken, left]);
        masses.push(mass * factors[k][left]);
      }
    };
    visit([], n, 1);
    const total = sum(masses);
    const probs = masses.map((mass) => mass / total);
    const marginals = matrix(groups, n + 1);
    sizes.forEach((size, index) => {
      size.forEach((m, k) => (marginals[k][m] += probs[index]));
    });
    const mean = marginals.map((law) => sum(law.map((prob, m) => prob * m)));
    return { sizes, probs, marginals, mean };
  }

  // --- orders: the Plackett-Luce distribution ---------------------------------------------------

  function logSumExp(values) {
    const largest = Math.max(...values);
    return largest + Math.log(sum(values.map((x) => Math.exp(x - largest))));
  }

  /** The log-probability of an order; the chooser at rank r has the log-scores `rowAt(r)`. */
  function chooseInTurn(order, rowAt) {
    return sum(
      order.map((element, rank) => {
        const row = rowAt(rank);
        return row[element] - logSumExp(order.slice(rank).map((i) => row[i]));
      }),
    );
  }

  function orderLogProb(row, order) {
    return chooseInTurn(order, () => row);
  }

  /** Scores up to a common factor, and their sums over all sets of elements. */
  function scoreSums(row) {
    const largest = Math.max(...row);
    const scores = Float64Array.from(row, (x) => Math.exp(x - largest));
    const sums = new Float64Array(1 << row.length);
    for (let i = 0; i < row.length; i++) {
      for (let mask = 0; mask < 1 << i; mask++) sums[mask | (1 << i)] = sums[mask] + scores[i];
    }
    return { scores, sums };
  }

  /** The most likely orders, with their probabilities. */
  function likelyOrders(row, count) {
    const { scores, sums } = scoreSums(row);
    const byScore = orderDescending(row);
    const best = new Best(count);
    const order = [];
    const visit = (left, prob) => {
      if (left === 0) best.offer(prob, () => [...order]);
      for (const i of byScore) {
        const next = (prob * scores[i]) / sums[left];
        if (!(left & (1 << i)) || !best.accepts(next)) continue;
        order.push(i);
        visit(left ^ (1 << i), next);
        order.pop();
      }
    };
    visit(sums.length - 1, 1);
    return best.found.map(({ prob, value }) => ({ prob, order: value }));
  }

  /** Keeps the few values of largest probability; of equally likely ones, the first. */
  class Best {
    constructor(count) {
      this.count = count;
      this.found = [];
    }

    accepts(prob) {
      const { found, count } = this;
      // Equal up to rounding is not larger.
      return found.length < count || prob > found[count - 1].prob * (1 + 1e-12);
    }

    offer(prob, value) {
      if (!this.accepts(prob)) return;
      let place = this.found.length;
      while (place > 0 && prob > this.found[place - 1].prob * (1 + 1e-12)) place--;
      this.found.splice(place, 0, { prob, value: value() });
      this.found.length = Math.min(this.found.length, this.count);
    }
  }

  // --- partitions -------------------------------------------------------------------------------

  /**
   * Entry [rest * 2^n + set]: the probability that the elements of a set come before all others of
   * the rest. The last of the set to be chosen is one of its elements: 3^n steps, n terms each.
   */
  function blockProbs(row) {
    const { scores, sums } = scoreSums(row);
    const count = sums.length;
    const probs = new Float64Array(count * count);
    for (let rest = 0; rest < count; rest++) {
      const start = rest * count;
      probs[start] = 1;
      // All sets within the rest, in ascending order.
      for (let set = -rest & rest; set; set = (set - rest) & rest) {
        let total = 0;
        for (let i = 0; i < row.length; i++) {
          if (!(set & (1 << i))) continue;
          const before = set ^ (1 << i);
          total += (probs[start + before] * scores[i]) / sums[rest ^ before];
        }
        probs[start + set] = total;
      }
    }
    return probs;
  }

  /** What all functions of the law of partitions start from. */
  function partitionTables(model) {
    const n = model.rows[0].length;
    const blocks = model.rows.map(blockProbs);
    const counts = Uint8Array.from({ length: 1 << n }, (_, mask) => countElements(mask));
    const sizeFactor = sizeFactors(n, model);
    const normalizer = suffixMasses(sizeFactor)[0][n];
    const groups = model.weights.length;
    const factors = range(groups).map((k) => {
      const block = blocks[blocks.length === 1 ? 0 : k];
      // Subset k takes a set from what is left.
      return (left, set) => sizeFactor[k][counts[set]] * block[(left << n) + set];
    });
    return { n, groups, factors, normalizer, all: (1 << n) - 1 };
  }

  /**
   * The probabilities of all K^n partitions. The index of a partition has the subset of every
   * element as a digit in base K, that of the first element in front.
   */
  function partitionProbs(model, tables = partitionTables(model)) {
    const { n, groups, factors, normalizer, all } = tables;
    const probs = new Float64Array(groups ** n);
    const places = new Uint32Array(all + 1);
    for (let i = 0; i < n; i++) {
      for (let mask = 0; mask < 1 << i; mask++) {
        places[mask | (1 << i)] = places[mask] + groups ** (n - 1 - i);
      }
    }
    const visit = (k, left, mass, index) => {
      if (k === groups - 1) {
        probs[index + k * places[left]] = mass * factors[k](left, left);
        return;
      }
      for (let set = left; ; set = (set - 1) & left) {
        const next = mass * factors[k](left, set);
        if (next > 0) visit(k + 1, left ^ set, next, index + k * places[set]);
        if (set === 0) break;
      }
    };
    visit(0, all, 1 / normalizer, 0);
    return probs;
  }

  /** The subset of every element, from the index of a partition. */
  function labelsAt(index, n, groups) {
    return range(n).map((i) => Math.floor(index / groups ** (n - 1 - i)) % groups);
  }

  /** The most likely partitions, with their probabilities. */
  function likelyPartitions(model, count, probs = partitionProbs(model)) {
    const [n, groups] = [model.rows[0].length, model.weights.length];
    const best = new Best(count);
    for (let index = 0; index < probs.length; index++) {
      if (probs[index] > 0) best.offer(probs[index], () => labelsAt(index, n, groups));
    }
    return best.found.map(({ prob, value }) => ({ prob, labels: value }));
  }

  /** Entry [k][i]: the probability that element i is in subset k. */
  function marginals(model, tables = partitionTables(model)) {
    const { n, groups, factors, normalizer, all } = tables;
    // The mass of subsets k, k + 1, ... sharing what is left.
    const behind = range(groups + 1).map(() => new Float64Array(all + 1));
    behind[groups][0] = 1;
    for (let k = groups - 1; k >= 0; k--) {
      for (let left = 0; left <= all; left++) {
        for (let set = left; ; set = (set - 1) & left) {
          behind[k][left] += factors[k](left, set) * behind[k + 1][left ^ set];
          if (set === 0) break;
        }
      }
    }
    const found = matrix(groups, n);
    let before = new Float64Array(all + 1);
    before[all] = 1 / normalizer;
    for (let k = 0; k < groups; k++) {
      const after = new Float64Array(all + 1);
      const ofSet = new Float64Array(all + 1);
      for (let left = 0; left <= all; left++) {
        if (before[left] === 0) continue;
        for (let set = left; ; set = (set - 1) & left) {
          const mass = before[left] * factors[k](left, set);
          after[left ^ set] += mass;
          ofSet[set] += mass * behind[k + 1][left ^ set];
          if (set === 0) break;
        }
      }
      ofSet.forEach((mass, set) => {
        for (let i = 0; i < n; i++) if (set & (1 << i)) found[k][i] += mass;
      });
      before = after;
    }
    return found;
  }

  /** The paper's bounds on the log-probability of a partition, at its most likely order. */
  function logProbBounds(model, labels) {
    const n = labels.length;
    const groups = model.weights.length;
    const sizes = range(groups).map((k) => labels.filter((label) => label === k).length);
    const factors = sizeFactors(n, model);
    const mass = sizes.reduce((product, m, k) => product * factors[k][m], 1);
    const logSizes = Math.log(mass / suffixMasses(factors)[0][n]);
    const within = range(n).sort(
      (a, b) =>
        labels[a] - labels[b] || rowOf(model, labels[b])[b] - rowOf(model, labels[a])[a] || a - b,
    );
    const likely = chooseInTurn(within, (rank) => rowOf(model, labels[within[rank]]));
    // By scores, the bound takes the most likely of all orders, as in the paper; by affinities,
    // that of the orders that fill this partition.
    const one = model.rows.length === 1;
    const best = one ? orderLogProb(model.rows[0], orderDescending(model.rows[0])) : likely;
    return { lower: logSizes + likely, upper: logSizes + sum(sizes.map(logFactorial)) + best };
  }

  // --- relaxed samples --------------------------------------------------------------------------

  /** Uniform numbers between 0 and 1, the same for the same seed (mulberry32). */
  function uniformNumbers(seed) {
    let state = seed >>> 0;
    return () => {
      state = (state + 0x6d2b79f5) >>> 0;
      let x = Math.imul(state ^ (state >>> 15), state | 1);
      x ^= x + Math.imul(x ^ (x >>> 7), x | 61);
      return ((x ^ (x >>> 14)) >>> 0) / 2 ** 32;
    };
  }

  /** Standard Gumbel noise, rows x columns. */
  function gumbelNoise(rows, columns, uniform) {
    return matrix(rows, columns).map((row) =>
      row.map(() => -Math.log(-Math.log(Math.max(uniform(), 1e-12)))),
    );
  }

  /** The noise of a sample of up to `elements` elements in up to `groups` subsets. */
  function sampleNoise(seed, elements, groups) {
    const uniform = uniformNumbers(seed);
    return {
      sizes: gumbelNoise(groups - 1, elements + 1, uniform),
      scores: gumbelNoise(groups, elements, uniform),
    };
  }

  /**
   * Sizes drawn group after group: the largest noisy log-probability is the size, and the softmax
   * its relaxation. Entry [k][c] of the noise, (K - 1) x (n + 1), belongs to c elements being left
   * after group k. `ranks[k][r]` says how far rank r belongs to subset k.
   */
  function relaxedSizes(n, model, temperature, noise) {
    const factors = sizeFactors(n, model);
    const tables = suffixMasses(factors);
    const groups = factors.length;
    const hard = [];
    let survival = new Array(n).fill(0);
    let law = range(n + 1).map((m) => (m === 0 ? 1 : 0)); // of the sum of the sizes so far
    const ranks = [];
    let left = n;
    for (let k = 0; k < groups; k++) {
      let next = new Array(n).fill(1);
      let size = left;
      if (k < groups - 1) {
        const logits = range(n + 1).map((m) => {
          const mass = m <= left ? factors[k][m] * tables[k + 1][left - m] : 0;
          return mass > 0 ? Math.log(mass) + noise[k][left - m] : -Infinity;
        });
        size = logits.indexOf(Math.max(...logits));
        const soft = softmax(logits.map((x) => x / temperature));
        law = law.map((_, total) => sum(range(total + 1).map((m) => soft[m] * law[total - m])));
        let below = 0;
        next = range(n).map((rank) => Math.max(0, 1 - (below += law[rank])));
      }
      const previous = survival;
      ranks.push(next.map((x, rank) => Math.max(0, x - previous[rank])));
      survival = next;
      hard.push(size);
      left -= size;
    }
    return { hard, ranks, soft: ranks.map(sum) };
  }

  /** NeuralSort: row r is a softmax over the elements, around the one at rank r. */
  function neuralSort(scores) {
    const n = scores.length;
    const distance = scores.map((x) => sum(scores.map((y) => Math.abs(x - y))));
    return range(n).map((rank) =>
      softmax(scores.map((x, j) => (n - 1 - 2 * rank) * x - distance[j])),
    );
  }

  const logSigmoid = (x) => (x > 0 ? -Math.log1p(Math.exp(-x)) : x - Math.log1p(Math.exp(x)));

  /** Subsets in turn take shares sigma(x - t) of what is left, which sum to their sizes. */
  function softTopK(sizes, rows) {
    let logLeft = rows[0].map(() => 0);
    return sizes.map((size, k) => {
      if (k === sizes.length - 1) return logLeft.map(Math.exp);
      const total = sum(logLeft.map(Math.exp));
      const share = Math.min(Math.max(size / total, 1e-12), 1 - 1e-12);
      const shares = (t) => rows[k].map((x, i) => Math.exp(logLeft[i] + logSigmoid(x - t)));
      // Between the thresholds that would do if all scores were the smallest, or the largest.
      const logit = Math.log(share) - Math.log1p(-share);
      let [low, high] = [Math.min(...rows[k]) - logit, Math.max(...rows[k]) - logit];
      for (let step = 0; step < 100; step++) {
        const middle = (low + high) / 2;
        if (sum(shares(middle)) > share * total) low = middle;
        else high = middle;
      }
      const threshold = (low + high) / 2;
      const found = shares(threshold);
      logLeft = logLeft.map((x, i) => x + logSigmoid(threshold - rows[k][i]));
      return found;
    });
  }

  /**
   * A relaxed sample Y, K x n, and the exact sample it hardens to: its sizes, the order in which
   * the subsets take the elements, and the subset of every element.
   *
   * `noise.sizes` is (K - 1) x (n + 1), and `noise.scores` has the shape of the rows; both may be
   * larger.
   */
  function relaxedPartition(model, temperature, noise) {
    const n = model.rows[0].length;
    const sizes = relaxedSizes(n, model, temperature, noise.sizes);
    const noisy = model.rows.map((row, k) => row.map((x, i) => x + noise.scores[k][i]));
    const tempered = noisy.map((row) => row.map((x) => x / temperature));
    const order = [];
    const labels = new Array(n).fill(0);
    sizes.hard.forEach((size, k) => {
      const left = orderDescending(rowOf({ rows: noisy }, k)).filter((i) => !order.includes(i));
      for (const i of left.slice(0, size)) {
        labels[i] = k;
        order.push(i);
      }
    });
    let Y;
    if (model.rows.length === 1) {
      const P = neuralSort(tempered[0]);
      Y = sizes.ranks.map((row) =>
        range(n).map((i) => sum(row.map((share, rank) => share * P[rank][i]))),
      );
    } else {
      Y = softTopK(sizes.soft, tempered);
    }
    return { Y, sizes: sizes.hard, order, labels };
  }

  return {
    likelyOrders,
    likelyPartitions,
    logProbBounds,
    marginals,
    neuralSort,
    orderLogProb,
    partitionProbs,
    partitionTables,
    relaxedPartition,
    sampleNoise,
    sizeLaw,
  };
})();

if (typeof module !== "undefined") module.exports = Partitions;

// The quantization bench: numbers, pasted or drawn, really rounded in blocks; error and histograms.

import { blockRounded, octaveIn, relativeError } from "./blocks.js";
import { both, byId, dataIn, fill, inputCalled, make, selectCalled } from "./dom.js";
import { percentOf } from "./spectrum.js";

/** @typedef {import("./blocks.js").Element & {width: number}} BenchElement */

const LIMIT = 65536;
const SHOWN = 12;
/** @type {Record<string, number>} */
const BLOCKS = { tensor: -1, row: 0, 32: 32, 16: 16 };

export function startBench() {
  const elements = /** @type {BenchElement[] | null} */ (dataIn("elements"));
  if (!elements || !document.getElementById("bench")) return;
  fill(selectCalled("bench-element"), elements.map(({ name }) => ({ value: name, en: name, zh: name })));
  byId("bench-draw").addEventListener("click", () => {
    inputCalled("bench-numbers").value = drawn();
    run(elements);
  });
  byId("bench").addEventListener("input", () => run(elements));
  inputCalled("bench-numbers").value = drawn();
  run(elements);
}

/** Numbers of the chosen kind, four rows of 64, the same for the same seed.
 * @returns {string} */
function drawn() {
  const uniform = generator(Number(inputCalled("bench-seed").value) || 0);
  const normal = () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());
  const kinds = /** @type {Record<string, (index: number) => number>} */ ({
    normal,
    "log-normal": () => Math.sign(uniform() - 0.5) * Math.exp(3 * normal()) * 1e-4,
    outlier: (index) => normal() * (index % 64 === 7 ? 100 : 1),
    uniform: () => 2 * uniform() - 1,
  });
  const kind = kinds[selectCalled("bench-kind").value] || normal;
  const rows = Array.from({ length: 4 }, (_, row) => Array.from({ length: 64 }, (__, column) => Number(kind(64 * row + column).toPrecision(5))).join(" "));
  return rows.join("\n");
}

/** Numbers from 0 to 1 by a counter (mulberry32), so that a seed names them.
 * @param {number} seed @returns {() => number} */
function generator(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let bits = Math.imul(state ^ (state >>> 15), 1 | state);
    bits = (bits + Math.imul(bits ^ (bits >>> 7), 61 | bits)) ^ bits;
    return ((bits ^ (bits >>> 14)) >>> 0) / 4294967296;
  };
}

/** Rows of numbers; null and the offending word where a word is none.
 * @param {string} text @returns {{values: Float32Array, columns: number, wrong: string}} */
export function numbersIn(text) {
  const rows = text.trim().split("\n").map((line) => line.split(/[\s,;[\]]+/).filter(Boolean)).filter((row) => row.length);
  const words = rows.flat().slice(0, LIMIT);
  const wrong = words.find((word) => word.toLowerCase() !== "nan" && Number.isNaN(Number(word))) || "";
  const isEven = rows.every((row) => row.length === rows[0].length);
  return { values: Float32Array.from(words, Number), columns: rows.length ? (isEven ? rows[0].length : words.length) : 1, wrong };
}

/** @param {BenchElement[]} elements */
function run(elements) {
  const { values, columns, wrong } = numbersIn(inputCalled("bench-numbers").value);
  const element = elements.find(({ name }) => name === selectCalled("bench-element").value);
  byId("bench-problem").replaceChildren(wrong ? both(`Not a number: ${wrong}`, `不是数：${wrong}`) : "");
  if (wrong || !element || !values.length) return;
  const rule = ruleFor(element);
  const size = selectCalled("bench-block").value;
  const block = BLOCKS[size];
  const { values: after, scales, saturated } = blockRounded(values, columns, element, rule, block);
  const zeroed = values.reduce((sum, value, i) => sum + Number(value !== 0 && after[i] === 0), 0);
  const nonzero = values.reduce((sum, value) => sum + Number(value !== 0), 0);
  const scaleBits = rule === "amax" ? 32 : 8;
  const worst = values.reduce((most, value, i) => Math.max(most, Math.abs(after[i] - value)), 0);
  /** @type {[string, string, string][]} */
  const facts = [
    ["numbers", "数的个数", `${values.length} (${values.length / columns} × ${columns})`],
    ["error of the whole", "整体误差", `${(100 * relativeError(values, after)).toPrecision(4)} %`],
    ["largest error", "最大误差", worst.toPrecision(4)],
    ["became zero", "变为 0", percentOf(zeroed, nonzero)],
    ["saturated", "饱和", percentOf(saturated, values.length)],
    ["scales", "缩放个数", `${scales.length}`],
    ["bits a value", "每个值的位数", (element.width + (scaleBits * scales.length) / values.length).toFixed(2)],
  ];
  byId("bench-facts").replaceChildren(...facts.map(([en, zh, fact]) => make("div", {}, make("dt", {}, both(en, zh)), make("dd", {}, fact))));
  drawHistogram("bench-before", values, values);
  drawHistogram("bench-after", after, values);
  drawFirst(values, after);
}

/** The chosen rule where it fits; NVFP4's is for its own element and blocks of 16.
 * @param {BenchElement} element @returns {import("./blocks.js").Rule} */
function ruleFor(element) {
  const rule = selectCalled("bench-rule").value;
  const fits = rule !== "nvfp4" || element.name === "e2m1fn";
  byId("bench-rule-note").replaceChildren(fits ? "" : both("NVFP4's rule is for e2m1fn; 2^⌊log₂⌋ is used.", "NVFP4 规则只用于 e2m1fn；这里改用 2^⌊log₂⌋。"));
  return fits ? /** @type {import("./blocks.js").Rule} */ (rule) : "floor";
}

/** Bars by octave over the octaves of the numbers before; zeros stand at the left.
 * @param {string} id @param {Float32Array} values @param {Float32Array} range */
function drawHistogram(id, values, range) {
  const octaves = [...range].filter((x) => x && Number.isFinite(x)).map((x) => octaveIn(Math.abs(x)));
  const low = Math.min(0, ...octaves) - 1;
  const high = Math.max(0, ...octaves) + 1;
  const counts = new Map([...Array(high - low + 1)].map((_, place) => [low + place, 0]));
  for (const x of values) {
    const place = x === 0 ? low : Number.isFinite(x) ? Math.min(Math.max(octaveIn(Math.abs(x)), low), high) : high;
    counts.set(place, (counts.get(place) || 0) + 1);
  }
  const most = Math.max(...counts.values());
  const bars = [...counts].map(([octave, count]) => `<rect class="${octave === low ? "zone zero" : "bar"}" x="${octave - low + 0.06}" y="${100 - (100 * count) / most}" width=".88" height="${(100 * count) / most}"/>`);
  byId(id).innerHTML = `<svg viewBox="0 0 ${high - low + 1} 100" preserveAspectRatio="none" aria-hidden="true">${bars.join("")}</svg><div class="ends"><span>0</span><span>2^${low + 1}</span><span>2^${high}</span></div>`;
}

/** @param {Float32Array} before @param {Float32Array} after */
function drawFirst(before, after) {
  const rows = [before, after].map((values, place) => make("tr", {}, make("th", { scope: "row" }, place ? both("after", "之后") : both("before", "之前")), ...[...values.slice(0, SHOWN)].map((x) => make("td", {}, `${Number(x.toPrecision(4))}`))));
  byId("bench-first").replaceChildren(make("tbody", {}, ...rows));
}

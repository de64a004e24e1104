// The number line: a slider moves the gradient, and counts say what becomes of it.

import { both, byId, chosen, dataIn, fill, inputCalled, make, selectCalled } from "./dom.js";
import { castAt, percentOf, sumOf } from "./spectrum.js";

/** @typedef {import("./spectrum.js").Counts & {layer: string, role: string, energy: number, measured: number[][]}} Part */
/** @typedef {{formats: import("./spectrum.js").LineFormat[], left: number, right: number, states: {name: string, parts: Part[]}[]}} LineData */

const SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹";

export function startLine() {
  /** @type {LineData | null} */
  const data = dataIn("line-data");
  if (!data) return;
  const shown = data;
  const parts = shown.states[0].parts;
  const listed = (/** @type {string[]} */ values) => [
    { value: "", en: "all", zh: "全部" },
    ...[...new Set(values)].map((value) => ({ value, en: value, zh: value })),
  ];
  fill(selectCalled("line-layer"), listed(parts.map((part) => part.layer)));
  fill(selectCalled("line-role"), listed(parts.map((part) => part.role)));
  byId("line").addEventListener("input", () => drawLine(shown));
  drawLine(shown);
}

/** @param {LineData} data */
function drawLine(data) {
  const exponent = Number(inputCalled("line-scale").value);
  const state = data.states[Number(chosen("line-state"))];
  const layer = selectCalled("line-layer").value;
  const role = selectCalled("line-role").value;
  const parts = state.parts.filter((part) => (!layer || part.layer === layer) && (!role || part.role === role));
  const counts = sumOf(parts);
  byId("line-scale-text").textContent = scaleText(exponent);
  inputCalled("line-scale").setAttribute("aria-valuetext", scaleText(exponent));
  const bars = byId("line-bars");
  bars.setAttribute("d", barsOf(counts));
  bars.style.transform = `translateX(${exponent}px)`;
  drawBackground(data);
  for (const format of data.formats) {
    const found = castAt(counts, format, exponent);
    const cells = rowOf("line-table", format.name);
    cells[0].textContent = percentOf(found.underflow, found.of);
    cells[1].textContent = percentOf(found.subnormal, found.of);
    cells[2].textContent = percentOf(found.overflow, found.of);
  }
  drawBlocks(parts);
}

/** @param {string} table @param {string} format @returns {HTMLTableCellElement[]} */
function rowOf(table, format) {
  return [...byId(table).querySelectorAll(`tr[data-format="${format}"] td`)].map((cell) => /** @type {HTMLTableCellElement} */ (cell));
}

/** @param {number} exponent @returns {string} */
export function scaleText(exponent) {
  const digits = [...`${Math.abs(exponent)}`].map((digit) => SUPERSCRIPTS[Number(digit)]).join("");
  const whole = exponent >= 0 ? `${2 ** exponent}`.replace(/\B(?=(\d{3})+$)/g, " ") : `1/${2 ** -exponent}`;
  return `2${exponent < 0 ? "⁻" : ""}${digits} = ${whole}`;
}

/** Bars an octave wide; an octave that holds anything shows at least a sliver.
 * @param {import("./spectrum.js").Counts} counts @returns {string} */
function barsOf(counts) {
  const sums = counts.rows.map((row) => row.reduce((sum, count) => sum + count, 0));
  const top = Math.max(1, ...sums);
  return sums
    .map((sum, place) => (sum ? `M${(counts.first + place + 0.06).toFixed(2)} 100h.88v${-Math.max(1.2, (100 * sum) / top)}h-.88z` : ""))
    .join("");
}

/** @param {LineData} data */
function drawBackground(data) {
  const format = data.formats.find(({ name }) => name === chosen("line-format"));
  if (!format) return;
  const ends = [data.left, format.least - 1, format.emin, format.emax + 1, data.right].map((end) => Math.min(Math.max(end, data.left), data.right));
  const rects = ["zero", "subnormal", "normal", "overflow"].map((kind, place) => {
    const rect = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    for (const [name, value] of Object.entries({ class: `zone ${kind}`, x: ends[place], y: 0, width: ends[place + 1] - ends[place], height: 100 })) {
      rect.setAttribute(name, `${value}`);
    }
    return rect;
  });
  byId("line-back").replaceChildren(...rects);
}

/** Measured counts of the chosen tensors, added up; errors by the energy they are relative to.
 * @param {Part[]} parts */
function drawBlocks(parts) {
  const rows = byId("line-blocks").querySelectorAll("tbody tr");
  rows.forEach((row, place) => {
    const there = parts.filter((part) => part.measured.length);
    const total = (/** @type {number} */ column) => there.reduce((sum, part) => sum + part.measured[place][column], 0);
    const energy = there.reduce((sum, part) => sum + part.energy, 0);
    const lost = there.reduce((sum, part) => sum + part.measured[place][3] ** 2 * part.energy, 0);
    const cells = row.querySelectorAll("td");
    cells[0].textContent = percentOf(total(0), total(2));
    cells[1].textContent = percentOf(total(1), total(2));
    cells[2].replaceChildren(energy ? `${((100 * Math.sqrt(lost / energy))).toPrecision(3)} %` : both("none", "无"));
  });
  if (!parts.length) rows.forEach((row) => row.querySelectorAll("td").forEach((cell) => cell.replaceChildren(make("span", {}, "–"))));
}

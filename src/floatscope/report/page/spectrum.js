// Predictions from counts: the arithmetic of floatscope/spectrum/predict.py, in integers.

import { finite, fromNumber, halfEven, scientific, times } from "./exact.js";

/** Counts of a spectrum by octave, from `first` upwards, each split at a few classes.
 * @typedef {{first: number, rows: number[][]}} Counts */

/** A place between cells: an octave, and the index of a split in it.
 * @typedef {[number, number] | null} Edge */

/** @typedef {{name: string, zero: Edge, normal: Edge, over: Edge, least: number, emin: number, emax: number}} LineFormat */

/** Elements in cells before an edge.
 * @param {Counts} counts @param {number} octave @param {number} split @returns {number} */
export function countBefore(counts, octave, split) {
  let below = 0;
  counts.rows.forEach((row, place) => {
    const here = counts.first + place;
    row.forEach((count, index) => {
      if (here < octave || (here === octave && index < split)) below += count;
    });
  });
  return below;
}

/** @param {Counts} counts @returns {number} */
export function elements(counts) {
  return counts.rows.flat().reduce((sum, count) => sum + count, 0);
}

/** What a cast of 2^exponent times the tensor does, in numbers of elements.
 * @param {Counts} counts @param {LineFormat} format @param {number} exponent
 * @returns {{underflow: number, subnormal: number, overflow: number, of: number}} */
export function castAt(counts, format, exponent) {
  /** @param {Edge} edge */
  const below = (edge) => (edge ? countBefore(counts, edge[0] - exponent, edge[1]) : 0);
  const underflow = below(format.zero);
  return {
    underflow,
    subnormal: format.normal ? below(format.normal) - underflow : 0,
    overflow: elements(counts) - below(format.over),
    of: elements(counts),
  };
}

/** The spectrum of several tensors together.
 * @param {Counts[]} parts @returns {Counts} */
export function sumOf(parts) {
  const held = parts.filter((part) => part.rows.length);
  if (!held.length) return { first: 0, rows: [] };
  const first = Math.min(...held.map((part) => part.first));
  const last = Math.max(...held.map((part) => part.first + part.rows.length));
  /** @type {number[][]} */
  const rows = Array.from({ length: last - first }, () => []);
  for (const part of held) {
    part.rows.forEach((row, place) => {
      const target = rows[part.first - first + place];
      row.forEach((count, index) => {
        while (target.length <= index) target.push(0);
        target[index] += count;
      });
    });
  }
  return { first, rows };
}

/** A share in percent as Python's `percent` writes it: two digits where it is small, 0 only for 0.
 * @param {number} count @param {number} of @returns {string} */
export function percentOf(count, of) {
  if (!of) return "–";
  if (!count) return "0 %";
  const value = 100 * (count / of);
  const exact = fromNumber(value);
  if (value >= 1) {
    const tenths = halfEven(times(exact, finite(10n, 1n)));
    return `${tenths / 10n}.${tenths % 10n} %`;
  }
  if (value >= 1e-4) return `${scientific(exact, 2)} %`;
  return `${scientific(exact, 1).replace(/e-(\d)$/, "e-0$1")} %`;
}

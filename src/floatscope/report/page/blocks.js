// Blocks of numbers that share a scale, in fp32 as the rules prescribe: the arithmetic of
// floatscope/rounding/reference_blocks.py, operation by operation.

/** What an element rounds to: a small float or an integer format, as numbers.
 * @typedef {{name: string, fractionBits: number, emin: number, max: number, min: number, step: number}} Element */

/** @typedef {"amax" | "floor" | "rceil" | "nvfp4"} Rule */

const FP32_MAX = 3.4028234663852886e38;
const SCALE_RANGE = 127;
const E4M3_MAX = 448;

/** The e with 2^e <= x < 2^(e+1), of a positive finite number.
 * @param {number} x @returns {number} */
export function octaveIn(x) {
  const view = new DataView(new ArrayBuffer(8));
  view.setFloat64(0, x);
  const field = (view.getUint32(0) >>> 20) & 0x7ff;
  return field ? field - 1023 : octaveIn(x * 2 ** 60) - 60;
}

/** To the nearest whole number, of two the even one.
 * @param {number} x not negative, far below 2^52 @returns {number} */
function nearestEven(x) {
  const whole = Math.floor(x);
  const rest = x - whole;
  return rest > 0.5 || (rest === 0.5 && whole % 2 === 1) ? whole + 1 : whole;
}

/** Rounded to nearest, ties to even; what lies beyond the largest value becomes it.
 * @param {number} x @param {Element} element @returns {number} */
export function roundedElement(x, element) {
  if (Number.isNaN(x)) return NaN;
  const isNegative = x < 0 || Object.is(x, -0);
  const size = Math.abs(x);
  const limit = isNegative ? -element.min : element.max;
  if (size > limit * 2) return isNegative ? element.min : element.max;
  const unit = element.step || 2 ** ((size ? Math.max(octaveIn(size), element.emin) : element.emin) - element.fractionBits);
  const value = Math.min(nearestEven(size / unit) * unit, limit);
  return isNegative ? (value || !element.step ? -value : 0) : value;
}

/** The values of fp8's e4m3fn, in which NVFP4 stores its scales.
 * @type {Element} */
const E4M3 = { name: "e4m3fn", fractionBits: 3, emin: -6, max: E4M3_MAX, min: -E4M3_MAX, step: 0 };

/** The factor that brings a whole tensor into NVFP4's range.
 * @param {number} amax @param {Element} element @returns {number} */
export function tensorEncode(amax, element) {
  if (!Number.isFinite(amax) || !amax) return 1;
  const factor = Math.fround(Math.min(Math.fround(Math.fround(E4M3_MAX * element.max) / amax), FP32_MAX));
  return factor > 0 ? factor : 1;
}

/** Elements are values times `encode`, and come back times `scale`.
 * @param {number} amax largest magnitude; NaN if there is a NaN @param {Element} element
 * @param {Rule} rule @param {number} ofTensor NVFP4's factor
 * @returns {{scale: number, encode: number}} */
export function scalingOf(amax, element, rule, ofTensor) {
  if (rule === "amax") {
    if (!Number.isFinite(amax) || !amax) return { scale: 1, encode: 1 };
    const encode = Math.fround(Math.min(Math.fround(element.max / amax), FP32_MAX));
    return { scale: Math.fround(1 / encode), encode };
  }
  if (!Number.isFinite(amax)) return { scale: NaN, encode: NaN };
  if (rule === "nvfp4") return nvfp4Scaling(amax, element, ofTensor);
  const exponent = Math.min(Math.max(powerFor(amax, element, rule), -SCALE_RANGE), SCALE_RANGE);
  return { scale: Math.fround(2 ** exponent), encode: Math.fround(2 ** -exponent) };
}

/** @param {number} amax @param {Element} element @param {number} ofTensor */
function nvfp4Scaling(amax, element, ofTensor) {
  const decode = Math.fround(1 / ofTensor);
  const wanted = Math.fround(amax * Math.fround(ofTensor * Math.fround(1 / element.max)));
  const scale = Math.fround(roundedElement(wanted, E4M3) * decode);
  return { scale, encode: scale ? Math.fround(Math.min(Math.fround(1 / scale), FP32_MAX)) : FP32_MAX };
}

/** @param {number} amax @param {Element} element @param {Rule} rule @returns {number} */
function powerFor(amax, element, rule) {
  if (!amax) return -SCALE_RANGE;
  if (rule === "floor") return octaveIn(amax) - octaveIn(element.max);
  const quotient = Math.fround(amax * Math.fround(1 / element.max));
  if (!quotient) return -SCALE_RANGE;
  return octaveIn(quotient) + (quotient === 2 ** octaveIn(quotient) ? 0 : 1);
}

/** A matrix in a block format.
 * @param {Float32Array} values row by row @param {number} columns
 * @param {Element} element @param {Rule} rule
 * @param {number} block elements along a row that share a scale; 0 for all of a row, -1 for all
 * @returns {{values: Float32Array, scales: number[], saturated: number}} */
export function blockRounded(values, columns, element, rule, block) {
  const out = new Float32Array(values.length);
  /** @type {number[]} */
  const scales = [];
  const ofTensor = rule === "nvfp4" ? tensorEncode(amaxOf(values), element) : 1;
  let saturated = 0;
  for (const [start, stop] of spansOf(values.length, columns, block)) {
    const { scale, encode } = scalingOf(amaxOf(values.subarray(start, stop)), element, rule, ofTensor);
    scales.push(scale);
    for (let i = start; i < stop; i += 1) {
      const scaled = Math.fround(values[i] * encode);
      const stored = roundedElement(scaled, element);
      saturated += Number(Math.abs(scaled) > (scaled < 0 ? -element.min : element.max) && isBeyond(scaled, element));
      out[i] = Math.fround(stored * scale);
    }
  }
  return { values: out, scales, saturated };
}

/** Whether a number would round beyond the largest value, were there larger ones.
 * @param {number} x @param {Element} element @returns {boolean} */
function isBeyond(x, element) {
  const limit = x < 0 ? -element.min : element.max;
  const unit = element.step || 2 ** (octaveIn(element.max) - element.fractionBits);
  return nearestEven(Math.abs(x) / unit) * unit > limit;
}

/** @param {Float32Array} values @returns {number} NaN if there is a NaN */
function amaxOf(values) {
  return values.reduce((most, value) => (Number.isNaN(most) || Number.isNaN(value) ? NaN : Math.max(most, Math.abs(value))), 0);
}

/** First and last index of each block.
 * @param {number} size @param {number} columns @param {number} block @returns {[number, number][]} */
function spansOf(size, columns, block) {
  if (block < 0) return size ? [[0, size]] : [];
  /** @type {[number, number][]} */
  const spans = [];
  for (let row = 0; row < size; row += columns) {
    const end = Math.min(row + columns, size);
    const width = block || columns;
    for (let start = row; start < end; start += width) spans.push([start, Math.min(start + width, end)]);
  }
  return spans;
}

/** The error of the whole: 2-norm of the difference by the 2-norm of the values.
 * @param {Float32Array} before @param {Float32Array} after @returns {number} */
export function relativeError(before, after) {
  let lost = 0;
  let energy = 0;
  before.forEach((value, i) => {
    lost += (after[i] - value) ** 2;
    energy += value ** 2;
  });
  return energy ? Math.sqrt(lost / energy) : NaN;
}

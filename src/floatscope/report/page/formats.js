// Formats from their data: decode, round, encode, neighbors, ulp. The Python library's
// floatscope/formats/values.py and floatscope/rounding/reference.py, in the same exact arithmetic.

import { NAN, ZERO, compare, finite, halfEven, isFinite_, magnitude, minus, negated, octaveOf, power, special, times } from "./exact.js";

/** @typedef {import("./exact.js").Value} Value */
/** @typedef {{kind: "float", name: string, exponentBits: number, fractionBits: number, bias: number, specials: "ieee" | "outermost NaN" | "negative-zero NaN" | "none", signed: boolean, zero: boolean}} FloatFormat */
/** @typedef {{kind: "int", name: string, width: number, stepExponent: number}} IntFormat */
/** @typedef {FloatFormat | IntFormat} ScalarFormat */

/** @param {ScalarFormat} form @returns {number} bits of a code */
export function widthOf(form) {
  return form.kind === "int" ? form.width : Number(form.signed) + form.exponentBits + form.fractionBits;
}

/** @param {FloatFormat} form @returns {bigint} the sign bit of a code, 0 without a sign */
function signMask(form) {
  return form.signed ? 1n << BigInt(widthOf(form) - 1) : 0n;
}

/** @param {FloatFormat} form @returns {bigint} */
function largestCode(form) {
  const ones = (1n << BigInt(form.exponentBits + form.fractionBits)) - 1n;
  if (form.specials === "ieee") return (((1n << BigInt(form.exponentBits)) - 1n) << BigInt(form.fractionBits)) - 1n;
  return form.specials === "outermost NaN" ? ones - 1n : ones;
}

/** @param {FloatFormat} form @returns {number} exponent of the smallest normal value */
export function eminOf(form) {
  return (form.zero ? 1 : 0) - form.bias;
}

/** @param {FloatFormat} form @param {bigint} code without sign @returns {number} */
export function exponentIn(form, code) {
  return Math.max(Number(code >> BigInt(form.fractionBits)), form.zero ? 1 : 0) - form.bias;
}

/** @param {FloatFormat} form @param {bigint} code without sign @returns {Value} */
function magnitudeIn(form, code) {
  const fraction = code & ((1n << BigInt(form.fractionBits)) - 1n);
  const isNormal = !form.zero || code >> BigInt(form.fractionBits) > 0n;
  const significand = fraction + (isNormal ? 1n << BigInt(form.fractionBits) : 0n);
  return times(finite(significand, 1n), power(exponentIn(form, code) - form.fractionBits));
}

/** @param {ScalarFormat} form @returns {Value} the largest finite value */
export function maxOf(form) {
  if (form.kind === "int") return times(finite((1n << BigInt(form.width - 1)) - 1n, 1n), power(form.stepExponent));
  return magnitudeIn(form, largestCode(form));
}

/** @param {ScalarFormat} form @returns {Value} the lowest value */
function minOf(form) {
  if (form.kind === "float") return form.signed ? negated(maxOf(form)) : magnitudeIn(form, 0n);
  return minus(negated(maxOf(form)), power(form.stepExponent));
}

/** @param {ScalarFormat} form @param {bigint} code @returns {"zero" | "subnormal" | "normal" | "infinite" | "nan"} */
export function classOf(form, code) {
  if (form.kind === "int") return code ? "normal" : "zero";
  const size = code & ~signMask(form);
  if (form.specials === "negative-zero NaN" && code === signMask(form)) return "nan";
  if (form.specials === "outermost NaN" && size === largestCode(form) + 1n) return "nan";
  if (form.specials === "ieee" && size > largestCode(form)) return size === largestCode(form) + 1n ? "infinite" : "nan";
  if (form.zero && !size) return "zero";
  return form.zero && !(size >> BigInt(form.fractionBits)) ? "subnormal" : "normal";
}

/** The value of a code.
 * @param {ScalarFormat} form @param {bigint} code @returns {Value} */
export function decoded(form, code) {
  if (form.kind === "int") {
    const half = 1n << BigInt(form.width - 1);
    return times(finite(code >= half ? code - 2n * half : code, 1n), power(form.stepExponent));
  }
  const kind = classOf(form, code);
  const isNegative = Boolean(code & signMask(form));
  if (kind === "nan") return NAN;
  if (kind === "infinite") return special(isNegative ? "-inf" : "inf");
  const size = magnitudeIn(form, code & ~signMask(form));
  if (!isNegative) return size;
  return size.n ? negated(size) : special("-0");
}

/** Rounded to nearest, ties to even, by the standard's rules; null where the format has no answer.
 * @param {ScalarFormat} form @param {Value} value @returns {Value | null} */
export function rounded(form, value) {
  if (value.special === "nan") return hasNan(form) ? NAN : null;
  const isNegative = value.special === "-0" || value.special === "-inf" || value.n < 0n;
  if (form.kind === "float" && !form.signed && isNegative && value.special !== "-0") return NAN;
  if (!isFinite_(value)) return beyond(form, isNegative);
  const size = magnitude(value);
  if (form.kind === "float" && !form.zero && !size.n) return NAN;
  const step = form.kind === "int" ? form.stepExponent : (size.n ? Math.max(octaveOf(size), eminOf(form)) : eminOf(form)) - form.fractionBits;
  const nearest = times(finite(halfEven(times(size, power(-step))), 1n), power(step));
  return finished(form, nearest, isNegative);
}

/** @param {ScalarFormat} form @param {Value} size @param {boolean} isNegative @returns {Value} */
function finished(form, size, isNegative) {
  const limit = isNegative && form.kind === "int" ? magnitude(minOf(form)) : maxOf(form);
  if (compare(size, limit) > 0) return beyond(form, isNegative);
  if (!size.n && form.kind === "float") {
    if (!form.zero) return magnitudeIn(form, 0n);
    return isNegative && form.specials !== "negative-zero NaN" ? special("-0") : ZERO;
  }
  return isNegative ? negated(size) : size;
}

/** @param {ScalarFormat} form @returns {boolean} */
function hasNan(form) {
  return form.kind === "float" && (form.specials === "ieee" ? form.fractionBits > 0 : form.specials !== "none");
}

/** @param {ScalarFormat} form @param {boolean} isNegative @returns {Value} */
function beyond(form, isNegative) {
  if (form.kind === "float" && form.specials === "ieee") return special(isNegative ? "-inf" : "inf");
  if (hasNan(form)) return NAN;
  return isNegative ? minOf(form) : maxOf(form);
}

/** The code of a value that the format holds.
 * @param {ScalarFormat} form @param {Value} value @returns {bigint} */
export function encoded(form, value) {
  if (form.kind === "int") {
    const steps = times(value, power(-form.stepExponent)).n;
    return steps < 0n ? steps + (1n << BigInt(form.width)) : steps;
  }
  const sign = signMask(form);
  if (value.special === "nan") return nanCode(form);
  if (value.special === "-0") return sign;
  if (value.special) return (value.special === "-inf" ? sign : 0n) | (largestCode(form) + 1n);
  return (value.n < 0n ? sign : 0n) | floorCode(form, magnitude(value));
}

/** @param {FloatFormat} form @returns {bigint} */
function nanCode(form) {
  if (form.specials === "negative-zero NaN") return signMask(form);
  if (form.specials === "outermost NaN") return largestCode(form) + 1n;
  return (largestCode(form) + 1n) | (1n << BigInt(form.fractionBits - 1));
}

/** Code of the largest value that is at most `size`; -1 if there is none.
 * @param {FloatFormat} form @param {Value} size @returns {bigint} */
function floorCode(form, size) {
  if (compare(size, maxOf(form)) >= 0) return largestCode(form);
  const least = magnitudeIn(form, form.zero ? 1n : 0n);
  if (compare(size, least) < 0) return form.zero ? 0n : -1n;
  const exponent = Math.max(octaveOf(size), eminOf(form));
  const steps = times(size, power(form.fractionBits - exponent));
  const whole = steps.n / steps.d;
  const hidden = 1n << BigInt(form.fractionBits);
  return whole >= hidden ? (BigInt(exponent + form.bias) << BigInt(form.fractionBits)) + whole - hidden : whole;
}

/** The nearest values of the format on both sides of one that it holds; null where there is none.
 * @param {ScalarFormat} form @param {Value} value @returns {[Value | null, Value | null]} */
export function neighborsOf(form, value) {
  if (form.kind === "int") {
    const step = power(form.stepExponent);
    const [below, above] = [minus(value, step), minus(value, negated(step))];
    return [compare(below, minOf(form)) < 0 ? null : below, compare(above, maxOf(form)) > 0 ? null : above];
  }
  if (value.special === "inf") return [maxOf(form), null];
  if (value.special === "-inf") return [null, negated(maxOf(form))];
  const number = value.special ? ZERO : value;
  const mirrored = (/** @type {Value | null} */ size) => (size && (size.special || size.n) ? negated(size) : size);
  if (number.n > 0n) return [inward(form, number), outward(form, number)];
  if (number.n < 0n) return [mirrored(outward(form, negated(number))), mirrored(inward(form, negated(number)))];
  return [form.signed ? mirrored(outward(form, ZERO)) : null, outward(form, ZERO)];
}

/** @param {FloatFormat} form @param {Value} size @returns {Value | null} */
function inward(form, size) {
  const code = floorCode(form, size) - 1n;
  return code < 0n ? null : magnitudeIn(form, code);
}

/** @param {FloatFormat} form @param {Value} size @returns {Value | null} */
function outward(form, size) {
  const code = floorCode(form, size);
  if (code < largestCode(form)) return magnitudeIn(form, code + 1n);
  return form.specials === "ieee" ? special("inf") : null;
}

/** The distance between neighbors in the octave of a number.
 * @param {ScalarFormat} form @param {Value} value @returns {Value} */
export function ulpOf(form, value) {
  if (form.kind === "int") return power(form.stepExponent);
  const size = magnitude(value);
  const exponent = size.n ? octaveOf(size) : eminOf(form);
  const top = exponentIn(form, largestCode(form));
  return power(Math.min(Math.max(exponent, eminOf(form)), top) - form.fractionBits);
}

/** Digits that tell a value from its neighbors.
 * @param {ScalarFormat} form @returns {number} */
export function tellingDigits(form) {
  return form.kind === "int" ? 6 : 2 + Math.ceil((form.fractionBits + 1) * Math.log10(2));
}

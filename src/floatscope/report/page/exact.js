// Numbers exactly: rationals of big integers, and the few values that are none. The words are those
// of floatscope/formats/show.py and floatscope/formats/values.py.

/** A number n / d with d > 0, or a special value.
 * @typedef {{n: bigint, d: bigint, special: "" | "-0" | "inf" | "-inf" | "nan"}} Value */

export const ZERO = finite(0n, 1n);
export const NAN = special("nan");

/** @param {bigint} n @param {bigint} d @returns {Value} the quotient in lowest terms */
export function finite(n, d) {
  if (d < 0n) [n, d] = [-n, -d];
  const common = gcd(n < 0n ? -n : n, d);
  return { n: n / common, d: d / common, special: "" };
}

/** @param {"-0" | "inf" | "-inf" | "nan"} kind @returns {Value} */
export function special(kind) {
  return { n: 0n, d: 1n, special: kind };
}

/** @param {bigint} a @param {bigint} b @returns {bigint} */
function gcd(a, b) {
  while (b) [a, b] = [b, a % b];
  return a;
}

/** @param {Value} value @returns {boolean} a number, -0 among them */
export function isFinite_(value) {
  return value.special === "" || value.special === "-0";
}

/** @param {number} exponent @returns {Value} */
export function power(exponent) {
  return exponent >= 0 ? finite(1n << BigInt(exponent), 1n) : finite(1n, 1n << BigInt(-exponent));
}

/** @param {Value} a @param {Value} b @returns {Value} */
export function times(a, b) {
  return finite(a.n * b.n, a.d * b.d);
}

/** @param {Value} a @param {Value} b @returns {Value} */
export function minus(a, b) {
  return finite(a.n * b.d - b.n * a.d, a.d * b.d);
}

/** Below zero, zero or above it, as a is less than, equal to or greater than b.
 * @param {Value} a @param {Value} b @returns {number} */
export function compare(a, b) {
  const difference = a.n * b.d - b.n * a.d;
  return difference < 0n ? -1 : difference > 0n ? 1 : 0;
}

/** @param {Value} value @returns {Value} */
export function magnitude(value) {
  return finite(value.n < 0n ? -value.n : value.n, value.d);
}

/** @param {Value} value @returns {Value} */
export function negated(value) {
  if (value.special === "inf") return special("-inf");
  if (value.special === "-inf") return special("inf");
  return finite(-value.n, value.d);
}

/** @param {bigint} n a positive number @returns {number} */
export function bitLength(n) {
  return n.toString(2).length;
}

/** The e with 2^e <= x < 2^(e+1), for a positive x.
 * @param {Value} x @returns {number} */
export function octaveOf(x) {
  const exponent = bitLength(x.n) - bitLength(x.d);
  return compare(x, power(exponent)) >= 0 ? exponent : exponent - 1;
}

/** A number of JavaScript, exactly.
 * @param {number} x @returns {Value} */
export function fromNumber(x) {
  if (Number.isNaN(x)) return NAN;
  if (!Number.isFinite(x)) return special(x > 0 ? "inf" : "-inf");
  if (Object.is(x, -0)) return special("-0");
  let shift = 0;
  while (!Number.isInteger(x)) {
    x *= 2;
    shift += 1;
  }
  return finite(BigInt(x), 1n << BigInt(shift));
}

const MOST_EXPONENT = 20000;
const MOST_TEXT = 4000;
const DECIMAL = /^([-+]?)(\d*)\.?(\d*)(?:e([-+]?\d+))?$/;
const HEXADECIMAL = /^([-+]?)0x(?=\.?[0-9a-f])([0-9a-f]*)\.?([0-9a-f]*)(?:p([-+]?\d+))?$/;
const QUOTIENT = /^([-+]?)(\d+)\/(\d+)$/;

/** A decimal, a hex float, a quotient, inf or nan; null for a text that is none.
 * @param {string} given @returns {Value | null} */
export function parsed(given) {
  const text = given.trim().toLowerCase();
  if (text.length > MOST_TEXT) return null;
  if (/^[-+]?nan$/.test(text)) return NAN;
  if (/^[-+]?inf(inity)?$/.test(text)) return special(text.startsWith("-") ? "-inf" : "inf");
  const value = numberIn(text);
  if (value && !value.n && text.startsWith("-")) return special("-0");
  return value;
}

/** @param {string} text @returns {Value | null} */
function numberIn(text) {
  let found = QUOTIENT.exec(text);
  if (found) return Number(found[3]) ? signedBy(found[1], finite(BigInt(found[2]), BigInt(found[3]))) : null;
  found = HEXADECIMAL.exec(text);
  const base = found ? 16 : 10;
  found = found || DECIMAL.exec(text);
  if (!found || (!found[2] && !found[3])) return null;
  const exponent = Number(found[4] || 0);
  if (Math.abs(exponent) > MOST_EXPONENT) return null;
  const digits = BigInt((base === 16 ? "0x" : "") + (found[2] + found[3] || "0"));
  const scale = base === 16 ? power(exponent - 4 * found[3].length) : tens(exponent - found[3].length);
  return signedBy(found[1], times(finite(digits, 1n), scale));
}

/** @param {string} sign @param {Value} value @returns {Value} */
function signedBy(sign, value) {
  return sign === "-" ? negated(value) : value;
}

/** @param {number} exponent @returns {Value} */
function tens(exponent) {
  return exponent >= 0 ? finite(10n ** BigInt(exponent), 1n) : finite(1n, 10n ** BigInt(-exponent));
}

const MOST_DIGITS = 9;

/** A value as people read it: what is shown without "≈" is exact.
 * @param {Value | null} value @param {number} digits @returns {string} */
export function shown(value, digits = 6) {
  if (!value) return "–";
  if (value.special) return { "-0": "-0", inf: "inf", "-inf": "-inf", nan: "NaN" }[value.special];
  if (!value.n) return "0";
  const sign = value.n < 0n ? "-" : "";
  const size = magnitude(value);
  const exponent = powerOfTwo(size);
  const text = shortDecimal(value);
  if (exponent !== null && (text === null || exponent < -3)) return `${sign}2^${exponent}`;
  return text === null ? `≈${scientific(value, digits)}` : text;
}

/** @param {Value} size @returns {number | null} */
function powerOfTwo(size) {
  if (size.d === 1n && !(size.n & (size.n - 1n))) return bitLength(size.n) - 1;
  if (size.n === 1n && !(size.d & (size.d - 1n))) return 1 - bitLength(size.d);
  return null;
}

/** @param {Value} value @returns {string | null} */
function shortDecimal(value) {
  if (value.d & (value.d - 1n)) return null;
  if (magnitude(value).n >= 10n ** BigInt(MOST_DIGITS) * value.d || bitLength(value.d) > 4 * MOST_DIGITS) return null;
  const text = exactDecimal(value);
  return text.replace(/\D/g, "").length <= MOST_DIGITS ? text : null;
}

/** All decimal digits of a value whose denominator is a power of two.
 * @param {Value} value @returns {string} */
export function exactDecimal(value) {
  const shift = bitLength(value.d) - 1;
  return (value.n < 0n ? "-" : "") + ofTens(magnitude(value).n * 5n ** BigInt(shift), shift);
}

/** @param {bigint} digits @param {number} shift @returns {string} digits / 10^shift without trailing zeros */
function ofTens(digits, shift) {
  const text = `${digits}`.padStart(shift + 1, "0");
  const whole = shift ? text.slice(0, -shift) : text;
  const fraction = shift ? text.slice(-shift).replace(/0+$/, "") : "";
  return fraction ? `${whole}.${fraction}` : whole;
}

/** So many significant digits, correctly rounded.
 * @param {Value} value @param {number} digits @returns {string} */
export function scientific(value, digits) {
  const size = magnitude(value);
  let exponent = `${size.n}`.length - `${size.d}`.length;
  if (compare(size, tens(exponent)) < 0) exponent -= 1;
  let scaled = halfEven(times(size, tens(digits - 1 - exponent)));
  if (scaled >= 10n ** BigInt(digits)) {
    scaled /= 10n;
    exponent += 1;
  }
  const sign = value.n < 0n ? "-" : "";
  if (exponent >= -4 && exponent < digits) return sign + ofTens(scaled, digits - 1 - exponent);
  return `${sign}${ofTens(scaled, digits - 1)}e${exponent}`;
}

/** The nearest whole number, of two the even one.
 * @param {Value} size not negative @returns {bigint} */
export function halfEven(size) {
  const whole = size.n / size.d;
  const twice = 2n * (size.n % size.d);
  const up = twice > size.d || (twice === size.d && whole & 1n);
  return up ? whole + 1n : whole;
}

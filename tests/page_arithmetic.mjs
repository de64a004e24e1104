// Runs the page's arithmetic on tasks from standard input, for tests/test_report_arithmetic.py.

import { readFileSync } from "node:fs";

const page = process.argv[2];
const { exactDecimal, isFinite_, minus, parsed, scientific, shown } = await import(`${page}/exact.js`);
const { classOf, decoded, encoded, neighborsOf, rounded, tellingDigits, ulpOf } = await import(`${page}/formats.js`);
const { castAt, percentOf, sumOf } = await import(`${page}/spectrum.js`);
const { blockRounded, relativeError } = await import(`${page}/blocks.js`);

const bitsOf = (x) => {
  const view = new DataView(new ArrayBuffer(4));
  view.setFloat32(0, x);
  return Number.isNaN(x) ? "nan" : view.getUint32(0);
};
const floats = (bits) => new Float32Array(new Uint32Array(bits).buffer);

const tasks = {
  number({ text, form }) {
    const wanted = parsed(text);
    const stored = wanted && rounded(form, wanted);
    if (!stored) return null;
    const isNan = stored.special === "nan";
    return {
      code: isNan ? "nan" : `${encoded(form, stored)}`,
      stored: shown(stored, 17),
      neighbors: isNan ? null : neighborsOf(form, stored).map((value) => shown(value, tellingDigits(form))),
      ulp: isFinite_(stored) ? shown(ulpOf(form, stored)) : null,
      error: isFinite_(stored) && isFinite_(wanted) ? shown(minus(stored, wanted)) : null,
    };
  },
  code({ code, form }) {
    const value = decoded(form, BigInt(code));
    return { kind: classOf(form, BigInt(code)), value: value.special ? shown(value) : exactDecimal(value) };
  },
  shown({ text, digits }) {
    const value = parsed(text);
    return value && shown(value, digits);
  },
  cast: ({ parts, form, exponent }) => castAt(sumOf(parts), form, exponent),
  percent: ({ count, of }) => percentOf(count, of),
  block({ bits, columns, element, rule, block }) {
    const before = floats(bits);
    const { values, scales, saturated } = blockRounded(before, columns, element, rule, block);
    return { values: [...values].map(bitsOf), scales: scales.map((x) => bitsOf(Math.fround(x))), saturated, error: relativeError(before, values) };
  },
};

const given = JSON.parse(readFileSync(0, "utf8"));
process.stdout.write(JSON.stringify(given.map(({ task, ...rest }) => tasks[task](rest))));

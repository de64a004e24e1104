// The bit explorer: a format's bits as buttons, a number as text, and what each makes of the other.

import { both, byId, dataIn, fill, inputCalled, make, selectCalled } from "./dom.js";
import { exactDecimal, finite, isFinite_, magnitude, minus, parsed, scientific, shown, special, times } from "./exact.js";
import { classOf, decoded, encoded, exponentIn, neighborsOf, rounded, tellingDigits, ulpOf, widthOf } from "./formats.js";

/** @typedef {import("./exact.js").Value} Value */
/** @typedef {import("./formats.js").ScalarFormat} ScalarFormat */
/** @typedef {{kind: "block", name: string, element: ScalarFormat, scale: ScalarFormat}} BlockFormat */

/** The codes on show: one, or a block's scale and one of its elements.
 * @type {{form: ScalarFormat, code: bigint, what: [string, string]}[]} */
let fields = [];
/** @type {Value | null} */
let typed = null;

const CLASSES = {
  zero: ["zero", "零"], subnormal: ["subnormal", "次正规数"], normal: ["normal", "正规数"],
  infinite: ["infinite", "无穷"], nan: ["not a number", "非数"],
};

export function startBits() {
  const catalogue = /** @type {(ScalarFormat | BlockFormat)[] | null} */ (dataIn("formats"));
  if (!catalogue || !document.getElementById("bits")) return;
  const select = selectCalled("bits-format");
  fill(select, catalogue.map(({ name }) => ({ value: name, en: name, zh: name })));
  select.value = "fp16";
  select.addEventListener("change", () => begin(catalogue));
  inputCalled("bits-value").addEventListener("input", readText);
  byId("bits-fields").addEventListener("click", flipClicked);
  byId("bits-fields").addEventListener("keydown", walk);
  for (const [id, side] of [["bits-below", 0], ["bits-above", 1]]) byId(`${id}`).addEventListener("click", () => step(Number(side)));
  begin(catalogue);
}

/** @param {(ScalarFormat | BlockFormat)[]} catalogue */
function begin(catalogue) {
  const form = catalogue.find(({ name }) => name === selectCalled("bits-format").value);
  if (!form) return;
  if (form.kind === "block") {
    const one = encoded(form.scale, finite(1n, 1n));
    fields = [{ form: form.scale, code: one, what: ["scale", "缩放"] }, { form: form.element, code: 0n, what: ["element", "元素"] }];
  } else {
    fields = [{ form, code: 0n, what: ["", ""] }];
  }
  readText();
}

/** The number of the last field: the element, or the one code. */
function last() {
  return fields[fields.length - 1];
}

/** @returns {Value} what the codes stand for */
function valueNow() {
  const element = decoded(last().form, last().code);
  if (fields.length === 1) return element;
  const scale = decoded(fields[0].form, fields[0].code);
  if (!isFinite_(element) || !isFinite_(scale)) return special("nan");
  return element.special ? element : times(element, scale);
}

function readText() {
  const text = inputCalled("bits-value").value;
  typed = parsed(text);
  const scale = fields.length > 1 ? decoded(fields[0].form, fields[0].code) : null;
  const wanted = typed && scale ? dividedBy(typed, scale) : typed;
  const stored = wanted ? rounded(last().form, wanted) : null;
  byId("bits-problem").replaceChildren(
    !typed ? both("Not a number. Write a decimal, a hex float such as 0x1.8p-3, inf or nan.", "不是数。可写十进制、十六进制浮点（如 0x1.8p-3）、inf 或 nan。")
      : !stored ? both(`${last().form.name} has no NaN.`, `${last().form.name} 没有 NaN。`) : "",
  );
  if (stored) last().code = encoded(last().form, stored);
  drawBits(true);
}

/** @param {Value} value @param {Value} scale @returns {Value} the value itself where there is no quotient */
function dividedBy(value, scale) {
  if (value.special || !isFinite_(scale) || !scale.n) return value;
  return times(value, finite(scale.d, scale.n));
}

/** @param {Event} event */
function flipClicked(event) {
  const button = /** @type {HTMLElement} */ (event.target).closest("button");
  if (button) flip(button);
}

/** @param {HTMLElement} button */
function flip(button) {
  const field = fields[Number(button.dataset.field)];
  field.code ^= 1n << BigInt(Number(button.dataset.bit));
  const value = valueNow();
  typed = value;
  inputCalled("bits-value").value = asText(value);
  byId("bits-problem").replaceChildren();
  drawBits(false);
}

/** Arrows move between bits; space and enter flip, as in every button.
 * @param {KeyboardEvent} event */
function walk(event) {
  const buttons = [...byId("bits-fields").querySelectorAll("button")];
  const here = buttons.indexOf(/** @type {HTMLButtonElement} */ (event.target));
  const moves = /** @type {Record<string, number>} */ ({ ArrowLeft: here - 1, ArrowRight: here + 1, Home: 0, End: buttons.length - 1 });
  if (here < 0 || !(event.key in moves)) return;
  event.preventDefault();
  const next = buttons[Math.min(Math.max(moves[event.key], 0), buttons.length - 1)];
  for (const button of buttons) button.tabIndex = button === next ? 0 : -1;
  next.focus();
}

/** @param {number} side 0 for the neighbor below, 1 for the one above */
function step(side) {
  const { form, code } = last();
  const value = decoded(form, code);
  const next = value.special === "nan" ? null : neighborsOf(form, value)[side];
  if (!next) return;
  last().code = encoded(form, next);
  typed = valueNow();
  inputCalled("bits-value").value = asText(typed);
  drawBits(true);
}

/** A value as the text field holds it, exactly.
 * @param {Value} value @returns {string} */
function asText(value) {
  if (value.special) return shown(value);
  const text = exactDecimal(value);
  if (text.length <= 24) return text;
  return `${value.n < 0n ? "-" : ""}0x${magnitude(value).n.toString(16)}p${1 - value.d.toString(2).length}`;
}

/** @param {boolean} anew whether the buttons are other ones now */
function drawBits(anew) {
  const holder = byId("bits-fields");
  const count = fields.reduce((sum, { form }) => sum + widthOf(form), 0);
  if (anew || holder.querySelectorAll("button").length !== count) holder.replaceChildren(...fields.map(drawField));
  for (const button of holder.querySelectorAll("button")) {
    const { form, code } = fields[Number(button.dataset.field)];
    const bit = Number(button.dataset.bit);
    const isOne = Boolean((code >> BigInt(bit)) & 1n);
    button.textContent = isOne ? "1" : "0";
    button.setAttribute("aria-pressed", `${isOne}`);
    button.setAttribute("aria-label", `${isOne ? "1" : "0"}, ${kindOf(form, bit)} ${bit}`);
    button.className = `bit ${kindOf(form, bit)}`;
  }
  say();
}

/** @param {{form: ScalarFormat, what: [string, string]}} field @param {number} number @returns {HTMLElement} */
function drawField({ form, what }, number) {
  const width = widthOf(form);
  const buttons = Array.from({ length: width }, (_, place) => {
    const bit = width - 1 - place;
    return make("button", { type: "button", "data-field": `${number}`, "data-bit": `${bit}`, tabindex: number === fields.length - 1 && !place ? "0" : "-1" });
  });
  const title = what[0] ? [make("p", { class: "note" }, both(...what), ` ${form.name}`)] : [];
  return make("div", { class: "field" }, ...title, make("div", { class: "bit-row", role: "group", "aria-label": form.name }, ...buttons));
}

/** @param {ScalarFormat} form @param {number} bit @returns {string} */
function kindOf(form, bit) {
  if (form.kind === "int") return bit === form.width - 1 ? "sign" : "fraction";
  if (form.signed && bit === widthOf(form) - 1) return "sign";
  return bit >= form.fractionBits ? "exponent" : "fraction";
}

function say() {
  const { form, code } = last();
  const element = decoded(form, code);
  const value = valueNow();
  const kind = CLASSES[classOf(form, code)];
  const [below, above] = element.special === "nan" ? [null, null] : neighborsOf(form, element);
  const digits = tellingDigits(form);
  /** @type {[string, string, (string | Node)][]} */
  const rows = [
    ["stored", "存储的值", exactly(value)],
    ["kind", "类别", both(kind[0], kind[1])],
    ["code", "编码", fields.map((field) => `0x${field.code.toString(16).padStart(Math.ceil(widthOf(field.form) / 4), "0")}`).join(" · ")],
    ...partsOf(form, code),
    ...(typed && isFinite_(typed) && isFinite_(value) ? errorOf(typed, value) : []),
    ["ulp", "ulp", isFinite_(element) ? shown(ulpOf(form, element)) : "–"],
    ["neighbors", "相邻的值", `${shown(below, digits)} , ${shown(above, digits)}`],
  ];
  byId("bits-facts").replaceChildren(...rows.map(([en, zh, fact]) => make("div", {}, make("dt", {}, both(en, zh)), make("dd", {}, fact))));
}

/** @param {Value} value @returns {string} */
function exactly(value) {
  if (value.special) return shown(value);
  const text = exactDecimal(value);
  return text.length <= 60 ? text : `${shown(value, 17)} = ${asText(value)}`;
}

/** @param {ScalarFormat} form @param {bigint} code @returns {[string, string, string][]} */
function partsOf(form, code) {
  if (form.kind === "int" || !["normal", "subnormal"].includes(classOf(form, code))) return [];
  const size = code & ((1n << BigInt(form.exponentBits + form.fractionBits)) - 1n);
  const field = size >> BigInt(form.fractionBits);
  const exponent = exponentIn(form, size);
  const hidden = form.zero && !field ? "0" : "1";
  const fraction = size & ((1n << BigInt(form.fractionBits)) - 1n);
  const bits = form.fractionBits ? `.${fraction.toString(2).padStart(form.fractionBits, "0")}` : "";
  return [["value", "即", `${decoded(form, code).n < 0n ? "−" : ""}${hidden}${bits}₂ × 2^${exponent}`], ["exponent field", "指数域", `${field} (bias ${form.bias})`]];
}

/** @param {Value} wanted @param {Value} stored @returns {[string, string, string][]} */
function errorOf(wanted, stored) {
  const error = minus(stored, wanted);
  const relative = wanted.n ? times(magnitude(error), finite(wanted.d, magnitude(wanted).n)) : finite(0n, 1n);
  return [
    ["error", "误差", shown(error)],
    ["relative error", "相对误差", relative.n ? scientific(relative, 3) : "0"],
  ];
}

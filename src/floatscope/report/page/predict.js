// Predict first: results stay hidden until the reader has written down what he expects, or asks.

import { both, byId, inputCalled, make, remember, remembered } from "./dom.js";

const KEY = `predict:${location.pathname}`;

export function startPredict() {
  const place = document.getElementById("predict");
  if (!place) return;
  restore();
  document.body.classList.toggle("unrevealed", !remembered(`${KEY}:revealed`));
  for (const button of document.querySelectorAll(".show-all")) button.addEventListener("click", reveal);
  byId("reveal").addEventListener("click", () => {
    keep();
    reveal();
    byId("verdict").scrollIntoView();
  });
  byId("forget").addEventListener("click", () => {
    remember(KEY, null);
    remember(`${KEY}:revealed`, null);
    for (const radio of radios()) radio.checked = false;
    inputCalled("predict-words").value = "";
    document.body.classList.add("unrevealed");
    byId("predicted").replaceChildren();
  });
}

/** @returns {HTMLInputElement[]} */
function radios() {
  return [...document.querySelectorAll("#predict input[type=radio]")].map((radio) => /** @type {HTMLInputElement} */ (radio));
}

function reveal() {
  remember(`${KEY}:revealed`, "yes");
  document.body.classList.remove("unrevealed");
  recall();
}

function keep() {
  const picked = radios().filter((radio) => radio.checked).map((radio) => radio.id);
  remember(KEY, JSON.stringify({ picked, words: inputCalled("predict-words").value }));
}

function restore() {
  const before = remembered(KEY);
  if (!before) return;
  const { picked, words } = JSON.parse(before);
  for (const radio of radios()) radio.checked = picked.includes(radio.id);
  inputCalled("predict-words").value = words;
  if (remembered(`${KEY}:revealed`)) recall();
}

/** What was expected, said again beside the results. */
function recall() {
  const picked = radios().filter((radio) => radio.checked);
  const words = inputCalled("predict-words").value.trim();
  if (!picked.length && !words) return;
  const said = picked.map((radio) => {
    const label = document.querySelector(`label[for="${radio.id}"]`);
    return make("li", {}, ...(label ? [...label.childNodes].map((node) => node.cloneNode(true)) : []));
  });
  if (words) said.push(make("li", {}, make("bdi", {}, words)));
  byId("predicted").replaceChildren(both("You expected:", "你的预期："), make("ul", {}, ...said));
}

// Small helpers around the document; everything that a module says, it says in both languages.

/** @param {string} id @returns {HTMLElement} */
export function byId(id) {
  const element = document.getElementById(id);
  if (!element) throw new Error(`the page has no element ${id}`);
  return element;
}

/** @param {string} id @returns {HTMLInputElement} */
export function inputCalled(id) {
  return /** @type {HTMLInputElement} */ (byId(id));
}

/** @param {string} id @returns {HTMLSelectElement} */
export function selectCalled(id) {
  return /** @type {HTMLSelectElement} */ (byId(id));
}

/** The data in a JSON script element; null where the page has none.
 * @param {string} id @returns {any} */
export function dataIn(id) {
  const element = document.getElementById(id);
  return element ? JSON.parse(element.textContent || "null") : null;
}

/** A new element with text or children.
 * @param {string} tag @param {Record<string, string>} attributes @param {...(string | Node)} children
 * @returns {HTMLElement} */
export function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** A text in both languages, of which the style shows one.
 * @param {string} en @param {string} zh @returns {DocumentFragment} */
export function both(en, zh) {
  const fragment = document.createDocumentFragment();
  fragment.append(make("span", { class: "en", lang: "en" }, en), make("span", { class: "zh", lang: "zh" }, zh));
  return fragment;
}

/** The radio button that is chosen in a group.
 * @param {string} group @returns {string} */
export function chosen(group) {
  const radio = document.querySelector(`input[name="${group}"]:checked`);
  return radio ? /** @type {HTMLInputElement} */ (radio).value : "";
}

/** Options of a select; those that are words have both languages.
 * @param {HTMLSelectElement} select @param {{value: string, en: string, zh: string}[]} options */
export function fill(select, options) {
  const before = select.value;
  select.replaceChildren(
    ...options.map(({ value, en, zh }) => make("option", { value, "data-en": en, "data-zh": zh }, language() === "zh" ? zh : en)),
  );
  if (options.some(({ value }) => value === before)) select.value = before;
}

/** @returns {string} the language that the page shows */
export function language() {
  return chosen("language") || "en";
}

/** What this browser remembers of the page; nothing where it refuses to.
 * @param {string} key @returns {string | null} */
export function remembered(key) {
  try {
    return localStorage.getItem(`floatscope:${key}`);
  } catch {
    return null;
  }
}

/** @param {string} key @param {string | null} value */
export function remember(key, value) {
  try {
    if (value === null) localStorage.removeItem(`floatscope:${key}`);
    else localStorage.setItem(`floatscope:${key}`, value);
  } catch {
    // A browser that keeps nothing shows the page all the same.
  }
}

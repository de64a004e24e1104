// Language and theme: the style follows the radio buttons; here they are remembered.

import { chosen, inputCalled, language, remember, remembered } from "./dom.js";

export function startSwitches() {
  for (const group of ["language", "theme"]) {
    const before = remembered(group);
    if (before && document.getElementById(`${group}-${before}`)) inputCalled(`${group}-${before}`).checked = true;
    for (const radio of document.querySelectorAll(`input[name="${group}"]`)) {
      radio.addEventListener("change", () => {
        remember(group, chosen(group));
        applyLanguage();
      });
    }
  }
  applyLanguage();
}

function applyLanguage() {
  const now = language();
  document.documentElement.lang = now;
  for (const option of document.querySelectorAll("option[data-en]")) {
    option.textContent = option.getAttribute(`data-${now}`);
  }
}

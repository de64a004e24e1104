// Charts come alive when they are scrolled to: the picture is replaced by the runtime's own.

import { dataIn } from "./dom.js";

/** @typedef {{label: string, arm: string, x?: number[], y: (number | null)[]}} Series */

const HEIGHT_TO_WIDTH = 0.54;

export function startLive() {
  const specs = dataIn("live");
  const embed = /** @type {any} */ (window).vegaEmbed;
  if (!specs || !embed) return;
  const observer = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      observer.unobserve(entry.target);
      enliven(/** @type {HTMLElement} */ (entry.target), specs, embed);
    }
  }, { rootMargin: "200px" });
  for (const picture of document.querySelectorAll("[data-live]")) observer.observe(picture);
}

/** @param {HTMLElement} picture @param {Record<string, any>} specs @param {any} embed */
async function enliven(picture, specs, embed) {
  const { series, ...spec } = specs[picture.dataset.live || ""];
  const width = Math.max(240, picture.clientWidth - 48);
  const stage = document.createElement("div");
  await embed(
    stage,
    { ...spec, width, height: Math.round(width * HEIGHT_TO_WIDTH), datasets: { ...spec.datasets, curves: rowsOf(series) } },
    { ast: true, renderer: "svg", actions: false },
  );
  for (const svg of stage.querySelectorAll("svg")) svg.setAttribute("aria-hidden", "true");
  picture.replaceChildren(stage);
  picture.dataset.alive = "";
}

/** Columns to rows; a curve without steps has those of the one before it.
 * @param {Series[]} series @returns {object[]} */
export function rowsOf(series) {
  /** @type {number[]} */
  let x = [];
  return series.flatMap((curve) => {
    x = curve.x || x;
    const steps = x;
    return curve.y.map((y, place) => ({ x: steps[place], y, label: curve.label, arm: curve.arm }));
  });
}

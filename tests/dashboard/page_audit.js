// What a page offers to who reads it with a screen reader, a keyboard or weak eyes. Out: for each
// chart its name and the heading above it, ids that are not unique, controls with their names, and
// text with its contrast (WCAG 2) against what lies under it, computed from styles.
() => {
  const shown = (node) => {
    const style = getComputedStyle(node);
    return style.visibility === "visible" && [...node.getClientRects()].some((r) => r.width > 1 && r.height > 1);
  };
  const all = (query) => [...document.querySelectorAll(query)];

  // -- colours -----------------------------------------------------------------------------------
  const rgba = (text) => {
    const parts = (text.match(/-?[\d.]+(e-?\d+)?/g) ?? []).map(Number);
    if (text.startsWith("color(")) parts.splice(0, 3, ...parts.slice(0, 3).map((part) => part * 255));
    return parts.length > 3 ? parts : [...parts, 1];
  };
  const over = (top, under) => {
    const alpha = top[3];
    return [...[0, 1, 2].map((i) => top[i] * alpha + under[i] * (1 - alpha)), 1];
  };
  const luminance = (colour) => {
    const [r, g, b] = colour.map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (one, other) => {
    const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const seen = (node, colour, strength = 1) => {
    const line = [];
    for (let at = node; at; at = at.parentElement) line.unshift(getComputedStyle(at));
    let under = [255, 255, 255, 1];
    let opacity = 1;
    for (const style of line) {
      opacity *= Number(style.opacity);
      const own = rgba(style.backgroundColor);
      under = over([...own.slice(0, 3), own[3] * opacity], under);
    }
    if (!opacity) return 21; // It is not shown.
    const top = rgba(colour);
    return contrast(over([...top.slice(0, 3), top[3] * opacity * strength], under), under);
  };
  const idle = '[disabled],[aria-disabled="true"],[aria-hidden="true"],.hr-sum .op,[data-testid="stIconMaterial"]';
  const texts = [];
  for (const node of all("body *")) {
    if (node.closest(idle) || node.closest("svg,canvas,script,style") || !shown(node)) continue;
    const own = [...node.childNodes].filter((n) => n.nodeType === 3).map((n) => n.data.trim()).join(" ").trim();
    if (own) texts.push([own, seen(node, getComputedStyle(node).color)]);
    if (node.placeholder && !node.value) texts.push([node.placeholder, seen(node, getComputedStyle(node, "::placeholder").color)]);
  }
  for (const node of all("[role='graphics-document'] svg text, svg[role='graphics-document'] text")) {
    const { fill, fillOpacity } = getComputedStyle(node);
    if (node.textContent.trim()) texts.push([`chart: ${node.textContent}`, seen(node, fill, Number(fillOpacity))]);
  }

  // -- names -------------------------------------------------------------------------------------
  const called = (node) => {
    if (node.dataset.testid === "stPageLink-NavLink") return node.innerText.split("\n").at(-1).trim();
    const by = (node.getAttribute("aria-labelledby") ?? "").split(" ").map((id) => document.getElementById(id)?.innerText ?? "");
    const labels = [...(node.labels ?? [])].map((label) => label.innerText);
    return [node.getAttribute("aria-label"), by.join(" "), labels.join(" "), node.innerText, node.title]
      .map((name) => (name ?? "").trim()).find(Boolean) ?? "";
  };
  const controls = all("a[href],button,input,textarea,select,[role='button'],[role='switch'],[role='combobox'],[role='grid']")
    .filter((node) => node.type !== "hidden" && !node.closest("[aria-hidden='true']") && shown(node.closest("label") ?? node))
    .map((node) => ({ kind: node.getAttribute("role") ?? node.localName, name: called(node), html: node.outerHTML.slice(0, 160),
      text: node.localName === "button" && !node.querySelector("[data-testid='stIconMaterial']") ? node.innerText.trim() : "" }));
  const headings = all("h1,h2,h3,h4");
  const before = (node) =>
    headings.filter((h) => h.compareDocumentPosition(node) & Node.DOCUMENT_POSITION_FOLLOWING).at(-1)?.innerText ?? "";
  const ids = all("[id]").map((node) => node.id).filter((id) => !id.startsWith("glide-cell")); // Streamlit's tables.
  return {
    charts: all("[role='graphics-document']").map((node) => [node.getAttribute("aria-label") ?? "", before(node)]),
    grids: all("[data-testid='stDataFrame']").map((node) =>
      node.querySelector(":is([role='region'],[role='grid'])[aria-label]")?.getAttribute("aria-label") ?? ""),
    headings: headings.filter(shown).map((node) => [Number(node.localName[1]), node.innerText]),
    twice: [...new Set(ids.filter((id, i) => id && ids.indexOf(id) !== i))],
    ahead: all("[tabindex]").filter((node) => node.tabIndex > 0).map((node) => node.outerHTML.slice(0, 160)),
    controls,
    renamed: controls.filter(({ name, text }) => /\w/.test(text) && !name.toLowerCase().includes(text.toLowerCase())),
    headless: all("th,[role='columnheader']").filter((node) => !node.textContent.trim() && !node.getAttribute("aria-label")
      && node.closest("table,[role='grid']")?.querySelector("td,[role='gridcell']")).map((node) => node.outerHTML.slice(0, 160)),
    faint: [...new Set(texts.filter(([, ratio]) => ratio < 4.495).map(([text, ratio]) => `${ratio.toFixed(2)} ${text.slice(0, 60)}`))],
    texts: texts.length,
  };
}

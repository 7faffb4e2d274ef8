// A response, token by token. In: the data of `dashboard.token_facts.answer_data`. Out: text whose
// tokens are chosen by click, touch or keyboard, and a panel with the chosen token's numbers.
// A response is untrusted: every part of it is set as text, and nothing here makes HTML of a string.

const VISIBLE = { "\n": "\u21b5\n", "\r": "\u240d", "\t": "\u21e5\t", "": "\u2205" };

function make(tag, name, text) {
  const node = document.createElement(tag);
  if (name) node.className = name;
  if (text !== undefined) node.textContent = text;
  return node;
}

// The numbers of token i, in the order of the columns; what is not known is left out.
function factsOf(data, i) {
  return Object.entries(data.columns)
    .filter(([, values]) => values[i] !== null)
    .map(([name, values]) => [name, values[i]]);
}

function plain(data, i) {
  const facts = Object.fromEntries(factsOf(data, i));
  const position = data.first + i;
  return { position, text: data.texts[i], why: data.why[data.fates[i]], ...facts };
}

function tooltip(data, i) {
  const facts = factsOf(data, i).map(([name, value]) => `${name} ${value}`);
  const head = `${JSON.stringify(data.texts[i])} at ${data.first + i}`;
  return [head, data.why[data.fates[i]], ...facts].join("\n");
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return;
  } catch {
    // Without a secure context there is no clipboard: the old way.
  }
  const area = make("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

function drawTokens(data) {
  const tokens = make("div", "hr-tokens");
  tokens.tabIndex = 0;
  tokens.setAttribute("role", "group");
  tokens.setAttribute(
    "aria-label",
    `Tokens of trajectory ${data.trajectory}. Arrow keys choose one; its numbers are below.`,
  );
  const leftOut = new Set(data.left_out);
  const differs = new Set(data.differs);
  const borders = new Map();
  for (const [position, kind, text] of data.borders) {
    borders.set(position - data.first, [...(borders.get(position - data.first) ?? []), [kind, text]]);
  }
  data.texts.forEach((text, i) => {
    for (const [kind, said] of borders.get(i) ?? []) {
      tokens.append(make("span", `border ${kind}`, said));
    }
    const token = make("span", "", VISIBLE[text] ?? text);
    token.dataset.i = String(i);
    if (leftOut.has(i)) token.classList.add("out");
    if (differs.has(i)) token.classList.add("differs");
    token.style.background = data.palette[data.colours[i]];
    tokens.append(token);
  });
  return tokens;
}

function drawPanel(data, choose, chosen) {
  const panel = make("div", "hr-token");
  const head = make("div", "head");
  const name = make("b");
  const done = make("span");
  done.setAttribute("role", "status");
  const facts = make("dl");
  const why = make("div", "why");
  const button = (text, label, action) => {
    const node = make("button", "", text);
    node.type = "button";
    node.setAttribute("aria-label", label);
    node.addEventListener("click", action);
    return node;
  };
  const say = async (text, what) => {
    await copy(text);
    done.textContent = `${what} copied`;
  };
  const whole = () => data.texts.map((_, i) => plain(data, i));
  const answer = () => JSON.stringify({ trajectory: data.trajectory, tokens: whole() }, null, 1);
  head.append(
    button("\u2190", "previous token", () => choose(chosen() - 1)),
    button("\u2192", "next token", () => choose(chosen() + 1)),
    name,
    make("span", "space"),
    done,
    button("Copy token", "Copy token as JSON", () =>
      say(JSON.stringify(plain(data, Math.max(0, chosen())), null, 1), "token")),
    button("Copy all", "Copy all tokens shown as JSON", () => say(answer(), "tokens")),
  );
  panel.setAttribute("aria-live", "polite");
  panel.append(head, why, facts);
  const show = (i) => {
    done.textContent = "";
    name.textContent = i < 0 ? "no token chosen" : `${JSON.stringify(data.texts[i])} at ${data.first + i}`;
    why.textContent = i < 0 ? "Choose a token by click, touch or arrow keys." : data.why[data.fates[i]];
    facts.replaceChildren(
      ...(i < 0 ? [] : factsOf(data, i)).map(([label, value]) => {
        const pair = make("div");
        pair.append(make("dt", "", label), make("dd", "", String(value)));
        return pair;
      }),
    );
  };
  return { panel, show };
}

// The token in the line above (-1) or below (1) that is nearest.
function inNextLine(nodes, from, direction) {
  const here = nodes[from].getBoundingClientRect();
  let best = from;
  let distance = Infinity;
  let line = null;
  for (let i = from + direction; i >= 0 && i < nodes.length; i += direction) {
    const box = nodes[i].getBoundingClientRect();
    if (Math.abs(box.top - here.top) < here.height / 2) continue;
    line ??= box.top;
    if (Math.abs(box.top - line) > here.height / 2) break;
    if (Math.abs(box.left - here.left) < distance) {
      distance = Math.abs(box.left - here.left);
      best = i;
    }
  }
  return best;
}

export default function ({ data, parentElement }) {
  const root = make("div");
  const tokens = drawTokens(data);
  const nodes = [...tokens.querySelectorAll("[data-i]")];
  const starts = data.borders.map(([position]) => position - data.first);
  const kept = parentElement.dataset ?? {};
  let chosen = -1;
  const choose = (wanted, follow = true) => {
    if (!nodes.length) return;
    const i = Math.min(nodes.length - 1, Math.max(0, wanted));
    nodes[chosen]?.classList.remove("chosen");
    chosen = i;
    nodes[i].classList.add("chosen");
    if (follow) nodes[i].scrollIntoView({ block: "nearest" });
    kept.chosen = `${data.trajectory} ${data.first} ${i}`;
    show(i);
  };
  const { panel, show } = drawPanel(data, choose, () => chosen);
  const keys = {
    ArrowRight: () => chosen + 1,
    ArrowLeft: () => chosen - 1,
    ArrowDown: () => (chosen < 0 ? 0 : inNextLine(nodes, chosen, 1)),
    ArrowUp: () => (chosen < 0 ? 0 : inNextLine(nodes, chosen, -1)),
    Home: () => 0,
    End: () => nodes.length - 1,
    PageDown: () => starts.find((at) => at > chosen) ?? nodes.length - 1,
    PageUp: () => starts.findLast((at) => at < chosen) ?? 0,
  };
  tokens.addEventListener("keydown", (event) => {
    if (!(event.key in keys) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    choose(keys[event.key]());
  });
  tokens.addEventListener("click", (event) => {
    const node = event.target.closest("[data-i]");
    if (node) choose(Number(node.dataset.i));
  });
  tokens.addEventListener("pointerover", (event) => {
    const node = event.target.closest("[data-i]");
    if (node && !node.title) node.title = tooltip(data, Number(node.dataset.i));
  });
  show(-1);
  root.append(tokens, panel);
  parentElement.querySelector(".hr-answer").replaceChildren(root);
  const [trajectory, first, i] = (kept.chosen ?? "").split(" ").map(Number);
  if (trajectory === data.trajectory && first === data.first && i < nodes.length) choose(i, false);
}

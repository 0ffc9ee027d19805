"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const MEAN = -1;
  const NAMES_PER_AXIS = 36;
  const NEVER = [226, 226, 226];
  const ON = "#d55e00";
  const MARKS = [0.001, 0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1];
  const shown = { text: 0, layer: data.layer, head: data.head, variant: 0 };

  const element = (id) => document.getElementById(id);
  const text = () => data.texts[shown.text];
  const length = () => text().tokens.length;
  const headName = (head) => (head === MEAN ? "mean" : `${head + 1}`);
  const shade = (code) => Math.sqrt(code / data.unit);
  // Plotly reads some HTML in what it writes.
  const plain = (name) => name.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  function weightName(code) {
    if (code === 0) return "0 (exactly)";
    const weight = code / data.unit;
    return weight < 0.00005 ? "< 0.0001" : weight.toFixed(4);
  }

  // A layer is stored as (heads, L, L) uint16, compressed; 0 is an exact zero. The pairs that a pattern
  // allows stand behind the heads, (1, L, L).
  const layers = new Map();
  function readLayer(variant, layer) {
    const key = [shown.text, variant, layer].join();
    if (!layers.has(key)) {
      const bytes = Uint8Array.from(atob(text().maps[variant][layer]), (c) => c.charCodeAt(0));
      const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
      layers.set(key, new Response(stream).arrayBuffer().then((buffer) => new Uint16Array(buffer)));
    }
    return layers.get(key);
  }

  const hasPattern = (variant) => text().on[variant] !== null;
  const on = (variant, what) => (hasPattern(variant) ? text().on[variant][shown.layer][what] : []);

  // The map of a head, or of the mean over heads, and where its pattern allows weights; null is everywhere.
  async function readMap(variant, layer, head) {
    const codes = await readLayer(variant, layer);
    const size = length() ** 2;
    const part = (index) => codes.subarray(index * size, (index + 1) * size);
    const { heads } = text();
    return { map: part(heads.indexOf(head)), allowed: hasPattern(variant) ? part(heads.length) : null };
  }

  // What is on screen, and how often it was chosen anew: a drawing that was overtaken is given up.
  let maps = [];
  let allowed = [];
  let turn = 0;

  async function drawMaps(mine) {
    const read = data.variants.map((_, variant) => readMap(variant, shown.layer, shown.head));
    const found = await Promise.all(read);
    if (mine !== turn) return;
    maps = found.map((each) => each.map);
    allowed = found.map((each) => each.allowed);
    const weights = maps.map((map, variant) => heatmap(map, variant, (code) => (code ? shade(code) : null)));
    const grey = `rgb(${NEVER})`;
    const never = { colorscale: [[0, grey], [1, grey]], showscale: false };
    const patterns = allowed.flatMap((pairs, variant) =>
      pairs ? [{ ...heatmap(pairs, variant, (pair) => (pair ? null : 1)), coloraxis: undefined, ...never }] : [],
    );
    await Plotly.react("maps", [...weights, ...patterns], mapLayout(length()), { displaylogo: false, responsive: true });
  }

  function heatmap(values, variant, colored) {
    const size = length();
    return {
      type: "heatmap",
      z: Array.from({ length: size }, (_, query) =>
        Array.from(values.subarray(query * size, (query + 1) * size), colored),
      ),
      xaxis: `x${variant + 1}`,
      yaxis: `y${variant + 1}`,
      coloraxis: "coloraxis",
      hoverinfo: "none",
    };
  }

  function mapLayout(size) {
    const count = data.variants.length;
    const columns = count === 4 ? 2 : Math.min(count, 3);
    const rows = Math.ceil(count / columns);
    // What is on is written in the titles, and marked on the queries of every map.
    const patterned = text().on.some((each) => each !== null);
    const [share, room] = patterned ? [0.84, 80] : [0.97, 55];
    const side = Math.min(560, (element("maps").clientWidth - 170) / columns);
    const most = maps.reduce((high, map) => map.reduce((a, b) => Math.max(a, b), high), 1);
    const marks = MARKS.filter((mark) => mark * data.unit <= most);
    const layout = {
      height: rows * (side + room + 45),
      margin: { l: 90, r: 80, t: room, b: 80 },
      font: { family: "system-ui, sans-serif", size: 12, color: "#222" },
      coloraxis: {
        colorscale: data.colors.map((color, index) => [index / (data.colors.length - 1), color]),
        cmin: 0,
        cmax: shade(most),
        colorbar: { title: { text: "weight" }, thickness: 14, tickvals: marks.map(Math.sqrt), ticktext: marks },
      },
      annotations: [],
    };
    const line = { showgrid: false, zeroline: false, showline: true, mirror: true, linecolor: "#888" };
    const gap = (room + 45) / layout.height;
    const height = (1 - (rows - 1) * gap) / rows;
    data.variants.forEach((name, variant) => {
      const [row, column] = [Math.floor(variant / columns), variant % columns];
      const top = 1 - row * (height + gap);
      const [x, y] = [`xaxis${variant + 1}`, `yaxis${variant + 1}`];
      const places = [column / columns, (column + share) / columns];
      layout[x] = { ...line, domain: places, anchor: `y${variant + 1}`, range: [-0.5, size - 0.5], tickangle: -90 };
      layout[y] = { ...line, domain: [Math.max(0, top - height), top], anchor: `x${variant + 1}`, range: [size - 0.5, -0.5] };
      layout[y].showticklabels = patterned || column === 0;
      if (variant) Object.assign(layout[x], { matches: "x" }) && Object.assign(layout[y], { matches: "y" });
      Object.assign(layout[x], ticks([0, size - 1], on(variant, "columns")));
      Object.assign(layout[y], ticks([0, size - 1], on(variant, "rows")));
      const middle = (places[0] + places[1]) / 2;
      const paper = { xref: "paper", yref: "paper", xanchor: "center", yanchor: "bottom", showarrow: false };
      layout.annotations.push({ ...paper, text: `<b>${plain(name)}</b> ${keysRead(variant)}`, x: middle, y: top });
    });
    return layout;
  }

  // Of a mean over heads, what its heads read: a cell of the mean is zero only where all of them are.
  function keysRead(variant) {
    const size = length();
    const kept = maps[variant].reduce((count, code) => count + (code > 0), 0) / size;
    const [keys, each] = shown.head === MEAN ? [text().support[variant][shown.layer], " per head"] : [kept, ""];
    const zeros = `${(100 * (1 - keys / size)).toFixed(1)} % zeros, ${keys.toFixed(1)} of ${size} keys${each}`;
    const [rows, columns] = [on(variant, "rows").length, on(variant, "columns").length];
    return hasPattern(variant) ? `<br>${zeros}<br>on: rows ${rows}, columns ${columns}` : zeros;
  }

  // As many names as there is room for, of the tokens in view; those that are on come before others.
  function ticks(range, marked) {
    const first = Math.max(0, Math.ceil(Math.min(...range)));
    const last = Math.min(length() - 1, Math.floor(Math.max(...range)));
    const step = Math.max(1, Math.ceil((last - first + 1) / NAMES_PER_AXIS));
    const tickvals = [];
    const name = (place) => {
      if (tickvals.every((other) => Math.abs(place - other) >= step)) tickvals.push(place);
    };
    marked.filter((place) => first <= place && place <= last).forEach(name);
    for (let place = first; place <= last; place += step) name(place);
    tickvals.sort((a, b) => a - b);
    const places = new Set(marked);
    const ticktext = tickvals.map((place) => {
      const token = plain(text().tokens[place].slice(0, 16));
      return places.has(place) ? `<b style="color:${ON}">${token}</b>` : token;
    });
    return { tickvals, ticktext };
  }

  function renameTicks() {
    const { layout } = element("maps");
    const update = {};
    for (const [letter, what] of [["x", "columns"], ["y", "rows"]]) {
      const { range } = layout[`${letter}axis`];
      data.variants.forEach((_, variant) => {
        const { tickvals, ticktext } = ticks(range, on(variant, what));
        const axis = `${letter}axis${variant ? variant + 1 : ""}`;
        Object.assign(update, { [`${axis}.tickvals`]: tickvals, [`${axis}.ticktext`]: ticktext });
      });
    }
    Plotly.relayout("maps", update);
  }

  function showTip(hover) {
    const [query, key] = hover.points[0].pointNumber;
    const { tokens } = text();
    const tip = element("tip");
    tip.replaceChildren(document.createElement("b"));
    tip.firstChild.textContent = `${tokens[query]} → ${tokens[key]}`;
    data.variants.forEach((name, variant) => {
      const row = tip.appendChild(document.createElement("div"));
      row.textContent = `${name}: ${pairName(variant, query, key)}`;
    });
    tip.style.display = "block";
    const { clientX, clientY } = hover.event;
    tip.style.left = `${Math.min(clientX + 14, window.innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${Math.min(clientY + 14, window.innerHeight - tip.offsetHeight - 8)}px`;
  }

  function pairName(variant, query, key) {
    const place = query * length() + key;
    if (allowed[variant]?.[place] === 0) return "never allowed";
    const row = on(variant, "rows").includes(query) ? ", row on" : "";
    const column = on(variant, "columns").includes(key) ? ", column on" : "";
    return `${weightName(maps[variant][place])}${row}${column}`;
  }

  // One small map per layer and head, which a click enlarges.
  async function drawHeads(mine) {
    const { heads } = text();
    const grid = element("heads");
    grid.style.gridTemplateColumns = `auto repeat(${heads.length}, auto)`;
    const cells = [label("layer"), ...heads.map((head) => label(headName(head)))];
    for (let layer = 0; layer < data.layers; layer += 1) {
      cells.push(label(`${layer + 1}`));
      for (const head of heads) {
        const { map, allowed: pairs } = await readMap(shown.variant, layer, head);
        if (mine !== turn) return;
        cells.push(thumbnail(map, pairs, layer, head));
      }
    }
    grid.replaceChildren(...cells);
  }

  function label(name) {
    const cell = document.createElement("span");
    cell.textContent = name;
    return cell;
  }

  function thumbnail(map, pairs, layer, head) {
    const size = length();
    const button = document.createElement("button");
    button.title = `layer ${layer + 1}, head ${headName(head)}`;
    button.ariaPressed = layer === shown.layer && head === shown.head;
    const canvas = button.appendChild(document.createElement("canvas"));
    canvas.width = canvas.height = size;
    const most = shade(map.reduce((a, b) => Math.max(a, b), 1));
    const image = new ImageData(size, size);
    map.forEach((code, place) => {
      if (pairs?.[place] === 0) image.data.set([...NEVER, 255], 4 * place);
      if (code === 0) return;
      const index = Math.round((shade(code) / most) * (data.colors.length - 1));
      image.data.set([...channels[index], 255], 4 * place);
    });
    canvas.getContext("2d").putImageData(image, 0, 0);
    button.addEventListener("click", () => {
      Object.assign(shown, { layer, head });
      element("maps").scrollIntoView({ behavior: "smooth", block: "center" });
      refresh();
    });
    return button;
  }

  const channels = data.colors.map((color) => color.match(/\d+/g).map(Number));

  function offer(id, options, chosen) {
    element(id).replaceChildren(...options.map(([value, name]) => new Option(name, value, false, value === chosen)));
  }

  async function refresh() {
    if (!text().heads.includes(shown.head)) shown.head = MEAN;
    for (const part of document.querySelectorAll("[data-text]")) {
      part.hidden = Number(part.dataset.text) !== shown.text;
    }
    offer("layer", Array.from({ length: data.layers }, (_, layer) => [layer, `${layer + 1}`]), shown.layer);
    offer("head", text().heads.map((head) => [head, headName(head)]), shown.head);
    turn += 1;
    const mine = turn;
    await drawMaps(mine);
    await drawHeads(mine);
  }

  for (const name of ["text", "layer", "head", "variant"]) {
    element(name)?.addEventListener("change", (event) => {
      shown[name] = Number(event.target.value);
      refresh();
    });
  }
  shown.variant = Number(element("variant").value);
  refresh().then(() => {
    element("maps").on("plotly_hover", showTip);
    element("maps").on("plotly_unhover", () => (element("tip").style.display = "none"));
    element("maps").on("plotly_relayout", (change) => {
      if (Object.keys(change).some((key) => key.includes("range"))) renameTicks();
    });
  });
})();

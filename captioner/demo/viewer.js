/* A caption to look into: words, maps and alternatives, all drawn here from one message of the
   server. Maps are those that the decoder used; choosing a word asks the server for nothing. */
(() => {
  "use strict";
  if (window.captionerViewer) return;

  const SMOOTH_SIDE = 512; // pixels at which a smooth map is coloured before it is enlarged
  const END = "<eos>";

  // How maps are drawn is the same for all viewers of the page, so that they can be compared.
  const style = { opacity: 0.6, smooth: true, contour: false, colormap: "inferno" };
  const viewers = new Set();
  const redrawAll = () => viewers.forEach((viewer) => viewer.syncStyle());

  const decodeBytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const decodeFloats = (text) => new Float32Array(decodeBytes(text).buffer);

  const tables = {};
  const colours = (name) =>
    (tables[name] ??= decodeBytes(window.captionerColormaps[name]));

  const percent = (logProb) => {
    const value = 100 * Math.exp(logProb);
    if (value < 0.1) return "<0.1 %";
    return `${value < 9.95 ? value.toFixed(1) : value.toFixed(0)} %`;
  };

  // Requests are numbered: answers may come in another order than they were asked for.
  let asked = 0;
  window.captionerAsk = () => ++asked;
  window.captionerStop = () => {
    const state = document.querySelector("#batch-table .state span");
    if (state) state.textContent = state.textContent.replace(/^(Working|Waiting)/, "Stopping; $1");
    return asked;
  };

  const make = (tag, properties = {}, ...children) => {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
      if (name === "class") node.className = value;
      else if (name === "style") node.style.cssText = value;
      else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (name in node && typeof value !== "string") node[name] = value;
      else node.setAttribute(name, value);
    }
    node.append(...children.filter((child) => child !== null));
    return node;
  };

  /* Pillow's bicubic filter (a = -0.5, weights normalised at the edges) for enlarging, so that
     the page and the files that it gives show the same. */
  const cubic = (x) => {
    x = Math.abs(x);
    if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
    return x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0;
  };
  const taps = (from, to) =>
    Array.from({ length: to }, (_, i) => {
      const scale = Math.max(1, from / to);
      const centre = ((i + 0.5) * from) / to;
      const low = Math.max(0, Math.trunc(centre - 2 * scale + 0.5));
      const high = Math.min(from, Math.trunc(centre + 2 * scale + 0.5));
      const weights = [];
      for (let j = low; j < high; j++) weights.push(cubic((j + 0.5 - centre) / scale));
      const sum = weights.reduce((a, b) => a + b, 0);
      return [low, weights.map((w) => w / sum)];
    });
  const enlarge = (values, rows, cols, height, width) => {
    const across = taps(cols, width);
    const wide = new Float32Array(rows * width);
    for (let y = 0; y < rows; y++)
      for (let x = 0; x < width; x++) {
        const [low, weights] = across[x];
        let sum = 0;
        for (let k = 0; k < weights.length; k++) sum += weights[k] * values[y * cols + low + k];
        wide[y * width + x] = sum;
      }
    const down = taps(rows, height);
    const result = new Float32Array(height * width);
    for (let y = 0; y < height; y++) {
      const [low, weights] = down[y];
      for (let k = 0; k < weights.length; k++) {
        const w = weights[k], row = (low + k) * width;
        for (let x = 0; x < width; x++) result[y * width + x] += w * wide[row + x];
      }
    }
    return result;
  };

  /* 0: all on one region; 1: the same everywhere. */
  const spread = (map) => {
    let entropy = 0;
    for (const p of map) if (p > 0) entropy -= p * Math.log(p);
    return map.length > 1 ? entropy / Math.log(map.length) : 0;
  };

  /* The fewest regions that hold half of the attention. */
  const halfRegion = (map) => {
    const order = [...map.keys()].sort((a, b) => map[b] - map[a]);
    const total = map.reduce((a, b) => a + b, 0);
    const inside = new Uint8Array(map.length);
    let sum = 0;
    for (const i of order) {
      if (sum >= total / 2) break;
      inside[i] = 1;
      sum += map[i];
    }
    return inside;
  };

  class Viewer {
    constructor(host, trigger) {
      this.host = host;
      this.trigger = trigger;
      this.history = [];
      this.opened = {};
      this.data = null;
      this.newest = 0;
      this.timer = null;
      viewers.add(this);
    }

    /* Show what the server sent; remember what was shown if this goes on from it. */
    show(text) {
      if (text === this.text) return;
      const data = text ? JSON.parse(text) : {};
      if (data.asked < this.newest) return; // a later request has been answered already
      this.newest = data.asked ?? this.newest;
      const previous = this.data && this.text;
      this.text = text;
      this.stop();
      if (!data.captions) {
        this.data = null;
        this.history = [];
        this.host.replaceChildren(...(data.error ? [make("p", { class: "problem", role: "alert" }, data.error)] : []));
        this.reveal();
        return;
      }
      if (data.forced && previous && this.forcing) this.history.push([previous, this.caption]);
      else this.history = [];
      this.forcing = false;
      this.load(data, data.forced ? Math.max(0, data.forced - 1) : null);
      if (!data.forced) this.reveal();
    }

    /* On a phone the caption stands below what asks for it. */
    reveal() {
      const { host } = this;
      if (host.hasChildNodes() && host.closest("#first-viewer") && host.getBoundingClientRect().top > innerHeight * 0.75)
        host.scrollIntoView({ block: "start" });
    }

    load(data, place) {
      this.data = data;
      for (const caption of data.captions) {
        caption.maps = decodeFloats(caption.attention);
        caption.layerMaps = caption.layers && decodeFloats(caption.layers.data);
      }
      this.caption = 0;
      this.layer = this.head = null;
      this.image = new Image();
      this.image.onload = () => this.draw();
      this.image.src = data.picture;
      this.build();
      this.selectCaption(0, place);
    }

    back() {
      const [text, caption] = this.history.pop();
      this.text = text;
      this.load(JSON.parse(text), null);
      if (caption) this.selectCaption(caption);
    }

    build() {
      const { data } = this;
      this.chips = make("div", {
        class: "chips", role: "group", onkeydown: (event) => this.onKey(event),
        "aria-label": "Words of the caption; left and right arrow keys walk through them",
      });
      this.playButton = make("button", { class: "tool play", type: "button", onclick: () => this.toggle() });
      this.backButton = make(
        "button", { class: "tool back", type: "button", onclick: () => this.back() }, "↩ Undo",
      );
      this.backButton.hidden = this.history.length === 0;
      this.canvas = make("canvas", { role: "img", width: 1, height: 1 });
      this.word = make("div", { class: "about-word", "aria-live": "polite" });
      this.alternatives = make("div", { class: "alternatives" });
      this.beams = make("div", { class: "beams" });
      this.layers = make("div", { class: "layers" });
      this.styleBox = this.buildStyle();
      const tools = make("div", { class: "tools" }, this.playButton, this.backButton);
      const note = make(
        "p", { class: "note" },
        make("strong", {}, data.model), ` · ${data.search} · ${data.seconds.toFixed(2)} s on the server`,
      );
      this.host.replaceChildren(
        note,
        make(
          "div", { class: "viewer-body" },
          make("div", { class: "said" }, this.chips, tools),
          make("div", { class: "stage" }, this.canvas),
          make(
            "div", { class: "side" },
            this.word, this.alternatives, this.layers, this.beams, this.styleBox, this.buildOut(),
          ),
        ),
      );
      this.setPlay(false);
    }

    buildStyle() {
      const group = this.details("style", "How maps are drawn");
      this.opacity = make("input", {
        type: "range", min: "0", max: "1", step: "0.05",
        oninput: (e) => { style.opacity = Number(e.target.value); redrawAll(); },
      });
      this.smooth = make("input", {
        type: "checkbox", onchange: (e) => { style.smooth = e.target.checked; redrawAll(); },
      });
      this.contour = make("input", {
        type: "checkbox", onchange: (e) => { style.contour = e.target.checked; redrawAll(); },
      });
      this.colormap = make(
        "select", { onchange: (e) => { style.colormap = e.target.value; redrawAll(); } },
        ...Object.keys(window.captionerColormaps).map((name) => make("option", { value: name }, name)),
      );
      this.legend = make("canvas", { class: "legend", width: 256, height: 1, "aria-hidden": "true" });
      group.append(
        make("label", {}, "Opacity", this.opacity),
        make("label", {}, "Colours", this.colormap),
        make("div", { class: "scale" }, "low", this.legend, "high"),
        make("label", { class: "check" }, this.smooth, "Smooth (else each region of the grid as it is)"),
        make("label", { class: "check" }, this.contour, "Outline the region that holds half of the attention"),
      );
      return group;
    }

    buildOut() {
      const file = (kind, label) =>
        make("button", { class: "tool", type: "button", onclick: () => this.askFile(kind) }, label);
      this.copied = make("span", { class: "copied", role: "status" });
      const group = this.details("out", "Take along");
      group.append(
        make(
          "div", { class: "tools" },
          make("button", { class: "tool copy", type: "button", onclick: () => this.copy() }, "Copy as alt text"),
          file("png", "Figure (PNG)"), file("svg", "Figure (SVG)"),
          file("gif", "Animation (GIF)"), file("webp", "Animation (WebP)"),
          make("button", { class: "tool json", type: "button", onclick: () => this.saveJson() }, "Everything (JSON)"),
        ),
        this.copied,
      );
      return group;
    }

    /* A part that stays open or closed when another caption comes. */
    details(name, title) {
      return make(
        "details",
        { class: name, open: this.opened[name] === true, ontoggle: (e) => { this.opened[name] = e.target.open; } },
        make("summary", {}, title),
      );
    }

    get current() { return this.data.captions[this.caption]; }

    selectCaption(index, place = null) {
      this.stop();
      this.caption = index;
      const { words, finished, end_log_prob: end } = this.current;
      const forced = this.data.forced;
      const chip = (text, logProb, i, extra = "") =>
        make(
          "button",
          {
            type: "button", class: `word${extra}`, onclick: () => { this.stop(); this.select(i); },
            style: `--p: ${logProb === null ? 0 : Math.exp(logProb).toFixed(4)}`,
            "aria-label": logProb === null ? text : `${text}, ${percent(logProb)}`,
          },
          make("span", { class: "text" }, text),
          make("small", {}, logProb === null ? "\u00a0" : percent(logProb)),
        );
      this.chips.replaceChildren(
        ...words.map((w, i) => chip(w.word, w.log_prob, i, i < forced ? " forced" : "")),
        chip(finished ? "end" : "…", end, words.length, " end"),
      );
      this.chips.classList.toggle("short", words.length < 1);
      this.buildBeams();
      this.buildLayers();
      // The first word that is likely to name something.
      const telling = words.findIndex((w) => w.word.length > 3);
      this.select(Math.min(words.length, place ?? Math.max(0, telling)), false);
    }

    buildBeams() {
      const { captions } = this.data;
      if (captions.length < 2) return this.beams.replaceChildren();
      this.beams.replaceChildren(
        make("h4", {}, "Captions found, with their scores"),
        make(
          "ol", {},
          ...captions.map((caption, i) =>
            make(
              "li", {},
              make(
                "button",
                { type: "button", class: "beam", "aria-pressed": String(i === this.caption), onclick: () => this.selectCaption(i) },
                make("span", { class: "text" }, caption.text || "(no words)", caption.finished ? "" : " …"),
                make("small", { title: `log-probability ${caption.log_prob.toFixed(2)}` }, caption.score.toFixed(2).replace("-", "−")),
              ),
            )),
        ),
      );
    }

    buildLayers() {
      const { layers } = this.current;
      if (!layers) return this.layers.replaceChildren();
      const option = (value, text, chosen) => {
        const node = make("option", { value }, text);
        node.selected = chosen;
        return node;
      };
      const layer = make(
        "select", { class: "layer", onchange: (e) => this.setLayer(e.target.value, this.head) },
        option("", `as decoded (mean, layer ${layers.layers})`, this.layer === null),
        ...Array.from({ length: layers.layers }, (_, i) => option(String(i), `layer ${i + 1}`, this.layer === i)),
      );
      const head = make(
        "select", { class: "head", onchange: (e) => this.setLayer(this.layer ?? layers.layers - 1, e.target.value) },
        option("", "mean of the heads", this.head === null),
        ...Array.from({ length: layers.heads }, (_, i) => option(String(i), `head ${i + 1}`, this.head === i)),
      );
      this.layers.replaceChildren(
        make("label", {}, "Layer", layer), make("label", {}, "Head", head),
      );
    }

    setLayer(layer, head) {
      const number = (value) => (value === "" || value === null ? null : Number(value));
      this.layer = number(layer);
      this.head = this.layer === null ? null : number(head);
      this.buildLayers();
      this.select(this.place, false);
    }

    /* The map of the picked word: what the decoder used, or the layer and head that are chosen. */
    get map() {
      const { rows, cols } = this.data, size = rows * cols, caption = this.current;
      if (this.place >= caption.words.length) return null;
      if (this.layer === null) return caption.maps.subarray(this.place * size, (this.place + 1) * size);
      const { layers, heads } = caption.layers;
      const start = (this.place * layers + this.layer) * heads * size;
      if (this.head !== null)
        return caption.layerMaps.subarray(start + this.head * size, start + (this.head + 1) * size);
      const mean = new Float32Array(size);
      for (let h = 0; h < heads; h++)
        for (let i = 0; i < size; i++) mean[i] += caption.layerMaps[start + h * size + i] / heads;
      return mean;
    }

    select(place, focus = true) {
      this.place = place;
      const { words, end_log_prob: end, finished, alternatives } = this.current;
      [...this.chips.children].forEach((chip, i) => {
        chip.setAttribute("aria-pressed", String(i === place));
        chip.tabIndex = i === place ? 0 : -1;
        if (i === place && focus) chip.focus({ preventScroll: true });
      });
      const last = place >= words.length;
      const logProb = last ? end : words[place].log_prob;
      const map = this.map;
      this.word.replaceChildren(
        make(
          "p", { class: "picked" },
          make("strong", {}, last ? (finished ? "end of the caption" : "cut off here") : words[place].word),
          logProb === null ? null : make("span", {}, percent(logProb)),
        ),
      );
      if (map) {
        const value = spread(map);
        const meter = make("div", { class: "meter", role: "img", "aria-label": `Map: ${Math.round(100 * value)} % of the way from sharp to spread`, title: `entropy ${value.toFixed(2)} of 1` },
          make("span", {}, "sharp"), make("i", {}, make("b", { style: `left: ${(100 * value).toFixed(1)}%` })), make("span", {}, "spread"));
        this.word.append(meter);
      }
      const others = alternatives[place] ?? [];
      this.alternatives.replaceChildren(
        make("h4", {}, last ? "Or go on with" : "The model also thought of"),
        make(
          "div", { class: "others" },
          ...others.map((other) =>
            make(
              "button",
              {
                type: "button", class: "other", style: `--p: ${Math.exp(other.log_prob).toFixed(4)}`,
                title: other.word === END ? "end the caption here" : `continue with “${other.word}”`,
                onclick: () => this.force(place, other.word),
              },
              make("span", { class: "text" }, other.word === END ? "(end here)" : other.word),
              make("small", {}, percent(other.log_prob)),
            )),
        ),
      );
      this.draw();
    }

    force(place, word) {
      this.stop();
      this.forcing = true;
      const words = this.current.words.slice(0, place).map((w) => w.word);
      const { model, options, seed } = this.data;
      this.trigger("force_word", { words: [...words, word], model, options, seed, asked: window.captionerAsk() });
    }

    draw() {
      if (!this.data || !this.image.complete || !this.image.naturalWidth) return;
      const { canvas, image } = this;
      const width = image.naturalWidth, height = image.naturalHeight;
      if (canvas.width !== width || canvas.height !== height) {
        canvas.width = width;
        canvas.height = height;
        // Never wider than the page, never higher than the screen, small pictures not blurred.
        canvas.style.setProperty("--ratio", width / height);
        canvas.style.setProperty("--own", `${Math.max(width, Math.min(320, (320 * width) / height))}px`);
      }
      const context = canvas.getContext("2d");
      context.globalAlpha = 1;
      context.filter = "none";
      context.drawImage(image, 0, 0);
      const map = this.map;
      const word = this.current.words[this.place]?.word;
      canvas.setAttribute("aria-label", word === undefined ? this.current.text : `Where the model looked for “${word}”`);
      if (!map) return;
      const { rows, cols } = this.data;
      const scale = width / this.data.width;
      const edge = (value, end) => Math.min(Math.round(value * scale), end);
      const left = edge(this.data.crop_box[0], width - 1), top = edge(this.data.crop_box[1], height - 1);
      const right = Math.max(edge(this.data.crop_box[2], width), left + 1);
      const bottom = Math.max(edge(this.data.crop_box[3], height), top + 1);
      const box = [left, top, right - left, bottom - top];
      if (box[2] < width || box[3] < height) {
        // What the grid does not cover is dark and without colour.
        context.filter = "grayscale(1)";
        context.drawImage(image, 0, 0);
        context.filter = "none";
        context.globalAlpha = style.opacity;
        context.fillStyle = "black";
        context.fillRect(0, 0, width, height);
        context.globalAlpha = 1;
        context.drawImage(image, ...box, ...box);
      }
      context.globalAlpha = style.opacity;
      context.imageSmoothingEnabled = style.smooth;
      context.drawImage(this.heat(map, box[2], box[3]), ...box);
      context.globalAlpha = 1;
      if (style.contour) this.drawContour(context, halfRegion(map), rows, cols, box);
    }

    heat(map, width, height) {
      const { rows, cols } = this.data, table = colours(style.colormap);
      const low = Math.min(...map), high = Math.max(...map);
      let values = Float32Array.from(map, (v) => (high > low ? (v - low) / (high - low) : 0.5));
      let size = [cols, rows];
      if (style.smooth) {
        const scale = Math.min(1, SMOOTH_SIDE / Math.max(width, height));
        size = [Math.max(1, Math.round(width * scale)), Math.max(1, Math.round(height * scale))];
        values = enlarge(values, rows, cols, size[1], size[0]);
      }
      const canvas = make("canvas", { width: size[0], height: size[1] });
      const pixels = new ImageData(size[0], size[1]);
      for (let i = 0; i < values.length; i++) {
        const k = 3 * Math.round(255 * Math.min(1, Math.max(0, values[i])));
        pixels.data.set([table[k], table[k + 1], table[k + 2], 255], 4 * i);
      }
      canvas.getContext("2d").putImageData(pixels, 0, 0);
      return canvas;
    }

    drawContour(context, inside, rows, cols, [left, top, width, height]) {
      const at = (y, x) => y >= 0 && x >= 0 && y < rows && x < cols && inside[y * cols + x] === 1;
      const path = new Path2D();
      const px = (x) => left + (x * width) / cols, py = (y) => top + (y * height) / rows;
      for (let y = 0; y <= rows; y++)
        for (let x = 0; x <= cols; x++) {
          if (at(y, x) !== at(y - 1, x)) { path.moveTo(px(x), py(y)); path.lineTo(px(x + 1), py(y)); }
          if (at(y, x) !== at(y, x - 1)) { path.moveTo(px(x), py(y)); path.lineTo(px(x), py(y + 1)); }
        }
      const line = Math.max(1.5, context.canvas.width / 320);
      context.lineCap = "round";
      context.strokeStyle = "black";
      context.lineWidth = 2.2 * line;
      context.stroke(path);
      context.strokeStyle = "white";
      context.lineWidth = line;
      context.stroke(path);
    }

    syncStyle() {
      if (!this.data) return;
      this.opacity.value = style.opacity;
      this.smooth.checked = style.smooth;
      this.contour.checked = style.contour;
      this.colormap.value = style.colormap;
      const pixels = new ImageData(256, 1), table = colours(style.colormap);
      for (let i = 0; i < 256; i++) pixels.data.set([...table.subarray(3 * i, 3 * i + 3), 255], 4 * i);
      this.legend.getContext("2d").putImageData(pixels, 0, 0);
      this.draw();
    }

    onKey(event) {
      const last = this.chips.children.length - 1;
      const to = {
        ArrowRight: Math.min(last, this.place + 1), ArrowLeft: Math.max(0, this.place - 1),
        Home: 0, End: last,
      }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      this.stop();
      this.select(to);
    }

    toggle() {
      if (this.timer) return this.stop();
      const words = this.current.words.length;
      if (!words) return;
      let place = this.place >= words - 1 ? 0 : this.place;
      this.select(place, false);
      this.setPlay(true);
      this.timer = setInterval(() => {
        place += 1;
        if (place >= words) return this.stop();
        this.select(place, false);
      }, 800);
    }

    stop() {
      clearInterval(this.timer);
      this.timer = null;
      if (this.playButton) this.setPlay(false);
    }

    setPlay(playing) {
      this.playButton.textContent = playing ? "❚❚ Pause" : "▶ Play";
      if (!playing) this.syncStyle();
    }

    askFile(kind) {
      const { words, finished } = this.current;
      this.copied.textContent = "Being made …";
      this.making = true;
      this.trigger("export_file", {
        kind, words: words.map((w) => w.word), finished, model: this.data.model,
        layer: this.layer, head: this.head, ...style,
      });
    }

    async copy() {
      const text = this.current.text;
      try {
        await navigator.clipboard.writeText(text);
      } catch {
        // No clipboard without https or a permission: an old way that needs neither.
        const area = make("textarea", { class: "aside" });
        area.value = text;
        document.body.append(area);
        area.select();
        document.execCommand("copy");
        area.remove();
      }
      this.copied.textContent = "Copied.";
    }

    saveJson() {
      const { rows, cols, crop_box, width, height, model, options, seed } = this.data;
      const size = rows * cols;
      const nest = (values, ...shape) => {
        if (shape.length === 0) return values[0];
        const step = values.length / shape[0];
        return Array.from({ length: shape[0] }, (_, i) => nest(values.subarray(i * step, (i + 1) * step), ...shape.slice(1)));
      };
      const captions = this.data.captions.map((c) => ({
        caption: c.text, words: c.words.map((w) => w.word), word_log_probs: c.words.map((w) => w.log_prob),
        log_prob: c.log_prob, score: c.score, finished: c.finished, alternatives: c.alternatives,
        attention: nest(c.maps, c.maps.length / size, rows, cols),
        layer_attention: c.layers ? nest(c.layerMaps, c.words.length, c.layers.layers, c.layers.heads, rows, cols) : null,
      }));
      const all = { model, options, seed, image_size: [width, height], crop_box, rows, cols, captions };
      const url = URL.createObjectURL(new Blob([JSON.stringify(all)], { type: "application/json" }));
      download("caption.json", url);
      setTimeout(() => URL.revokeObjectURL(url), 10000);
    }
  }

  const download = (name, url) => {
    const link = make("a", { href: url, download: name });
    document.body.append(link);
    link.click();
    link.remove();
  };

  window.captionerViewer = (element, props, trigger, watch) => {
    const viewer = new Viewer(element.querySelector(".viewer"), trigger);
    const show = () => viewer.show(props.value || "");
    watch("value", show);
    show();
  };

  /* A picture that is pasted anywhere on the page goes where a chosen file would go. */
  document.addEventListener("paste", async (event) => {
    const picture = document.querySelector("#picture");
    const file = [...(event.clipboardData?.files ?? [])].find((one) => one.type.startsWith("image/"));
    if (!file || !picture?.offsetParent) return;
    event.preventDefault();
    const input = () => picture.querySelector("input[type=file]");
    if (!input()) {
      // The camera stands in its place.
      picture.querySelector("[aria-label='Upload file']")?.click();
      for (let i = 0; i < 60 && !input(); i++) await new Promise(requestAnimationFrame);
    }
    const files = new DataTransfer();
    files.items.add(file);
    input().files = files.files;
    input().dispatchEvent(new Event("change", { bubbles: true }));
  });

  // The server reads kinds of pictures that browsers do not show.
  for (const [event, unseen] of [["error", true], ["load", false]])
    document.addEventListener(event, ({ target }) => {
      if (target instanceof HTMLImageElement && target.closest("#picture")) target.classList.toggle("unseen", unseen);
    }, true);

  window.captionerDownload = (props, watch) => {
    watch("value", () => {
      const { name, url, note = "" } = props.value ? JSON.parse(props.value) : {};
      viewers.forEach((viewer) => { if (viewer.making) viewer.copied.textContent = note; viewer.making = false; });
      if (!url) return;
      download(name, url);
    });
  };
})();

// What a page does beside being read: curves drawn anew at each choice, tables sorted and filtered, and, where it is live
// (data-etag), renewed in the parts that have changed. The choices are those of this window alone.
"use strict";
(() => {
  const choice = {x: "step", log: false, smooth: 0, zoom: null, whole: false, hidden: new Set(), sort: {}, filter: {}};
  const main = document.querySelector("main");
  const parse = (page) => JSON.parse(page.getElementById("data").textContent);
  let data = parse(document), charts = [], sent = new Map();

  const make = (tag, props = {}, ...children) => {
    const node = Object.assign(document.createElement(tag), props);
    node.append(...children);
    return node;
  };
  const labelOf = (node) => data.labels[node.dataset.label]?.[0];
  // As the pages and the terminal write a number: so many digits, of two that are as near the even one.
  const short = (value, digits = 4) => {
    if (Number.isInteger(value) && Math.abs(value) < 1e6) return String(value);
    const exact = value.toExponential(40), cut = exact.slice(0, digits + 1 + (value < 0)), rest = exact.slice(cut.length).split("e")[0];
    const [part, power] = (/^50*$/.test(rest) && /[02468]$/.test(cut) ? `${cut}e${exact.split("e")[1]}` : value.toExponential(digits - 1)).split("e");
    return power < -4 || power >= digits ? `${+part}e${+power}` : String(+`${part}e${power}`);
  };
  const count = (value) => Math.abs(value) >= 1e9 ? +(value / 1e9).toPrecision(4) + "G" : Math.abs(value) >= 1e6 ? +(value / 1e6).toPrecision(4) + "M" : Math.abs(value) >= 1e4 ? +(value / 1e3).toPrecision(4) + "k" : +value.toPrecision(6) + "";
  const clock = (seconds) => {
    const two = (part) => String(Math.floor(part)).padStart(2, "0");
    if (seconds < 60) return +seconds.toPrecision(3) + " s";
    return seconds < 3600 ? `${Math.floor(seconds / 60)}:${two(seconds % 60)}` : `${Math.floor(seconds / 3600)}:${two(seconds / 60 % 60)} h`;
  };
  const along = (value) => (choice.x === "time" ? clock(value) : count(value));
  const WHOLE = Array.from({length: 13}, (_, power) => [1, 2, 5].map((part) => part * 10 ** power)).flat();
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // --- Curves -------------------------------------------------------------------------------------------
  // The place of some steps on the axis that was chosen, between two marks of the label's clock on a line.
  function places(steps, label) {
    if (choice.x === "step") return steps;
    const [at, values] = data.labels[label][2][choice.x] ?? [];
    if (values === undefined) return null;
    const marks = data.steps[at];
    let spot = 0, last = -Infinity;
    return steps.map((step) => {
      while (spot < marks.length - 2 && marks[spot + 1] < step) spot++;
      const share = (step - marks[spot]) / (marks[spot + 1] - marks[spot]);
      return (last = Math.max(last, 0, values[spot] + share * (values[spot + 1] - values[spot])));
    });
  }

  // The mean of a value and those before it, each weighing so much less than the next; the first are not pulled to 0.
  function smoothed(values) {
    let mean = 0, weight = 0;
    return values.map((value) => {
      mean = choice.smooth * mean + (1 - choice.smooth) * value;
      weight = choice.smooth * weight + 1 - choice.smooth;
      return mean / weight;
    });
  }

  // The columns of a chart and how each is drawn: a curve, its raw line where it is smoothed, else its band. Each colour
  // has its dashes, through which those below are seen, as in the pictures.
  function columns(title, curves) {
    const tables = [], series = [{}], bands = [], ends = [], looks = Object.keys(data.looks);
    const rank = ([label]) => looks.indexOf(data.labels[label][1]);
    const drawn = curves.filter(([label]) => !choice.hidden.has(data.labels[label][0])).sort((one, other) => rank(one) - rank(other));
    for (const curve of drawn) {
      const [label, dashed, at, values, sds] = curve, [text, stroke] = data.labels[label], steps = places(data.steps[at], label);
      if (!steps) continue;
      ends.push(steps[steps.length - 1]);
      const usable = (value) => (choice.log && value <= 0 ? null : value), [glyph, dashes] = data.looks[stroke] ?? ["", []];
      const few = values.length < (dashed || title.startsWith("eval_") ? 2 : 3), rough = choice.smooth > 0 && !few, mark = {glyph, few, hollow: dashed, rank: rank(curve), aside: drawn.indexOf(curve) - (drawn.length - 1) / 2};
      const line = {label: text, stroke, width: 1.6, dash: dashed ? [6, 4] : dashes.map((part) => part * 2), spanGaps: true, points: {show: few && !glyph, size: 7}, shown: true};
      if (few) line.paths = () => null;
      const add = (column, more) => {
        tables.push([steps, column.map(usable)]);
        return series.push({...line, ...more}) - 1;
      };
      if (rough) add(values, {shown: false, stroke: stroke + "55", width: 1, points: {show: false}});
      else if (sds) {
        const edge = {shown: false, stroke: "transparent", width: 0, points: {show: false}};
        const high = add(values.map((value, place) => value + sds[place]), edge);
        bands.push({series: [high, add(values.map((value, place) => value - sds[place]), edge)], fill: stroke + "2a"});
        if (few) mark.edges = bands.at(-1).series;
      }
      add(rough ? smoothed(values) : values, {mark});
    }
    return {tables: tables.length ? uPlot.join(tables) : [[]], series, bands, ends};
  }

  // The marks of a line: each of few values, those of few beside each other with their deviations, else some.
  function marks(plot, place) {
    const {mark, stroke} = plot.series[place], ratio = devicePixelRatio, {ctx} = plot;
    if (!mark?.glyph) return;
    const at = (value) => plot.valToPos(value, "y", true), few = mark.few, apart = few || plot.data[place].filter((value) => value != null).length < 30 ? 0 : 70 * ratio;
    let next = plot.bbox.left + apart * mark.rank / 8;
    ctx.save();
    ctx.setLineDash([]);
    Object.assign(ctx, {fillStyle: mark.hollow ? colour("--ground") : stroke(), strokeStyle: stroke(), lineWidth: ratio, textAlign: "center", textBaseline: "middle", font: `${(15 - 1.2 * mark.rank) * ratio}px sans-serif`});
    plot.data[place].forEach((value, spot) => {
      const along = plot.valToPos(plot.data[0][spot], "x", true), x = along + (few ? Math.max(-28, Math.min(28, 7 * mark.aside)) * ratio : 0);
      if (value == null || along < next - 1 || along > plot.bbox.left + plot.bbox.width + 1) return;
      next = Math.max(along, next) + apart;
      if (mark.edges) {
        ctx.beginPath();
        mark.edges.forEach((edge) => ctx.lineTo(x, at(plot.data[edge][spot] ?? value)));
        ctx.stroke();
      }
      ctx.fillText(mark.glyph, x, at(value));
      if (mark.hollow) ctx.strokeText(mark.glyph, x, at(value));
    });
    ctx.restore();
  }

  // The nearest place with a value, if it is not far from the cursor.
  function nearest(plot, place, at) {
    const column = plot.data[place], xs = plot.data[0], reach = (plot.scales.x.max - plot.scales.x.min) / 25;
    for (let away = 0; away < xs.length; away++) {
      for (const spot of [at - away, at + away]) {
        if (column[spot] != null) return Math.abs(xs[spot] - xs[at]) <= reach ? spot : null;
      }
    }
    return null;
  }

  function showValues(plot, box) {
    const {left, top, idxs} = plot.cursor;
    box.hidden = left < 0 || !idxs || !plot.hovered;
    if (box.hidden) return;
    const rows = [];
    plot.series.forEach((line, place) => {
      const value = place && line.shown && idxs[place] != null ? plot.data[place][idxs[place]] : null;
      if (value != null) rows.push({line, value, away: Math.abs(plot.valToPos(value, "y") - top)});
    });
    const close = rows.sort((one, other) => one.away - other.away).slice(0, 12), first = close[0];
    close.sort((one, other) => other.value - one.value);
    box.replaceChildren(make("div", {}, `${choice.x} ${along(plot.data[0][plot.cursor.idx])}`), ...close.map((row) => make("div", {className: row === first ? "nearest" : ""}, swatch(row.line.stroke()), make("span", {}, row.line.label), make("b", {}, short(row.value)))));
    if (rows.length > close.length) box.append(make("div", {}, `and ${rows.length - close.length} more`));
    const right = left > plot.over.clientWidth / 2, edge = plot.over.offsetLeft;
    box.style.left = right ? "" : `${edge + left + 14}px`;
    box.style.right = right ? `${plot.width - edge - left + 14}px` : "";
  }

  const swatch = (stroke, hollow) => {
    const mark = make("i", {className: hollow ? "hollow swatch" : "swatch"}, data.looks[stroke]?.[0] ?? "·");
    mark.style.color = stroke;
    return mark;
  };

  // The values that are written beside a logarithmic axis: 1, 2 and 5, or powers of ten, or what a short range has.
  function ticks(low, high) {
    const powers = Array.from({length: Math.ceil(Math.log10(high / low)) + 2}, (_, place) => 10 ** (Math.floor(Math.log10(low)) + place));
    const found = powers.flatMap((power) => [1, 2, 5].map((part) => +(part * power).toPrecision(1))).filter((tick) => low <= tick && tick <= high);
    if (found.length > 7) return found.filter((tick) => powers.some((power) => Math.abs(tick / power - 1) < 0.01));
    return found.length > 1 ? found : [0.1, 0.4, 0.7, 0.95].map((share) => +(low * (high / low) ** share).toPrecision(3));
  }

  function drawChart(figure, title, curves, share) {
    const {tables, series, bands, ends} = columns(title, curves), width = Math.floor(figure.clientWidth), height = Math.round(Math.max(190, width * 0.58));
    const shape = JSON.stringify([series, bands, choice.log, choice.x, width]);
    const old = figure.chart;
    if (old?.shape === shape) {
      old.plot.setData(tables, false);
      return fit(Object.assign(old.plot, {ends}));
    }
    old?.plot.destroy();
    const ink = colour("--quiet"), line = colour("--line"), box = make("div", {className: "values", hidden: true});
    const axis = {stroke: ink, grid: {stroke: line, width: 1}, ticks: {stroke: line, width: 1}, font: "11px system-ui, sans-serif"};
    const plot = new uPlot({
      width, height, series, bands,
      legend: {show: false},
      scales: {x: {time: false}, y: {distr: choice.log ? 3 : 1, range: (_, low, high) => low == null ? [choice.log ? 0.1 : 0, 1] : share && !choice.log ? [-0.03, 1.03] : choice.log ? [low / 1.08, high * 1.08] : uPlot.rangeNum(low, high, 0.1, true)}},
      axes: [
        {...axis, values: (_, splits) => splits.map(along), space: 60, size: 34, ...(choice.x === "time" ? {} : {incrs: WHOLE})},
        {...axis, values: (_, splits) => splits.map((split) => short(split, 6)), ...(choice.log ? {splits: (_, __, low, high) => ticks(low, high), filter: (_, splits) => splits} : {}), size: (_, texts) => 16 + 6.5 * Math.max(3, ...(texts ?? []).map((text) => text.length))},
      ],
      cursor: {
        y: false, dataIdx: nearest, points: {size: 7}, drag: {setScale: false, dist: 6}, sync: {key: "all", scales: ["x", null]},
        bind: {dblclick: () => () => zoomTo(null)},
      },
      hooks: {
        drawSeries: [marks],
        setCursor: [(it) => showValues(it, box)],
        setSelect: [(it) => it.select.width > 0 && zoomTo([it.posToVal(it.select.left, "x"), it.posToVal(it.select.left + it.select.width, "x")])],
      },
    }, tables, figure.querySelector(".plot"));
    plot.over.append(box);
    plot.root.append(box);
    plot.over.addEventListener("mouseenter", () => (plot.hovered = true));
    plot.over.addEventListener("mouseleave", () => (plot.hovered = false, box.hidden = true));
    figure.chart = {plot, shape};
    return fit(Object.assign(plot, {ends, beyond: figure.querySelector(".beyond")}));
  }

  // What was chosen, or up to where most curves end and those that go not much further, or the whole.
  function fit(plot) {
    const xs = plot.data[0], [low, whole] = [xs[0] ?? 0, xs[xs.length - 1] ?? 1], ends = plot.ends.sort((one, other) => one - other);
    const most = Math.max(low, ...ends.filter((end) => end <= 2 * ends[ends.length >> 1])), far = ends.filter((end) => end > most).length;
    const high = choice.whole || !far ? whole : most + (most - low) / 20;
    const room = plot.series.some((line) => line.mark?.few) ? (high - low) / 8 : 0;
    const [min, max] = choice.zoom ?? (low < high ? [low - room, high + room] : [low - 1, high + 1]);
    plot.far = far;
    plot.beyond.textContent = far && !choice.zoom && !choice.whole ? ` (${far} beyond, to ${along(whole)})` : "";
    plot.setScale("x", {min, max});
    return plot;
  }

  function zoomTo(range) {
    const zoom = range && range[1] > range[0] ? range : null;
    choice.whole = zoom ? choice.whole : Boolean(choice.zoom) || !choice.whole;
    choice.zoom = zoom;
    for (const plot of charts) {
      plot.setSelect({left: 0, width: 0, top: 0, height: 0}, false);
      fit(plot);
    }
    resets();
  }

  const resets = () => main.querySelectorAll(".reset").forEach((button) => (button.disabled = !choice.zoom && !charts.some((plot) => plot.far)));

  function figureOf(name, title, room) {
    const known = [...room.children].find((figure) => figure.dataset.name === name);
    const figure = known ?? room.appendChild(make("figure"));
    if (!figure.querySelector(".plot")) {
      figure.dataset.name = name;
      figure.setAttribute("role", "group");
      figure.setAttribute("aria-label", title);
      figure.replaceChildren(make("div", {className: "title"}, title, make("span", {className: "note beyond"})), make("div", {className: "plot", tabIndex: 0}), make("p", {className: "keys"}));
      figure.querySelector(".plot").addEventListener("keydown", (event) => move(event, figure));
    }
    return figure;
  }

  // The arrow keys move the cursor from value to value, and Escape takes zoom and cursor away.
  function move(event, figure) {
    const {plot} = figure.chart, by = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (event.key === "Escape") zoomTo(null);
    if (!by) return;
    event.preventDefault();
    plot.hovered = true;
    const at = Math.min(Math.max((plot.cursor.idx ?? (by > 0 ? -1 : plot.data[0].length)) + by, 0), plot.data[0].length - 1);
    plot.setCursor({left: plot.valToPos(plot.data[0][at], "x"), top: plot.over.clientHeight / 2});
  }

  function draw() {
    const room = main.querySelector("[data-curves]");
    charts = [];
    if (!room || !data.charts.length) return;
    if (!room.previousElementSibling?.matches(".controls")) room.before(controls());
    const keyed = main.querySelector(".keys [data-label]:not(figure *)");
    for (const [name, title, curves, share] of data.charts) {
      const figure = figureOf(name, title, room);
      if (!keyed && curves.length > 1) {
        figure.querySelector(".keys").replaceChildren(...curves.flatMap(([label, dashed, , values]) => {
          const span = make("span", {}, swatch(data.labels[label][1], dashed), data.labels[label][0] + (dashed && values.length > 1 ? " (dashed)" : ""));
          span.dataset.label = label;
          return [span, " "];
        }));
      }
      charts.push(drawChart(figure, title, curves, share));
    }
    keys();
    resets();
    document.documentElement.dataset.charts = charts.length;
  }

  // What has a label hides its curves, and shows them again.
  function keys() {
    for (const node of main.querySelectorAll(".keys [data-label], tr[data-label] td:first-child")) {
      const owner = node.closest("[data-label]"), text = labelOf(owner);
      let button = node.querySelector("button");
      if (!button && text !== undefined && node.querySelector(".swatch")) {
        button = make("button", {type: "button", className: "key", title: "hides and shows; a double click shows this alone"}, ...node.childNodes);
        button.onclick = () => toggle(labelOf(owner));
        button.ondblclick = () => only(labelOf(owner));
        if (node.matches("td")) button.setAttribute("aria-label", text);
        node.append(button);
      }
      button?.setAttribute("aria-pressed", String(!choice.hidden.has(text)));
      owner.classList.toggle("off", choice.hidden.has(text));
    }
    main.querySelectorAll(".all").forEach((button) => (button.disabled = !choice.hidden.size));
  }

  function toggle(text) {
    if (!choice.hidden.delete(text)) choice.hidden.add(text);
    draw();
  }

  function only(text) {
    choice.hidden = new Set(data.labels.map(([other]) => other).filter((other) => other !== text));
    draw();
  }

  function controls() {
    const kinds = ["step", ...new Set(data.labels.flatMap((label) => Object.keys(label[2])))];
    const select = make("select", {}, ...kinds.map((kind) => make("option", {value: kind, selected: kind === choice.x}, kind)));
    select.onchange = () => {
      choice.x = select.value;
      choice.zoom = null;
      draw();
    };
    const log = make("input", {type: "checkbox", checked: choice.log});
    log.onchange = () => {
      choice.log = log.checked;
      draw();
    };
    const output = make("output", {}, String(choice.smooth)), slide = make("input", {type: "range", min: 0, max: 0.99, step: 0.01, value: choice.smooth});
    slide.oninput = () => {
      choice.smooth = +slide.value;
      output.textContent = slide.value;
      draw();
    };
    const reset = make("button", {type: "button", className: "reset", disabled: !choice.zoom, onclick: () => zoomTo(null)}, "whole range");
    const all = make("button", {type: "button", className: "all", onclick: () => (choice.hidden.clear(), draw())}, "show all");
    const hint = make("span", {className: "note"}, "drag zooms, a double click shows all");
    return make("div", {className: "controls"}, make("label", {}, "along ", select), make("label", {}, log, " log scale"), make("label", {}, "smoothing ", slide, output), reset, all, hint);
  }

  // --- Tables -------------------------------------------------------------------------------------------
  // Numbers come before words, and what is empty last; of "0.5 ± 0.1" and "7/10" the first number counts.
  function order(text) {
    const found = /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?(?=$|\s|\/)/i.exec(text);
    return found ? [0, +found[0]] : [/^[-—?]?$/.test(text) ? 2 : 1, text];
  }

  function sortTable(table, key) {
    const [column, down] = choice.sort[key] ?? [], body = table.tBodies[0];
    [...table.tHead.rows[0].cells].forEach((cell, place) => cell.querySelector("button") && cell.setAttribute("aria-sort", place !== column ? "none" : down ? "descending" : "ascending"));
    if (column === undefined) return;
    const rows = [...body.rows].map((row) => [row, order(row.cells[column]?.innerText.trim() ?? "")]);
    rows.sort(([, [kind, one]], [, [other, two]]) => kind - other || (down && kind < 2 ? -1 : 1) * (one < two ? -1 : one > two ? 1 : 0));
    body.append(...rows.map(([row]) => row));
  }

  function filterTable(table, key) {
    const words = (choice.filter[key] ?? "").toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of table.tBodies[0].rows) row.hidden = !words.every((word) => row.innerText.toLowerCase().includes(word));
  }

  function tables(part, title) {
    part.querySelectorAll("table").forEach((table, place) => {
      const body = table.tBodies[0], key = `${title} ${place}`;
      if (!table.tHead || body.rows.length < 2) return;
      [...table.tHead.rows[0].cells].forEach((cell, column) => {
        if (!cell.textContent.trim()) return;
        const button = make("button", {type: "button", className: "sort"}, ...cell.childNodes);
        button.onclick = () => {
          const [before, down] = choice.sort[key] ?? [];
          choice.sort[key] = [column, before === column ? !down : false];
          sortTable(table, key);
        };
        cell.append(button);
      });
      if (body.rows.length > 4) {
        const input = make("input", {type: "search", placeholder: "filter rows", value: choice.filter[key] ?? ""});
        input.setAttribute("aria-label", `filter the rows of ${title}`);
        input.oninput = () => {
          choice.filter[key] = input.value;
          filterTable(table, key);
        };
        (table.closest(".scroll") ?? table).before(make("p", {className: "filter"}, input));
        filterTable(table, key);
      }
      sortTable(table, key);
    });
  }

  // --- Live ---------------------------------------------------------------------------------------------
  const titleOf = (part, place) => part.querySelector("h2")?.textContent ?? part.tagName + place;

  // Only the parts that have changed are replaced, so that nobody loses a place, an open detail or the focus.
  function renew(page) {
    document.title = page.title;
    const fresh = [...page.querySelector("main").children], kept = new Map();
    [...main.children].forEach((part) => kept.set(part.title_of, part));
    fresh.forEach((part, place) => {
      const title = titleOf(part, place), old = kept.get(title), html = part.outerHTML;
      kept.delete(title);
      if (old && sent.get(title) === html) return;
      const open = old ? [...old.querySelectorAll("details")].map((detail) => detail.open) : [];
      const sides = old ? [...old.querySelectorAll(".scroll")].map((box) => box.scrollLeft) : [];
      const focus = old?.contains(document.activeElement) ? focusable(old).indexOf(document.activeElement) : -1;
      const cursor = document.activeElement?.selectionStart;
      adopt(part, title, html);
      if (old) old.replaceWith(part);
      else main.insertBefore(part, main.children[place] ?? null);
      part.querySelectorAll("details").forEach((detail, at) => (detail.open = open[at] ?? detail.open));
      part.querySelectorAll(".scroll").forEach((box, at) => (box.scrollLeft = sides[at] ?? 0));
      tables(part, title);
      part.focus_at = focus;
      part.cursor_at = cursor;
    });
    kept.forEach((part) => part.remove());
    draw();
    for (const part of main.children) {
      if (!(part.focus_at >= 0)) continue;
      const node = focusable(part)[part.focus_at];
      node?.focus({preventScroll: true});
      if (node?.type === "search") node.setSelectionRange(part.cursor_at, part.cursor_at);
      part.focus_at = -1;
    }
  }

  const focusable = (part) => [...part.querySelectorAll("a, button, input, select, summary, [tabindex]")];

  function adopt(part, title, html) {
    part.title_of = title;
    sent.set(title, html);
  }

  function watch() {
    let etag = document.body.dataset.etag, last = new Date(), timer;
    const status = make("p", {className: "live"}, "");
    status.setAttribute("role", "status");
    document.body.append(status);
    const say = (text, lost) => {
      if (status.textContent !== text) status.textContent = text;
      status.classList.toggle("lost", lost);
    };
    const time = () => last.toLocaleTimeString("en-GB");
    async function look() {
      clearTimeout(timer);
      const begun = performance.now();
      try {
        const answer = await fetch(location.pathname, {headers: {"If-None-Match": etag}, cache: "no-store", signal: AbortSignal.timeout(60000)});
        if (answer.status === 200) {
          const page = new DOMParser().parseFromString(await answer.text(), "text/html");
          etag = answer.headers.get("ETag");
          last = new Date();
          data = parse(page);
          renew(page);
        }
        if (answer.ok || answer.status === 304) say(`live, last change ${time()}`, false);
        else say(`${await answer.text()} Last change ${time()}`, true);
      } catch {
        say(`disconnected, last update ${time()}`, true);
      }
      timer = setTimeout(look, Math.max(2000, 10 * (performance.now() - begun)));
    }
    document.addEventListener("visibilitychange", () => document.hidden || look());
    say(`live, last change ${time()}`, false);
    timer = setTimeout(look, 2000);
  }

  [...main.children].forEach((part, place) => {
    const title = titleOf(part, place);
    adopt(part, title, part.outerHTML);
    tables(part, title);
  });
  draw();
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== width) draw();
    width = innerWidth;
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    main.querySelectorAll("figure").forEach((figure) => figure.chart && (figure.chart.shape = ""));
    draw();
  });
  if (document.body.dataset.etag) watch();
})();

// The page: reads /events, shows them, and sends what is changed to /set.
"use strict";

const SECONDS = 60;      // in a chart
const LINE = 50;         // dots in a tenant's line: as many as may wait in it
const MANY = 30;         // requests that a dot stands for where there is one queue for all
const $ = id => document.getElementById(id);
const sum = (sample, what) => sample.tenants.reduce((total, tenant) => total + tenant[what], 0);
const show = number => number == null ? "–" : Math.round(number).toLocaleString("en");
/// How many may be in flight; nothing without protection.
const limitOf = s => ({ edge: s.limit, tower: s.tower_limit })[s.protection] ?? null;
const called = { off: "no protection", tower: "tower's limit", edge: "edge()" };
const calm = matchMedia("(prefers-reduced-motion: reduce)");

let samples = [];        // the last minute, as the server tells it
let pointed = null;      // the time that the pointer is at, in any chart
let colours = {};

// ---- Charts

const tenantSeries = value => ["web", "mobile", "batch"].map((name, i) =>
  ({ label: name, colour: name, value: sample => value(sample, sample.tenants[i]) }));

const levelSeries = value => ["critical", "normal", "background"].map((name, i) =>
  ({ label: name, colour: name, value: sample => value(sample.levels[i]) }));
/// The share of what was sent that was answered in time, if anything was sent: answers come later, so it may seem more.
const answered = level => level.offered ? Math.min(100, 100 * level.served / level.offered) : null;

const charts = {
  rates: { least: 100, labels: true, series: [
    { label: "answered in time", colour: "served", value: s => sum(s, "served"), fill: true },
    { label: "rejected", colour: "refused", value: s => sum(s, "refused") },
    { label: "lost", colour: "lost", value: s => sum(s, "lost") },
    { label: "asked for", colour: "offered", value: s => sum(s, "offered") },
    { label: "can do", colour: "soft", value: s => s.capacity, dashed: true } ] },
  latency: { least: 100, series: [
    { label: "p99", colour: "p99", value: s => s.p99 },
    { label: "median", colour: "p50", value: s => s.p50, fill: true } ] },
  limit: { least: 10, zoom: true, series: [
    { label: "in flight", colour: "served", value: s => s.in_flight, fill: true },
    { label: "limit", colour: "limit", value: s => limitOf(s) },
    { label: "workers", colour: "soft", value: s => s.workers, dashed: true } ] },
  waiting: { least: 20, zoom: true, stacked: true, series: tenantSeries((_, tenant) => tenant.waiting) },
  share: { most: 100, stacked: true, series: tenantSeries((sample, tenant) => {
    const served = sum(sample, "served");
    return served ? 100 * tenant.served / served : 0;
  }) },
  levels: { most: 100, series: levelSeries(answered) },
  rejected: { least: 100, stacked: true, series: levelSeries(level => level.refused) },
  queued: { least: 20, zoom: true, stacked: true, series: levelSeries(level => level.waiting) },
};

for (const [name, chart] of Object.entries(charts)) {
  const card = document.querySelector(`[data-chart=${name}]`);
  chart.canvas = card.querySelector("canvas");
  chart.canvas.setAttribute("aria-label", `${card.querySelector("h2").textContent}, the last minute`);
  for (const series of chart.series) {
    const key = document.createElement("span");
    key.className = "key";
    key.style.setProperty("--c", `var(--${series.colour})`);
    key.append(series.label + " ", series.shown = document.createElement("b"));
    card.querySelector(".legend").append(key);
  }
  chart.canvas.addEventListener("pointermove", event => {
    const box = chart.canvas.getBoundingClientRect();
    const share = (event.clientX - box.left - chart.left) / (box.width - chart.left);
    pointed = samples.length ? samples.at(-1).t - SECONDS * (1 - share) : null;
    draw();
  });
  chart.canvas.addEventListener("pointerleave", () => { pointed = null; draw(); });
}

/// The canvas's context, in CSS pixels, wiped.
function surface(canvas) {
  const { clientWidth: width, clientHeight: height } = canvas, scale = devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const g = canvas.getContext("2d");
  g.setTransform(scale, 0, 0, scale, 0, 0);
  g.clearRect(0, 0, width, height);
  g.font = "11px system-ui, sans-serif";
  return { g, width, height };
}

/// The next of 1, 1.2, 1.6, 2, …, 10, 12, …
function round(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10].find(step => step * power >= value * 0.999);
}

function drawChart(chart) {
  const { g, width, height } = surface(chart.canvas);
  const now = samples.at(-1).t, top = chart.labels ? 24 : 8, bottom = height - 18;
  const values = samples.map(sample => chart.series.map(series => series.value(sample)));
  if (chart.stacked) for (const row of values) row.forEach((_, i) => { if (i) row[i] += row[i - 1]; });
  // What there was without protection is so much more that nothing else could be seen: it goes off the chart.
  const fits = values.filter((_, k) => !(chart.zoom && limitOf(samples.at(-1)) && !limitOf(samples[k])));
  const most = chart.most ?? round(Math.max(chart.least, ...fits.flat()) * 1.05);

  g.fillStyle = colours.soft;
  chart.left = Math.ceil(g.measureText(show(most)).width) + 8;
  const x = t => chart.left + (width - chart.left) * (1 - (now - t) / SECONDS);
  const y = value => bottom - (bottom - top) * value / most;

  // Where there was no protection.
  const bare = runs(samples.map(sample => [limitOf(sample) ? null : 1]), 0);
  g.fillStyle = colours.wash;
  for (const [from, to] of bare) g.fillRect(x(samples[from].t), top, x(samples[to].t) - x(samples[from].t), bottom - top);
  const peaks = bare.map(([from, to]) => [from, to, Math.max(...values.slice(from, to + 1).flat())]).filter(([, , peak]) => chart.zoom && peak > most);
  // A stack that does not fit is shown in its proportions.
  if (chart.stacked) for (const row of values) if (row.at(-1) > most) row.forEach((value, i) => { row[i] = value * most / row.at(-1); });
  g.lineWidth = 1;
  g.textBaseline = "middle";
  g.textAlign = "right";
  for (const part of [0, 0.5, 1]) {
    g.fillStyle = colours.line;
    g.fillRect(chart.left, Math.round(y(part * most)), width - chart.left, 1);
    g.fillStyle = colours.soft;
    g.fillText(show(part * most), chart.left - 6, y(part * most));
  }
  g.textBaseline = "alphabetic";
  for (const [ago, text, align] of [[60, "1 min ago", "left"], [30, "30 s", "center"], [0, "now", "right"]]) {
    g.textAlign = align;
    g.fillText(text, x(now - ago), height - 3);
  }
  // Where something was changed.
  g.strokeStyle = colours.soft;
  g.setLineDash([2, 3]);
  g.textAlign = "left";
  let free = chart.left;
  for (const [t, text] of changes()) {
    if (x(t) < chart.left) continue;
    g.beginPath(); g.moveTo(x(t), top); g.lineTo(x(t), bottom); g.stroke();
    const from = Math.min(x(t) - 2, width - g.measureText(text).width);
    if (!chart.labels || from < free) continue;
    g.fillText(text, from, top - 8);
    free = from + g.measureText(text).width + 10;
  }
  g.setLineDash([]);

  g.save();
  g.beginPath(); g.rect(chart.left, top - 1, width, height); g.clip();
  chart.series.forEach((series, i) => {
    g.strokeStyle = g.fillStyle = colours[series.colour];
    for (const [from, to] of runs(values, i)) {
      const line = new Path2D(), edge = index => line.lineTo(x(samples[index].t), y(values[index][i]));
      for (let k = from; k <= to; k++) edge(k);
      if (chart.stacked || series.fill) {
        const area = new Path2D(line);
        for (let k = to; k >= from; k--) area.lineTo(x(samples[k].t), y(chart.stacked && i ? values[k][i - 1] : 0));
        g.globalAlpha = chart.stacked ? 0.78 : 0.16;
        g.fill(area);
        g.globalAlpha = 1;
        if (chart.stacked) continue;
      }
      g.lineWidth = series.dashed ? 1.2 : 1.8;
      g.lineJoin = "round";
      g.setLineDash(series.dashed ? [5, 4] : []);
      g.stroke(line);
      g.setLineDash([]);
    }
  });
  g.restore();
  g.fillStyle = colours.ink;
  g.textAlign = "center";
  for (const [from, to, peak] of peaks) {
    const middle = Math.max(x(samples[from].t), chart.left) / 2 + x(samples[to].t) / 2;
    if (middle > chart.left + 20) g.fillText(`↑ ${show(peak)}`, middle, top + 14);
  }

  const at = pointed == null ? samples.at(-1) : samples.find(sample => sample.t >= pointed) ?? samples.at(-1);
  if (pointed != null) { g.fillStyle = colours.ink; g.fillRect(x(at.t), top, 1, bottom - top); }
  for (const series of chart.series) series.shown.textContent = show(series.value(at));
}

/// From where to where there are values.
function runs(values, i) {
  const found = [];
  values.forEach((row, k) => {
    if (row[i] == null) return;
    if (k && values[k - 1][i] != null) found.at(-1)[1] = k; else found.push([k, k]);
  });
  return found;
}

/// What is set, by name.
function settings(s) {
  const all = { protection: s.protection, workers: s.workers, service_ms: s.service_ms, target_ms: s.target_ms, critical: s.critical,
    limit: s.pinned ? s.limit : "auto" };
  for (const tenant of s.tenants) { all[`load.${tenant.name}`] = tenant.load; all[`weight.${tenant.name}`] = tenant.weight; }
  return all;
}

/// When settings were changed, and to what; changes in a row are one.
function changes() {
  const found = [];
  for (let i = 1; i < samples.length; i++) {
    const [before, after] = [i - 1, i].map(k => samples[k].settings ??= settings(samples[k]));
    const changed = Object.keys(after).filter(name => after[name] !== before[name]);
    if (!changed.length) continue;
    if (!(samples[i].t - found.at(-1)?.[0] < 1.5)) found.push([samples[i].t, new Map()]);
    for (const name of changed) found.at(-1)[1].set(name, after[name]);
    found.at(-1)[2] = sum(samples[i], "load");
  }
  return found.map(([t, to, load]) => {
    const loads = [...to.keys()].filter(name => name.startsWith("load."));
    const words = [...to].filter(([name]) => loads.length < 2 || !loads.includes(name)).map(([name, value]) => {
      const [what, tenant] = name.split(".");
      return { protection: called[value], workers: `${value} workers`, service_ms: `${value} ms each`, target_ms: `target ${value} ms`, critical: `${value} % critical`,
        limit: `limit ${value}`, load: `${tenant} ${show(value)}/s`, weight: `${tenant} weight ${value}` }[what];
    });
    return [t, (loads.length > 1 ? [...words, `load ${show(load)}/s`] : words).join(", ")];
  });
}

// ---- Where requests are now: the tenants' lines, and the places behind them

function drawNow(sample) {
  const { g, width, height } = surface($("now"));
  const narrow = width < 500, names = narrow ? 70 : 150, gap = narrow ? 24 : 40, places = Math.min(300, width * 0.3);
  const lines = width - names - places - gap - 10, rows = narrow ? 4 : 2, step = lines / Math.ceil(LINE / rows);
  const lane = height / 3, dot = Math.min(9, step - 2, lane / rows - 2.5);
  const place = (colour, middle, k) => {
    g.fillStyle = colours[colour];
    g.beginPath();
    g.arc(names + lines - step * (Math.floor(k / rows) + 0.5), middle + (k % rows - (rows - 1) / 2) * (dot + 2.5), dot / 2, 0, 7);
    g.fill();
  };
  g.textBaseline = "middle";
  const mixed = sample.protection === "edge" ? null : mix(sample);
  sample.tenants.forEach((tenant, i) => {
    const middle = lane * (i + 0.5);
    g.fillStyle = colours[tenant.name];
    g.font = "600 14px system-ui, sans-serif";
    g.fillText(tenant.name, 0, middle - 8);
    g.fillStyle = colours.soft;
    g.font = "12px system-ui, sans-serif";
    g.fillText(`${show(tenant.offered)} /s`, 0, middle + 9);
    const refused = tenant.refused + tenant.lost;
    if (refused > 0 && !narrow) {
      if (tenant.lost > tenant.refused) g.fillStyle = colours.lost;
      g.fillText(`${show(refused)} ${tenant.lost > tenant.refused ? "lost" : "rejected"}`, 56, middle + 9);
    }
    // The head of a line is at the places.
    for (let k = 0; k < LINE; k++)
      place(mixed ? mixed[3 * k + i] ?? "faint" : k < tenant.waiting ? tenant.name : "faint", middle, k);
    const from = names + lines + 2, to = from + gap - 10, end = height / 2 + (i - 1) * 8;
    g.strokeStyle = tenant.waiting ? colours[mixed ? "lost" : tenant.name] : colours.line;
    g.lineWidth = 2;
    g.beginPath();
    g.moveTo(from, middle);
    g.bezierCurveTo(from + gap / 2, middle, to - gap / 2, end, to, end);
    g.stroke();
  });
  // As many places as may be in flight; those taken, by tenant.
  const count = limitOf(sample) ?? sample.workers, left = names + lines + gap;
  const taken = sample.protection === "edge" ? sample.tenants.flatMap(tenant => Array(tenant.running).fill(tenant.name))
    : Array(Math.min(count, sample.in_flight)).fill(sum(sample, "served") > 0 ? "served" : "lost");
  let size = 22;
  while (Math.floor(places / size) * Math.floor(height / size) < Math.max(count, taken.length) && size > 5) size--;
  const across = Math.min(Math.floor(places / size), Math.max(1, Math.ceil(count / Math.max(1, Math.floor(height * 0.6 / size)))));
  const down = Math.ceil(Math.max(count, taken.length) / across), upper = (height - down * size) / 2;
  for (let k = 0; k < Math.max(count, taken.length); k++) {
    g.beginPath();
    g.roundRect(left + (k % across) * size + 1, upper + Math.floor(k / across) * size + 1, size - 3, size - 3, 3);
    g.fillStyle = taken[k] ? colours[taken[k]] : colours.faint;
    g.fill();
  }
  const after = left + across * size + 12;
  if (width - after > 90) {
    g.font = "600 14px system-ui, sans-serif";
    g.fillStyle = colours.served;
    g.fillText(`${show(sum(sample, "served"))} /s`, after, height / 2 - 8);
    g.font = "12px system-ui, sans-serif";
    g.fillStyle = colours.soft;
    g.fillText("answered", after, height / 2 + 9);
  }
  $("now-legend").textContent = { edge: "a dot waits in its line, a square is in flight",
    tower: "a square is in flight; what finds none free is rejected" }[sample.protection] ?? `one queue for all: a dot is ${MANY} that wait, a square is a worker`;
}

/// The one queue of all as dots, whose they are, in proportion.
function mix(sample) {
  const waiting = sum(sample, "waiting"), had = sample.tenants.map(() => 0);
  return Array.from({ length: Math.min(3 * LINE, Math.ceil(waiting / MANY)) }, (_, k) => {
    const behind = sample.tenants.map((tenant, i) => (k + 1) * tenant.waiting / waiting - had[i]);
    const next = behind.indexOf(Math.max(...behind));
    had[next]++;
    return sample.tenants[next].name;
  });
}

// ---- Numbers and words

function verdict(s) {
  const [offered, served, refused, lost, waiting] = ["offered", "served", "refused", "lost", "waiting"].map(what => sum(s, what));
  const load = s.tenants.reduce((total, tenant) => total + tenant.load, 0), times = (load / s.capacity).toFixed(1);
  const busy = Math.min(100, Math.round(100 * served / s.capacity));
  if (s.protection === "tower") {
    const hurt = s.tenants.filter(tenant => tenant.load && tenant.load < s.capacity / 3 && tenant.refused + tenant.lost > 0.1 * tenant.offered).map(tenant => tenant.name);
    if (hurt.length) return ["bad", "The server is fine, its tenants are not",
      `${busy} % of what the workers can do is answered in time. But ${hurt.join(" and ")}, which ${hurt.length > 1 ? "ask" : "asks"} for less than a third of it, ${hurt.length > 1 ? "are" : "is"} rejected like everybody else.`];
    if (served < 0.85 * Math.min(offered, s.capacity)) return ["busy", "The limit does not fit any more", `${busy} % of what the workers can do is answered in time. The limit of ${s.tower_limit} was right for 8 workers.`];
    if (refused > 0.03 * offered) return ["busy", "Overload, rejected at the limit", `${busy} % of what the workers can do is answered in time, at p99 in ${show(s.p99)} ms. The rest is rejected, whoever it is from.`];
    return ["good", "All is well", `Asked for ${Math.round(100 * load / s.capacity)} % of what it can do. The limit of ${s.tower_limit} is right as long as the workers are.`];
  }
  if (s.protection === "off") {
    if (lost > 0.1 * offered && load <= s.capacity) return ["bad", "The overload is over, the damage is not",
      `The load would fit again. But ${show(waiting)} requests wait in front, whose clients have left, and each is worked on all the same.`];
    if (lost > 0.1 * offered) return ["bad", served < 0.3 * s.capacity ? "Collapsed: busy, and of no use" : "It is going under",
      `All ${s.workers} workers work, on requests whose clients left after a second. ${show(waiting)} wait; ${show(lost)} a second are lost, of every tenant.`];
    if (load > s.capacity) return ["busy", "A queue builds up", `${times} times what it can do is asked for. ${show(waiting)} wait already.`];
    return ["busy", "No protection, and none needed yet", "The load fits. Ask for more."];
  }
  const fine = s.tenants.filter(tenant => tenant.load && tenant.refused + tenant.lost <= 0.02 * tenant.offered).map(tenant => tenant.name);
  const [ask, their, notice] = fine.length > 1 ? ["ask", "their", "notice"] : ["asks", "its", "notices"];
  const who = fine.length && fine.length < 3 ? ` ${fine.join(" and ")} ${ask} for no more than ${their} share, and hardly ${notice}.` : "";
  if (s.critical && refused > 0.03 * offered) return ["busy", load > s.capacity ? `${times}× overload, under control` : "Working it off",
    `${show(answered(s.levels[0]))} % of the critical requests are answered in time, ${show(answered(s.levels[1]))} % of the normal ones, ${show(answered(s.levels[2]))} % of the background work. What matters least is rejected first.`];
  if (refused > 0.03 * offered) return ["busy", load > s.capacity ? `${times}× overload, under control` : "Working it off",
    `${busy} % of what the workers can do is answered in time, at p99 in ${show(s.p99)} ms. The rest is rejected while it is cheap.${who}`];
  return ["good", "All is well", `Asked for ${Math.round(100 * load / s.capacity)} % of what it can do. Nobody is rejected, and hardly anybody waits.`];
}

let said = "", since = 0; // the verdict that is shown; how often it was another one meanwhile
function tell(s) {
  for (const what of ["offered", "served", "refused", "lost"]) $(what).textContent = show(sum(s, what));
  $("p99").textContent = show(s.p99);
  $("in_flight").textContent = show(s.in_flight);
  $("limit").textContent = limitOf(s) ?? "∞";
  $("offered-more").textContent = `${(sum(s, "offered") / s.capacity).toFixed(1)} × what it can do`;
  $("served-more").textContent = `${Math.round(100 * sum(s, "served") / s.capacity)} % of what it can do`;
  $("refused-more").textContent = { edge: `${show(s.queue_full)} line full, ${show(s.too_old)} too old`, tower: "over the limit" }[s.protection] ?? "nobody is rejected";
  $("p99-more").textContent = `median ${show(s.p50)} ms`;
  $("limit-more").textContent = s.protection === "off" ? "no limit" : s.protection === "tower" ? "fixed" : s.pinned ? "pinned" : `learned; ${show(s.baseline)} ms unloaded`;
  $("capacity").textContent = show(s.capacity);
  const [state, words, why] = verdict(s);
  since = words === said ? 0 : since + 1;
  if (!since) $("because").textContent = why;
  if (since > 2 || !said) { // not for a moment only
    said = words;
    $("story").dataset.mood = state;
    $("verdict").textContent = words;
    $("because").textContent = why;
  }
  $("levels-note").textContent = !s.critical ? "All requests are normal now. Have some of them matter more: the slider is called “Critical requests”."
    : s.protection === "edge" ? "What matters most is served first. Each priority that waits gets at least 1 % of the service."
    : "Nobody looks at the priority: critical requests fare like all others.";
  $("displaced").textContent = s.protection === "edge" ? `${show(s.displaced)} a second had waited, and made room for a more important request.` : "Whatever comes at a bad time, however important.";
  if (s.protection === "off") $("moved").textContent = "Without protection all that comes is taken in.";
  else if (s.protection === "tower") $("moved").textContent = "A fixed limit: right for the workers that there were at the start.";
  else $("moved").textContent = s.pinned ? "Pinned by hand: nothing is learned." : `${s.moved ? `Last ${s.moved}. ` : ""}It dips now and then, to measure how long requests take that do not wait.`;
}

let drawn = 0, asked = false;
function draw() {
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => {
    asked = false;
    if (!samples.length) return;
    Object.values(charts).forEach(drawChart);
    drawNow(samples.at(-1));
  });
}

function theme() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["ink", "soft", "line", "faint", "wash", "served", "refused", "lost", "offered", "limit", "p50", "p99", "web", "mobile", "batch", "critical", "normal", "background"])
    colours[name] = style.getPropertyValue(`--${name}`).trim();
  draw();
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", theme);
new ResizeObserver(draw).observe(document.body);

// ---- Sliders

const tenants = ["web", "mobile", "batch"].map(name => {
  const card = $("tenant").content.cloneNode(true).firstElementChild;
  const [load, weight] = card.querySelectorAll("input");
  card.style.setProperty("--c", `var(--${name})`);
  card.querySelector("h3 b").textContent = name;
  for (const [input, what] of [[load, "load"], [weight, "weight"]]) {
    input.id = `${what}-${name}`;
    input.dataset.set = `${what}.${name}`;
    const label = input.parentElement.querySelector("label");
    label.htmlFor = input.id;
    input.setAttribute("aria-label", `${label.textContent} of ${name}`);
  }
  $("tenants").append(card);
  return { load, weight, says: card.querySelector("h3 span"), bar: card.querySelectorAll(".bar i") };
});
const sliders = [...document.querySelectorAll("[data-set]")];

/// The call behind a change.
function call(name, value) {
  const [what, tenant] = name.split(".");
  return {
    protection: { edge: "router.layer(edge())", tower: "ServiceBuilder::new().layer(LoadShedLayer::new()).layer(GlobalConcurrencyLimitLayer::new(10)) // tower's", off: "router // without layers" }[value],
    workers: `workers.set_workers(${value})`,
    service_ms: `workers.set_service_time(Duration::from_millis(${value}))`,
    load: `tenant("${tenant}").send(${value}) // a second`,
    limit: value === "auto" ? "handle.unpin()" : `handle.pin(${value})?`,
    target_ms: `handle.set_target(Duration::from_millis(${value}))?`,
    critical: `edge().priority(|head| …) // ${value} % of what comes is Priority::Critical`,
    weight: `handle.set_weight("${tenant}", ${value})?`,
  }[what];
}

const pending = new Map(); // what is yet to be sent, by name: of many changes, the last
let sending = false;
async function set(name, value) {
  pending.delete(name);
  pending.set(name, String(value));
  if (sending) return;
  sending = true;
  while (pending.size) {
    const [name, value] = pending.entries().next().value;
    pending.delete(name);
    try {
      const answer = await fetch("/set", { method: "POST", body: `${name}=${value}` });
      $("call").dataset.state = answer.ok ? "done" : "refused";
      $("call").textContent = answer.ok ? call(name, value) : await answer.text();
    } catch {
      $("call").dataset.state = "refused";
      $("call").textContent = "the server does not answer";
    }
  }
  sending = false;
}

const held = new Map(); // sliders that somebody moves, and until when
const holds = input => (held.get(input) ?? 0) > performance.now();
function label(input) {
  const auto = input.dataset.set === "limit" && $("auto").checked;
  const text = Number(input.value).toLocaleString("en") + (input.dataset.unit ?? "") + (auto ? ", learned" : "");
  input.parentElement.querySelector("output").textContent = text;
  input.setAttribute("aria-valuetext", text);
  input.style.setProperty("--at", `${100 * (input.value - input.min) / (input.max - input.min)}%`);
}
for (const input of sliders) input.addEventListener("input", () => {
  held.set(input, performance.now() + 1000);
  if (input.dataset.set === "limit") { $("auto").checked = false; held.set($("auto"), performance.now() + 1000); }
  label(input);
  set(input.dataset.set, input.value);
});
$("auto").addEventListener("change", event => {
  held.set(event.target, performance.now() + 1000);
  set("limit", event.target.checked ? "auto" : $("limit-knob").value);
});
const positions = [...document.querySelectorAll("[data-protection]")];
for (const position of positions) position.addEventListener("click", () => {
  held.set($("protection"), performance.now() + 1000);
  protection(position.dataset.protection);
  set("protection", position.dataset.protection);
});
$("protection").addEventListener("keydown", event => {
  const by = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
  if (!by) return;
  event.preventDefault();
  const at = positions.findIndex(position => position.ariaChecked === "true");
  const next = positions[(at + by + positions.length) % positions.length];
  next.focus();
  next.click();
});
function protection(what) {
  for (const position of positions) {
    position.ariaChecked = String(position.dataset.protection === what);
    position.tabIndex = position.dataset.protection === what ? 0 : -1;
  }
}

const usual = { "load.web": 120, "load.mobile": 100, "load.batch": 60, workers: 8, service_ms: 20, critical: 0 };
const much = { ...usual, "load.web": 860, "load.mobile": 720, "load.batch": 420 };
const tries = {
  flood: { ...usual, "load.batch": 2000 },
  half: { ...usual, workers: 4 },
  five: much,
  critical: { ...much, critical: 10 },
  calm: { ...usual },
};
for (const button of document.querySelectorAll("[data-try]")) button.addEventListener("click", () => {
  for (const [name, value] of Object.entries(tries[button.dataset.try])) {
    const input = sliders.find(slider => slider.dataset.set === name);
    if (Number(input.value) === value) continue;
    input.value = value;
    held.set(input, performance.now() + 1000);
    label(input);
    set(name, value);
  }
});

/// Has the controls stand where the server is, which others may have changed.
function follow(s) {
  const at = { ...settings(s), limit: s.limit };
  if (!holds($("auto"))) $("auto").checked = !s.pinned;
  for (const input of sliders) if (!holds(input)) { input.value = at[input.dataset.set]; label(input); }
  if (!holds($("protection"))) protection(s.protection);
  for (const button of document.querySelectorAll("[data-try]"))
    button.setAttribute("aria-pressed", Object.entries(tries[button.dataset.try]).every(([name, value]) => at[name] === value));
  s.tenants.forEach((tenant, i) => {
    tenants[i].says.textContent = `${show(tenant.served)} /s answered · p99 ${show(tenant.p99)} ms`;
    const all = tenant.served + tenant.refused + tenant.lost || 1;
    ["served", "refused", "lost"].forEach((what, k) => { tenants[i].bar[k].style.width = `${100 * tenant[what] / all}%`; });
  });
}

// ---- The stream

function link(state, text) {
  $("link").dataset.state = state;
  if ($("link").textContent !== text) $("link").textContent = text;
  document.body.classList.toggle("gone", state === "gone");
}

function connect() {
  const events = new EventSource("/events");
  events.onopen = () => { samples = []; link("live", "live"); }; // it begins with the last minute
  events.onerror = () => {
    link("gone", "disconnected, retrying");
    if (events.readyState === EventSource.CLOSED) setTimeout(connect, 2000);
  };
  events.onmessage = event => {
    const sample = JSON.parse(event.data);
    samples.push(sample);
    while (sample.t - samples[0].t > SECONDS + 1) samples.shift();
    const every = calm.matches ? 1000 : 0; // fewer changes for those who asked for it
    if (performance.now() - drawn < every) return;
    drawn = performance.now();
    tell(sample);
    follow(sample);
    draw();
  };
}

theme();
connect();

"use strict";
// Shows the state that this same address sends. Every value goes in as text, never as markup.
(() => {
  const MEANINGS = {
    too_large: "needs more than can ever be free",
    body_too_complex: "its body has more than max_json_values values",
    body_too_large: "its body is above max_body_bytes",
    body_timeout: "its body came too slowly",
    queue_full: "max_waiting requests waited already",
    budget_unreachable: "the shared budget did not answer, or begins anew",
    queue_timeout: "not enough was free within its timeout",
    deadline: "not enough was free within the client's deadline",
    gpu_unavailable: "a guard lets nothing start",
    draining: "the server is shutting down",
    unreadable_body: "its body could not be read",
    waited: "it would have waited",
  };
  const SVG = "http://www.w3.org/2000/svg";
  const byId = (id) => document.getElementById(id);
  const READABLE = 76; // pixels
  let paused = false;
  let latest = null;

  // words

  const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

  // In the unit of the largest that it stands beside: values of one figure can be compared at a glance.
  function bytes(value, largest = value) {
    if (value === null || value === undefined) return "unknown";
    let unit = 0;
    let most = Math.abs(largest);
    while (most >= 1024 && unit < UNITS.length - 1) { most /= 1024; unit += 1; }
    const scaled = value / 1024 ** unit;
    if (!unit || !scaled) return `${scaled} ${UNITS[unit]}`;
    return scaled < 0.01 ? `< 0.01 ${UNITS[unit]}` : `${scaled.toFixed(scaled < 100 ? 2 : 0)} ${UNITS[unit]}`;
  }

  // A column of bytes: ``get`` is what a row of ``items`` has.
  function sizes(items, get) {
    const largest = Math.max(0, ...items.map((row) => get(row) || 0));
    return (row) => bytes(get(row), largest);
  }

  function seconds(value) {
    if (value === null || value === undefined) return "unknown";
    if (value < 10) return `${value.toFixed(1)} s`;
    if (value < 120) return `${Math.round(value)} s`;
    if (value < 7200) return `${Math.round(value / 60)} min`;
    return `${(value / 3600).toFixed(1)} h`;
  }

  const percent = (part, whole) => (whole ? Math.min(100, (100 * part) / whole) : 0);

  // elements: changed in place, so that focus, selection and scrolling stay

  function text(element, value) {
    const now = String(value);
    if (element.textContent !== now) element.textContent = now;
  }

  function children(parent, count, make) {
    while (parent.childElementCount > count) parent.lastElementChild.remove();
    while (parent.childElementCount < count) parent.append(make());
    return [...parent.children];
  }

  function element(name, className) {
    const made = document.createElement(name);
    if (className) made.className = className;
    return made;
  }

  function table(id, items, columns) {
    const rows = children(byId(id), items.length, () => element("tr"));
    rows.forEach((row, at) => {
      const cells = children(row, columns.length, () => element("td"));
      cells.forEach((cell, column) => {
        cell.className = columns[column][1] || "";
        text(cell, columns[column][0](items[at], at));
      });
    });
    const scroll = byId(id).closest(".scroll");
    scroll.hidden = items.length === 0;
  }

  // what is shown

  function stateOf(state) {
    const closed = state.devices.filter((device) => device.ceiling === 0);
    const lowered = state.devices.filter((device) => device.closed_by && device.ceiling !== 0);
    const restart = closed.some((device) => device.restart_needed) ? " Only a restart mends it." : "";
    if (state.draining) return ["bad", "Draining: nobody is let in."];
    if (state.mode === "off") return ["warn", "Off: every request passes."];
    if (closed.length) return ["bad", `${closed[0].name} is closed by ${closed[0].closed_by}: ${closed[0].reason}.${restart}`];
    if (state.settles != null) return ["warn", `The shared budget begins anew: it lets nothing start for another ${seconds(state.settles)}.`];
    if (!state.capacity) return ["warn", "The capacity is not measured yet."];
    if (lowered.length) return ["warn", `${lowered[0].name} is limited by ${lowered[0].closed_by}: ${lowered[0].reason}.`];
    if (state.mode === "shadow") return ["warn", "Shadow mode: it only watches, nobody is refused."];
    return ["good", "Open: requests start when they fit."];
  }

  const refusals = (state) => Object.entries(state.counts).filter(([name, count]) => name in MEANINGS && count);

  function totals(state) {
    const largest = Math.max(state.capacity, state.in_use, state.peak);
    const refused = refusals(state).reduce((sum, [, count]) => sum + count, 0);
    const rows = [
      ["Held", bytes(state.in_use, largest)],
      ["Capacity", bytes(state.capacity, largest)],
      ["Free now", bytes(state.available, largest)],
      ["Peak", bytes(state.peak, largest)],
      ["Running", state.running],
      ["Waiting", state.waiting],
      ["Admitted", state.counts.admitted || 0],
      ["Refused", refused],
      ["Wait now", seconds(state.forecast)],
    ];
    const boxes = children(byId("totals"), rows.length, () => {
      const box = element("div");
      box.append(element("dt"), element("dd"));
      return box;
    });
    boxes.forEach((box, at) => { text(box.children[0], rows[at][0]); text(box.children[1], rows[at][1]); });
  }

  function devices(state) {
    const names = state.lanes.map((lane) => lane.name);
    const parts = children(byId("devices"), state.devices.length, () => {
      const part = element("div");
      const bar = element("div", "bar");
      bar.setAttribute("role", "img");
      part.append(element("h3"), bar, element("p", "quiet"));
      return part;
    });
    parts.forEach((part, at) => device(part, state.devices[at], state, names));
  }

  function device(part, shown, state, names) {
    const [title, bar, note] = part.children;
    const leases = state.leases.filter((lease) => lease.device === shown.name || state.devices.length === 1);
    const known = leases.reduce((sum, lease) => sum + lease.bytes, 0);
    const other = Math.max(0, shown.in_use - known);
    const whole = Math.max(shown.capacity, shown.in_use);
    text(title, `${shown.name}: ${bytes(shown.in_use, whole)} of ${bytes(shown.capacity, whole)}`);
    bar.setAttribute("aria-label", `${leases.length} leases hold ${percent(shown.in_use, shown.capacity).toFixed(0)} percent of ${shown.name}`);
    const blocks = readable(leases, whole, bar.clientWidth)
      .map((lease) => ({ ...lease, lane_at: lease.lane_at || names.indexOf(lease.lane) % 6 }));
    if (other) blocks.push({ bytes: other, lane: "others", age: null, lane_at: "x" });
    const lowered = shown.ceiling !== null && shown.ceiling < shown.capacity;
    const drawn = children(bar, blocks.length + 1, () => {
      const block = element("div", "block");
      block.append(element("span"), element("span"));
      return block;
    });
    blocks.forEach((block, index) => paint(drawn[index], block, whole, bar.clientWidth));
    const mark = drawn[blocks.length];
    mark.className = "ceiling";
    mark.hidden = !lowered;
    mark.style.width = lowered ? `${100 - percent(shown.ceiling, whole)}%` : "0";
    mark.title = "";
    [...mark.children].forEach((line) => text(line, ""));
    text(note, lowered ? `Ceiling ${bytes(shown.ceiling, whole)}, set by ${shown.closed_by || "nobody"}` : "No guard has lowered the ceiling");
  }

  // Those too narrow for their own figures are one block together.
  function readable(leases, whole, width) {
    const narrow = leases.filter((lease) => (width * lease.bytes) / whole < READABLE);
    if (narrow.length < 2) return leases;
    const held = narrow.reduce((sum, lease) => sum + lease.bytes, 0);
    const small = { bytes: held, lane: `${narrow.length} small`, age: null, lane_at: "x" };
    return [...leases.filter((lease) => !narrow.includes(lease)), small];
  }

  function paint(drawn, block, whole, width) {
    const age = block.age === null ? "" : ` ${seconds(block.age)}`;
    const narrow = (width * block.bytes) / whole < READABLE ? " narrow" : "";
    drawn.className = `block lane${block.lane_at}${narrow}`;
    drawn.hidden = false;
    drawn.style.width = `${percent(block.bytes, whole)}%`;
    drawn.title = `${block.lane} ${bytes(block.bytes, whole)}${age}`;
    text(drawn.children[0], bytes(block.bytes, whole));
    text(drawn.children[1], `${block.lane}${age}`);
  }

  function svg(name, attributes, content) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (content !== undefined) made.textContent = content;
    return made;
  }

  function chart(state) {
    const { rows, step } = state.history;
    const width = Math.max(280, byId("chart").clientWidth), height = 170;
    const left = 72, right = 36, top = 12, bottom = 24, steps = 120;
    const mostBytes = Math.max(state.capacity, ...rows.map((row) => row[0]), 1);
    const mostWaits = 2 * Math.ceil(Math.max(4, ...rows.map((row) => row[1])) / 2);
    const x = (at) => left + ((width - left - right) * (steps - rows.length + at)) / steps;
    const y = (value, most) => top + (height - top - bottom) * (1 - value / most);
    const line = (column, most) => rows.map((row, at) => {
      const level = y(row[column], most).toFixed(1);
      return `${x(at).toFixed(1)},${level} ${x(at + 1).toFixed(1)},${level}`;
    }).join(" ");
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
    for (const share of [0, 0.5, 1]) {
      const at = y(share, 1);
      picture.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: at, y2: at }));
      picture.append(svg("text", { x: left - 6, y: at + 4, "text-anchor": "end" }, bytes(share * mostBytes, mostBytes)));
      picture.append(svg("text", { x: width - right + 6, y: at + 4 }, Math.round(share * mostWaits)));
    }
    for (const minutes of [10, 5, 0]) {
      const at = width - right - ((width - left - right) * minutes) / 10;
      picture.append(svg("text", { x: at, y: height - 6, "text-anchor": "middle" }, minutes ? `-${minutes} min` : "now"));
    }
    if (rows.length) {
      const floor = y(0, 1);
      picture.append(svg("polygon", { class: "area", points: `${x(0)},${floor} ${line(0, mostBytes)} ${x(rows.length)},${floor}` }));
      picture.append(svg("polyline", { class: "edge", points: line(0, mostBytes) }));
      picture.append(svg("polyline", { class: "waits", points: line(1, mostWaits) }));
    }
    const peak = Math.max(0, ...rows.map((row) => row[0]));
    const waits = Math.max(0, ...rows.map((row) => row[1]));
    byId("chart").replaceChildren(picture);
    byId("chart").setAttribute("aria-label", `The last ${Math.round((rows.length * step) / 6) / 10} minutes: at most ${bytes(peak)} held and ${waits} waiting`);
  }

  function verdict(ratio) {
    if (ratio < 1) return "too low: it took more than it was charged";
    return ratio > 2 ? "more than double: room is wasted" : "enough";
  }

  function render(state) {
    const [mood, words] = stateOf(state);
    text(byId("budget"), `${state.budget} (process ${state.process})`);
    byId("state").className = `state ${mood}`;
    text(byId("state"), words);
    totals(state);
    devices(state);
    chart(state);
    text(byId("queue-note"), state.waiting > state.queue.length
      ? `The first ${state.queue.length} of ${state.waiting}.` : state.waiting ? "" : "Nobody waits.");
    table("queue", state.queue, [
      [(row, at) => at + 1], [(row) => row.lane, "clip"], [sizes(state.queue, (row) => row.bytes), "number"],
      [(row) => seconds(row.waited), "number"], [(row) => seconds(row.forecast), "number"]]);
    text(byId("leases-note"), state.running > state.leases.length
      ? `${state.leases.length} of ${state.running}; the others hold ${bytes(state.other_leases)} or are not listed.`
      : state.running ? "" : "No lease is open.");
    table("leases", state.leases, [
      [(row) => row.lease], [sizes(state.leases, (row) => row.bytes), "number"], [(row) => seconds(row.age), "number"],
      [(row) => row.lane, "clip"], [(row) => row.route, "clip"], [(row) => row.device, "clip"]]);
    byId("members-part").hidden = state.shared === null;
    text(byId("members-note"), state.away || "");
    table("members", state.members, [
      [(row) => `${row.pid}${row.is_self ? " (this one)" : row.is_dead ? " (dead)" : ""}`], [(row) => row.host, "clip"],
      [(row) => bytes(row.bytes), "number"], [(row) => row.running, "number"], [(row) => row.waiting, "number"],
      [(row) => bytes(row.resident.reduce((sum, each) => sum + each, 0)), "number"],
      [(row) => `${seconds(row.age)} ago`, "number"], [(row) => `${seconds(row.silent)} ago`, "number"], [(row) => row.name, "clip"]]);
    const counted = refusals(state).map(([name, count]) => `${count} ${name}`).join(", ");
    text(byId("refusals-note"), counted ? `Since the start: ${counted}.` : state.refusals.length ? "" : "None so far.");
    const needed = sizes(state.refusals, (row) => row.bytes);
    table("refusals", state.refusals, [
      [(row) => seconds(row.ago), "number"], [(row) => (row.shadow ? `would be ${row.reason}` : `${row.reason} (${row.status})`)],
      [(row) => MEANINGS[row.reason] || ""], [(row) => row.lane, "clip"], [(row) => row.route, "clip"],
      [(row) => (row.bytes ? needed(row) : "not known"), "number"]]);
    table("ceilings", state.devices, [
      [(row) => row.name, "clip"], [(row) => bytes(row.ceiling === null ? row.capacity : row.ceiling), "number"],
      [(row) => row.closed_by || "nobody"], [(row) => row.reason || row.error || "", "wide"], [(row) => bytes(row.used), "number"],
      [(row) => bytes(row.foreign), "number"], [(row) => bytes(row.total), "number"],
      [(row) => (row.temperature === null ? "unknown" : `${row.temperature} °C`), "number"],
      [(row) => (row.age === null ? "never" : `${seconds(row.age)} ago`), "number"]]);
    table("lanes", state.lanes, [
      [(row) => row.name, "clip"], [(row) => bytes(row.in_use, row.limit), "number"], [(row) => bytes(row.guaranteed, row.limit), "number"],
      [(row) => bytes(row.limit), "number"], [(row) => row.waiting, "number"], [sizes(state.lanes, (row) => row.waiting_bytes), "number"]]);
    text(byId("learning"), state.learning.join(" · "));
    const ratio = state.estimates.median_ratio;
    text(byId("estimates-note"), ratio === null ? "Of no request is known what it took (lease.record_peak, Learned)."
      : `The median estimate is ${ratio.toFixed(2)} times what the request took.`);
    table("estimates", state.estimates.rows, [
      [(row) => row.lease], [(row) => row.lane, "clip"], [(row) => row.route, "clip"], [(row) => bytes(row.estimate, Math.max(row.estimate, row.peak)), "number"],
      [(row) => bytes(row.peak, Math.max(row.estimate, row.peak)), "number"], [(row) => (row.estimate / row.peak).toFixed(2), "number"],
      [(row) => verdict(row.estimate / row.peak)]]);
  }

  // where it comes from: a stream, and where that does not get through, asking now and then

  // without the credentials that may stand in it: a browser refuses to ask for those
  const address = location.origin + location.pathname + location.search;

  function show(state, how) {
    latest = state;
    text(byId("link"), how);
    if (!paused) render(state);
  }

  async function ask() {
    const answer = await fetch(address, { headers: { Accept: "application/json" }, cache: "no-store" });
    if (!answer.ok) throw new Error(String(answer.status));
    show(await answer.json(), "asking every 2 s");
  }

  async function poll(times) {
    for (let round = 0; round < times; round += 1) {
      try { await ask(); } catch { lost(); }
      await new Promise((done) => { setTimeout(done, 2000); });
    }
    stream();
  }

  function lost() {
    text(byId("link"), "no connection");
    byId("state").className = "state bad";
    text(byId("state"), "The server does not answer: what is shown is old.");
  }

  function stream() {
    const source = new EventSource(address);
    let watchdog = setTimeout(giveUp, 4000);
    function giveUp() {
      clearTimeout(watchdog);
      source.close();
      poll(15);
    }
    source.onmessage = (message) => {
      clearTimeout(watchdog);
      watchdog = setTimeout(giveUp, 4000);
      show(JSON.parse(message.data), "live");
    };
    source.onerror = () => { if (source.readyState === EventSource.CLOSED) giveUp(); };
  }

  byId("pause").addEventListener("click", () => {
    paused = !paused;
    byId("pause").setAttribute("aria-pressed", String(paused));
    if (!paused && latest) render(latest);
  });
  stream();
})();

// What the page does in the browser: dialogs, times and numbers in the browser's language, live parts, curves.
"use strict";

const dialog = document.getElementById("dialog");
const dialogContent = document.getElementById("dialog-content");
const note = document.getElementById("live-note");

// ---------------------------------------------------------------- times and numbers

const relativeTime = new Intl.RelativeTimeFormat(undefined, { numeric: "auto", style: "short" });
const exactTime = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const timeUnits = [["year", 31557600], ["month", 2629800], ["week", 604800], ["day", 86400], ["hour", 3600], ["minute", 60]];

function localise(root) {
  for (const element of root.querySelectorAll("time[data-time]")) {
    const moment = new Date(element.dateTime);
    const seconds = (moment - Date.now()) / 1000;
    const unit = timeUnits.find(([, size]) => Math.abs(seconds) >= size);
    element.textContent = unit
      ? relativeTime.format(Math.trunc(seconds / unit[1]), unit[0])
      : relativeTime.format(Math.min(0, Math.trunc(seconds)), "second");
    element.title = exactTime.format(moment);
  }
  for (const element of root.querySelectorAll("data[data-number]")) {
    const digits = Number(element.dataset.digits);
    element.textContent = Number(element.value).toLocaleString(undefined, {
      minimumFractionDigits: digits,
      maximumFractionDigits: digits,
    });
  }
}

setInterval(() => localise(document), 30000);

// The server reads days and typed times in this zone.
const { timeZone } = exactTime.resolvedOptions();
document.cookie = `openclaw_zone=${timeZone}; path=/ui; samesite=strict; max-age=31536000`;

// ---------------------------------------------------------------- dialogs

function openDialog() {
  if (!dialog.open) {
    dialog.showModal();
    placeNote();
  }
}

// Nothing beside an open dialog can be seen or read.
function placeNote() {
  (dialog.open ? dialog : document.body).append(note);
}

document.body.addEventListener("click", (event) => {
  if (event.target.closest("[data-close]")) {
    dialog.close();
  }
});

dialog.addEventListener("close", () => {
  placeNote();
  dialogContent.replaceChildren();
  if (dialog.dataset.changed) {
    delete dialog.dataset.changed;
    refreshAll();
  }
});

// The answer to an act may be lost with the gateway: the page then asks whether the act was carried out.
function askForAct(act) {
  const button = makeElement("button", "Look");
  button.addEventListener("click", () => {
    htmx.ajax("GET", `/ui/acts/state/${act}`, { target: "#dialog-content", swap: "innerHTML" });
  });
  const heading = makeElement("h2", "The connection ended before the answer came");
  dialogContent.replaceChildren(heading, makeElement("p", "Whether this was done is recorded."), button);
  openDialog();
}

function showProblem(text) {
  const button = makeElement("button", "Close");
  button.dataset.close = "";
  dialogContent.replaceChildren(makeElement("h2", "This did not work"), makeElement("p", text, "error"), button);
  openDialog();
}

// Answers are never inserted as markup: the gateway may have written them.
function makeElement(tag, text, className = "") {
  const element = document.createElement(tag);
  element.textContent = text;
  element.className = className;
  return element;
}

// The sentence of an error dialog of the page; "" for any other answer.
function refusalOf(xhr) {
  const answer = new DOMParser().parseFromString(xhr.responseText, "text/html");
  return answer.querySelector("[data-refusal]")?.textContent ?? "";
}

// The id of the act that a request carries out, or whose state it asks for.
function actOf({ elt, pathInfo }) {
  return elt.dataset.act ?? /^\/ui\/acts\/state\/(\w+)/.exec(pathInfo?.requestPath)?.[1];
}

document.body.addEventListener("htmx:sendError", (event) => {
  const act = actOf(event.detail);
  if (act) {
    askForAct(act);
  } else {
    say("The gateway does not answer.");
  }
});

document.body.addEventListener("htmx:responseError", (event) => {
  const { xhr, elt, target } = event.detail;
  const act = actOf(event.detail);
  const refusal = refusalOf(xhr) || `This was refused (${xhr.status}).`;
  if (xhr.status === 401) {
    window.location.assign("/ui");
  } else if (act && xhr.status >= 500) {
    askForAct(act);
  } else if (elt.matches("form[data-act]")) {
    refuse(elt, refusal);
  } else if (target === dialogContent && xhr.status < 500) {
    showProblem(refusal);
  } else if (target === dialogContent) {
    showProblem(`The gateway or the page is not ready (${xhr.status}). Try again in a moment.`);
  } else {
    say(`This part could not be loaded (${xhr.status}).`);
  }
});

// An act that was refused: its form stays as it is, with the reason above it.
document.body.addEventListener("htmx:beforeSwap", (event) => {
  const { requestConfig, xhr } = event.detail;
  const form = requestConfig.elt;
  const refusal = requestConfig.verb === "post" && form.matches("form[data-act]") ? refusalOf(xhr) : "";
  if (form.matches("form[data-act]")) {
    form.querySelector("[role=alert]")?.remove();
  }
  if (refusal) {
    event.detail.shouldSwap = false;
    refuse(form, refusal);
  }
});

function refuse(form, text) {
  if (!form.isConnected) {
    showProblem(text);
    return;
  }
  const alert = makeElement("p", "", "error");
  alert.setAttribute("role", "alert");
  form.prepend(alert);
  // A screen reader says what is written after the element is there.
  alert.textContent = text;
}

// Only requests for a part of the page send where it goes.
document.body.addEventListener("htmx:configRequest", (event) => {
  if (event.detail.target === dialogContent) {
    delete event.detail.headers["HX-Target"];
  }
});

document.body.addEventListener("htmx:afterSwap", (event) => {
  if (event.detail.target === dialogContent) {
    if (event.detail.requestConfig.verb === "post") {
      dialog.dataset.changed = "yes";
    }
    openDialog();
  }
});

document.body.addEventListener("htmx:load", (event) => prepare(event.detail.elt));
document.body.addEventListener("htmx:afterSettle", (event) => prepare(event.detail.elt));

function prepare(root) {
  localise(root);
  drawCurves(root);
}

function say(text) {
  note.textContent = text;
  note.hidden = false;
}

// ---------------------------------------------------------------- live parts

let changes = null;
let wasLost = false;

function refreshAll() {
  refresh(["turns", "lessons", "versions", "episodes", "workers"]);
}

function refresh(names) {
  for (const name of names) {
    htmx.trigger(document.body, `changed-${name}`);
  }
}

// A hidden page gives its connection back: browsers keep few connections to one server.
function follow() {
  if (document.hidden) {
    changes?.close();
    changes = null;
    return;
  }
  if (changes) {
    return;
  }
  changes = new EventSource("/ui/changes");
  changes.addEventListener("changed", (event) => refresh(event.data.split(" ")));
  changes.addEventListener("open", () => {
    note.hidden = true;
    if (wasLost) {
      wasLost = false;
      refreshAll();
    }
  });
  changes.addEventListener("error", () => {
    wasLost = true;
    say("Waiting for the gateway …");
    if (changes.readyState === EventSource.CLOSED) {
      changes = null;
      setTimeout(follow, 3000);
    }
  });
}

document.addEventListener("visibilitychange", () => {
  follow();
  if (!document.hidden) {
    refreshAll();
  }
});
window.addEventListener("pagehide", () => changes?.close());

// ---------------------------------------------------------------- curves

// <div class="curve" data-curve='{"x": [...], "series": [{"label": ..., "colour": 1, "values": [...], "low": [...], "high": [...]}]}'>
const plots = new Map();
const steps = [1, 2, 5].flatMap((first) => [0, 1, 2, 3, 4, 5, 6].map((power) => first * 10 ** power)).sort((a, b) => a - b);
const percent = new Intl.NumberFormat(undefined, { style: "percent", maximumFractionDigits: 0 });

// An update of a part leaves its charts, and what the reader has opened.
Idiomorph.defaults.callbacks.beforeNodeMorphed = (old, fresh) => {
  if (old.matches?.("[data-curve]") && fresh.matches?.("[data-curve]")) {
    old.dataset.curve = fresh.dataset.curve;
    return false;
  }
  if (old.matches?.("details[open]") && fresh.matches?.("details")) {
    fresh.setAttribute("open", "");
  }
  return true;
};

function drawCurves(root) {
  for (const [place, plot] of plots) {
    if (!place.isConnected) {
      plot.destroy();
      plots.delete(place);
    }
  }
  const places = root.matches?.("[data-curve]") ? [root] : root.querySelectorAll("[data-curve]");
  for (const place of places) {
    if (place.dataset.drawn !== place.dataset.curve) {
      place.dataset.drawn = place.dataset.curve;
      plots.get(place)?.destroy();
      place.replaceChildren();
      plots.set(place, drawCurve(place, JSON.parse(place.dataset.curve)));
    }
  }
}

function drawCurve(place, data) {
  const style = getComputedStyle(document.body);
  const faint = style.getPropertyValue("--faint");
  const axis = { stroke: style.getPropertyValue("--ink"), grid: { stroke: faint }, ticks: { stroke: faint } };
  const isShare = data.range?.[0] === 0 && data.range[1] === 1;
  const shown = (value) => (isShare ? percent.format(value) : Number(value.toPrecision(3)).toLocaleString());
  const value = (_, raw) => (raw === null || raw === undefined ? "–" : shown(raw));
  const values = (_, splits) => splits.map(shown);
  const versions = (_, splits) => splits.map((split) => (Number.isInteger(split) ? String(split) : ""));
  const series = [{ label: data.label, value: (_, raw) => raw ?? "–" }];
  const columns = [data.x];
  const bands = [];
  const bound = { stroke: "transparent", class: "bound", points: { show: false } };
  data.series.forEach((each, index) => {
    const colour = style.getPropertyValue(`--series-${each.colour ?? index + 1}`);
    if (each.low) {
      const first = series.length;
      series.push({ ...bound, label: `${each.label}, upper bound` }, { ...bound, label: `${each.label}, lower bound` });
      columns.push(each.high, each.low);
      bands.push({ series: [first, first + 1], fill: `${colour.trim()}2e` });
    }
    series.push({ label: each.label, stroke: colour, width: 2, spanGaps: true, points: { size: 6 }, value });
    columns.push(each.values);
  });
  const options = {
    width: place.clientWidth || 300,
    height: 220,
    scales: { x: { time: false }, y: { range: data.range || undefined } },
    axes: [{ ...axis, incrs: steps, values: versions }, { ...axis, values, size: 60 }],
    legend: { live: true },
    series,
    bands,
  };
  return new uPlot(options, columns, place);
}

// A link that was opened in a browser that is signed in already: its ticket leaves the address, and is used up.
function useTicketUp() {
  const ticket = window.location.hash.slice(1);
  if (!ticket || document.getElementById(ticket)) {
    return;
  }
  history.replaceState(null, "", window.location.pathname + window.location.search);
  if (/^[\w-]{32}$/.test(ticket)) {
    fetch("/ui/sign-in", { method: "POST", body: new URLSearchParams({ ticket }) }).catch(() => {});
  }
}

// On a narrow screen the navigation is scrolled to the current entry.
function showCurrentEntry() {
  const list = document.querySelector("header nav");
  const current = list?.querySelector("[aria-current]");
  if (current) {
    const middle = (current.getBoundingClientRect().left + current.getBoundingClientRect().right) / 2;
    const box = list.getBoundingClientRect();
    list.scrollLeft += middle - (box.left + box.right) / 2;
  }
}

document.addEventListener("DOMContentLoaded", () => {
  useTicketUp();
  showCurrentEntry();
  prepare(document.body);
  follow();
});

// ---------------------------------------------------------------- forms without a dialog, and their keys

// <form data-quick>: what it has done is said at the side, and its item leaves the list.
document.body.addEventListener("htmx:beforeSwap", (event) => {
  const { requestConfig, xhr } = event.detail;
  if (requestConfig.elt.matches("[data-quick]") && xhr.getResponseHeader("HX-Trigger")) {
    event.detail.shouldSwap = false;
  }
});

document.body.addEventListener("act-done", (event) => {
  const form = event.target;
  if (form.getAttribute("hx-post") === "/ui/acts/retract-score") {
    doneNote?.replaceChildren();
    returnItem(form.elements.turn.value);
  }
  if (!form.matches("[data-quick]")) {
    return;
  }
  const item = form.closest("[data-keys] > li");
  showDone(form);
  if (item) {
    const next = item.nextElementSibling || item.previousElementSibling;
    removeItem(item);
    next?.focus({ preventScroll: false });
  }
});

// An item that was answered leaves the list, and comes back to its place if its score is taken back.
let answered = null;

function removeItem(item) {
  answered = { item, list: item.parentElement, after: item.nextElementSibling };
  item.remove();
  showAllClear(answered.list);
}

function returnItem(turn) {
  if (answered?.item.dataset.turn !== turn) {
    return;
  }
  const { item, list, after } = answered;
  item.querySelectorAll("form").forEach(renewAct);
  list.insertBefore(item, after?.isConnected ? after : null);
  showAllClear(list);
}

function showAllClear(list) {
  document.getElementById("all-clear").hidden = list.childElementCount > 0;
}

function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

// Each score is an act of its own; the page asks by its id whether it was carried out.
function renewAct(form) {
  const act = newId();
  form.elements.act_id.value = act;
  form.dataset.act = act;
}

const doneNote = document.querySelector("[data-done-note]");
const doneMilliseconds = 30000;
let doneTimer = null;

function showDone(form) {
  const score = { good: "good", bad: "not good", neither: "neither", meant: "what you meant" };
  const button = makeElement("button", "Take that back", "quiet");
  const turn = encodeURIComponent(form.elements.turn.value);
  button.setAttribute("hx-get", `/ui/acts/retract-score?turn=${turn}`);
  button.setAttribute("hx-target", "#dialog-content");
  doneNote.replaceChildren(`Noted: ${score[form.dataset.sent] ?? "your opinion"}. `, button);
  htmx.process(button);
  clearTimeout(doneTimer);
  doneTimer = setTimeout(endDone, doneMilliseconds);
}

// The note stays while the reader is at it, or at the dialog that its button has opened.
function endDone() {
  if (dialog.open || doneNote.matches(":hover, :focus-within")) {
    doneTimer = setTimeout(endDone, doneMilliseconds);
  } else {
    doneNote.replaceChildren();
  }
}

document.body.addEventListener("submit", (event) => {
  if (event.target.matches("[data-quick]")) {
    event.target.dataset.sent = event.submitter?.value ?? "";
  }
}, true);

document.body.addEventListener("click", (event) => {
  const opener = event.target.closest("[data-open-meant]");
  if (opener) {
    const form = document.getElementById(opener.getAttribute("aria-controls"));
    form.hidden = !form.hidden;
    opener.setAttribute("aria-expanded", String(!form.hidden));
    form.querySelector("textarea").focus();
  }
});

document.addEventListener("keydown", (event) => {
  const list = document.querySelector("[data-keys]");
  if (!list || dialog.open || event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, textarea, select")) {
    return;
  }
  const item = event.target.closest("[data-keys] > li");
  const moves = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 };
  if (event.key in moves) {
    const next = moves[event.key] > 0 ? item?.nextElementSibling : item?.previousElementSibling;
    (next ?? item ?? list.firstElementChild)?.focus();
    event.preventDefault();
    return;
  }
  const chosen = item ?? (event.target.matches("body, main") ? list.firstElementChild : null);
  const button = chosen?.querySelector(`[data-key="${CSS.escape(event.key)}"]`);
  if (button) {
    event.preventDefault();
    button.click();
  }
});

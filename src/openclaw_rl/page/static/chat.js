// The chat: asks base and head at once, and shows their replies as they grow.
"use strict";

const chatForm = document.getElementById("chat-form");
const chatText = document.getElementById("chat-text");
const stopButton = document.getElementById("chat-stop");
const sendButton = document.getElementById("chat-send");
const turnsField = document.getElementById("chat-turns");
const columns = ["base", "head"].map((name) => ({
  name,
  log: document.getElementById(`chat-${name}`),
  messages: [],
  aborter: null,
}));
let conversation = newId();

function addBubble(column, kind, text) {
  const bubble = makeElement("div", text, `bubble ${kind} text`);
  column.log.append(bubble);
  column.log.scrollTop = column.log.scrollHeight;
  return bubble;
}

async function* readLines(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) {
      return;
    }
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    yield* lines.filter(Boolean).map((line) => JSON.parse(line));
  }
}

async function ask(column, text) {
  const messages = [...column.messages, { role: "user", content: text }];
  addBubble(column, "asked", text);
  const bubble = addBubble(column, "reply", "…");
  const state = { text: "", id: null, end: null, error: null };
  column.aborter = new AbortController();
  column.log.setAttribute("aria-busy", "true");
  try {
    const response = await fetch(chatForm.dataset.stream, {
      method: "POST",
      headers: { "Content-Type": "application/json", "HX-Request": "true" },
      body: JSON.stringify({ column: column.name, conversation, messages }),
      signal: column.aborter.signal,
    });
    if (!response.ok || !response.headers.get("Content-Type").includes("ndjson")) {
      throw new Error(`the page answered ${response.status}. Load it again.`);
    }
    for await (const line of readLines(response)) {
      state.text += line.text ?? "";
      state.id = line.id ?? state.id;
      state.version = line.version ?? state.version;
      state.end = line.end ?? state.end;
      state.error = line.error ?? state.error;
      bubble.textContent = state.text || "…";
      column.log.scrollTop = column.log.scrollHeight;
    }
  } catch (error) {
    state.error = error.name === "AbortError" ? "stopped" : error.message;
  }
  column.log.removeAttribute("aria-busy");
  column.aborter = null;
  endReply(column, bubble, state, messages);
}

function endReply(column, bubble, state, messages) {
  bubble.textContent = state.text;
  if (state.error || !state.end) {
    bubble.remove();
    const why = state.error ?? "the connection ended";
    addBubble(column, "problem", `${state.text ? `${state.text}\n\n` : ""}No whole reply: ${why}. It does not count.`);
    return;
  }
  column.messages = [...messages, { role: "assistant", content: state.text }];
  if (column.name === "head") {
    document.getElementById("chat-version").textContent = `version ${String(state.version).replace(/^v/, "")}`;
    addActs(column, state);
  }
}

function markChoice(acts, choice) {
  for (const button of acts.querySelectorAll("[aria-pressed]")) {
    button.setAttribute("aria-pressed", String(button.value === choice));
  }
}

// A score that is taken back is marked no longer.
document.body.addEventListener("act-done", (event) => {
  const form = event.target;
  if (form.getAttribute("hx-post") === "/ui/acts/retract-score") {
    for (const acts of document.querySelectorAll("#chat-head form")) {
      if (acts.elements.turn.value === form.elements.turn.value) {
        markChoice(acts, "");
      }
    }
  }
});

function addActs(column, state) {
  const acts = document.getElementById("chat-acts").content.cloneNode(true).firstElementChild;
  renewAct(acts);
  acts.elements.turn.value = state.id;
  const correct = acts.querySelector("[data-correct]");
  correct.setAttribute("hx-get", `/ui/acts/score?score=bad&turn=${encodeURIComponent(state.id)}`);
  acts.addEventListener("act-done", () => {
    renewAct(acts);
    markChoice(acts, acts.dataset.sent);
  });
  column.log.append(acts);
  htmx.process(acts);
  column.log.scrollTop = column.log.scrollHeight;
  turnsField.value = `${turnsField.value} ${state.id}`.trim();
  htmx.trigger("#chat-notes", "look");
}

chatForm.addEventListener("submit", async (event) => {
  event.preventDefault();
  const text = chatText.value.trim();
  if (!text || sendButton.disabled) {
    return;
  }
  chatText.value = "";
  sendButton.disabled = true;
  stopButton.disabled = false;
  await Promise.all(columns.map((column) => ask(column, text)));
  sendButton.disabled = false;
  stopButton.disabled = true;
  chatText.focus();
});

chatText.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    chatForm.requestSubmit();
  }
});

function stopAll() {
  columns.forEach((column) => column.aborter?.abort());
}

stopButton.addEventListener("click", stopAll);

document.getElementById("chat-new").addEventListener("click", () => {
  stopAll();
  conversation = newId();
  turnsField.value = "";
  for (const column of columns) {
    column.messages = [];
    column.log.replaceChildren();
  }
  htmx.trigger("#chat-notes", "look");
  chatText.focus();
});

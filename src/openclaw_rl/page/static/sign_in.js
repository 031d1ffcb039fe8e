// Exchanges the ticket of the link, which stands behind the # and so reaches no server and no log, for a cookie.
"use strict";

const ticket = window.location.hash.slice(1);
const state = document.getElementById("sign-in-state");

async function signIn() {
  history.replaceState(null, "", "/ui");
  state.textContent = "Signing in …";
  try {
    const response = await fetch("/ui/sign-in", {
      method: "POST",
      body: new URLSearchParams({ ticket }),
    });
    if (response.ok) {
      window.location.replace("/ui/now");
      return;
    }
    state.textContent = "This link was used already, or is older than ten minutes.";
  } catch {
    state.textContent = "The gateway does not answer. Is OpenClaw-RL still running?";
  }
}

if (ticket) {
  signIn();
}

// Says to screen readers what happened: the worst at once, the rest joined, seldom.

const EVERY_MS = 5000;
const waiting = [];
let last_ms = -EVERY_MS;
let timer = null;

/** Say a sentence; `urgent` interrupts what is being read. */
export function announce(sentence, urgent = false) {
  if (urgent) {
    document.getElementById("urgent").textContent = sentence;
    return;
  }
  waiting.push(sentence);
  timer ??= setTimeout(speak, Math.max(0, last_ms + EVERY_MS - performance.now()));
}

function speak() {
  const told =
    waiting.length > 1 ? `${waiting.length} new: ${waiting.slice(0, 3).join(" · ")}` : waiting[0];
  document.getElementById("polite").textContent = told;
  waiting.length = 0;
  timer = null;
  last_ms = performance.now();
}

/** Say what the cursor stands on, at once: it follows a key that was pressed. */
export function describe(sentence) {
  document.getElementById("cursor").textContent = sentence;
}

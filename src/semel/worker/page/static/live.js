// Makes the page live. Everything works without it, with "reload" and times in UTC.
"use strict";

const PAUSE = 5000;
const STALE = "This is out of date: the worker does not answer, or has no such page any more.";
const TIMES = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

// Times in the reader's zone; the title keeps UTC.
function localise(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const at = new Date(time.dateTime);
    if (isNaN(at) || time.title) continue;
    time.title = time.textContent;
    time.textContent = TIMES.format(at);
  }
}

// What a reader opens, ticks, scrolls or focuses, by what it says: others may come before it.
function marked(part) {
  const marks = new Map();
  for (const node of part.querySelectorAll("a, button, input, details, summary, pre, [tabindex]")) {
    const name = node.id || node.getAttribute("href") || node.getAttribute("aria-label");
    const mark = `${node.tagName} ${name || (node.closest("li") || node).textContent}`;
    let count = 0;
    while (marks.has(`${mark} ${count}`)) count++;
    marks.set(`${mark} ${count}`, node);
  }
  return marks;
}

// Puts the next state of a part in place; what the reader has done to it stays.
function put(part, next) {
  const was = [...marked(part)].map(([mark, { open, checked, scrollLeft, scrollTop }]) => [
    mark,
    { open, checked, scrollLeft, scrollTop },
  ]);
  const focused = [...marked(part)].find(([, each]) => each === document.activeElement);
  part.replaceChildren(...next.childNodes);
  const now = marked(part);
  for (const [mark, state] of was) {
    const each = now.get(mark);
    if (each) Object.assign(each, state);
  }
  if (focused) now.get(focused[0])?.focus({ preventScroll: true });
}

// A text that is being selected, or a form that is being filled in, stays as it is.
function isBusy(part) {
  const selected = document.getSelection();
  const selects = selected && !selected.isCollapsed && part.contains(selected.anchorNode);
  return selects || part.querySelector("details[open] form") !== null;
}

async function refresh() {
  const parts = [...document.querySelectorAll("[data-live]")];
  if (document.hidden || parts.some(isBusy)) return null; // nothing was asked
  const address = new URL(location.href);
  address.searchParams.set("part", "1");
  const signal = AbortSignal.timeout(4 * PAUSE);
  const answer = await fetch(address, { credentials: "same-origin", cache: "no-store", signal });
  if (!answer.ok) return false;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const part of parts) {
    const next = page.getElementById(part.id);
    if (!next || isBusy(part)) continue;
    localise(next);
    put(part, next);
  }
  return true;
}

async function live() {
  const isFresh = await refresh().catch(() => false); // the next turn asks again
  const stale = document.getElementById("stale");
  if (isFresh !== null) {
    stale.hidden = isFresh;
    stale.textContent = isFresh ? "" : STALE;
  }
  setTimeout(live, PAUSE);
}

localise(document);
if (document.querySelector("[data-live]")) setTimeout(live, PAUSE);

// Makes the page live. Everything works without it, with "reload" and times in UTC.
"use strict";

const PAUSE = 5000;

// Times in the reader's zone; the title keeps UTC.
function localise(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const at = new Date(time.dateTime);
    if (isNaN(at) || time.title) continue;
    time.title = time.textContent;
    time.textContent = at.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
  }
}

// What the reader has done to a part: opened, written, ticked, or scrolled.
function state(part) {
  return {
    open: [...part.querySelectorAll("details[id]")].map((each) => [each.id, each.open]),
    ticked: [...part.querySelectorAll("input[type=checkbox][id]")].map((each) => [each.id, each.checked]),
    scrolled: [...part.querySelectorAll(".scroll, pre")].map((each) => [each.scrollLeft, each.scrollTop]),
    focused: [...part.querySelectorAll("a, button, input, summary, [tabindex]")].indexOf(document.activeElement),
  };
}

function restore(part, was) {
  for (const [id, open] of was.open) {
    const found = part.querySelector(`details[id="${CSS.escape(id)}"]`);
    if (found) found.open = open;
  }
  for (const [id, checked] of was.ticked) {
    const found = part.querySelector(`input[id="${CSS.escape(id)}"]`);
    if (found) found.checked = checked;
  }
  [...part.querySelectorAll(".scroll, pre")].forEach((each, at) => {
    if (was.scrolled[at]) [each.scrollLeft, each.scrollTop] = was.scrolled[at];
  });
  const focusable = part.querySelectorAll("a, button, input, summary, [tabindex]");
  if (was.focused >= 0 && focusable[was.focused]) focusable[was.focused].focus({ preventScroll: true });
}

// A text that is being selected, or a form that is being filled in, stays as it is.
function isBusy(part) {
  const selected = document.getSelection();
  const selects = selected && !selected.isCollapsed && part.contains(selected.anchorNode);
  return selects || part.querySelector("details[open] form") !== null;
}

async function refresh() {
  const parts = [...document.querySelectorAll("[data-live]")];
  if (document.hidden || parts.some(isBusy)) return;
  const address = new URL(location.href);
  address.searchParams.set("part", "1");
  const answer = await fetch(address, { credentials: "same-origin", cache: "no-store" });
  if (!answer.ok) return;
  const found = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const part of parts) {
    const next = found.getElementById(part.id);
    if (!next || isBusy(part)) continue;
    localise(next);
    const was = state(part);
    part.replaceChildren(...next.childNodes);
    restore(part, was);
  }
}

async function live() {
  try {
    await refresh();
  } catch (error) {
    console.debug(error); // the worker is away: the next turn asks again
  }
  setTimeout(live, PAUSE);
}

localise(document);
if (document.querySelector("[data-live]")) setTimeout(live, PAUSE);

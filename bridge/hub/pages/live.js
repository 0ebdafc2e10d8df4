"use strict";
// Brings the page up to date: the hub tells when it shows something else, the page is
// fetched again, and what differs is changed in place. What a person has typed, opened
// or focused stays. Elements with data-own belong to this script.
const root = document.documentElement;
let ahead = 0;
const setClock = (text) => { ahead = Date.parse(text) - Date.now(); };
setClock(root.dataset.now);
const two = (n) => String(n).padStart(2, "0");

// -- times --------------------------------------------------------------------------

function span(s) {
  const m = Math.floor(s / 60), h = Math.floor(m / 60), d = Math.floor(h / 24);
  if (d) return `${d} d ${h % 24} h`;
  if (h) return `${h} h ${two(m % 60)} min`;
  return m ? `${m} min ${two(s % 60)} s` : `${s} s`;
}
const isToday = (day) => day.toDateString() === new Date().toDateString();
function clock(moment) {
  const time = `${two(moment.getHours())}:${two(moment.getMinutes())}`;
  if (isToday(moment)) return time;
  return `${moment.toLocaleDateString("en-GB", {day: "numeric", month: "short"})}, ${time}`;
}
function set(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
function tick() {
  for (const time of document.querySelectorAll("time[data-left]")) {
    const left = (Date.parse(time.dateTime) - Date.now() - ahead) / 1000;
    const told = span(Math.floor(Math.abs(left)));
    set(time, left > 0 ? `in ${told}` : `${told} ago`);
    const count = time.closest(".count");
    if (!count) continue;
    count.classList.toggle("now", left < 300);
    count.classList.toggle("soon", left >= 300 && left < 900);
  }
  for (const time of document.querySelectorAll("time[data-clock]")) {
    set(time, clock(new Date(time.dateTime)));
  }
}
const zone = document.getElementById("zone");
if (zone) {
  const name = Intl.DateTimeFormat().resolvedOptions().timeZone;
  set(zone, `Times are local (${name || "of this machine"}).`);
}
tick();

// -- what differs is changed in place -----------------------------------------------

const isOwn = (node) => node.nodeType === 1 && node.hasAttribute("data-own");
const isAlike = (one, other) => one && one.nodeType === other.nodeType
  && one.nodeName === other.nodeName && (one.id || "") === (other.id || "");
function attributes(old, next) {
  const isKept = (name) => name === "open" && old.nodeName === "DETAILS";
  for (const {name} of [...old.attributes]) {
    if (!next.hasAttribute(name) && !isKept(name)) old.removeAttribute(name);
  }
  for (const {name, value} of next.attributes) {
    if (!isKept(name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
}
function morph(old, next) {
  if (isOwn(old)) return;
  attributes(old, next);
  if (old.nodeName === "TEXTAREA") return; // its children are not what was typed
  const named = new Map([...old.children].filter((n) => n.id).map((n) => [n.id, n]));
  const wanted = new Set([...next.children].map((n) => n.id).filter(Boolean));
  let at = old.firstChild;
  const drop = () => { const gone = at; at = at.nextSibling; gone.remove(); };
  for (const child of next.childNodes) {
    const match = child.id ? named.get(child.id) : isAlike(at, child) ? at : null;
    if (!match || match.nodeName !== child.nodeName) {
      old.insertBefore(document.importNode(child, true), at);
      continue;
    }
    while (at && at !== match && !wanted.has(at.id)) drop();
    if (at === match) at = at.nextSibling;
    else old.insertBefore(match, at); // it has another place now
    if (child.nodeType === 1) morph(match, child);
    else set(match, child.data);
  }
  while (at) drop();
}
let changedAt = 0;
const decided = () => document.querySelector("#decide input[name=content]")?.value;
function swap(page) {
  const focused = document.activeElement, shown = decided();
  const known = new Set([...document.querySelectorAll("tr[id]")].map((row) => row.id));
  morph(document.body, page.body);
  root.dataset.mark = page.documentElement.dataset.mark;
  setClock(page.documentElement.dataset.now);
  document.title = page.title;
  for (const row of document.querySelectorAll("tr[id]")) {
    row.classList.toggle("fresh", !known.has(row.id));
  }
  if (focused?.isConnected && focused !== document.activeElement) {
    focused.focus({preventScroll: true});
  }
  if (shown && decided() && shown !== decided()) warn();
  tick();
}
function warn() { // the event is another one than that which was read
  changedAt = Date.now();
  document.getElementById("changed").hidden = false;
  for (const box of document.querySelectorAll("input[name=confirmed]")) box.checked = false;
}
document.addEventListener("submit", (event) => {
  if (Date.now() - changedAt < 2000) event.preventDefault(); // it changed under the click
});

// -- whether the page is live ---------------------------------------------------------

const state = document.getElementById("live"), stale = document.getElementById("stale");
const POLL = 10000;
let source = null, heard = Date.now(), busy = false, wanted = "", poll = 0, opened = 0;
let polls = 0;
function show(words, isOn) {
  state.classList.toggle("on", isOn);
  set(state, words);
}
function sign() { // of the hub: what is shown is what it knows
  heard = Date.now();
  root.classList.remove("stale");
  stale.hidden = true;
  show(poll ? "updated every 10 s" : "live", true);
}
function look() {
  if (root.classList.contains("gone") || document.hidden) return;
  const after = Number(root.dataset.staleAfter) * 1000;
  if (Date.now() - heard < after) return;
  const words = `not live since ${clock(new Date(heard))}`;
  root.classList.add("stale");
  set(stale, `This page is ${words}: it shows what was known then. The hub does not answer.`);
  stale.hidden = false;
  show(words, false);
  if (Date.now() - opened < after) return;
  close(); // a connection that was cut may never say so
  open();
}
async function refresh() {
  if (busy) return;
  busy = true;
  try {
    do {
      const asked = wanted;
      const answer = await fetch(location.href, {
        headers: {Accept: "text/html", "X-Sebridge-Mark": asked},
        cache: "no-store",
        signal: AbortSignal.timeout(20000),
      });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (!page.documentElement.dataset.mark) throw new Error("no page of the hub");
      swap(page);
      sign();
      if (asked === wanted) wanted = root.dataset.mark;
    } while (wanted !== root.dataset.mark);
  } catch { // the next mark, ping or look tries again
  } finally {
    busy = false;
  }
}
function open() {
  if (source || document.hidden) return;
  opened = Date.now();
  clearInterval(poll);
  poll = 0;
  source = new EventSource(location.href);
  source.addEventListener("mark", (event) => {
    wanted = event.data;
    if (wanted === root.dataset.mark) sign();
    else refresh();
  });
  source.addEventListener("ping", () => {
    if (wanted === root.dataset.mark) sign();
    else refresh();
  });
  source.onerror = () => {
    if (source?.readyState !== EventSource.CLOSED) return; // the browser tries again
    close(); // refused: too many live pages, or nobody is signed in
    poll = setInterval(() => (++polls % 6 ? refresh() : open()), POLL);
    refresh();
  };
}
function close() {
  source?.close();
  source = null;
  clearInterval(poll);
  poll = 0;
}
setInterval(() => { tick(); look(); }, 1000);
if (root.dataset.mark && window.EventSource) {
  document.addEventListener("visibilitychange", () => document.hidden ? close() : open());
  window.addEventListener("pagehide", () => { root.classList.add("gone"); close(); });
  window.addEventListener("pageshow", () => { root.classList.remove("gone"); open(); });
  open();
} else {
  root.classList.add("gone");
}

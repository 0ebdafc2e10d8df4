"use strict";
const ahead = Date.parse(document.documentElement.dataset.now) - Date.now();
const two = (n) => String(n).padStart(2, "0");
function span(s) {
  const m = Math.floor(s / 60), h = Math.floor(m / 60), d = Math.floor(h / 24);
  if (d) return `${d} d ${h % 24} h`;
  if (h) return `${h} h ${two(m % 60)} min`;
  return m ? `${m} min ${two(s % 60)} s` : `${s} s`;
}
function tick() {
  for (const time of document.querySelectorAll("time[data-left]")) {
    const left = (Date.parse(time.dateTime) - Date.now() - ahead) / 1000;
    const told = span(Math.floor(Math.abs(left)));
    time.textContent = left > 0 ? `in ${told}` : `${told} ago`;
    const count = time.closest(".count");
    if (!count) continue;
    count.classList.toggle("now", left < 300);
    count.classList.toggle("soon", left >= 300 && left < 900);
  }
}
tick();
setInterval(tick, 1000);

const rows = document.getElementById("rows");
const mark = document.getElementById("live");
let source = null, known = new Set(), isFirst = true;
const names = () => new Set([...rows.querySelectorAll("tr[id]")].map((r) => r.id));
function swap(html) {
  const focused = document.activeElement?.closest("tr[id]")?.id;
  known = isFirst ? known : names();
  const parsed = new DOMParser().parseFromString(html, "text/html");
  rows.replaceChildren(...parsed.body.childNodes);
  if (!isFirst) {
    for (const row of rows.querySelectorAll("tr[id]")) {
      row.classList.toggle("fresh", !known.has(row.id));
    }
  }
  isFirst = false;
  if (focused) document.getElementById(focused)?.querySelector("a")?.focus();
  tick();
}
function open() {
  if (source || document.hidden) return;
  source = new EventSource("/live" + location.search);
  source.onopen = () => { mark.classList.add("on"); mark.textContent = "live"; };
  source.onerror = () => { mark.classList.remove("on"); mark.textContent = "not live"; };
  source.addEventListener("rows", (event) => swap(JSON.parse(event.data)));
}
function close() {
  source?.close();
  source = null;
}
if (rows && mark && window.EventSource) {
  document.addEventListener("visibilitychange", () => document.hidden ? close() : open());
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", open);
  open();
}

// Follows Airflow's theme, shows times in the viewer's zone, and opens Airflow's pages in Airflow's own window.
"use strict";
(() => {
  const stored = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const paint = () => {
    const theme = stored();
    const isDark = theme === "dark" || (theme !== "light" && dark.matches);
    document.documentElement.dataset.theme = isDark ? "dark" : "light";
  };
  paint();
  addEventListener("storage", paint);
  dark.addEventListener("change", paint);

  // One formatter for all times: toLocaleString would make one for each.
  const local = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
  const localTimes = (root) => {
    for (const each of root.querySelectorAll("time[datetime]")) {
      const at = new Date(each.dateTime);
      each.title = at.toISOString().slice(0, 16).replace("T", " ") + " UTC";
      each.textContent = local.format(at);
    }
  };

  // Airflow shows this page in an iframe that may not navigate the window: its router is asked instead.
  const open = (event) => {
    const link = event.target.closest("a[data-airflow]");
    if (!link || parent === window || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    parent.history.pushState({}, "", link.href);
    parent.dispatchEvent(new PopStateEvent("popstate"));
  };

  // A table's rows as CSV. A spreadsheet would run a cell that begins like a formula.
  const cell = (each) => {
    const time = each.querySelector("time[datetime]");
    const text = (time ? time.dateTime : each.innerText).trim().replace(/\s+/g, " ");
    const plain = /(^|[;\t,])\s*[=+\-@]/.test(text) && isNaN(text) ? "'" + text : text;
    return '"' + plain.replaceAll('"', '""') + '"';
  };
  const csv = (table) => [...table.rows].map((row) => [...row.cells].map(cell).join(",")).join("\r\n") + "\r\n";
  // Some screen readers take a table that is laid out as cards for no table: roles keep it one.
  const ROLES = { THEAD: "rowgroup", TBODY: "rowgroup", TR: "row", TD: "cell", TH: "columnheader" };
  const name = (table) => {
    table.setAttribute("role", "table");
    for (const each of table.querySelectorAll("thead, tbody, tr, td, th")) {
      each.setAttribute("role", each.scope === "row" ? "rowheader" : ROLES[each.tagName]);
    }
    const headings = [...(table.tHead?.rows[0].cells ?? [])].map((each) => each.textContent);
    for (const row of table.tBodies[0].rows) {
      [...row.cells].forEach((each, at) => { if (each.colSpan === 1) each.dataset.heading = headings[at]; });
    }
  };
  const offer = (root) => {
    for (const table of root.querySelectorAll("table")) {
      name(table);
      if (table.nextElementSibling?.className === "csv") continue;
      const line = document.createElement("p");
      line.className = "csv";
      const button = (name, act) => {
        const made = document.createElement("button");
        made.type = "button";
        made.textContent = name;
        made.addEventListener("click", act);
        line.append(made);
      };
      button("copy", (event) => navigator.clipboard.writeText(csv(table)).then(
        () => { event.target.textContent = "copied"; }, () => { event.target.textContent = "cannot copy here"; }));
      button("CSV", () => {
        const link = document.createElement("a");
        link.href = URL.createObjectURL(new Blob([csv(table)], { type: "text/csv" }));
        link.download = document.title.replace(/\W+/g, "-") + ".csv";
        link.click();
        setTimeout(() => URL.revokeObjectURL(link.href), 1000);
      });
      table.after(line);
    }
  };

  // The focus stays on the same link, or on the button at the same place, when a part is replaced.
  const refocus = (old, fresh) => {
    const focused = document.activeElement;
    if (!old.contains(focused)) return null;
    const address = focused.getAttribute("href");
    const buttons = (root) => [...root.querySelectorAll("button")];
    return () => (address === null ? buttons(fresh)[buttons(old).indexOf(focused)]
      : [...fresh.querySelectorAll("a[href]")].find((each) => each.getAttribute("href") === address)
    )?.focus({ preventScroll: true });
  };

  // What is shown is old: the page says so, since nothing else on it does.
  let renewed = new Date(), failures = 0;
  const stale = (sentence) => {
    const line = document.getElementById("stale");
    line.hidden = !sentence;
    if (line.textContent !== sentence) line.textContent = sentence;
  };
  const failed = (status) => {
    failures += 1;
    const since = renewed.toLocaleTimeString(undefined, { timeStyle: "short" });
    if (status === 401) stale(`Not renewed since ${since}: your login has ended. Log in to Airflow again and reload the page.`);
    else if (failures > 1) stale(`Not renewed since ${since}: Airflow does not answer.`);
  };

  // The answer is empty (204) while nothing has changed, and a hidden page asks nothing.
  const follow = async () => {
    const part = document.querySelector("[data-live]");
    if (!part || document.hidden || (part.contains(document.activeElement) && document.activeElement.matches("input, select"))) return;
    const address = part.dataset.live + encodeURIComponent(part.dataset.version);
    const answer = await fetch(address, { credentials: "same-origin", signal: AbortSignal.timeout(30000) });
    if (answer.status === 200) {
      const parsed = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = parsed.querySelector("[data-live]");
      if (!fresh) return failed(200);
      localTimes(fresh);
      offer(fresh);
      const focus = refocus(part, fresh);
      part.replaceWith(fresh);
      focus?.();
    } else if (answer.status !== 204) return failed(answer.status);
    renewed = new Date();
    failures = 0;
    stale("");
  };

  addEventListener("DOMContentLoaded", () => {
    localTimes(document);
    offer(document);
    document.addEventListener("click", open);
    setInterval(() => follow().catch(() => failed(0)), 10000);
  });
})();

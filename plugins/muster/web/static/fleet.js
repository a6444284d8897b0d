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

  const localTimes = (root) => {
    for (const each of root.querySelectorAll("time[datetime]")) {
      const at = new Date(each.dateTime);
      each.title = at.toISOString().slice(0, 16).replace("T", " ") + " UTC";
      each.textContent = at.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
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

  // The answer is empty (204) while nothing has changed, and a hidden page asks nothing.
  const follow = async () => {
    const part = document.querySelector("[data-live]");
    if (!part || document.hidden || part.contains(document.activeElement)) return;
    const answer = await fetch(part.dataset.live + encodeURIComponent(part.dataset.version), { credentials: "same-origin" });
    if (answer.status === 200) {
      const parsed = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = parsed.querySelector("[data-live]");
      if (fresh) { part.replaceWith(fresh); localTimes(fresh); }
    }
  };

  addEventListener("DOMContentLoaded", () => {
    localTimes(document);
    document.addEventListener("click", open);
    setInterval(() => follow().catch(() => {}), 10000);
    for (const form of document.querySelectorAll("form[data-filter]")) {
      form.addEventListener("change", () => form.requestSubmit());
    }
  });
})();


// A page that follows a run asks its server for what changed; texts arrive as escaped HTML.
(() => {
  "use strict";
  const SECOND = 1000, SLOWEST = 60 * SECOND, PATIENCE = 30 * SECOND;
  const shown = new Map();
  const status = document.getElementById("status");
  let version = "", state = "", changed = 0, timer = 0, asking = false;

  const WORDS = {
    waiting: "Nothing has been recorded yet.",
    running: "Running.",
    stopped: "Not running. This page goes on by itself once it is resumed.",
    finished: "Finished.",
    lost: "Not running, or its page has ended. This page goes on by itself once it is resumed with --live.",
    refused: "This address is no longer valid. Open the one that was printed last.",
  };

  function replace(id, html) {
    if (shown.get(id) === html) return false;
    shown.set(id, html);
    document.getElementById(id).innerHTML = html;
    return true;
  }

  async function show(news) {
    document.title = news.title;
    for (const [name, html] of Object.entries(news.parts)) {
      if (replace(`part-${name}`, html) && name === "figures") {
        for (const key of Object.keys(news.charts)) shown.delete(key);
      }
    }
    for (const [id, spec] of Object.entries(news.charts)) {
      const text = JSON.stringify(spec);
      if (shown.get(id) === text) continue;
      shown.set(id, text);
      await window.drawChart(id, spec);
    }
  }

  function tell() {
    const ago = Math.round((Date.now() - changed) / SECOND);
    const age = state === "running" && ago > 3 ? ` Last record ${ago} s ago.` : "";
    const words = (WORDS[state] || "") + age;
    if (status.textContent !== words) status.textContent = words;
    document.documentElement.dataset.state = state;
  }

  async function ask() {
    if (asking) return;
    asking = true;
    clearTimeout(timer);
    let pause = document.hidden ? 15 * SECOND : SECOND;
    try {
      const answer = await fetch(`state?after=${encodeURIComponent(version)}`, {
        cache: "no-store", signal: AbortSignal.timeout(PATIENCE),
      });
      if (answer.status === 403) {
        state = "refused";
        pause = SLOWEST;
      } else if (!answer.ok) {
        throw new Error(answer.statusText);
      } else {
        const news = await answer.json();
        const started = performance.now();
        state = news.state;
        changed = Date.now() - SECOND * news.age;
        if (news.parts) await show(news);
        version = news.version;
        pause = Math.max(pause, 5 * (performance.now() - started));
        if (state === "finished") pause = SLOWEST;
        document.documentElement.dataset.version = version;
      }
    } catch (error) {
      if (state !== "finished") state = "lost";
      version = "";
    }
    tell();
    asking = false;
    timer = setTimeout(ask, pause);
  }

  document.addEventListener("visibilitychange", () => { if (!document.hidden) ask(); });
  setInterval(tell, SECOND);
  ask();
})();

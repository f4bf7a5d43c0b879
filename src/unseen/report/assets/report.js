(() => {
  "use strict";
  const { charts, themes } = JSON.parse(document.getElementById("charts").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const drawn = new Map();

  async function draw(id, spec) {
    const box = document.getElementById(id);
    const scheme = dark.matches ? "dark" : "light";
    try {
      box.style.minHeight = `${box.offsetHeight}px`;
      const chosen = choices(drawn.get(id)?.view);
      drawn.get(id)?.finalize();
      const options = {
        renderer: "svg", actions: false, ast: true, defaultStyle: false,
        config: themes[scheme], tooltip: { theme: scheme },
      };
      drawn.set(id, await window.vegaEmbed(box, structuredClone(spec), options));
      if (chosen) await drawn.get(id).view.setState(chosen).runAsync();
      box.style.minHeight = "";
      addSave(box, id);
    } catch (error) {
      box.textContent = `This chart could not be drawn: ${error.message}`;
      console.error(id, error);
    }
  }

  // What somebody singled out in a legend, which survives when the chart is drawn again.
  function choices(view) {
    if (!view) return null;
    const state = view.getState({ data: name => name === "chosen_store", signals: name => name === "chosen_line_legend" });
    return state.data?.chosen_store?.length ? state : null;
  }

  window.drawChart = (id, spec) => {
    charts[id] = spec;
    return draw(id, spec);
  };

  function addSave(box, id) {
    if (box.nextElementSibling) return;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "save";
    button.textContent = "Save as SVG";
    button.addEventListener("click", async () => {
      const text = await drawn.get(id).view.toSVG();
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
      link.download = `${id}.svg`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    });
    box.after(button);
  }

  async function drawAll() {
    for (const [id, spec] of Object.entries(charts)) await draw(id, spec);
    document.documentElement.dataset.charts = "drawn";
  }

  dark.addEventListener("change", drawAll);
  drawAll();
})();

"use strict";
(() => {
  const report = JSON.parse(document.getElementById("data").textContent);
  const colours = ["#0969da", "#cf5b00", "#1a7f37", "#8250df", "#bf3989"];
  const dashes = ["solid", "dot", "dash", "dashdot"];
  const parts = { generate: "#0969da", grade: "#8250df", train: "#1a7f37", publish: "#cf5b00", checkpoint: "#bf3989",
    idle: "#8c959f" };
  const several = report.runs.length > 1;

  function make(tag, options = {}, ...children) {
    const { style, ...rest } = options;
    const element = Object.assign(document.createElement(tag), rest);
    Object.assign(element.style, style || {});
    element.append(...children);
    return element;
  }
  function number(value, digits = 4) {
    return value === null || value === undefined ? "-" : String(Number(value.toPrecision(digits)));
  }
  function table(head, rows, texts = []) {
    const cells = (row) => row.map((cell, at) =>
      make("td", { className: texts.includes(at) ? "text" : "", textContent: cell }));
    return make("div", { className: "scroll" }, make("table", {},
      make("thead", {}, make("tr", {}, ...head.map((name) => make("th", { textContent: name })))),
      make("tbody", {}, ...rows.map((row) => make("tr", {}, ...cells(row))))));
  }
  function empty(reason) { return make("p", { className: "empty", textContent: reason }); }

  /* One block for each run: what `draw` gives, or why there is nothing. */
  function blocks(id, draw) {
    const place = document.getElementById(id);
    for (const run of report.runs) {
      if (several) place.append(make("h3", { textContent: run.name }));
      place.append(run.empty[id] ? empty(run.empty[id]) : draw(run));
    }
  }
  function chart(place, title, traces, layout, reasons) {
    const box = make("div", { className: "chart" }, make("h3", { textContent: title }));
    place.append(box);
    if (traces.length) {
      const canvas = make("div", { style: { height: `${layout.height || 260}px` } });
      box.append(canvas);
      Plotly.newPlot(canvas, traces, { margin: { l: 60, r: 12, t: traces.length > 1 ? 30 : 8, b: 40 },
        yaxis: { tickformat: ".6~g", rangemode: "tozero" }, paper_bgcolor: "rgba(0,0,0,0)",
        plot_bgcolor: "rgba(0,0,0,0)", showlegend: new Set(traces.map((trace) => trace.name)).size > 1, legend: { orientation: "h", y: 1.02, yanchor: "bottom" },
        ...layout }, { displayModeBar: false, responsive: true });
    }
    for (const reason of reasons) box.append(empty(reason));
  }
  function reasonsFor(name) {
    return report.runs.filter((run) => run.empty[name]).map((run) => (several ? `${run.name}: ` : "") + run.empty[name]);
  }

  function drawHeader() {
    report.runs.forEach((run, at) => {
      const facts = [`${run.steps} steps in ${number(run.seconds)} s`, run.standing,
        run.books.balanced ? "the books balance" : "THE BOOKS DO NOT BALANCE", run.folder];
      document.getElementById("runs").append(make("div", { className: "run", style: { borderColor: colours[at % 5] } },
        make("h1", { textContent: run.name }),
        make("p", { className: "limit", textContent: `${run.limit.sentence[0].toUpperCase()}${run.limit.sentence.slice(1)}.` }),
        make("div", { className: "facts soft" }, ...facts.map((fact) => make("span", { textContent: fact }))),
        ...run.notes.map((note) => make("div", { className: "soft", textContent: `Note: ${note}.` }))));
    });
  }
  function drawCurves() {
    const place = document.getElementById("curves");
    for (const one of report.charts) {
      const traces = [];
      report.runs.forEach((run, at) => {
        const { steps, series } = one.evaluated ? run.evaluations : run.curves;
        one.metrics.forEach(([name, label], line) => {
          if (!(name in series)) return;
          traces.push({ x: steps, y: series[name], name: label, meta: name, showlegend: at === 0,
            hovertemplate: several ? `${run.name}: %{y}` : undefined,
            connectgaps: true, // a step that graded nothing is no reason to hide its neighbours
            mode: one.evaluated || steps.length < 3 ? "lines+markers" : "lines",
            line: several ? { color: colours[at % 5], dash: dashes[line % 4], width: 1.5 }
              : { color: colours[line % 5], width: 1.5 } });
        });
      });
      chart(place, one.title, traces, { xaxis: { title: { text: one.evaluated ? "version" : "step" } } },
        reasonsFor(one.title));
    }
  }
  function drawTime() {
    const place = document.getElementById("time");
    for (const run of report.runs) {
      const traces = run.empty.time ? [] : Object.keys(parts).map((part) => ({ x: run.curves.steps, y: run.time[part],
        name: part, type: "scatter", mode: "lines", stackgroup: "time", line: { width: 0 }, fillcolor: parts[part] }));
      chart(place, several ? run.name : "seconds", traces, { height: 300, xaxis: { title: { text: "step" } },
        yaxis: { title: { text: "s" } } }, run.empty.time ? [run.empty.time] : []);
    }
  }
  function drawActivity() {
    const place = document.getElementById("activity");
    for (const run of report.runs) {
      const { rows, bin_s: bin } = run.activity;
      const peak = (row) => (row.unit === "share of the time" ? 1
        : Math.max(1e-9, ...rows.filter((other) => other.unit === row.unit).flatMap((other) => other.values)));
      const traces = rows.length ? [{ type: "heatmap", x: rows[0].values.map((_, at) => (at + 0.5) * bin),
        y: rows.map((row) => row.name), z: rows.map((row) => row.values.map((value) => value / peak(row))),
        text: rows.map((row) => row.values.map((value) => `${number(value, 3)} ${row.unit}`)), zmin: 0, zmax: 1,
        hovertemplate: "%{y} at %{x:.1f} s: %{text}<extra></extra>", showscale: false,
        colorscale: [[0, "#eef2f6"], [1, "#0550ae"]] }] : [];
      const shapes = run.lives.slice(1).map((at) => ({ type: "line", x0: at, x1: at, yref: "paper", y0: 0, y1: 1,
        line: { color: "#cf222e", width: 2 } }));
      chart(place, several ? run.name : "the darker, the more at work; a red line: the run was resumed", traces,
        { height: 90 + 26 * rows.length, shapes, margin: { l: 110, r: 12, t: 8, b: 40 },
          xaxis: { title: { text: "seconds since the run began" } }, yaxis: { autorange: "reversed", type: "category" } },
        run.empty.activity ? [run.empty.activity] : []);
    }
  }
  function drawSamples() {
    blocks("samples", (run) => {
      const steps = Object.keys(run.samples).map(Number).sort((a, b) => a - b);
      const place = make("div");
      const select = make("select", { ariaLabel: "step" }, ...steps.map((step) =>
        make("option", { value: step, textContent: `step ${step}` })));
      const show = () => place.replaceChildren(table(
        ["", "sample", "prompt", "completion", "reward", "parts", "advantage", "tokens", "versions"],
        run.samples[select.value].map((one) => [one.rank, one.sample, one.prompt, one.text, number(one.reward),
          Object.entries(one.parts).map(([name, part]) => `${name} ${number(part)}`).join("\n"),
          number(one.advantage), one.tokens, one.versions.map(([version, count]) => `v${version} x ${count}`).join(", ")]),
        [2, 3, 5]));
      select.value = steps[steps.length - 1];
      select.addEventListener("change", show);
      show();
      return make("div", {}, select, place);
    });
  }
  function drawTables() {
    blocks("slowest", (run) => table(["group", "generate, s", "grade, s", "tokens", "engines", "became", "prompt"],
      run.slowest.map((one) => [one.name, number(one.generate_s), number(one.grade_s), one.tokens, one.engines,
        one.fate, one.prompt]), [6]));
    const troubles = (rows) => table(["class", "times", "first message"],
      rows.map((one) => [one.kind, one.times, one.first]), [2]);
    blocks("failures", (run) => troubles(run.failures));
    blocks("warnings", (run) => troubles(run.warnings));
    blocks("incidents", (run) => table(["at, s", "workers", "cause", "level", "attempts", "verdict", "took, s", "why"],
      run.incidents.map((one) => [number(one.began_s), one.workers.join(", "), one.cause, one.level, one.attempts,
        one.verdict, number(one.seconds), one.detail]), [7]));
    const total = (counts) => {
      const reasons = Object.entries(counts).filter(([, count]) => count).map(([name, count]) => `${count} ${name}`);
      const sum = Object.values(counts).reduce((one, other) => one + other, 0);
      return reasons.length ? `${sum} (${reasons.join(", ")})` : `${sum}`;
    };
    blocks("books", (run) => {
      const { groups, samples } = run.books;
      return table(["", "admitted", "trained", "masked", "filtered", "dropped", "open"], [
        ["groups", groups.admitted, groups.committed, "", total(groups.filtered), total(groups.dropped),
          total(groups.open)],
        ["samples", samples.admitted, samples.trained, samples.masked, samples.filtered, samples.dropped, samples.open]]);
    });
    blocks("job", (run) => make("pre", { textContent: JSON.stringify(run.job, null, 2) }));
  }
  for (const draw of [drawHeader, drawCurves, drawTime, drawActivity, drawSamples, drawTables]) draw();
})();

"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("report-figures").textContent);

  // What all figures have in common; what is particular to one comes with its data.
  const axis = { fixedrange: true, zeroline: false, automargin: true };
  const look = {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 13 },
    showlegend: false,
    legend: { orientation: "h", x: 0, xanchor: "left", y: 1, yanchor: "bottom", traceorder: "normal" },
    dragmode: false,
    hovermode: "closest",
  };
  const told = { cliponaxis: false, hovertemplate: "%{customdata}<extra></extra>" };
  for (const [id, { data: traces, layout }] of Object.entries(figures)) {
    const drawn = traces.map((trace) => (trace.customdata ? { ...told, ...trace } : trace));
    const whole = { ...look, ...layout, margin: { l: 10, r: 28, t: 14, b: 44, ...layout.margin } };
    for (const name of ["xaxis", "yaxis"]) whole[name] = { ...axis, ...layout[name] };
    Plotly.newPlot(id, drawn, whole, { displayModeBar: false, responsive: true });
  }
  const redraw = (change) => Object.keys(figures).forEach((id) => Plotly.relayout(id, change));
  addEventListener("beforeprint", () => redraw({ width: 640 }));
  addEventListener("afterprint", () => redraw({ width: null, autosize: true }));
})();

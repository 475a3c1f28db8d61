// Draws every `figure.chart`: its data stands beside it as JSON, its colours come from the page.
const hadalCharts = (() => {
  const rising = ['#2b1b5a', '#2f4b8f', '#227896', '#2fa583', '#8fcb4e', '#fbe74a'];
  const parted = ['#1f4e9c', '#8fb4dc', '#f5f5f5', '#e8a27c', '#a83224'];
  const dashes = ['solid', 'dot', 'dash', 'dashdot', 'longdash'];
  const shown = new Map();
  // Paper has no width to ask for: A4, its columns, and heights that suit them.
  const PAPER = { wide: 688, column: 334, height: 230, heat: 290 };
  let paper = false;

  const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const scale = colours => colours.map((c, i) => [i / (colours.length - 1), c]);
  const faded = (hex, alpha) => hex + Math.round(alpha * 255).toString(16).padStart(2, '0');
  const element = (tag, className, text) => {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  };
  // Plotly reads markup in names, so they come escaped; elements show them as they are.
  const plain = name => name.replaceAll('&lt;', '<').replaceAll('&gt;', '>').replaceAll('&amp;', '&');

  // The palette is the page's: hadal_report::palette writes it as custom properties. Below zero is a reference.
  const palette = number => css(number < 0 ? '--soft' : '--series-' + number);
  const colour = trace => palette(trace.meta?.colour ?? 0);

  // Bands of many curves would hide each other: then only that of the name pointed at is drawn.
  const BANDS = 3;
  function bandShown(trace, state) {
    const bands = new Set(state.variants[state.at].chart.data.filter(other => other.band && !state.hidden.has(other.name)).map(other => other.name));
    return bands.size <= BANDS || state.pointed === trace.name;
  }
  function point(state, name) {
    if (state.pointed === name) return;
    state.pointed = name;
    const { data } = state.variants[state.at].chart;
    const bands = data.map((_, i) => i).filter(i => data[i].band && !state.hidden.has(data[i].name));
    if (bands.length) Plotly.restyle(state.plot, { visible: bands.map(i => bandShown(data[i], state)) }, bands);
  }

  function painted(trace, state) {
    const own = colour(trace), variant = trace.meta?.variant ?? 0;
    const paint = { ...trace, visible: state.hidden.has(trace.name) ? 'legendonly' : true, showlegend: false };
    if (trace.band) return { ...paint, visible: paint.visible === true ? bandShown(trace, state) : paint.visible, fillcolor: faded(own, 0.1), line: { width: 1, color: faded(own, 0.5) } };
    if (trace.type === 'scatter') {
      const dash = trace.line?.dash === 'dash' ? 'dash' : dashes[variant % dashes.length];
      // What was chosen stands out.
      const at = (chosen, other) => trace.marked ? trace.x.map((_, i) => (trace.marked.includes(i) ? chosen : other)) : other;
      return { ...paint, line: { color: own, width: 2, dash }, marker: { color: own, size: at(14, 5), symbol: at('star', 'circle'), opacity: trace.mode === 'markers' ? 0.6 : 1 } };
    }
    const opacity = [1, 0.6, 0.35][Math.min(variant, 2)];
    if (trace.type === 'bar') return { ...paint, marker: { color: trace.meta?.places?.map(palette) ?? own, opacity }, error_y: { ...trace.error_y, color: css('--ink') } };
    if (trace.type === 'box') return { ...paint, line: { color: own, width: 1.4 }, fillcolor: faded(own, 0.25 * opacity), whiskerwidth: 0.4 };
    return { ...paint, colorscale: scale(trace.meta?.parted ? parted : rising),
      colorbar: { thickness: 10, outlinewidth: 0, tickfont: { color: css('--soft') }, nticks: 6, xpad: 6 } };
  }

  function axis(given, log) {
    const kind = given.type === 'category' ? 'category' : log ?? given.type;
    return { type: kind, automargin: true, gridcolor: css('--line'), linecolor: css('--line'), zeroline: false, ticks: 'outside',
      tickcolor: css('--line'), ticklen: 4, tickfont: { color: css('--soft'), size: 11 }, nticks: 8,
      exponentformat: kind === 'log' ? 'power' : 'SI' };
  }

  // Plotly writes digits alone between powers of ten; over a few powers, whole numbers read better.
  function ticks(y, values) {
    if (y.type !== 'log') return;
    const heights = values.flat().filter(value => value > 0);
    const low = heights.reduce((a, b) => Math.min(a, b), Infinity), high = heights.reduce((a, b) => Math.max(a, b), 0);
    const decades = Math.log10(high / low);
    if (!(decades < 3)) { y.dtick = decades > 8 ? undefined : 1; return; }
    const steps = decades < 1 ? [1, 2, 3, 4, 5, 6, 8] : [1, 2, 5];
    y.tickvals = [];
    for (let power = Math.floor(Math.log10(low)) - 1; power <= Math.log10(high) + 1; power++)
      for (const step of steps) y.tickvals.push(Number((step * 10 ** power).toPrecision(1)));
    y.ticktext = y.tickvals.map(value => value >= 1e4 || value < 1e-3 ? value.toExponential(0) : String(value));
  }

  function layout(state) {
    const { chart } = state.variants[state.at];
    const heat = chart.data[0].type === 'heatmap';
    const series = new Set(chart.data.map(trace => trace.name)).size;
    const x = axis(chart.x), y = axis(chart.y, state.log === undefined ? undefined : state.log ? 'log' : 'linear');
    x.title = { text: chart.x.title.replaceAll('&', '&amp;').replaceAll('<', '&lt;'), font: { color: css('--soft'), size: 12 }, standoff: 8 };
    ticks(y, chart.data.flatMap(trace => [trace.y, trace.lowerfence, trace.upperfence]));
    if (chart.data.some(trace => trace.marked)) ticks(x, chart.data.map(trace => trace.x));
    // Blocks are counted in whole numbers.
    const places = chart.data.flatMap(trace => trace.x ?? []);
    if (x.type === 'linear' && places.every(Number.isInteger) && Math.max(...places.slice(0, 1e4)) - Math.min(...places.slice(0, 1e4)) <= 12) x.dtick = 1;
    if (heat) { x.showgrid = y.showgrid = false; x.constrain = y.constrain = 'domain'; }
    // Places in groups, such as blocks, are parted.
    const parting = (starts, along) => (starts ?? []).map(start => ({ type: 'line', layer: 'above', line: { color: css('--paper'), width: 1.5 },
      ...(along === 'x' ? { xref: 'x', yref: 'paper', x0: start - 0.5, x1: start - 0.5, y0: 0, y1: 1 } : { xref: 'paper', yref: 'y', y0: start - 0.5, y1: start - 0.5, x0: 0, x1: 1 }) }));
    const shapes = heat ? [...parting(chart.x.groups, 'x'), ...parting(chart.y.groups, 'y')] : [];
    const longest = Math.max(0, ...named(state, chart).map(trace => plain(brief(trace.name)).length));
    const size = paper ? { width: width(state), height: heat ? PAPER.heat : PAPER.height } : {};
    return { ...size, shapes, xaxis: x, yaxis: y, margin: { l: 44, r: longest ? Math.min(14 + 6.4 * longest, 160) : 14, t: 26, b: 40 }, modebar: { bgcolor: 'rgba(0,0,0,0)', color: css('--soft'), activecolor: css('--accent') }, paper_bgcolor: 'rgba(0,0,0,0)', plot_bgcolor: 'rgba(0,0,0,0)',
      font: { family: 'system-ui, sans-serif', color: css('--ink'), size: 12 }, showlegend: false, barmode: 'group', boxmode: 'group', bargap: 0.25,
      hovermode: !heat && chart.data[0].mode?.startsWith('lines') && series <= 8 ? 'x unified' : 'closest',
      hoverlabel: { bgcolor: css('--paper'), bordercolor: css('--line'), font: { color: css('--ink'), size: 12 } },
      dragmode: matchMedia('(pointer: coarse)').matches ? false : 'zoom' };
  }

  // Fingers scroll; a mouse zooms.
  const config = { responsive: true, displaylogo: false, displayModeBar: matchMedia('(hover: hover)').matches ? 'hover' : false, modeBarButtonsToRemove: ['select2d', 'lasso2d', 'autoScale2d'] };

  function show(figure) {
    const state = shown.get(figure);
    const { chart } = state.variants[state.at];
    state.what.textContent = [chart.y.title && '↑ ' + chart.y.title, chart.colours && 'colour: ' + chart.colours].filter(Boolean).join(' · ');
    Plotly.react(state.plot, chart.data.map(trace => painted(trace, state)), layout(state), config);
    legend(figure, state, chart);
    label(state, chart);
    scalable(state.plot);
  }

  function width({ plot }) {
    const figure = plot.closest('figure');
    const wide = !figure.parentElement.matches('.two') || figure.matches(':last-child:nth-child(odd)');
    return paper ? (wide ? PAPER.wide : PAPER.column) : plot.clientWidth;
  }
  // Whatever the paper, a chart fits its place.
  function scalable(plot) {
    for (const drawn of plot.querySelectorAll('.main-svg')) drawn.setAttribute('viewBox', `0 0 ${drawn.getAttribute('width')} ${drawn.getAttribute('height')}`);
  }
  // A long name ends before its brackets; the legend has all of it.
  function brief(name) {
    const LONG = 20;
    const first = plain(name).length > LONG ? name.split(' (')[0] : name;
    return first.length > LONG + 4 ? first.slice(0, LONG) + '…' : first;
  }

  // Curves are named where they end, if there is room.
  function named(state, chart) {
    const lines = chart.data.filter(trace => !trace.band && trace.mode?.startsWith('lines') && !state.hidden.has(trace.name));
    return width(state) < 480 || lines.length < 2 || lines.length > 10 ? [] : lines;
  }
  function label(state, chart) {
    const lines = named(state, chart), y = state.plot._fullLayout?.yaxis;
    if (!lines.length || !y) return;
    const ends = lines.map(trace => ({ trace, value: trace.y.findLast(value => value !== null) })).filter(end => Number.isFinite(end.value) && (y.type !== 'log' || end.value > 0));
    const heights = ends.map(end => ({ ...end, at: y.d2p(end.value) })).sort((a, b) => a.at - b.at);
    let last = -Infinity;
    for (const end of heights) { end.to = Math.max(end.at, last + 13); last = end.to; }
    // What was pushed below the axis goes up again.
    let floor = y._length + 6;
    for (const end of heights.toReversed()) { end.to = Math.min(end.to, floor); floor = end.to - 13; }
    Plotly.relayout(state.plot, { annotations: heights.map(({ trace, value, at, to }) => ({ xref: 'paper', x: 1, xanchor: 'left', xshift: 4, yref: 'y', y: y.type === 'log' ? Math.log10(value) : value, yshift: at - to, text: brief(trace.name), showarrow: false, font: { size: 11, color: colour(trace) } })) });
  }

  function legend(figure, state, chart) {
    state.legend.replaceChildren();
    const traces = chart.data.filter(trace => !trace.band && trace.name !== undefined);
    if (traces.length < 2 && !(traces.length && traces[0].name && traces[0].type !== 'heatmap' && !traces[0].meta?.places)) return;
    for (const trace of traces) {
      const button = element('button');
      button.type = 'button';
      button.title = 'Click: show or hide. Double click: this one alone.';
      const mark = element('i', trace.line?.dash === 'dash' || (trace.meta?.variant ?? 0) > 0 ? 'dash' : '');
      mark.style.borderTopColor = colour(trace);
      button.append(mark, element('span', '', plain(trace.name)));
      button.setAttribute('aria-pressed', String(!state.hidden.has(trace.name)));
      button.onmouseenter = button.onfocus = () => point(state, trace.name);
      button.onmouseleave = button.onblur = () => point(state, undefined);
      button.onclick = () => { state.hidden.delete(trace.name) || state.hidden.add(trace.name); show(figure); };
      button.ondblclick = () => {
        const others = traces.map(other => other.name).filter(name => name !== trace.name);
        const alone = others.every(name => state.hidden.has(name));
        state.hidden = new Set(alone ? [] : others);
        show(figure);
      };
      state.legend.append(button);
    }
  }

  function choices(labels, pick, pressed) {
    const row = element('span', 'switch');
    labels.forEach((label, i) => {
      const button = element('button', '', label);
      button.type = 'button';
      button.setAttribute('aria-pressed', String(pressed(i)));
      button.onclick = () => {
        pick(i);
        [...row.children].forEach((other, j) => other.setAttribute('aria-pressed', String(pressed(j))));
      };
      row.append(button);
    });
    return row;
  }

  function draw(figure) {
    if (shown.has(figure)) return show(figure);
    const variants = JSON.parse(figure.querySelector('script').textContent);
    const plot = figure.querySelector('.plot');
    const state = { variants, plot, at: 0, hidden: new Set(), what: element('span', 'what'), legend: element('div', 'legend') };
    shown.set(figure, state);
    const bar = element('div', 'bar');
    bar.append(state.what);
    if (variants.length > 1) bar.append(choices(variants.map(v => v.label), i => { state.at = i; show(figure); }, i => i === state.at));
    const first = variants[0].chart;
    const heights = first.data.flatMap(trace => (Array.isArray(trace.y) && trace.type !== 'heatmap' ? trace.y : [])).filter(y => y !== null);
    if (heights.length && heights.every(y => y > 0)) {
      state.log = first.y.type === 'log';
      bar.append(choices(['linear', 'log'], i => { state.log = i === 1; show(figure); }, i => state.log === (i === 1)));
    }
    figure.insertBefore(bar, plot);
    plot.after(state.legend);
    show(figure);
  }

  function all() {
    const waiting = [...document.querySelectorAll('figure.chart')];
    // One at a time, so that the page can be scrolled meanwhile.
    const next = () => { const figure = waiting.shift(); if (figure) { draw(figure); setTimeout(next); } };
    next();
  }
  const again = () => shown.forEach((_, figure) => show(figure));
  const onPaper = yes => { paper = yes; again(); };
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', again);
  // A window that changes its size has its charts drawn anew by Plotly.
  addEventListener('resize', () => setTimeout(() => shown.forEach(state => scalable(state.plot)), 200));
  return { draw, all, again, onPaper };
})();

// What a report must hold by the JSON of its run, and how it must look in the view it is in.
// An expression: a function from that JSON to a list of sentences, one for each fault. Without JSON
// it looks only: what the page holds is the same in every view.
(run) => {
  const faults = [];
  const expect = (holds, what) => { if (!holds) faults.push(what); };
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const words = (element) => element.textContent.trim();
  const isVisible = (element) => element.checkVisibility({ visibilityProperty: true }) && element.getClientRects().length > 0;
  const figure = (text) => text.replace(/\u202f/g, "");
  const LOST_MAX = 200;

  const expected = run ? [["lameduck", run]] : [];
  for (const [name, key] of [["tonic, as documented", "tonic"], ["tonic, hardened", "tonic_hardened"]]) {
    if (run?.compare) expected.push([name, run.compare[key]]);
  }
  const lost = (stage) => stage.lost_idempotent + stage.lost_other;

  // === what it holds

  const columns = all("section.column");
  if (run) expect(columns.length === expected.length, `${columns.length} columns of ${expected.length}`);
  expected.forEach(([name, report], position) => {
    if (columns[position]) column(columns[position], name, report);
  });
  if (run?.compare) comparison();

  function column(section, name, report) {
    const say = (holds, what) => expect(holds, `${name}: ${what}`);
    say(words(section.querySelector("h2")) === name, "its title is another");
    const losses = report.stages.reduce((sum, stage) => sum + lost(stage), 0);
    const servers = new Set(report.drains.map((drain) => drain.server));
    const events = report.drains.length + report.kills.length + report.freezes.length;
    const timeline = section.querySelector("svg.timeline");
    say(timeline, "no timeline");
    if (timeline) {
      const drawn = (selector) => all(selector, timeline).filter((shape) => {
        const box = shape.getBBox();
        // A line may be flat.
        return box.width > 0 && (box.height > 0 || shape.tagName === "path");
      });
      const count = (selector, least) =>
        say(drawn(selector).length >= least, `${drawn(selector).length} ${selector} of at least ${least}: the timeline is not drawn`);
      count("path.answered", 1);
      count("path.started", servers.size);
      count("path.p50", 1);
      count("path.p99", 1);
      count("rect.serving", servers.size + report.drains.length + report.kills.length);
      count("rect.closing", name === "tonic, as documented" ? 0 : report.drains.length);
      count("rect.frozen", report.freezes.length);
      count("rect.lost", losses > 0 ? 1 : 0);
      const marks = drawn("circle.mark").length;
      say(marks === events, `${marks} marks of ${events}`);
    }
    const windows = section.querySelector("svg.windows");
    say(windows, "no windows");
    if (windows) {
      for (const dot of ["admit", "exit"]) {
        const dots = all(`circle.${dot}`, windows).length;
        say(dots === report.drains.length, `${dots} dots of ${dot} for ${report.drains.length} drains`);
      }
    }
    const stages = all("table.stages tbody tr", section).map(words);
    say(stages.length === report.stages.length, `${stages.length} stages of ${report.stages.length}`);
    const stories = all("details", section);
    say(stories.length === Math.min(losses, LOST_MAX), `${stories.length} stories for ${losses} lost calls`);
    const empty = stories.filter((story) => words(story.querySelector("pre")).split("\n").length < 2 || words(story.querySelector("summary")) === "");
    say(empty.length === 0, `${empty.length} lost calls have no story`);
  }

  function comparison() {
    const table = document.querySelector("table.compare");
    expect(table, "no table of the comparison");
    if (!table) return;
    const cells = all("tbody td", table);
    expect(cells.length > 0 && cells.every((cell) => words(cell) !== ""), "the comparison has empty cells");
    expected.forEach(([name, report], position) => {
      expect(words(all("thead th", table)[position + 1]) === name, `column ${position} is not ${name}`);
      for (const stage of report.stages) {
        const row = all("tbody tr", table).find((row) => words(row.cells[0]) === `lost, ${stage.stage.replace("_", " ")}`);
        const shown = row && figure(words(row.cells[position + 1])).split(" ")[0];
        expect(shown === String(lost(stage)), `${name}: ${shown} lost in ${stage.stage}, counted ${lost(stage)}`);
      }
    });
  }

  // === how it looks

  const page = document.documentElement;
  expect(page.scrollWidth <= page.clientWidth, `${page.scrollWidth} px are wider than the window of ${page.clientWidth}`);
  if (matchMedia("print").matches) {
    for (const box of all(".wide, pre")) {
      expect(box.scrollWidth <= box.clientWidth, `paper cuts ${words(box).slice(0, 40)} at ${box.clientWidth} of ${box.scrollWidth} px`);
    }
  }
  const texts = all("body *").filter((element) => isVisible(element) && [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim()));
  contrasts(texts);
  all("svg").filter(isVisible).forEach(overlaps);

  function contrasts(elements) {
    const seen = new Set();
    for (const element of elements.filter((element) => element.tagName !== "title" && element.tagName !== "STYLE")) {
      const style = getComputedStyle(element);
      const [ink, paper] = [element instanceof SVGElement ? style.fill : style.color, background(element)];
      const pair = `${ink} on ${paper}`;
      if (seen.has(pair)) continue;
      seen.add(pair);
      const ratio = contrast(channels(ink), channels(paper));
      expect(ratio >= 4.5, `contrast ${ratio.toFixed(1)} of ${pair}: ${words(element).slice(0, 40)}`);
    }
  }

  function background(element) {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (channels(colour)[3] > 0) return colour;
    }
    return "rgb(255, 255, 255)";
  }

  function channels(colour) {
    const parts = (colour.match(/[\d.]+/g) ?? ["0", "0", "0", "0"]).map(Number);
    return parts.length === 3 ? [...parts, 1] : parts;
  }

  function contrast(one, other) {
    const light = ([r, g, b]) => [r, g, b]
      .map((value) => value / 255)
      .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4))
      .reduce((sum, value, index) => sum + value * [0.2126, 0.7152, 0.0722][index], 0);
    const [low, high] = [light(one), light(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  }

  function overlaps(drawing) {
    const [, , width, height] = drawing.getAttribute("viewBox").split(" ").map(Number);
    const boxes = all("text", drawing).map((text) => [words(text), text.getBBox()]);
    boxes.forEach(([name, box], position) => {
      const leaves = box.x < -0.5 || box.y < -2 || box.x + box.width > width + 0.5 || box.y + box.height > height + 2;
      expect(!leaves, `"${name}" leaves its drawing`);
      for (const [other, that] of boxes.slice(position + 1)) {
        const wide = Math.min(box.x + box.width, that.x + that.width) - Math.max(box.x, that.x);
        const high = Math.min(box.y + box.height, that.y + that.height) - Math.max(box.y, that.y);
        // Boxes of text have room above and below the letters.
        expect(!(wide > 1 && high > 4), `"${name}" and "${other}" lie over each other`);
      }
    });
  }

  return faults;
}

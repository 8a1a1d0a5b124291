'use strict';
// Hover readout and zoom. All figures of one run share their crosshair and their zoom. Values are read back from
// the drawn paths, so that the page holds every number once.
(() => {
  document.documentElement.classList.add('js');
  const SVG = 'http://www.w3.org/2000/svg';
  const make = (name, attributes, parent) => {
    const element = document.createElementNS(SVG, name);
    for (const key in attributes) element.setAttribute(key, attributes[key]);
    if (parent) parent.append(element);
    return element;
  };

  // Vertices of path data made of M, l, h and v.
  const vertices = d => {
    const points = [];
    let x = 0, y = 0, command = '', first = 0, pending = false;
    for (const [token] of d.matchAll(/[Mlhv]|-?(?:\d+\.?\d*|\.\d+)/g)) {
      if (/[Mlhv]/.test(token)) { command = token; pending = false; continue; }
      const number = +token;
      if (command === 'h') { x += number; points.push([x, y]); }
      else if (command === 'v') { y += number; points.push([x, y]); }
      else if (!pending) { first = number; pending = true; }
      else {
        pending = false;
        if (command === 'M') { x = first; y = number; points.push([x, y, true]); }
        else { x += first; y += number; points.push([x, y]); }
      }
    }
    return points;
  };

  // Height of a series at x: the vertex nearest in x.
  const heightAt = (points, x) => {
    let low = 0, high = points.length - 1;
    if (high < 0) return null;
    while (high - low > 1) { const middle = (low + high) >> 1; if (points[middle][0] <= x) low = middle; else high = middle; }
    const nearest = Math.abs(points[low][0] - x) <= Math.abs(points[high][0] - x) ? low : high;
    return Math.abs(points[nearest][0] - x) < 12 ? points[nearest][1] : null;
  };

  const three = value => {
    const size = Math.abs(value);
    return value.toFixed(size >= 100 || size === 0 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3);
  };

  const niceStep = (span, count) => {
    const rough = span / count, power = 10 ** Math.floor(Math.log10(rough)), share = rough / power;
    return power * (share <= 1 ? 1 : share <= 2 ? 2 : share <= 5 ? 5 : 10);
  };

  class Chart {
    constructor(svg, group) {
      this.svg = svg;
      this.group = group;
      for (const key of ['left', 'top', 'width', 'bottom', 'ceiling', 'x0', 'x1', 'y0', 'y1', 'log']) this[key] = +svg.dataset[key];
      this.plot = svg.querySelector('.plot');
      this.cross = svg.querySelector('.crosshair');
      this.ticks = svg.querySelector('.x-ticks');
      this.from = this.x0; this.to = this.x1;
      svg.tabIndex = 0;
      svg.addEventListener('pointermove', event => this.move(event));
      svg.addEventListener('pointerleave', () => group.hide());
      svg.addEventListener('blur', () => group.hide());
      svg.addEventListener('pointerdown', event => this.down(event));
      svg.addEventListener('pointerup', event => this.up(event));
      svg.addEventListener('dblclick', () => group.zoom(this.x0, this.x1));
      svg.addEventListener('keydown', event => this.key(event));
    }
    series() {
      if (!this.read) this.read = [...this.svg.querySelectorAll('.plot .series')].map(path => ({
        label: path.dataset.label, faint: path.classList.contains('faint'), className: path.getAttribute('class'),
        points: vertices(path.getAttribute('d')),
      }));
      return this.read;
    }
    timeOf(event) {
      const box = this.svg.getBoundingClientRect();
      const x = (event.clientX - box.left) / box.width * this.svg.viewBox.baseVal.width;
      const share = Math.min(1, Math.max(0, (x - this.left) / this.width));
      return this.from + share * (this.to - this.from);
    }
    place(time) { return this.left + (time - this.from) / (this.to - this.from) * this.width; }
    value(height) {
      const share = (this.bottom - height) / (this.bottom - this.ceiling);
      return this.log ? this.y0 * (this.y1 / this.y0) ** share : this.y0 + share * (this.y1 - this.y0);
    }
    move(event) {
      const time = this.timeOf(event);
      if (this.start !== undefined) this.area(time);
      this.group.show(this, time);
    }
    down(event) {
      if (event.pointerType !== 'mouse' || event.button !== 0) return;
      this.start = this.timeOf(event);
      this.svg.setPointerCapture(event.pointerId);
      event.preventDefault();
      this.svg.focus({ preventScroll: true });
    }
    up(event) {
      if (this.start === undefined) return;
      const [from, to] = [this.start, this.timeOf(event)].sort((a, b) => a - b);
      this.start = undefined;
      this.shade?.remove();
      if (to - from > (this.to - this.from) / 60) this.group.zoom(from, to);
    }
    area(time) {
      this.shade?.remove();
      const [a, b] = [this.place(this.start), this.place(time)].sort((a, b) => a - b);
      this.shade = make('rect', { class: 'zoomarea', x: a, y: this.top, width: b - a, height: this.bottom }, this.svg);
    }
    key(event) {
      const step = (this.to - this.from) / (event.shiftKey ? 20 : 200);
      const now = this.group.time ?? (this.from + this.to) / 2;
      const moved = { ArrowLeft: now - step, ArrowRight: now + step }[event.key];
      if (moved !== undefined) this.group.show(this, Math.min(this.to, Math.max(this.from, moved)));
      else if (event.key === 'Escape') { this.group.hide(); this.group.zoom(this.x0, this.x1); }
      else return;
      event.preventDefault();
    }
    crosshair(time) {
      this.svg.classList.add('hovered');
      this.cross.setAttribute('transform', `translate(${this.place(time)} 0)`);
    }
    zoom(from, to) {
      this.from = from; this.to = to;
      const scale = this.width / (this.x1 - this.x0);
      this.plot.setAttribute('viewBox', `${(from - this.x0) * scale} 0 ${(to - from) * scale} ${this.bottom}`);
      const step = niceStep(to - from, 6), decimals = Math.max(0, -Math.floor(Math.log10(step)));
      const first = Math.ceil(from / step - 1e-9), last = Math.floor(to / step + 1e-9), y = this.top + this.bottom;
      this.ticks.replaceChildren();
      for (let index = first; index <= last; index++) {
        const x = this.place(index * step);
        make('path', { class: 'axis', d: `M${x} ${y}v4` }, this.ticks);
        make('text', { class: 'tick middle', x, y: y + 18 }, this.ticks).textContent =
          (index * step).toFixed(decimals) + (index === last ? ' s' : '');
      }
    }
    rows(time) {
      const x = (time - this.x0) / (this.x1 - this.x0) * this.width;
      const rows = [], many = new Map();
      for (const series of this.series()) {
        const height = heightAt(series.points, x);
        if (height === null) continue;
        const value = this.value(height);
        const beyond = height <= this.ceiling && !this.log ? '≥ ' : '';
        if (!series.faint) { rows.unshift([series.label, series.className, beyond + three(value)]); continue; }
        if (!many.has(series.label)) many.set(series.label, [series.className, []]);
        many.get(series.label)[1].push(value);
      }
      for (const [label, [className, values]] of many) {
        values.sort((a, b) => a - b);
        rows.push([label, className, three(values[0]) + ' … ' + three(values[values.length - 1])]);
      }
      return rows;
    }
  }

  class Group {
    constructor(element) {
      this.charts = [...element.querySelectorAll('svg[data-chart=time]')].map(svg => new Chart(svg, this));
      this.box = document.createElement('div');
      this.box.className = 'readout';
      this.box.setAttribute('role', 'status');
    }
    show(chart, time) {
      this.time = time;
      for (const each of this.charts) each.crosshair(time);
      this.box.replaceChildren();
      const head = document.createElement('b');
      head.textContent = time.toFixed(2) + ' s';
      this.box.append(head);
      for (const [label, className, value] of chart.rows(time)) {
        const row = document.createElement('div'), name = document.createElement('span'), figure = document.createElement('span');
        const swatch = make('svg', { class: 'figure', viewBox: '0 0 20 6' });
        make('path', { class: className, d: 'M0 3h20' }, swatch);
        name.append(swatch, label);
        figure.textContent = value;
        row.append(name, figure);
        this.box.append(row);
      }
      const figure = chart.svg.parentElement, share = chart.place(time) / chart.svg.viewBox.baseVal.width;
      figure.append(this.box);
      const x = share * figure.clientWidth, width = this.box.offsetWidth;
      const left = share > .5 ? x - width - 12 : x + 12;
      this.box.style.left = Math.max(0, Math.min(left, figure.clientWidth - width)) + 'px';
      this.box.style.top = '3.5rem';
    }
    hide() {
      this.time = undefined;
      this.box.remove();
      for (const each of this.charts) each.svg.classList.remove('hovered');
    }
    zoom(from, to) {
      for (const each of this.charts) each.zoom(from, to);
    }
  }

  for (const element of document.querySelectorAll('.panels')) new Group(element);
})();

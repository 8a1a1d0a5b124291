'use strict';
// The pure part of a page's script: node --test tests/browser/page.test.js
const assert = require('node:assert');
const test = require('node:test');
const page = require('../../crates/report/src/page/page.js');

test('path data is read as it was written: relative, with numbers that touch', () => {
  const points = page.vertices('M1 2l.5-3h2v-1.5');
  assert.deepStrictEqual(points, [[1, 2, 'M'], [1.5, -1, 'l'], [3.5, -1, 'h'], [3.5, -2.5, 'v']]);
});

test('the samples of steps are their ends, not their corners, and a dot is one', () => {
  const places = d => page.samples(page.vertices(d)).map(([x, y]) => [x, y]);
  assert.deepStrictEqual(places('M0 0h1v2h1h1v3'), [[0, 0], [1, 2], [2, 2], [3, 5]]);
  assert.deepStrictEqual(places('M4 5h0M4 6h0'), [[4, 5], [4, 6]]);
  assert.deepStrictEqual(places('M0 0l1 1l0 2'), [[0, 0], [1, 1], [1, 3]]);
});

test('the height at a place is that of the nearest vertex, and none far from all', () => {
  const points = [[0, 1], [10, 2], [20, 3]];
  assert.strictEqual(page.heightAt(points, 13), 2);
  assert.strictEqual(page.heightAt(points, 40), null);
  assert.strictEqual(page.heightAt([], 0), null);
});

test('an address keeps place, zoom and hidden series whatever a label holds', () => {
  const label = 'a&b=c#%,"<script> ü';
  const state = { anchor: 'e1c2', zoom: new Map([['e1c1r1-goodput', [1.5, 30]]]), off: new Map([['e1c1r1-cwnd', new Set([label, 'b'])]]) };
  assert.deepStrictEqual(page.stateOf(page.hashOf(state)), state);
});

test('an address of nonsense changes nothing', () => {
  for (const hash of ['', '#', '#&&', '#zoom.a=5,1', '#zoom.a=x,y', '#zoom.=1,2', '#zoom.a=1', '#off', '#%zz=1']) {
    const state = page.stateOf(hash);
    assert.deepStrictEqual([state.zoom.size, state.off.size], [0, 0], hash);
  }
  assert.strictEqual(page.stateOf('#e1c2').anchor, 'e1c2');
  assert.strictEqual(page.stateOf('#100%').anchor, '100%');
  assert.strictEqual(page.hashOf(page.stateOf('')), '');
});

test('CSV quotes what has to be quoted and disarms formulas', () => {
  assert.strictEqual(page.csv([['a,b', 'say "x"', 1.5, -2, null], ['=1+1', '@x', '-y', '']]),
    '"a,b","say ""x""",1.5,-2,\r\n\'=1+1,\'@x,\'-y,\r\n');
});

test('the readout stands beside the point wherever there is room, and never over it', () => {
  for (const room of [[1280, 900], [390, 844]]) {
    for (let x = 0; x <= room[0]; x += 10) {
      for (let y = 0; y <= room[1]; y += 50) {
        const size = [250, 90], [left, top] = page.beside([x, y], size, room);
        const covers = x >= left && x <= left + size[0] && y >= top && y <= top + size[1];
        assert.ok(!covers && left >= 0 && left + size[0] <= room[0], `${x} ${y} in ${room}: ${left} ${top}`);
      }
    }
  }
});

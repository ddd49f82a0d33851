//! Where the boxes of one scope stand: in layers, so that edges run downwards, with as few crossings
//! and bends as a few sweeps give. Pure numbers; cycles are allowed, their last edges run upwards.
//!
//! cut cycles → layers (longest path, then as low as consumers allow) → points on long edges →
//! order by neighbours' middle → x by least squares under the order.

use std::collections::BTreeMap;

/// Space between boxes of a layer, between an edge and its neighbours, between layers.
const GAP: f64 = 18.0;
const EDGE_GAP: f64 = 10.0;
const LAYER_GAP: f64 = 38.0;
const SWEEPS: usize = 12;
/// A row of boxes that nothing joins is about this wide, or as wide as the rest.
const ROW: f64 = 900.0;

/// A box to place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    pub(super) width: f64,
    pub(super) height: f64,
    /// About when it runs: says which edge of a cycle runs upwards.
    pub(super) rank: f64,
}

/// Where things stand.
#[derive(Debug, Default)]
pub(super) struct Placed {
    /// Upper left corners, as the items came.
    pub(super) corners: Vec<(f64, f64)>,
    /// Points of each edge, as the edges came, from its source to its target.
    pub(super) routes: Vec<Vec<(f64, f64)>>,
    /// Whether each edge runs against the layers.
    pub(super) upward: Vec<bool>,
    pub(super) width: f64,
    pub(super) height: f64,
}

/// Places items that `edges` join.
pub(super) fn layout(items: &[Item], edges: &[(usize, usize)]) -> Placed {
    let upward = against(items, edges);
    let downward: Vec<(usize, usize)> = edges
        .iter()
        .zip(&upward)
        .map(|(&(a, b), &up)| if up { (b, a) } else { (a, b) })
        .collect();
    let mut joined = vec![false; items.len()];
    for &(a, b) in &downward {
        (joined[a], joined[b]) = (true, true);
    }
    let layer = layers(items, &downward, &joined);
    let mut grid = Grid::new(items, &downward, &layer, &joined);
    grid.order();
    grid.spread();
    let mut placed = grid.place(items, &downward);
    for (route, &up) in placed.routes.iter_mut().zip(&upward) {
        if up {
            route.reverse();
        }
    }
    placed.upward = upward;
    rows(items, &joined, &mut placed);
    placed
}

/// Which edges to turn round so that no cycle remains: those of a cycle that run from late to early.
fn against(items: &[Item], edges: &[(usize, usize)]) -> Vec<bool> {
    let component = components(items.len(), edges);
    let later = |a: usize, b: usize| (items[a].rank, a) > (items[b].rank, b);
    edges
        .iter()
        .map(|&(a, b)| component[a] == component[b] && later(a, b))
        .collect()
}

/// Which strongly connected component each item is in (Kosaraju's two passes, without recursion).
fn components(n: usize, edges: &[(usize, usize)]) -> Vec<usize> {
    let mut out = vec![Vec::new(); n];
    let mut into = vec![Vec::new(); n];
    for &(a, b) in edges {
        out[a].push(b);
        into[b].push(a);
    }
    let mut finished = Vec::with_capacity(n);
    let mut seen = vec![false; n];
    for root in 0..n {
        let mut stack = vec![(root, 0)];
        if std::mem::replace(&mut seen[root], true) {
            continue;
        }
        while let Some((at, next)) = stack.pop() {
            match out[at].get(next) {
                Some(&to) => {
                    stack.push((at, next + 1));
                    if !std::mem::replace(&mut seen[to], true) {
                        stack.push((to, 0));
                    }
                }
                None => finished.push(at),
            }
        }
    }
    let mut component = vec![usize::MAX; n];
    for &root in finished.iter().rev() {
        let mut stack = vec![root];
        while let Some(at) = stack.pop() {
            if component[at] == usize::MAX {
                component[at] = root;
                stack.extend(&into[at]);
            }
        }
    }
    component
}

/// The layer of each item: below all that it takes from, then as near as can be to its first taker.
fn layers(items: &[Item], edges: &[(usize, usize)], joined: &[bool]) -> Vec<usize> {
    let n = items.len();
    let mut waiting = vec![0usize; n];
    let mut out = vec![Vec::new(); n];
    for &(a, b) in edges {
        waiting[b] += 1;
        out[a].push(b);
    }
    let mut layer = vec![0usize; n];
    let mut order: Vec<usize> = (0..n).filter(|&i| waiting[i] == 0).collect();
    let mut next = 0;
    while let Some(&at) = order.get(next) {
        next += 1;
        for &to in &out[at] {
            layer[to] = layer[to].max(layer[at] + 1);
            waiting[to] -= 1;
            if waiting[to] == 0 {
                order.push(to);
            }
        }
    }
    for &at in order.iter().rev() {
        let lowest = out[at].iter().map(|&to| layer[to] - 1).min();
        if let Some(lowest) = lowest.filter(|_| joined[at]) {
            layer[at] = layer[at].max(lowest);
        }
    }
    layer
}

/// A box, or a point of an edge that passes a layer.
#[derive(Clone, Copy)]
struct Cell {
    item: Option<usize>,
    width: f64,
    /// Middle.
    x: f64,
}

struct Grid {
    cells: Vec<Cell>,
    /// Cells of each layer, from left to right.
    layers: Vec<Vec<usize>>,
    above: Vec<Vec<usize>>,
    below: Vec<Vec<usize>>,
    /// The cells that each edge passes, from top to bottom.
    chains: Vec<Vec<usize>>,
}

impl Grid {
    fn new(items: &[Item], edges: &[(usize, usize)], layer: &[usize], joined: &[bool]) -> Grid {
        let depth = layer
            .iter()
            .zip(joined)
            .filter(|(_, j)| **j)
            .map(|(l, _)| l + 1)
            .max();
        let mut grid = Grid {
            cells: Vec::new(),
            layers: vec![Vec::new(); depth.unwrap_or(0)],
            above: Vec::new(),
            below: Vec::new(),
            chains: Vec::new(),
        };
        let mut order: Vec<usize> = (0..items.len()).filter(|&i| joined[i]).collect();
        order.sort_by(|&a, &b| items[a].rank.total_cmp(&items[b].rank));
        let mut cell_of = vec![usize::MAX; items.len()];
        for i in order {
            cell_of[i] = grid.add(layer[i], Some(i), items[i].width);
        }
        for &(a, b) in edges {
            let mut chain = vec![cell_of[a]];
            for between in layer[a] + 1..layer[b] {
                chain.push(grid.add(between, None, 0.0));
            }
            chain.push(cell_of[b]);
            for pair in chain.windows(2) {
                grid.below[pair[0]].push(pair[1]);
                grid.above[pair[1]].push(pair[0]);
            }
            grid.chains.push(chain);
        }
        grid
    }

    fn add(&mut self, layer: usize, item: Option<usize>, width: f64) -> usize {
        let id = self.cells.len();
        self.cells.push(Cell {
            item,
            width,
            x: 0.0,
        });
        self.above.push(Vec::new());
        self.below.push(Vec::new());
        self.layers[layer].push(id);
        id
    }

    /// Orders each layer by where its neighbours stand, downwards and upwards in turn; keeps the
    /// order with the fewest crossings.
    fn order(&mut self) {
        let mut best = (self.crossings(), self.layers.clone());
        for sweep in 0..SWEEPS {
            let down = sweep % 2 == 0;
            let count = self.layers.len();
            for step in 0..count {
                let layer = if down { step } else { count - 1 - step };
                let place = self.places();
                let neighbours = if down { &self.above } else { &self.below };
                let middle = |cell: usize| -> f64 {
                    let near = &neighbours[cell];
                    match near.is_empty() {
                        true => place[cell] as f64,
                        false => {
                            near.iter().map(|&n| place[n] as f64).sum::<f64>() / near.len() as f64
                        }
                    }
                };
                let mut keyed: Vec<(f64, usize)> =
                    self.layers[layer].iter().map(|&c| (middle(c), c)).collect();
                keyed.sort_by(|a, b| a.0.total_cmp(&b.0));
                self.layers[layer] = keyed.into_iter().map(|(_, c)| c).collect();
            }
            let crossings = self.crossings();
            if crossings < best.0 {
                best = (crossings, self.layers.clone());
            }
        }
        self.layers = best.1;
    }

    fn places(&self) -> Vec<usize> {
        let mut place = vec![0; self.cells.len()];
        for layer in &self.layers {
            for (i, &cell) in layer.iter().enumerate() {
                place[cell] = i;
            }
        }
        place
    }

    /// Pairs of edges that cross; not counted further where there are too many edges to matter.
    fn crossings(&self) -> usize {
        const ENOUGH: usize = 400;
        let place = self.places();
        let mut crossings = 0;
        for layer in &self.layers {
            let mut ends: Vec<(usize, usize)> = Vec::new();
            for &cell in layer {
                ends.extend(self.below[cell].iter().map(|&to| (place[cell], place[to])));
            }
            if ends.len() > ENOUGH {
                continue;
            }
            for (i, a) in ends.iter().enumerate() {
                crossings += ends[i + 1..]
                    .iter()
                    .filter(|b| (a.0 < b.0 && a.1 > b.1) || (a.0 > b.0 && a.1 < b.1))
                    .count();
            }
        }
        crossings
    }

    /// Gives every cell its x: as near to its neighbours' middle as the order allows.
    fn spread(&mut self) {
        for layer in 0..self.layers.len() {
            let wanted = vec![0.0; self.layers[layer].len()];
            self.settle(layer, &wanted);
        }
        for sweep in 0..SWEEPS {
            let count = self.layers.len();
            for step in 0..count {
                let layer = if sweep % 2 == 0 {
                    step
                } else {
                    count - 1 - step
                };
                let wanted: Vec<f64> = self.layers[layer].iter().map(|&c| self.pull(c)).collect();
                self.settle(layer, &wanted);
            }
        }
    }

    /// Where a cell's neighbours pull it. Points of edges pull harder: long edges are to be straight.
    fn pull(&self, cell: usize) -> f64 {
        let mut sum = 0.0;
        let mut weight = 0.0;
        for &near in self.above[cell].iter().chain(&self.below[cell]) {
            let w = match (self.cells[cell].item, self.cells[near].item) {
                (None, None) => 8.0,
                (None, _) | (_, None) => 2.0,
                _ => 1.0,
            };
            sum += w * self.cells[near].x;
            weight += w;
        }
        match weight > 0.0 {
            true => sum / weight,
            false => self.cells[cell].x,
        }
    }

    /// Least squares under the order and the widths: neighbours that would overlap move together.
    fn settle(&mut self, layer: usize, wanted: &[f64]) {
        let cells = &self.layers[layer];
        let mut offsets = Vec::with_capacity(cells.len());
        let mut at = 0.0;
        for (i, &cell) in cells.iter().enumerate() {
            if i > 0 {
                let (a, b) = (&self.cells[cells[i - 1]], &self.cells[cell]);
                let gap = match (a.item, b.item) {
                    (Some(_), Some(_)) => GAP,
                    _ => EDGE_GAP,
                };
                at += (a.width + b.width) / 2.0 + gap;
            }
            offsets.push(at);
        }
        // Pools of cells that stand side by side: (sum, count).
        let mut pools: Vec<(f64, usize)> = Vec::new();
        for (want, offset) in wanted.iter().zip(&offsets) {
            let mut pool = (want - offset, 1);
            while let Some(&(sum, count)) = pools.last() {
                if sum / count as f64 <= pool.0 / pool.1 as f64 {
                    break;
                }
                pools.pop();
                pool = (pool.0 + sum, pool.1 + count);
            }
            pools.push(pool);
        }
        let mut i = 0;
        for (sum, count) in pools {
            for _ in 0..count {
                let cell = self.layers[layer][i];
                self.cells[cell].x = sum / count as f64 + offsets[i];
                i += 1;
            }
        }
    }

    fn place(&self, items: &[Item], edges: &[(usize, usize)]) -> Placed {
        let mut placed = Placed {
            corners: vec![(0.0, 0.0); items.len()],
            ..Placed::default()
        };
        let left = self
            .cells
            .iter()
            .map(|c| c.x - c.width / 2.0)
            .fold(f64::INFINITY, f64::min);
        let left = if left.is_finite() { left } else { 0.0 };
        let mut y = 0.0;
        // Top and bottom of each layer's row.
        let mut tops = Vec::new();
        for layer in &self.layers {
            let boxes = || layer.iter().filter_map(|&c| self.cells[c].item);
            let height = boxes().map(|i| items[i].height).fold(0.0, f64::max);
            for &cell in layer {
                let Some(i) = self.cells[cell].item else {
                    continue;
                };
                let Cell { x, width, .. } = self.cells[cell];
                placed.corners[i] = (x - width / 2.0 - left, y + (height - items[i].height) / 2.0);
            }
            tops.push((y, y + height));
            // Rows between which much passes stand further apart.
            let passing: usize = layer.iter().map(|&c| self.below[c].len()).sum();
            y += height + LAYER_GAP + (passing as f64).sqrt() * 4.0;
        }
        placed.height = tops.last().map_or(0.0, |t| t.1);
        let right = self
            .cells
            .iter()
            .map(|c| c.x + c.width / 2.0 - left)
            .fold(0.0, f64::max);
        placed.width = right;
        let mut row_of = BTreeMap::new();
        for (l, layer) in self.layers.iter().enumerate() {
            row_of.extend(layer.iter().map(|&c| (c, l)));
        }
        for (chain, &(a, b)) in self.chains.iter().zip(edges) {
            let middle = |i: usize| placed.corners[i].0 + items[i].width / 2.0;
            let mut route = vec![(middle(a), placed.corners[a].1 + items[a].height)];
            for cell in chain.iter().skip(1).take(chain.len().saturating_sub(2)) {
                let (top, bottom) = tops[row_of[cell]];
                let x = self.cells[*cell].x - left;
                route.push((x, top));
                route.push((x, bottom));
            }
            route.push((middle(b), placed.corners[b].1));
            placed.routes.push(route);
        }
        placed
    }
}

/// Puts items that nothing joins in rows below the others.
fn rows(items: &[Item], joined: &[bool], placed: &mut Placed) {
    let alone: Vec<usize> = (0..items.len()).filter(|&i| !joined[i]).collect();
    let Some(widest) = alone.iter().map(|&i| items[i].width).reduce(f64::max) else {
        return;
    };
    // About as wide as high, if there is nothing else.
    let area: f64 = alone
        .iter()
        .map(|&i| (items[i].width + GAP) * (items[i].height + GAP))
        .sum();
    let limit = match placed.width > 0.0 {
        true => placed.width.max(widest),
        false => (area * 2.0).sqrt().max(widest).min(ROW.max(widest)),
    };
    let (mut x, mut row) = (0.0, 0.0f64);
    let mut y = match placed.height > 0.0 {
        true => placed.height + LAYER_GAP,
        false => 0.0,
    };
    for i in alone {
        if x > 0.0 && x + items[i].width > limit {
            (x, y, row) = (0.0, y + row + GAP, 0.0);
        }
        placed.corners[i] = (x, y);
        x += items[i].width + GAP;
        row = row.max(items[i].height);
        placed.width = placed.width.max(x - GAP);
    }
    placed.height = y + row;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(n: usize) -> Vec<Item> {
        let item = |i| Item {
            width: 60.0 + (i % 3) as f64 * 20.0,
            height: 20.0,
            rank: i as f64,
        };
        (0..n).map(item).collect()
    }

    /// No two boxes overlap, and every edge joins its boxes.
    fn check(items: &[Item], edges: &[(usize, usize)]) -> Placed {
        let placed = layout(items, edges);
        for a in 0..items.len() {
            for b in 0..a {
                let ((ax, ay), (bx, by)) = (placed.corners[a], placed.corners[b]);
                let apart = ax + items[a].width <= bx + 1e-6
                    || bx + items[b].width <= ax + 1e-6
                    || ay + items[a].height <= by + 1e-6
                    || by + items[b].height <= ay + 1e-6;
                assert!(apart, "{a} and {b}: {:?}", placed.corners);
            }
            let (x, y) = placed.corners[a];
            assert!(x >= -1e-6 && x + items[a].width <= placed.width + 1e-6);
            assert!(y >= -1e-6 && y + items[a].height <= placed.height + 1e-6);
        }
        for ((route, &(a, b)), &up) in placed.routes.iter().zip(edges).zip(&placed.upward) {
            let at = |i: usize, low: bool| {
                let (x, y) = placed.corners[i];
                (
                    x + items[i].width / 2.0,
                    if low { y + items[i].height } else { y },
                )
            };
            assert_eq!(route.first(), Some(&at(a, !up)));
            assert_eq!(route.last(), Some(&at(b, up)));
        }
        placed
    }

    #[test]
    fn chains_run_down_and_cycles_come_back_up() {
        let placed = check(&items(4), &[(0, 1), (1, 2), (2, 3), (3, 1), (0, 3)]);
        assert_eq!(placed.upward, [false, false, false, true, false]);
        let y: Vec<f64> = placed.corners.iter().map(|c| c.1).collect();
        assert!(y.is_sorted());
    }

    #[test]
    fn any_graph_is_laid_out_without_overlap() {
        let mut seed = 7u64;
        let mut random = |n: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as usize % n
        };
        for round in 0..60 {
            let n = 1 + round % 30;
            let mut edges: Vec<(usize, usize)> = Vec::new();
            for _ in 0..random(3 * n) {
                let edge = (random(n), random(n));
                if edge.0 != edge.1 && !edges.contains(&edge) {
                    edges.push(edge);
                }
            }
            check(&items(n), &edges);
        }
        check(&items(100), &[]);
        check(&[], &[]);
    }
}

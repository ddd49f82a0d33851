//! Which task computes what: a split of a measured step over tasks that makes its critical path
//! short and lets little travel, with variables spread so that no task keeps many more than others.
//!
//! Multilevel, as graph partitioners are: nodes between which much travels are merged until few
//! clusters are left; those are placed in several simple ways, and the best of these is improved by
//! moving clusters (Fiduccia and Mattheyses' passes: the best move first, each cluster once, back to
//! the best point of the pass), again at every level on the way back. A move is chosen by what it
//! saves in travel and in balance; what counts in the end is the simulated step.
//!
//! Invariant: the same costs give the same split; ties go to the lower number.

use crate::cost::{CostGraph, Machine};
use std::collections::BTreeMap;

/// Clusters are merged until there are at most so many for each task.
const CLUSTERS_PER_TASK: usize = 8;

/// A pass ends after so many moves in a row that did not help.
const PATIENCE: usize = 24;

/// So many of the simple ways to begin, the best ones, are improved.
const BEGINNINGS: usize = 8;

/// Passes at each level.
const PASSES: usize = 6;

/// What travels counts by this part of its time even where no one waits for it: links are shared,
/// and measured times are not exact.
const TRAVEL_SHARE: u64 = 4;

/// The task of each group. `tasks` candidates; the first is that of the session's master.
pub fn split(costs: &CostGraph, tasks: usize, machine: &Machine) -> Vec<usize> {
    let search = Search::new(costs, tasks.max(1), machine);
    let mut levels = vec![search.finest()];
    while let Some(coarser) = search.coarsen(levels.last().unwrap_or(&Level::default())) {
        levels.push(coarser);
    }
    let mut best: Option<(Score, Vec<usize>)> = None;
    if let Some(top) = levels.last() {
        let mut begins: Vec<(Score, Vec<usize>)> = (search.beginnings(top).into_iter())
            .map(|places| (search.score(&places), places))
            .collect();
        begins.sort();
        begins.dedup();
        for (_, begin) in begins.into_iter().take(BEGINNINGS) {
            let places = search.improve(top, begin);
            let score = search.score(&places);
            if best.as_ref().is_none_or(|(least, _)| score < *least) {
                best = Some((score, places));
            }
        }
    }
    let mut places = best.map(|(_, places)| places).unwrap_or_default();
    for level in levels.iter().rev().skip(1) {
        places = search.improve(level, places);
    }
    places
}

/// The groups one after the other on the tasks in turn, as far as they may: what a split is
/// measured against.
pub fn round_robin(costs: &CostGraph, tasks: usize) -> Vec<usize> {
    let mut turn = 0;
    (costs.groups.iter())
        .map(|group| match group.allowed.as_slice() {
            [] => {
                turn += 1;
                (turn - 1) % tasks.max(1)
            }
            allowed => allowed[0],
        })
        .collect()
}

/// How good a split is; less is better. Bytes over the limit first, then time.
type Score = (u64, u64);

/// Groups that move together.
#[derive(Clone, Debug, Default)]
struct Cluster {
    groups: Vec<usize>,
    nanos: u64,
    memory: u64,
    allowed: Vec<usize>,
    /// Mean position of its nodes in the order of the step.
    position: f64,
    /// How long what passes between it and others would travel, by cluster.
    near: BTreeMap<usize, u64>,
}

type Level = Vec<Cluster>;

struct Search<'a> {
    costs: &'a CostGraph,
    tasks: usize,
    machine: &'a Machine,
    /// Bytes of variables that a task should not exceed.
    limit: u64,
    /// Time of all nodes.
    total: u64,
}

impl<'a> Search<'a> {
    fn new(costs: &'a CostGraph, tasks: usize, machine: &'a Machine) -> Search<'a> {
        let free = costs
            .groups
            .iter()
            .filter(|g| g.allowed.iter().all(|p| *p < tasks));
        let memory: Vec<u64> = free.map(|g| g.memory).collect();
        let share = memory.iter().sum::<u64>() as f64 / tasks as f64;
        let limit = (share * (1.0 + machine.memory_slack.max(0.0))) as u64;
        Search {
            costs,
            tasks,
            machine,
            // What cannot be divided must be somewhere.
            limit: limit.max(memory.iter().copied().max().unwrap_or(0)),
            total: costs.items.iter().map(|i| i.nanos).sum(),
        }
    }

    /// A cluster for each group.
    fn finest(&self) -> Level {
        let mut level: Level = (self.costs.groups.iter().enumerate())
            .map(|(i, group)| Cluster {
                groups: vec![i],
                memory: group.memory,
                allowed: group.allowed.clone(),
                ..Default::default()
            })
            .collect();
        let mut counts = vec![0usize; level.len()];
        for (position, item) in self.costs.items.iter().enumerate() {
            let cluster = &mut level[item.group];
            cluster.nanos += item.nanos;
            cluster.position += position as f64;
            counts[item.group] += 1;
        }
        for (cluster, count) in level.iter_mut().zip(counts) {
            cluster.position /= count.max(1) as f64;
        }
        for (from, users) in self.costs.users.iter().enumerate() {
            let item = &self.costs.items[from];
            let mut seen: Vec<(usize, Option<usize>)> = Vec::new();
            for (to, output) in users {
                let there = self.costs.items[*to].group;
                if there == item.group || seen.contains(&(there, *output)) {
                    continue;
                }
                seen.push((there, *output));
                let bytes = output.and_then(|o| item.outputs.get(o)).copied();
                let time = self.machine.transfer(bytes.unwrap_or(0));
                *level[item.group].near.entry(there).or_default() += time;
                *level[there].near.entry(item.group).or_default() += time;
            }
        }
        level
    }

    /// Merges each cluster with the one that it exchanges most with; nothing if that is not worth
    /// it any more.
    fn coarsen(&self, level: &Level) -> Option<Level> {
        let enough = self.tasks * CLUSTERS_PER_TASK;
        if level.len() <= enough {
            return None;
        }
        // Larger ones could not be balanced.
        let most = self.total / (self.tasks as u64 * 2).max(1);
        let memory = self.limit / 2;
        let mut merged: Vec<Option<usize>> = vec![None; level.len()];
        let mut count = 0;
        for (i, cluster) in level.iter().enumerate() {
            if merged[i].is_some() {
                continue;
            }
            merged[i] = Some(count);
            let fits = |j: usize| {
                let other = &level[j];
                merged[j].is_none()
                    && other.allowed == cluster.allowed
                    && other.nanos + cluster.nanos <= most
                    && (other.memory + cluster.memory <= memory
                        || other.memory == 0
                        || cluster.memory == 0)
            };
            let near = cluster.near.iter().filter(|(j, _)| fits(**j));
            let nearest = near.max_by_key(|(j, time)| (**time, usize::MAX - **j));
            if let Some((j, _)) = nearest {
                merged[*j] = Some(count);
            }
            count += 1;
        }
        if count * 10 > level.len() * 9 {
            return None;
        }
        let merged: Vec<usize> = merged.into_iter().flatten().collect();
        let mut coarser: Level = vec![Cluster::default(); count];
        for (i, cluster) in level.iter().enumerate() {
            let into = &mut coarser[merged[i]];
            let (a, b) = (into.groups.len() as f64, cluster.groups.len() as f64);
            into.position = (into.position * a + cluster.position * b) / (a + b).max(1.0);
            into.groups.extend(&cluster.groups);
            into.nanos += cluster.nanos;
            into.memory += cluster.memory;
            into.allowed.clone_from(&cluster.allowed);
            for (j, time) in &cluster.near {
                if merged[*j] != merged[i] {
                    *into.near.entry(merged[*j]).or_default() += time;
                }
            }
        }
        Some(coarser)
    }

    /// Simple ways to place clusters, as places of groups.
    fn beginnings(&self, level: &Level) -> Vec<Vec<usize>> {
        let mut order: Vec<usize> = (0..level.len()).collect();
        order.sort_by(|a, b| level[*a].position.total_cmp(&level[*b].position));
        let together = vec![0; level.len()];
        let mut in_turn = vec![0; level.len()];
        for (turn, cluster) in order.iter().enumerate() {
            in_turn[*cluster] = turn % self.tasks;
        }
        let by = |weight: &dyn Fn(&Cluster) -> u64| {
            let total: u64 = level.iter().map(weight).sum();
            let mut places = vec![0; level.len()];
            let mut before = 0;
            for cluster in &order {
                let middle = before + weight(&level[*cluster]) / 2;
                let place = middle as u128 * self.tasks as u128 / u128::from(total.max(1));
                places[*cluster] = (place as usize).min(self.tasks - 1);
                before += weight(&level[*cluster]);
            }
            places
        };
        let mut all = vec![
            together,
            by(&|c| c.nanos),
            by(&|c| c.memory.saturating_add(1)),
            in_turn,
        ];
        all.extend((0..level.len()).map(|seed| self.grow(level, seed)));
        all.into_iter()
            .map(|places| {
                let mut of_groups = vec![0; self.costs.groups.len()];
                for (cluster, place) in level.iter().zip(places) {
                    let allowed = cluster.allowed.as_slice();
                    let place = match allowed {
                        [] => place,
                        _ if allowed.contains(&place) => place,
                        _ => allowed[0],
                    };
                    for group in &cluster.groups {
                        of_groups[*group] = place;
                    }
                }
                of_groups
            })
            .collect()
    }

    /// Lets one task after the other grow from a seed along what is exchanged most, until it has its
    /// share; the first begins with cluster `seed`.
    fn grow(&self, level: &Level, seed: usize) -> Vec<usize> {
        let mut at: Vec<Option<usize>> = vec![None; level.len()];
        for (cluster, at) in level.iter().zip(&mut at) {
            *at = cluster.allowed.first().copied();
        }
        let share = self.total / self.tasks as u64;
        let mut seed = Some(seed).filter(|s| at[*s].is_none());
        // The last task takes what is left.
        for task in 0..self.tasks - 1 {
            let (mut nanos, mut memory) = (0, 0);
            while nanos < share {
                let to = |i: usize, wanted: Option<usize>| -> u64 {
                    let near = level[i].near.iter();
                    near.filter(|(j, _)| at[**j] == wanted)
                        .map(|(_, t)| *t)
                        .sum()
                };
                let fits = |i: &usize| at[*i].is_none() && memory + level[*i].memory <= self.limit;
                let free = (0..level.len()).filter(fits);
                let near = free.max_by_key(|i| (to(*i, Some(task)), usize::MAX - i));
                let Some(next) = seed.take().filter(fits).or(near) else {
                    break;
                };
                at[next] = Some(task);
                nanos += level[next].nanos;
                memory += level[next].memory;
            }
            let free = (0..level.len()).filter(|i| at[*i].is_none());
            seed = free.max_by_key(|i| (level[*i].nanos, usize::MAX - i));
        }
        at.into_iter()
            .map(|p| p.unwrap_or(self.tasks - 1))
            .collect()
    }

    fn score(&self, places: &[usize]) -> Score {
        let found = self.costs.estimate(places, self.tasks, self.machine);
        let over = found.memory.iter().take(self.tasks);
        let over = over.map(|m| m.saturating_sub(self.limit)).sum();
        let latency = self.machine.latency_nanos * found.transfers as u64;
        let travel = self.machine.transfer(found.bytes) + latency;
        (over, found.nanos + travel / TRAVEL_SHARE)
    }

    /// Passes until one does not help.
    fn improve(&self, level: &Level, mut places: Vec<usize>) -> Vec<usize> {
        let mut score = self.score(&places);
        for _ in 0..PASSES {
            let (found, better) = self.pass(level, &places, score);
            if found >= score {
                break;
            }
            (score, places) = (found, better);
        }
        if level.len() <= self.tasks * CLUSTERS_PER_TASK * 2 {
            places = self.climb(level, places, score);
        }
        places
    }

    /// Moves each cluster once, the best move first; the best point on the way.
    fn pass(&self, level: &Level, begin: &[usize], score: Score) -> (Score, Vec<usize>) {
        let mut state = Moves::new(self, level, begin);
        let (mut best, mut best_places) = (score, begin.to_vec());
        let mut since = 0;
        while let Some((cluster, to)) = state.next() {
            state.apply(cluster, to);
            let found = self.score(&state.places);
            since += 1;
            if found < best {
                (best, since) = (found, 0);
                best_places.clone_from(&state.places);
            }
            if since >= PATIENCE {
                break;
            }
        }
        (best, best_places)
    }

    /// Takes every move of one cluster that makes the simulated step better.
    fn climb(&self, level: &Level, mut places: Vec<usize>, mut score: Score) -> Vec<usize> {
        for _ in 0..PASSES {
            let before = score;
            for cluster in level {
                let Some(first) = cluster.groups.first() else {
                    continue;
                };
                for to in 0..self.tasks {
                    let allowed = cluster.allowed.is_empty() || cluster.allowed.contains(&to);
                    if to == places[*first] || !allowed {
                        continue;
                    }
                    let mut moved = places.clone();
                    cluster.groups.iter().for_each(|g| moved[*g] = to);
                    let found = self.score(&moved);
                    if found < score {
                        (score, places) = (found, moved);
                    }
                }
            }
            if score == before {
                break;
            }
        }
        places
    }
}

/// The state of a pass.
struct Moves<'a> {
    search: &'a Search<'a>,
    level: &'a Level,
    /// By group.
    places: Vec<usize>,
    /// By cluster.
    at: Vec<usize>,
    locked: Vec<bool>,
    busy: Vec<u64>,
    memory: Vec<u64>,
}

impl<'a> Moves<'a> {
    fn new(search: &'a Search<'a>, level: &'a Level, places: &[usize]) -> Moves<'a> {
        let count = search.costs.num_places(search.tasks);
        let place = |c: &Cluster| c.groups.first().map_or(0, |g| places[*g]);
        let at: Vec<usize> = level.iter().map(place).collect();
        let (mut busy, mut memory) = (vec![0; count], vec![0; count]);
        for (cluster, place) in level.iter().zip(&at) {
            busy[*place] += cluster.nanos;
            memory[*place] += cluster.memory;
        }
        Moves {
            search,
            level,
            places: places.to_vec(),
            locked: level.iter().map(|c| c.allowed.len() == 1).collect(),
            at,
            busy,
            memory,
        }
    }

    /// The best move of a cluster that did not move yet.
    fn next(&self) -> Option<(usize, usize)> {
        let mut best: Option<(i128, usize, usize)> = None;
        for (c, cluster) in self.level.iter().enumerate() {
            if self.locked[c] {
                continue;
            }
            let mut near = vec![0i128; self.busy.len()];
            for (other, time) in &cluster.near {
                near[self.at[*other]] += i128::from(*time);
            }
            for to in 0..self.search.tasks {
                let allowed = cluster.allowed.is_empty() || cluster.allowed.contains(&to);
                // One too many is allowed on the way: two may want to change places.
                let full = cluster.memory > 0 && self.memory[to] > self.search.limit;
                if to == self.at[c] || !allowed || full {
                    continue;
                }
                let gain = near[to] - near[self.at[c]] + self.evened(cluster.nanos, self.at[c], to);
                if best.is_none_or(|(most, _, _)| gain > most) {
                    best = Some((gain, c, to));
                }
            }
        }
        best.map(|(_, cluster, to)| (cluster, to))
    }

    /// What balance gains when work moves: the sum of squares over the whole is all work if one task
    /// does it, and a task's share if all do the same.
    fn evened(&self, nanos: u64, from: usize, to: usize) -> i128 {
        let square = |n: i128| n * n;
        let (a, b, n) = (
            self.busy[from] as i128,
            self.busy[to] as i128,
            nanos as i128,
        );
        let saved = square(a) + square(b) - square(a - n) - square(b + n);
        saved / i128::from(self.search.total.max(1))
    }

    fn apply(&mut self, cluster: usize, to: usize) {
        let (moved, from) = (&self.level[cluster], self.at[cluster]);
        for group in &moved.groups {
            self.places[*group] = to;
        }
        self.busy[from] -= moved.nanos;
        self.busy[to] += moved.nanos;
        self.memory[from] -= moved.memory;
        self.memory[to] += moved.memory;
        self.at[cluster] = to;
        self.locked[cluster] = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::{Group, Item};

    /// One node a line: `name group micros kilobytes memory inputs…`; `^name` is a signal, `name@2`
    /// is fixed to task 2. Groups are created by name.
    fn parse(text: &str) -> (CostGraph, Vec<String>) {
        let (mut costs, mut names, mut groups) = (CostGraph::default(), Vec::new(), Vec::new());
        for line in text.lines().map(str::trim).filter(|l| !l.is_empty()) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let number = |i: usize| words[i].parse::<u64>().unwrap();
            let (group, fixed) = match words[1].split_once('@') {
                Some((group, place)) => (group, Some(place.parse::<usize>().unwrap())),
                None => (words[1], None),
            };
            let known = groups.iter().position(|g| g == group);
            let group = known.unwrap_or_else(|| {
                groups.push(group.to_owned());
                costs.groups.push(Group::default());
                groups.len() - 1
            });
            costs.groups[group].memory += number(4);
            costs.groups[group].allowed.extend(fixed);
            let find = |name: &str| names.iter().position(|n| n == name).unwrap();
            let inputs = words[5..].iter().map(|w| match w.strip_prefix('^') {
                Some(name) => (find(name), None),
                None => (find(w), Some(0)),
            });
            costs.items.push(Item {
                group,
                nanos: number(2) * 1000,
                outputs: vec![number(3) * 1000],
                inputs: inputs.collect(),
            });
            names.push(words[0].to_owned());
        }
        costs.link();
        (costs, groups)
    }

    fn check(text: &str, tasks: usize, expected: &str) {
        let (costs, groups) = parse(text);
        let machine = Machine::default();
        let places = split(&costs, tasks, &machine);
        let mut shown = String::new();
        for task in 0..tasks {
            let there = groups.iter().zip(&places).filter(|(_, p)| **p == task);
            let there: Vec<&str> = there.map(|(g, _)| g.as_str()).collect();
            shown += format!("{task}: {}", there.join(" ")).trim();
            shown.push('\n');
        }
        let found = costs.estimate(&places, tasks, &machine);
        let (micros, kilobytes) = (found.nanos / 1000, found.bytes / 1000);
        shown += &format!("{micros} us, {kilobytes} kB in {}\n", found.transfers);
        let expected: Vec<&str> = expected.lines().map(str::trim).collect();
        let expected = expected.join("\n").trim_start().to_owned();
        assert_eq!(shown, expected);
        let turns = costs.estimate(&round_robin(&costs, tasks), tasks, &machine);
        assert!(found.nanos <= turns.nanos, "{found:?} {turns:?}");
    }

    #[test]
    fn branches_that_do_not_need_each_other_run_at_the_same_time() {
        check(
            "x x@0 0 100 0
             a1 a1 3000 100 0 x
             b1 b1 3000 100 0 x
             a2 a2 3000 100 0 a1
             b2 b2 3000 100 0 b1
             a3 a3 3000 100 0 a2
             b3 b3 3000 100 0 b2
             y y@0 10 1 0 a3 b3",
            2,
            "0: x b1 b2 b3 y
             1: a1 a2 a3
             9410 us, 200 kB in 2
             ",
        );
    }

    #[test]
    fn a_chain_stays_together_as_long_as_its_variables_fit() {
        let chain = |memory: u64| {
            format!(
                "x x@0 0 100 0
                 a a 1000 1000 {memory} x
                 b b 1000 10 {memory} a
                 c c 1000 1000 {memory} b
                 d d 1000 1000 {memory} c"
            )
        };
        check(
            &chain(0),
            2,
            "0: x a b c d
             1:
             4000 us, 0 kB in 0
             ",
        );
        // With variables it must be cut: where least travels.
        check(
            &chain(1_000_000),
            2,
            "0: x a b
             1: c d
             4110 us, 10 kB in 1
             ",
        );
    }

    #[test]
    fn reading_and_changing_a_variable_go_together() {
        // Forward and back through two layers: what is alive between them crosses once each way.
        check(
            "x x@0 0 500 0
             w1 w1 5 4000 4000000
             h h 2000 200 0 x w1
             w2 w2 5 4000 4000000
             y y 2000 50 0 h w2
             dh dh 2000 200 0 y w2
             dw2 dw2 2000 4000 0 y h
             u2 w2 500 0 0 dw2
             dw1 dw1 2000 4000 0 dh x
             u1 w1 500 0 0 dw1",
            2,
            "0: x w1 h dw1
             1: w2 y dh dw2
             9105 us, 400 kB in 2
             ",
        );
    }

    #[test]
    fn a_wide_layer_in_parts_goes_to_as_many_tasks() {
        let mut text = "x x@0 0 100 0\n".to_owned();
        for i in 0..8 {
            text += &format!("w{i} w{i} 1 1000 1000000\np{i} p{i} 4000 10 0 x w{i}\n");
        }
        text += "y y@0 1 1 0 p0 p1 p2 p3 p4 p5 p6 p7";
        let (costs, _) = parse(&text);
        let machine = Machine::default();
        let places = split(&costs, 4, &machine);
        let found = costs.estimate(&places, 4, &machine);
        assert_eq!(found.memory, [2_000_000; 4]);
        assert!(found.nanos < 9_000_000, "{found:?}");
        assert_eq!(places, split(&costs, 4, &machine));
        let turns = costs.estimate(&round_robin(&costs, 4), 4, &machine);
        assert!(found.bytes < turns.bytes / 5, "{found:?} {turns:?}");
    }
}

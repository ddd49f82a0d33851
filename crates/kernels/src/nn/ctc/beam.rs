//! `CTCBeamSearchDecoder`: the most probable label sequences, of those that a beam of prefixes
//! keeps.

use super::{Inputs, floats, invalid, log_add, set_paths, to_decode};
use downpour_graph::Result;
use downpour_runtime::{Built, KernelBuilder, OpContext, parallel_ranges};
use std::collections::HashMap;

const NONE: f64 = f64::NEG_INFINITY;

#[derive(Clone, Copy)]
struct Options {
    width: usize,
    top: usize,
    merge: bool,
}

pub(super) fn build(b: &KernelBuilder<'_>) -> Result<Built> {
    let attrs = b.attrs();
    let options = Options {
        width: attrs.int("beam_width")?.max(0) as usize,
        top: attrs.int("top_paths")?.max(0) as usize,
        merge: attrs.bool("merge_repeated")?,
    };
    Built::costly(move |ctx| run(ctx, options))
}

fn run(ctx: &mut OpContext<'_>, o: Options) -> Result<()> {
    let dtype = ctx.input(0)?.dtype();
    let (inputs, lengths) = to_decode(ctx)?;
    let mut found: Vec<Found> = Vec::new();
    found.resize_with(inputs.batch, || Ok((Vec::new(), Vec::new())));
    parallel_ranges(&mut found, 1, 1, |first, entries| {
        for (i, entry) in entries.iter_mut().enumerate() {
            *entry = decode(&inputs, first + i, lengths[first + i], o);
        }
    });
    let mut paths = vec![Vec::with_capacity(inputs.batch); o.top];
    let mut scores = Vec::with_capacity(inputs.batch * o.top);
    for entry in found {
        let (labels, score) = entry?;
        paths
            .iter_mut()
            .zip(labels)
            .for_each(|(to, path)| to.push(path));
        scores.extend(score);
    }
    set_paths(ctx, &paths)?;
    ctx.set_output(3 * o.top, floats(dtype, scores, [inputs.batch, o.top])?);
    Ok(())
}

type Found = Result<(Vec<Vec<i64>>, Vec<f64>)>;

/// Logarithms of the probabilities of a prefix: ending in a blank, in its label, in either.
#[derive(Clone, Copy)]
struct Chance {
    blank: f64,
    label: f64,
    total: f64,
}

impl Chance {
    const NO: Chance = Chance {
        blank: NONE,
        label: NONE,
        total: NONE,
    };
}

/// A prefix: its last label behind another prefix.
struct Prefix {
    parent: Option<usize>,
    label: usize,
    old: Chance,
    new: Chance,
}

/// All prefixes seen, and those the beam holds.
struct Beam {
    all: Vec<Prefix>,
    children: HashMap<(usize, usize), usize>,
    leaves: Vec<usize>,
}

fn decode(inputs: &Inputs, batch: usize, time: usize, o: Options) -> Found {
    let mut beam = Beam {
        all: vec![Prefix {
            parent: None,
            label: usize::MAX,
            old: Chance::NO,
            new: Chance {
                blank: 0.0,
                label: NONE,
                total: 0.0,
            },
        }],
        children: HashMap::new(),
        leaves: vec![0],
    };
    for t in 0..time {
        beam.step(inputs.at(t, batch), o.width);
    }
    if o.top > o.width {
        return invalid("requested more paths than the beam width.");
    }
    if o.top > beam.leaves.len() {
        return invalid("Less leaves in the beam search than requested.");
    }
    beam.sort();
    let best = &beam.leaves[..o.top];
    let paths = best.iter().map(|&i| beam.path(i, o.merge)).collect();
    let scores = best.iter().map(|&i| beam.all[i].new.total).collect();
    Ok((paths, scores))
}

impl Beam {
    /// The best first; those equally good in the order they came.
    fn sort(&mut self) {
        let all = &self.all;
        self.leaves
            .sort_by(|&a, &b| all[b].new.total.total_cmp(&all[a].new.total));
    }

    fn step(&mut self, row: &[f64], width: usize) {
        let Some(blank) = row.len().checked_sub(1) else {
            return;
        };
        let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let norm = top + row.iter().map(|v| (v - top).exp()).sum::<f64>().ln();
        self.sort();
        let branches = std::mem::take(&mut self.leaves);
        for &i in &branches {
            self.all[i].old = self.all[i].new;
        }
        for &i in &branches {
            let (parent, label) = (self.all[i].parent, self.all[i].label);
            let mut new = self.all[i].new;
            if let Some(p) = parent {
                let before = &self.all[p];
                if before.new.total != NONE {
                    // A label that repeats its predecessor's needs a blank between.
                    let from = match before.label == label {
                        true => before.old.blank,
                        false => before.old.total,
                    };
                    new.label = log_add(new.label, from);
                }
                new.label += row[label] - norm;
            }
            new.blank = self.all[i].old.total + row[blank] - norm;
            new.total = log_add(new.blank, new.label);
            self.all[i].new = new;
            self.leaves.push(i);
        }
        let mut heap = Lowest::new(self, width);
        for &i in &branches {
            if !heap.admits(self, self.all[i].old.total) {
                continue;
            }
            for (label, logit) in row[..blank].iter().enumerate() {
                let child = self.child(i, label);
                if self.all[child].new.total != NONE {
                    continue;
                }
                let parent = &self.all[i];
                let from = match parent.label == label {
                    true => parent.old.blank,
                    false => parent.old.total,
                };
                let chance = logit - norm + from;
                self.all[child].new = Chance {
                    blank: NONE,
                    label: chance,
                    total: chance,
                };
                if heap.admits(self, chance) {
                    heap.push(self, child);
                } else {
                    self.all[child].old = Chance::NO;
                    self.all[child].new = Chance::NO;
                }
            }
        }
        self.leaves = heap.members;
    }

    fn child(&mut self, parent: usize, label: usize) -> usize {
        let next = self.all.len();
        let found = *self.children.entry((parent, label)).or_insert(next);
        if found == next {
            self.all.push(Prefix {
                parent: Some(parent),
                label,
                old: Chance::NO,
                new: Chance::NO,
            });
        }
        found
    }

    fn path(&self, leaf: usize, merge: bool) -> Vec<i64> {
        let (mut labels, mut before, mut at) = (Vec::new(), usize::MAX, leaf);
        while let Some(parent) = self.all[at].parent {
            let label = self.all[at].label;
            if !merge || label != before {
                labels.push(label as i64);
            }
            before = label;
            at = parent;
        }
        labels.reverse();
        labels
    }
}

/// The beam while it grows: at most `width` prefixes, and which of them is the worst.
struct Lowest {
    members: Vec<usize>,
    width: usize,
    /// Where the worst stands, once the beam is full.
    bottom: Option<usize>,
}

impl Lowest {
    fn new(beam: &mut Beam, width: usize) -> Lowest {
        let mut lowest = Lowest {
            members: std::mem::take(&mut beam.leaves),
            width,
            bottom: None,
        };
        lowest.find_bottom(beam);
        lowest
    }

    fn find_bottom(&mut self, beam: &Beam) {
        let total = |i: usize| beam.all[self.members[i]].new.total;
        self.bottom = match self.members.len() < self.width {
            true => None,
            false => (0..self.members.len()).min_by(|&a, &b| total(a).total_cmp(&total(b))),
        };
    }

    fn admits(&self, beam: &Beam, total: f64) -> bool {
        total != NONE
            && match self.bottom {
                None => self.members.len() < self.width,
                Some(b) => total > beam.all[self.members[b]].new.total,
            }
    }

    fn push(&mut self, beam: &mut Beam, prefix: usize) {
        match self.bottom {
            None => self.members.push(prefix),
            Some(bottom) => {
                beam.all[self.members[bottom]].new = Chance::NO;
                self.members[bottom] = prefix;
            }
        }
        self.find_bottom(beam);
    }
}

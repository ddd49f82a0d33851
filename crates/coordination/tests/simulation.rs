//! Elections from a seed: members with clocks that drift, that are paused, cut off and killed, and a
//! service that stops for a while. `DOWNPOUR_SIM_SEED=N` runs one, `DOWNPOUR_SIM_SEEDS=N` so many.
#![allow(
    clippy::disallowed_methods,
    reason = "a test is told by its environment"
)]

use downpour_coordination::{Candidate, Record, Reply, Request, Version};
use std::collections::BTreeMap;
use std::time::Duration;

const LEASE: u64 = 1000;
const MEMBERS: usize = 4;
/// Faults begin until then; the last ends three leases later.
const HEALED: u64 = 20_000;
const END: u64 = HEALED + 7 * LEASE;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

struct Member {
    name: String,
    candidate: Candidate,
    /// Per mille by which its clock is fast or slow, at most 4 %: within the margin.
    rate: u64,
    paused_until: u64,
    cut_until: u64,
    /// Counts requests: a reply to an earlier one is ignored.
    number: u64,
    deadline: Option<u64>,
    lives: u64,
}

impl Member {
    fn clock(&self, now: u64) -> Duration {
        Duration::from_micros(now * self.rate)
    }
}

enum Message {
    Request(usize, u64, u64, Request),
    Reply(usize, u64, u64, Reply),
    /// What a chief writes to a place that knows of epochs.
    Write(u64),
}

#[derive(Debug, Default)]
struct Seen {
    takeovers: usize,
    fenced: usize,
    writes: usize,
    commits: usize,
}

/// Runs one election.
fn simulate(seed: u64) -> Result<Seen, String> {
    let mut random = Random(seed);
    let lease = Duration::from_millis(LEASE);
    let mut members: Vec<Member> = (0..MEMBERS)
        .map(|i| Member {
            name: format!("member {i}"),
            candidate: Candidate::new(&format!("member {i}"), lease),
            rate: 960 + random.below(81),
            paused_until: 0,
            cut_until: 0,
            number: 0,
            deadline: None,
            lives: 0,
        })
        .collect();
    let mut register = (0, Record::default());
    let (mut service_down_until, mut highest_written) = (0, 0);
    let mut flying: BTreeMap<(u64, u64), Message> = BTreeMap::new();
    let mut order = 0;
    let mut holders: BTreeMap<u64, String> = BTreeMap::new();
    let mut seen = Seen::default();
    let mut vacant_since = Some(0);
    for now in 0..END {
        let has_faults = now < HEALED;
        if has_faults && random.once_in(6000) {
            service_down_until = now + random.below(3 * LEASE);
        }
        while let Some(entry) = flying.first_entry().filter(|e| e.key().0 <= now) {
            match entry.remove() {
                Message::Request(from, life, number, request) => {
                    if now < service_down_until || now < members[from].cut_until {
                        continue;
                    }
                    let (version, record) = &mut register;
                    let reply = match request {
                        Request::Read => Reply::Holds(Version(*version), record.clone()),
                        Request::Swap(expected, new) if expected == Version(*version) => {
                            if new.checkpoint != record.checkpoint {
                                let owner = (new.epoch, &new.holder);
                                if owner != (record.epoch, &record.holder) {
                                    return Err(format!(
                                        "at {now}: {new:?} commits after {record:?}"
                                    ));
                                }
                                seen.commits += 1;
                            }
                            *version += 1;
                            *record = new;
                            Reply::Swapped(Version(*version))
                        }
                        Request::Swap(..) => Reply::Conflict,
                    };
                    order += 1;
                    let late = now + 1 + random.below(40);
                    flying.insert((late, order), Message::Reply(from, life, number, reply));
                }
                Message::Reply(to, life, number, reply) => {
                    let member = &mut members[to];
                    let is_awaited = (member.lives, member.number) == (life, number);
                    if now < member.cut_until || !is_awaited {
                        continue;
                    }
                    if now < member.paused_until {
                        // It lies in a buffer until the member goes on.
                        order += 1;
                        let later = (member.paused_until, order);
                        flying.insert(later, Message::Reply(to, life, number, reply));
                        continue;
                    }
                    if member.deadline.take().is_some() {
                        member.candidate.answered(reply, member.clock(now));
                    }
                }
                Message::Write(epoch) => {
                    seen.writes += 1;
                    match epoch < highest_written {
                        true => seen.fenced += 1,
                        false => highest_written = epoch,
                    }
                }
            }
        }
        let mut chiefs = Vec::new();
        for (i, member) in members.iter_mut().enumerate() {
            if has_faults {
                if random.once_in(9000) {
                    member.paused_until = now + random.below(3 * LEASE);
                }
                if random.once_in(9000) {
                    member.cut_until = now + random.below(3 * LEASE);
                }
                if random.once_in(20_000) {
                    member.candidate = Candidate::new(&member.name, lease);
                    member.lives += 1;
                    member.deadline = None;
                }
            }
            let clock = member.clock(now);
            // A paused member does nothing, but what it believed counts.
            if let Some(epoch) = member.candidate.epoch(clock) {
                chiefs.push((i, epoch));
                // A life that began anew under the same name is another holder.
                let holder = format!("{} life {}", member.name, member.lives);
                let first = holders.entry(epoch).or_insert_with(|| holder.clone());
                if *first != holder {
                    return Err(format!("at {now}: {first} and {holder} held epoch {epoch}"));
                }
                if now >= member.paused_until && random.once_in(500) {
                    let checkpoint = format!("{epoch} {now}");
                    member.candidate.commit(epoch, &checkpoint, clock);
                }
                if now >= member.paused_until && random.once_in(50) {
                    order += 1;
                    // Longer under way than a lease, some of them.
                    let late = now + 1 + random.below(2 * LEASE);
                    flying.insert((late, order), Message::Write(epoch));
                }
            }
            if now < member.paused_until {
                continue;
            }
            if member.deadline.is_some_and(|deadline| now >= deadline) {
                member.deadline = None;
                member.candidate.answered(Reply::Unknown, clock);
            }
            if let Some(request) = member.candidate.poll(clock) {
                member.number += 1;
                member.deadline = Some(now + LEASE / 4);
                order += 1;
                // Some arrive after their sender has given them up.
                let slow = if has_faults && random.once_in(20) {
                    2 * LEASE
                } else {
                    40
                };
                let at = now + 1 + random.below(slow);
                let message = Message::Request(i, member.lives, member.number, request);
                flying.insert((at, order), message);
            }
        }
        match chiefs[..] {
            [] => {
                let since = *vacant_since.get_or_insert(now);
                // A fault that began before ends later: all is well when the last has.
                let faults = members.iter().map(|m| m.paused_until.max(m.cut_until));
                let well = faults.fold(HEALED.max(service_down_until), u64::max);
                if now > since.max(well) + 3 * LEASE {
                    return Err(format!("nobody is chief from {since} to {now}"));
                }
            }
            [_] => vacant_since = None,
            _ => return Err(format!("chiefs at {now}: {chiefs:?}")),
        }
    }
    seen.takeovers = holders.len();
    Ok(seen)
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[test]
fn one_chief_at_a_time_and_one_soon_after_all_is_well() {
    let seeds = match number("DOWNPOUR_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("DOWNPOUR_SIM_SEEDS").unwrap_or(1000),
    };
    let (mut takeovers, mut fenced, mut writes, mut commits) = (0, 0, 0, 0);
    let count = seeds.end - seeds.start;
    for seed in seeds {
        let seen = simulate(seed).unwrap_or_else(|rule| {
            panic!("{rule}; again: DOWNPOUR_SIM_SEED={seed} cargo test -p downpour-coordination --test simulation")
        });
        takeovers += seen.takeovers;
        fenced += seen.fenced;
        writes += seen.writes;
        commits += seen.commits;
    }
    // The faults did what they are for.
    if count >= 100 {
        assert!(takeovers as u64 > 3 * count, "{takeovers} takeovers");
        assert!(commits as u64 > 3 * count, "{commits} commits");
        assert!(
            fenced > 0 && fenced < writes / 2,
            "{fenced} of {writes} fenced"
        );
    }
}

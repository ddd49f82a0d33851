//! What must hold of the ledger, over seeded orders of everything that can happen to them: workers ask,
//! finish, fall silent, finish late, are restarted; the ledger is saved and read again.

use super::{Answer, Division, Done, Holder, Ledger, Portion};
use std::collections::BTreeMap;

/// Orders tried for each division.
const SEEDS: u64 = 24;
const EVENTS: usize = 400;
const WORKERS: u64 = 5;

/// Numbers that follow from a seed.
struct Draws(u64);

impl Draws {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % limit.max(1)
    }
}

/// The ledger, and what really happened.
struct World {
    ledger: Ledger,
    division: Division,
    lives: Vec<u64>,
    /// What workers believe that they hold, also in lives that are over.
    hands: Vec<(Holder, Portion)>,
    completed: BTreeMap<u64, u64>,
    /// Leases that ended because their portion was done.
    settled: u64,
}

impl World {
    fn new(division: Division) -> World {
        World {
            ledger: Ledger::new(division.clone()),
            division,
            lives: vec![0; WORKERS as usize],
            hands: Vec::new(),
            completed: BTreeMap::new(),
            settled: 0,
        }
    }

    fn holder(&self, worker: usize) -> Holder {
        Holder {
            worker: worker as u64,
            life: self.lives[worker],
        }
    }

    fn event(&mut self, draws: &mut Draws) {
        let worker = draws.below(WORKERS as usize);
        let holder = self.holder(worker);
        match draws.below(10) {
            0..4 => {
                if let Answer::Work(portion) = self.ledger.lease(holder) {
                    self.hands.push((holder, portion));
                }
            }
            4..7 => self.finish(draws),
            7 => self.ledger.expire(holder),
            8 => {
                // Restarted: it knows nothing more; what it had sent may still arrive.
                self.lives[worker] += 1;
                if draws.below(2) == 0 {
                    self.hands.retain(|(h, _)| *h != holder);
                }
            }
            _ => {
                self.ledger.renew(holder);
                let text = self.ledger.to_text();
                let read = Ledger::from_text(&text, self.division.clone()).unwrap();
                assert_eq!(read, self.ledger);
            }
        }
    }

    fn finish(&mut self, draws: &mut Draws) {
        if self.hands.is_empty() {
            return;
        }
        let (holder, portion) = self.hands.swap_remove(draws.below(self.hands.len()));
        let leases = self.ledger.out.len();
        let done = self.ledger.done(holder, portion.sequence);
        self.settled += (leases - self.ledger.out.len()) as u64;
        let times = self.completed.entry(portion.sequence).or_default();
        match done {
            Done::First => *times += 1,
            Done::Again => assert_eq!(*times, 1, "{portion:?}"),
            Done::Never => panic!("{portion:?} was handed out"),
        }
    }

    fn check(&self) {
        let (ledger, counts) = (&self.ledger, self.ledger.counts());
        assert!(self.completed.values().all(|times| *times <= 1));
        let done = self.completed.values().sum::<u64>();
        let open = (0..ledger.next).filter(|s| ledger.is_open(*s)).count() as u64;
        assert_eq!((counts.completed, done + open), (done, ledger.next));
        // Every time that something was handed out is accounted for, by why and by how it ended.
        assert_eq!(counts.issued, ledger.next + counts.reissued + counts.copied);
        let out = ledger.out.len() as u64;
        assert_eq!(counts.issued, out + counts.expired + self.settled);
        assert!(
            ledger
                .out
                .iter()
                .all(|l| !ledger.back.contains(&l.sequence))
        );
        let per_epoch = self.division.per_epoch();
        let is_done = |s: u64| self.completed.get(&s) == Some(&1);
        let epochs = (0..).take_while(|e| (e * per_epoch..(e + 1) * per_epoch).all(is_done));
        assert_eq!(ledger.epochs_done(), epochs.count() as u64);
        if !self.division.overlap {
            assert!(ledger.next <= (ledger.epochs_done() + 1) * per_epoch);
        }
    }
}

fn explore(division: &Division) {
    for seed in 0..SEEDS {
        let (mut world, mut draws) = (World::new(division.clone()), Draws(seed));
        for _ in 0..EVENTS {
            world.event(&mut draws);
            world.check();
        }
        // All workers die but one, which does the rest.
        (0..WORKERS as usize).for_each(|w| world.ledger.expire(world.holder(w)));
        world.hands.clear();
        let last = Holder {
            worker: 0,
            life: u64::MAX,
        };
        for _ in 0..EVENTS {
            // Leases of lives that nobody remembers come back when they fall silent.
            let holders: Vec<Holder> = world.ledger.holders().map(|(h, _)| h).collect();
            holders.into_iter().for_each(|h| world.ledger.expire(h));
            let Answer::Work(portion) = world.ledger.lease(last) else {
                break;
            };
            world.hands.push((last, portion));
            world.finish(&mut draws);
            world.check();
        }
        if let Some(epochs) = division.epochs {
            assert!(world.ledger.is_over(), "seed {seed}");
            assert_eq!(world.ledger.epochs_done(), epochs);
            assert_eq!(
                world.ledger.counts().completed,
                epochs * division.per_epoch()
            );
        }
    }
}

#[test]
fn every_portion_of_every_epoch_is_completed_once() {
    explore(&Division::new(95, 10).epochs(4));
}

#[test]
fn so_it_is_without_end_and_with_one_portion() {
    explore(&Division::new(30, 10));
    explore(&Division::new(1, 10).epochs(20));
}

#[test]
fn so_it_is_where_epochs_come_in_turn_and_the_last_portions_are_copied() {
    explore(&Division::new(95, 10).epochs(4).in_turn().copies(2));
    explore(&Division::new(20, 10).epochs(9).in_turn().copies(3));
}
